#!/bin/sh
# Compiles every public header alone in every dialect that it promises.
set -eu
try() {
    compiler=$1
    shift
    command -v "$compiler" >/dev/null || { echo "missing: $compiler" >&2; exit 1; }
    for header in include/tq/*.h; do
        "$compiler" "$@" -Iinclude -Wall -Wextra -Wpedantic -Wpadded -Werror -fsyntax-only "$header"
    done
    echo "ok: $compiler $*"
}
for std in c99 c11; do
    for compiler in gcc clang; do
        try "$compiler" -x c "-std=$std" -Wc++-compat
    done
done
for std in c++11 c++17; do
    for compiler in g++ clang++; do
        try "$compiler" -x c++ "-std=$std"
    done
done
