#!/usr/bin/env python3
"""Instructions of the cases of a program under callgrind.

    count_instructions.py COMPILER check|write BASELINE PROGRAM

"check" fails when a case takes more than MARGIN over its baseline, or is not in it; a program
of another compiler than the baseline's is not compared.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

MARGIN = 0.03


def count(program):
    """Instructions by name of the case."""
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "callgrind")
        subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", "-q",
                        "--callgrind-out-file=" + out, program], check=True)
        for path in glob.glob(out + ".*"):
            with open(path) as dump:
                text = dump.read()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
            if name and total:
                counts[name.group(1)] = int(total.group(1))
    return counts


def read(path):
    """(compiler, counts) of a baseline."""
    with open(path) as lines:
        text = lines.read()
    compiler = re.search(r"^# gcc (.*)$", text, re.M).group(1)
    return compiler, {name: int(n) for n, name in re.findall(r"^ *(\d+) (.+)$", text, re.M)}


def write(path, compiler, counts):
    with open(path, "w") as out:
        out.write("# Instructions of each case; `make instructions-baseline` writes them.\n")
        out.write("# gcc %s\n" % compiler)
        for name in sorted(counts):
            out.write("%10d %s\n" % (counts[name], name))


def compare(base, counts):
    """(messages of failures, notes)."""
    wrong, notes = [], []
    for name in sorted(set(base) | set(counts)):
        if name not in counts or name not in base:
            wrong.append("%s: only in the %s" % (name, "baseline" if name in base else "program"))
            continue
        change = counts[name] / base[name] - 1
        text = "%-22s %10d, baseline %10d: %+.1f %%" % (name, counts[name], base[name],
                                                        100 * change)
        if change > MARGIN:
            wrong.append(text)
        elif change < -MARGIN:
            notes.append(text)
    return wrong, notes


def main():
    compiler, mode, path, program = sys.argv[1:]
    counts = count(program)
    if not counts:
        print("no case was counted")
        return 1
    if mode == "write":
        write(path, compiler, counts)
        print("%d cases written to %s" % (len(counts), path))
        return 0
    base_compiler, base = read(path)
    if base_compiler != compiler:
        print("SKIPPED: check-instructions: the baseline is of gcc %s, this is %s"
              % (base_compiler, compiler))
        return 0
    wrong, notes = compare(base, counts)
    for text in notes:
        print("fewer:   " + text)
    for text in wrong:
        print("FAILED:  " + text)
    print("instructions: %d cases, %d beyond the margin of %g %%, %d below it%s"
          % (len(counts), len(wrong), 100 * MARGIN, len(notes),
             ": make instructions-baseline" if notes else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
