#!/bin/sh
# capture.sh [MODEL [OPTION...]]: captures keys and values of a real model, see README.md.
# Everything that is downloaded goes to build/capture, which git ignores.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(dirname -- "$(dirname -- "$here")")
venv=$root/build/capture/venv
python=${PYTHON:-python3}

fail() {
    echo "capture: $1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is missing (Debian: python3, 3.9 or newer)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
    fail "$python is older than 3.9"
# Debian has the module venv without ensurepip unless python3-venv is installed.
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments (Debian: python3-venv)"

if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --only-binary :all: -r "$here/requirements.txt" || fail "cannot install requirements.txt"
    # Written last: an installation that was cut short is made again.
    cp "$here/requirements.txt" "$venv/installed.txt"
fi

if [ $# -gt 0 ]; then
    model=$1
    shift
    set -- --model "$model" "$@"
fi
# No __pycache__ beside the sources.
exec "$venv/bin/python" -B "$here/capture.py" "$@"
