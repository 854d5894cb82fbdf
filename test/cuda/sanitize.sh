#!/bin/sh
# sanitize.sh CHECK_CUDA TOOLS GROUPS: the tools of compute-sanitizer over groups of check_cuda,
# racecheck over those of CHECK_CUDA_racecheck (tools/make/cuda.mk). A line for every pair; fails
# when one found something, could not run, or took SECONDS_EACH (300).
set -u
check=$1
tools=$2
groups=$3
sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer}
command -v "$sanitizer" >/dev/null || {
    echo "sanitize.sh: no $sanitizer" >&2
    exit 1
}
failed=0
log=$(mktemp)

for tool in $tools; do
    for group in $groups; do
        extra=
        program=$check
        [ "$tool" != racecheck ] || program=${check}_racecheck
        [ "$tool" != synccheck ] || extra='--num-cuda-barriers 4096'
        start=$(date +%s)
        # shellcheck disable=SC2086
        timeout "${SECONDS_EACH:-300}" "$sanitizer" --tool "$tool" $extra --error-exitcode 9 \
            "$program" "$group" >"$log" 2>&1
        code=$?
        verdict=ok
        if [ $code = 124 ]; then
            verdict='TOOK TOO LONG'
        elif [ $code != 0 ]; then
            verdict="FAILED ($code)"
        fi
        printf '%-9s %-16s %s, %s, %s s\n' "$tool" "$group" "$verdict" \
            "$(grep -h 'SUMMARY' "$log" | sed 's/=* *//' | tr '\n' ' ')" "$(($(date +%s) - start))"
        case $verdict in
        ok*) ;;
        *)
            failed=1
            grep -v '^$' "$log" | head -40
            ;;
        esac
    done
done
rm -f "$log"
exit $failed
