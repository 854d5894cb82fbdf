#!/bin/sh
# bindings.sh FOLDER: the Python and Rust examples against a library installed under FOLDER.
set -eu
dir=$(mkdir -p "$1" && cd "$1" && pwd)
make=${MAKE:-make}
rm -rf "${dir:?}/tree"
"$make" --no-print-directory -s install PREFIX="$dir/tree" >/dev/null
lib=$dir/tree/lib
TURBOQUANT_LIB=$lib/libturboquant.so.0 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=examples/python \
    python3 -m unittest -q test_turboquant
echo "ok: Python by ctypes"
command -v cargo >/dev/null || { echo "missing: cargo" >&2; exit 1; }
TURBOQUANT_LIB_DIR=$lib CARGO_TARGET_DIR=$dir/cargo cargo test --offline --quiet --manifest-path examples/rust/Cargo.toml
echo "ok: Rust by extern C"
