#!/bin/sh
# check_symbols.sh SHARED STATIC LIST: exports of the shared library are those of LIST, all
# globals of the static one carry our prefixes or lie in the C++ namespace tqi.
set -eu
nm -D --defined-only "$1" | awk '$2 ~ /[TDBR]/ { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort > "$1.exports"
if ! diff -u "$3" "$1.exports"; then
    echo "the exports differ from $3: change the list, the version script and CHANGELOG together" >&2
    exit 1
fi
stray=$(nm --defined-only "$2" 2>/dev/null | awk '$2 ~ /^[TDBRC]$/ { print $3 }' | grep -Ev '^(tq|tqi|tqk)_|^_Z(NK?3tqi|[0-9]+__device_stub__ZN3tqi)' || true)
if [ -n "$stray" ]; then
    echo "globals without prefix in $2: $stray" >&2
    exit 1
fi
echo "$(wc -l < "$3") exports as listed, all globals prefixed"
