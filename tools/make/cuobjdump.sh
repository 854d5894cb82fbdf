#!/bin/sh
# cuobjdump.sh FOLDER [CUDA_HOME]: prints the command that shows what CUDA objects hold: of the
# machine, of the toolkit, or of NVIDIA's Python package, unpacked into FOLDER.
set -eu
folder=$1
home=${2:-}
find_it() {
    for candidate in "${CUOBJDUMP:-}" "$(command -v cuobjdump || true)" "$home/bin/cuobjdump" \
        "$folder/nvidia/cu13/bin/cuobjdump"; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}
find_it || { sh "$(dirname "$0")/fetch_cuobjdump.sh" "$folder" && find_it; }
