#!/bin/sh
# fetch_cuobjdump.sh FOLDER: NVIDIA's Python packages of cuobjdump and nvdisasm, unpacked into
# FOLDER. Two targets of one make may ask for them at once: each unpacks into a folder of its own,
# and the first to be done gives its folder the name, so that FOLDER is whole or is not there.
set -eu
folder=$1
python=${PYTHON:-python3}
mkdir -p "$(dirname "$folder")"
own=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$own"' EXIT
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$own" \
    'nvidia-cuda-cuobjdump>=13,<14' 'nvidia-cuda-nvdisasm>=13,<14' >&2
for wheel in "$own"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$own"
    rm "$wheel"
done
chmod 755 "$own"
chmod +x "$own"/nvidia/cu13/bin/*
# Fails where another was first: a folder takes the place of an empty one only.
mv -T "$own" "$folder" 2>/dev/null || [ -x "$folder/nvidia/cu13/bin/cuobjdump" ]
