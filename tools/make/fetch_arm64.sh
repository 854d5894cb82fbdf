#!/bin/sh
# fetch_arm64.sh FOLDER PACKAGE...: Debian's packages for arm64, unpacked into FOLDER for programs
# that run under an emulator. Nothing is installed and apt's own state stays as it is: no root.
set -eu
folder=$1
shift
[ -e "$folder/usr" ] && exit 0
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "no apt-get here" >&2; exit 1; }
mkdir -p "$(dirname "$folder")"
folder=$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")
own=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$own"' EXIT
mkdir -p "$own/lists/partial" "$own/cache/archives/partial" "$own/root"
apt_arm64() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= \
        -o Dir::State::lists="$own/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$own/cache" "$@"
}
(cd "$own" && apt_arm64 update && apt_arm64 download "$@") >"$own/log" 2>&1 || { tail -n 5 "$own/log" >&2; exit 1; }
for package in "$own"/*.deb; do
    dpkg-deb -x "$package" "$own/root"
done
mv -T "$own/root" "$folder"
