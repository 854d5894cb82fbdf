#!/bin/sh
# cuda_registers.sh "NVCC FLAGS" FILE.cu...: registers, stack and spills of every kernel, one a
# line, as the assembler reports them.
set -eu
compile=$1
shift
for file in "$@"; do
    $compile -Xptxas -v -c "$file" -o /dev/null 2>&1 | awk -v file="$file" '
        /Compiling entry function/ { arch = $NF; gsub(/[^a-z0-9_]/, "", arch); name = $(NF - 2) }
        /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
        /Used [0-9]+ registers/ {
            sub(/.*Used /, ""); split($0, used, " ")
            gsub(/\047/, "", name)
            printf "%-6s %3d registers %4d stack %4d spill stores %4d spill loads  %s %s\n",
                arch, used[1], stack, stores, loads, file, name
        }'
done
