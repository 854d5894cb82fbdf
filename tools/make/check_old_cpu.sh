#!/bin/sh
# check_old_cpu.sh MODEL LEVEL OLD_CPU PROGRAM...: programs on an emulated x86-64 CPU.
# LEVEL: none (no AVX) or avx2.
set -u
model=$1
level=$2
old_cpu=$3
shift 3
log=$old_cpu.$model.log
emulate() {
    qemu-x86_64 -cpu "$model" "$@" 2>&1
}
if [ "$level" = none ] && emulate "$old_cpu" avx >/dev/null; then
    echo "the emulator runs AVX on a $model: it proves nothing" >&2
    exit 1
fi
emulate "$old_cpu" "$level" >/dev/null || { echo "FAILED: features of a $model" >&2; exit 1; }
for program in "$@"; do
    TQ_TEST_LEVEL=best emulate "$program" >"$log" || {
        tail -n 30 "$log"
        echo "FAILED on a $model: $program" >&2
        exit 1
    }
    echo "$model: $(basename "$program"): $(grep -c '       OK' "$log") tests"
done
