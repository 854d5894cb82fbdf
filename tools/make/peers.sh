#!/bin/sh
# peers.sh FOLDER PACKAGE [SOURCE]: builds ggml's CPU backend for this machine in FOLDER, from
# the sources in a Python source package or from a folder.
set -eu
folder=$1
package=$2
source=${3:-}
rm -rf "$folder"
mkdir -p "$folder/lib"
if [ -z "$source" ]; then
    "${PYTHON:-python3}" -m pip download -q --no-deps --no-binary :all: \
        -d "$folder" "$package" || {
        echo "could not get $package: give GGML_SRC=folder with ggml's sources" >&2
        exit 1
    }
    tar -xzf "$folder"/*.tar.gz -C "$folder" --wildcards '*/ggml/*'
    rm -f "$folder"/*.tar.gz
    source=$(find "$folder" -type d -name ggml -path '*vendor*' | head -n 1)
    : >>"$source/ggml.pc.in" # the package leaves it out
fi
cmake -S "$source" -B "$folder/out" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DBUILD_SHARED_LIBS=OFF -DGGML_STATIC=ON \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF >"$folder/cmake.log"
cmake --build "$folder/out" --target ggml-base ggml-cpu --parallel "${JOBS:-2}" >"$folder/make.log"
find "$folder/out" -name 'libggml*.a' -exec cp {} "$folder/lib" \;
cp -r "$source/include" "$folder/lib/include"
sed -n 's/^set(GGML_VERSION_[MP][A-Z]* *\([0-9]*\))/\1/p' "$source/CMakeLists.txt" |
    paste -sd. >"$folder/lib/version"
echo "ggml $(cat "$folder/lib/version") in $folder/lib"
