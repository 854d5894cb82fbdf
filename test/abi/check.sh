#!/bin/sh
# check.sh [--write] LIBRARY BASELINE: compares the ABI with the baseline, or writes it.
# The public headers are given, so that changes inside opaque structs do not count.
set -eu
write=
if [ "$1" = --write ]; then
    write=1
    shift
fi
command -v abidw >/dev/null || { echo "missing: abidw (package abigail-tools)" >&2; exit 1; }
new=$(dirname "$1")/new.abi
abidw --headers-dir include --drop-private-types --exported-interfaces-only --no-corpus-path --no-comp-dir-path --short-locs \
    --out-file "$new" "$1"
if [ -n "$write" ]; then
    cp "$new" "$2"
    echo "wrote $2"
    exit 0
fi
if ! abidiff "$2" "$new"; then
    echo "the ABI differs from $2. An intended change also updates the baseline (make abi-baseline)," >&2
    echo "test/abi/exports.txt and layout.c, and has an 'abi:' line in CHANGELOG.md" >&2
    exit 1
fi
echo "ABI equals the baseline: $(grep -c '<function-decl' "$2") functions"
