#!/bin/sh
# fetch_at_once.sh WORK: the disassembler fetched by four at once, the way targets of one parallel
# make ask for it. What each of them finds must run, and runs on while the others are at it. The
# packages are made here: no network. Their programs are long, so that unpacking takes a while.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$1"
mkdir -p "$1"
work=$(cd "$1" && pwd)
real=${PYTHON:-python3}

cat >"$work/python" <<EOF
#!/bin/sh
# In place of Python: packages made at the spot, everything else by Python.
[ "\$2" = pip ] || exec $real "\$@"
while [ "\$1" != -d ]; do shift; done
exec $real "$work/packages.py" "\$2"
EOF
cat >"$work/packages.py" <<'EOF'
import sys
import zipfile

PROGRAMS = {
    # The one asks the other, as cuobjdump asks nvdisasm.
    "cuobjdump": '#!/bin/sh\nexec sh "$(dirname "$0")/nvdisasm"\n',
    "nvdisasm": "#!/bin/sh\n" + "# long\n" * 2000000 + "echo whole\n",
}
for name, text in PROGRAMS.items():
    with zipfile.ZipFile("%s/nvidia_cuda_%s-13.0-py3.whl" % (sys.argv[1], name), "w",
                         zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("nvidia/cu13/bin/" + name, text)
EOF
chmod +x "$work/python"

fetch() {
    sleep "0.$1"
    PYTHON=$work/python sh "$root/tools/make/fetch_cuobjdump.sh" "$work/tool" || return 1
    for _ in 1 2 3; do
        [ "$("$work/tool/nvidia/cu13/bin/cuobjdump")" = whole ] || return 1
    done
}
for i in 1 2 3 4; do
    { fetch "$i" && touch "$work/done.$i"; } >"$work/log.$i" 2>&1 &
done
wait
for i in 1 2 3 4; do
    [ -e "$work/done.$i" ] || { echo "FAILED: number $i of four at once" && cat "$work/log.$i"; exit 1; }
done
left=$(ls -d "$work"/tool.* 2>/dev/null || true)
[ -z "$left" ] || { echo "FAILED: left behind: $left"; exit 1; }
rm -rf "$work"
echo "cuobjdump fetched by four at once: whole for each"
