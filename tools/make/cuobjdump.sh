#!/bin/sh
# cuobjdump.sh FOLDER [CUDA_HOME]: prints the command that shows what CUDA objects hold: of the
# machine, of the toolkit, or of NVIDIA's Python package, unpacked into FOLDER.
set -eu
folder=$1
home=${2:-}
for candidate in "${CUOBJDUMP:-}" "$(command -v cuobjdump || true)" "$home/bin/cuobjdump" \
    "$folder/nvidia/cu13/bin/cuobjdump"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
        echo "$candidate"
        exit 0
    fi
done
mkdir -p "$folder"
python=${PYTHON:-python3}
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$folder" \
    'nvidia-cuda-cuobjdump>=13,<14' 'nvidia-cuda-nvdisasm>=13,<14' >&2 || exit 1
for wheel in "$folder"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$folder"
done
chmod +x "$folder"/nvidia/cu13/bin/*
echo "$folder/nvidia/cu13/bin/cuobjdump"
