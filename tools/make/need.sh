#!/bin/sh
# need.sh build|test|install PACKAGE...: installs the packages that are missing where this
# is Debian and we are root, else names them. A machine without dpkg is asked by compiling.
set -u
mode=$1
shift

has_header() {
    # shellcheck disable=SC2086
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n#include <%s>\n' "$1" |
        ${CC:-cc} ${CFLAGS:-} -E -x c - >/dev/null 2>&1
}

missing() {
    for package in "$@"; do
        case $package in
        gcc) command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null || echo gcc libc6-dev ;;
        make) command -v make >/dev/null || echo make ;;
        python3 | clang | clang-format | pkg-config | cmake | cargo) command -v "$package" >/dev/null || echo "$package" ;;
        g++) command -v g++ >/dev/null || echo g++ ;;
        abigail-tools) command -v abidiff >/dev/null || echo "$package" ;;
        librandom123-dev) has_header Random123/philox.h || echo "$package" ;;
        libxxhash-dev) has_header xxhash.h || echo "$package" ;;
        libcmocka-dev) has_header cmocka.h || echo "$package" ;;
        libcjson-dev) has_header cjson/cJSON.h || echo "$package" ;;
        libclang-rt-14-dev)
            if command -v clang >/dev/null; then
                [ -n "$(find "$(clang -print-resource-dir)" -name '*fuzzer*' 2>/dev/null | head -n 1)" ] || echo "$package"
            else
                echo "$package"
            fi ;;
        *) dpkg -s "$package" >/dev/null 2>&1 || echo "$package" ;;
        esac
    done
}

list=$(missing "$@" | tr '\n' ' ')
[ -z "${list# }" ] && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing: $list"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q $list >/dev/null 2>&1 ||
        { apt-get update -q >/dev/null 2>&1 &&
          DEBIAN_FRONTEND=noninteractive apt-get install -y -q $list >/dev/null; } || {
        echo "could not install: $list" >&2
        exit 1
    }
    exit 0
fi
echo "missing for '$mode': $list" >&2
echo "on Debian: sudo apt-get install $list" >&2
exit 1
