#!/bin/sh
# run.sh FOLDER: installs into staged trees under FOLDER and builds consumers against them
# by every documented way: pkg-config shared and static, CMake shared and static, C and C++.
set -eu
top=$(pwd)
mkdir -p "$1"
root=$(cd "$1" && pwd)
rm -rf "${root:?}"/*
make=${MAKE:-make}
cc=${CC:-cc}
passed=0

ok() {
    passed=$((passed + 1))
    echo "ok: $1"
}
fail() {
    echo "FAILED: $1" >&2
    exit 1
}
put() {
    "$make" --no-print-directory -s install "$@" >"$root/log" 2>&1 || { cat "$root/log"; fail "install $*"; }
}
remove() {
    "$make" --no-print-directory -s uninstall "$@" >"$root/log" 2>&1 || { cat "$root/log"; fail "uninstall $*"; }
}
# A staged .pc file speaks of the final prefix: the sysroot variable puts the stage before it.
pc() {
    stage=$1
    dir=$2
    shift 2
    PKG_CONFIG_SYSROOT_DIR=$stage PKG_CONFIG_LIBDIR=$stage$dir/pkgconfig pkg-config "$@"
}
run() {
    LD_LIBRARY_PATH=$1 "$2" | grep -q '^consumer: ok' || fail "$2"
}

command -v pkg-config >/dev/null || fail "pkg-config is missing"
version=$(sed -n 's/^#define TQ_VERSION_[A-Z]* *\([0-9]*\).*/\1/p' include/tq/tq.h | head -3 | paste -sd.)

stage=$root/stage
prefix=/opt/tq
libdir=$prefix/lib64/multi-arch
put PREFIX=$prefix LIBDIR=$libdir DESTDIR="$stage"
if grep -rl "$root" "$stage" --include='*.pc' --include='*.cmake'; then
    fail "a staged path is baked in"
fi
ok "staged install with another LIBDIR, no staged path inside"

[ "$(pc "$stage" $libdir --modversion turboquant)" = "$version" ] || fail "pkg-config --modversion"
[ -n "$(pc "$stage" $libdir --variable=tq_cuda turboquant)" ] || fail "pkg-config --variable=tq_cuda"
ok "pkg-config --modversion and variables"

strict="-Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2046,SC2086
$cc -std=c99 $strict test/install/consumer.c $(pc "$stage" $libdir --cflags --libs turboquant) -o "$root/c_shared"
run "$stage$libdir" "$root/c_shared"
ok "C99 by pkg-config, shared"
# shellcheck disable=SC2046,SC2086
$cc -std=c99 $strict test/install/consumer.c $(pc "$stage" $libdir --cflags turboquant) \
    -Wl,-Bstatic -L"$stage$libdir" -lturboquant -Wl,-Bdynamic \
    $(pc "$stage" $libdir --static --libs-only-l turboquant | sed 's/-lturboquant//') -o "$root/c_static"
run /nowhere "$root/c_static"
ok "C99 by pkg-config --static"
# shellcheck disable=SC2046,SC2086
c++ -x c++ -std=c++11 $strict test/install/consumer.c -x none $(pc "$stage" $libdir --cflags --libs turboquant) -o "$root/cxx"
run "$stage$libdir" "$root/cxx"
ok "C++11 by pkg-config"

command -v cmake >/dev/null || fail "cmake is missing"
cmake -S test/install -B "$root/cmake" -DCMAKE_PREFIX_PATH="$stage$prefix" \
    -Dturboquant_DIR="$stage$libdir/cmake/turboquant" >"$root/log" 2>&1 || { cat "$root/log"; fail cmake; }
cmake --build "$root/cmake" >"$root/log" 2>&1 || { cat "$root/log"; fail "cmake --build"; }
run "$stage$libdir" "$root/cmake/consumer_shared"
run /nowhere "$root/cmake/consumer_static"
ok "CMake package, shared and static, moved tree"

remove PREFIX=$prefix LIBDIR=$libdir DESTDIR="$stage"
[ -z "$(find "$stage" -type f -o -type l)" ] || fail "uninstall left $(find "$stage" -type f -o -type l)"
ok "uninstall leaves no file"

other=$root/other
mkdir -p "$other/usr/lib" && touch "$other/usr/lib/of-somebody-else"
put PREFIX=/usr DESTDIR="$other"
remove PREFIX=/usr DESTDIR="$other"
[ "$(find "$other" -type f -o -type l)" = "$other/usr/lib/of-somebody-else" ] || fail "uninstall beside other files"
ok "uninstall spares other files"

if "$make" --no-print-directory -s install PREFIX="$root/with blank" >"$root/log" 2>&1; then
    fail "a prefix with a blank was taken"
fi
grep -q blank "$root/log" || fail "no word about the blank"
ok "a prefix with a blank is refused"

cd "$top"
sh test/install/local_scope.sh "$root" "$cc"
ok "loads by full path with local scope beside a library with tq_ symbols"
echo "$passed install tests passed"
