#!/usr/bin/env python3
"""The whole check: each step is a make target. Test programs count their tests, every
other step counts as one. The last line is "N passed, N failed".
"""
import os
import re
import subprocess
import sys
import time

MAKE = os.environ.get("MAKE", "make")
CC = os.environ.get("CC", "cc")

# (name, arguments for make, whether it prints a total of its own)
STEPS = [
    ("build, warnings as errors", ["WERROR=1", "CUDA=0", "lib", "tests"], False),
    ("build by clang", ["WERROR=1", "CUDA=0", "CC=clang", "lib"], False),
    # One architecture: the release builds more. Without nvcc this builds the plain library.
    ("CUDA compiles", ["WERROR=1", "CUDA_ARCHS=90a", "lib"], False),
    ("code of the CUDA kernels", ["WERROR=1", "CUDA_ARCHS=90a", "check-cuda-code"], False),
    ("programs for a GPU", ["WERROR=1", "CUDA_ARCHS=90a", "check-cuda-programs"], False),
    ("lint", ["lint"], False),
    ("header alone", ["check-header"], False),
    ("symbols", ["WERROR=1", "CUDA=0", "check-symbols"], False),
    ("ABI", ["check-abi"], False),
    ("tables are what their program prints", ["check-tables"], False),
    ("tests", ["WERROR=1", "CUDA=0", "check-fast"], True),
    ("kernels against the reference", ["WERROR=1", "CUDA=0", "check-kernels"], False),
    ("instructions in objects", ["WERROR=1", "CUDA=0", "check-isa"], False),
    ("old CPUs, emulated", ["WERROR=1", "CUDA=0", "check-old-cpu"], False),
    ("instruction counts", ["check-instructions"], False),
    ("NEON kernels, emulated", ["WERROR=1", "CUDA=0", "check-neon"], False),
    ("API tests on this CPU's kernels", ["WERROR=1", "CUDA=0", "check-level"], True),
    ("tests under address and UB sanitizers", ["WERROR=1", "CUDA=0", "check-asan"], True),
    ("fuzz corpora", ["WERROR=1", "check-fuzz"], True),
    ("examples", ["CUDA=0", "check-examples"], False),
    ("install", ["CUDA=0", "check-install"], False),
    ("Python and Rust", ["CUDA=0", "check-bindings"], False),
    ("documentation", ["docs"], False),
    ("demo", ["CUDA=0", "demo"], False),
]


def run(name, arguments):
    start = time.monotonic()
    print("== %s: make %s" % (name, " ".join(arguments)), flush=True)
    command = [MAKE, "--no-print-directory", "-j2", "CC=%s" % CC] + arguments
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = []
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        lines.append(line)
        # A total belongs to this program alone.
        if not re.match(r"^\d+ passed, \d+ failed$", line):
            sys.stdout.write(line)
            sys.stdout.flush()
    code = process.wait()
    print("== %s: %s, %.0f s" % (name, "ok" if code == 0 else "FAILED", time.monotonic() - start),
          flush=True)
    return code, "".join(lines)


def main():
    passed = failed = 0
    skipped = []
    for name, arguments, counts in STEPS:
        code, text = run(name, arguments)
        skipped += re.findall(r"^SKIPPED: .*$", text, re.M)
        totals = re.findall(r"^(\d+) passed, (\d+) failed$", text, re.M) if counts else []
        if totals:
            passed += int(totals[-1][0])
            failed += int(totals[-1][1])
            if code != 0 and int(totals[-1][1]) == 0:
                failed += 1
        elif code == 0 and not counts:
            passed += 1
        else:
            failed += 1
    print("".join(line + "\n" for line in skipped), end="")
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
