#!/usr/bin/env python3
"""What the assembler made of the CUDA kernels, read from the built objects.

    check_cuda_code.py CUOBJDUMP sass OBJECT...        kernels of e4m3 multiply e4m3
    check_cuda_code.py CUOBJDUMP stack LIMITS OBJECT... hot kernels keep to the stack they may have
    check_cuda_code.py CUOBJDUMP table OBJECT...       registers and stack of every kernel

A stack frame of a kernel is what did not fit into registers, or an array that could not be there.
LIMITS: lines of an architecture, a pattern of names without blanks and namespaces, and the most
bytes of stack. A pattern that no kernel matches is an error, so that renaming a kernel does not
disarm its line.
"""
import os
import re
import subprocess
import sys

# Kernel, architecture, instruction that it must have, instruction that it must not have.
MATRIX = [
    (r"tqk_group_(stream|whole)<GroupTileShape<", "sm_90a", "QGMMA", "HMMA"),
    (r"tqk_group_(stream|whole)<CodesShape<", "sm_90a", "IGMMA", "IMMA"),
    (r"tqk_prefill<", "sm_90a", "HGMMA", "HMMA"),
    (r"tqk_stream(_whole)?<E4m3Tile<", "sm_89", "QMMA", "HMMA"),
    (r"tqk_stream(_whole)?<E4m3Tile<", "sm_120", "QMMA", "HMMA"),
]


def demangle(names):
    if not names:
        return {}
    out = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE, text=True,
                         check=True).stdout.split("\n")
    return {n: re.sub(r"^void |tqi::|\(anonymous namespace\)::|\(.*\)$| ", "", d)
            for n, d in zip(names, out)}


def dump(tool, option, path):
    done = subprocess.run([tool, option, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    if done.returncode:
        sys.exit("%s %s %s: exit status %d\n%s" % (tool, option, path, done.returncode, done.stderr))
    return done.stdout


def functions_of(tool, path):
    """(architecture, kernel, text of its code) of an object."""
    found, arch, name, lines = [], "", None, []
    for line in dump(tool, "-sass", path).split("\n"):
        a = re.match(r"\s*arch = (\w+)", line)
        f = re.match(r"\s*Function : (\S+)", line)
        if (a or f) and name:
            found.append((arch, name, "\n".join(lines)))
            name, lines = None, []
        if a:
            arch = a.group(1)
        elif f:
            name = f.group(1)
        elif name:
            lines.append(line)
    if name:
        found.append((arch, name, "\n".join(lines)))
    return found


def check_sass(tool, paths):
    failed, seen = 0, {}
    for path in paths:
        functions = functions_of(tool, path)
        names = demangle([f[1] for f in functions])
        for arch, name, code in functions:
            for pattern, on, has, lacks in MATRIX:
                if arch != on or not re.search(pattern, names[name]):
                    continue
                n, wrong = len(re.findall(r"\b%s\." % has, code)), len(
                    re.findall(r"\b%s\." % lacks, code))
                seen[(on, has)] = seen.get((on, has), 0) + 1
                if n == 0 or wrong:
                    failed += 1
                    print("%s: %s has %d %s and %d %s" % (arch, names[name], n, has, wrong, lacks))
    for (arch, has), n in sorted(seen.items()):
        print("%s: %d kernels, all multiply by %s alone" % (arch, n, has) if not failed else
              "%s: %d kernels looked at" % (arch, n))
    if not seen:
        print("no kernel of an architecture that multiplies e4m3 was built")
    return failed


def usage_of(tool, paths):
    """{(architecture, kernel): (registers, stack)} of the objects."""
    found = {}
    for path in paths:
        arch = ""
        name = None
        for line in dump(tool, "-res-usage", path).split("\n"):
            a = re.match(r"\s*arch = (\w+)", line)
            f = re.match(r"\s*Function (\S+):", line)
            u = re.match(r"\s*REG:(\d+) STACK:(\d+)", line)
            arch = a.group(1) if a else arch
            name = f.group(1) if f else name
            if u and name:
                found[(arch, name)] = (int(u.group(1)), int(u.group(2)))
                name = None
    names = demangle(sorted({n for _, n in found}))
    return {(a, names[n]): v for (a, n), v in found.items()}


def check_stack(tool, limits, paths):
    usage, failed = usage_of(tool, paths), 0
    with open(limits) as f:
        lines = [line.split() for line in f if line.strip() and not line.startswith("#")]
    for arch, pattern, most in lines:
        matches = [(n, v) for (a, n), v in usage.items() if a == arch and re.search(pattern, n)]
        if not any(a == arch for a, _ in usage):
            continue
        if not matches:
            failed += 1
            print("%s: no kernel is called %s" % (arch, pattern))
        for name, (registers, stack) in matches:
            if stack > int(most):
                failed += 1
                print("%s: %s has a stack of %d bytes, at most %s (%d registers)" %
                      (arch, name, stack, most, registers))
    print("%d kernels, %d of %s within their limits" % (len(usage), len(lines) - failed,
                                                      os.path.basename(limits)))
    return failed


def print_table(tool, paths):
    for (arch, name), (registers, stack) in sorted(usage_of(tool, paths).items()):
        print("%-7s %3d registers %4d stack  %s" % (arch, registers, stack, name))
    return 0


def main():
    tool, what, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if what == "sass":
        return 1 if check_sass(tool, rest) else 0
    if what == "stack":
        return 1 if check_stack(tool, rest[0], rest[1:]) else 0
    return print_table(tool, rest)


if __name__ == "__main__":
    sys.exit(main())
