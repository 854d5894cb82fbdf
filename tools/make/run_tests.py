#!/usr/bin/env python3
"""Runs CMocka programs, as many at a time as there are CPUs, and adds up their results.

The last line is "N passed, N failed". A program that crashes, hangs or runs no test
counts as one failure, so that nothing can pass by not running.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time


def results(text):
    """(passed, failed, names of failed tests) of one program's output."""
    passed = len(re.findall(r"^\[ +OK +\] ", text, re.M))
    names = sorted(set(re.findall(r"^\[  FAILED  \] (?!\d+ test)(\S+)", text, re.M)))
    return passed, names


def run(program, timeout, under):
    start = time.monotonic()
    try:
        done = subprocess.run(under + [program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, check=False)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as stopped:
        text, code = (stopped.stdout or b"").decode(errors="replace"), "a time-out"
    passed, failed = results(text)
    if code != 0 and not failed:
        failed = ["exit by %s" % code]
    if passed == 0 and not failed:
        failed = ["no test ran"]
    return passed, failed, text, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--under", default="", help="command that runs programs: an emulator")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    total_passed = total_failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        all_done = pool.map(lambda program: run(program, args.timeout, args.under.split()),
                            args.programs)
        for program, done in zip(args.programs, all_done):
            passed, failed, text, seconds = done
            name = program.split("/test/")[-1]
            print("%-40s %4d passed %4d failed %7.1f s" % (name, passed, len(failed), seconds),
                  flush=True)
            if failed:
                print(text[-6000:], flush=True)
                print("FAILED in %s: %s" % (name, ", ".join(failed)), flush=True)
            total_passed += passed
            total_failed += len(failed)
    print("%d passed, %d failed" % (total_passed, total_failed))
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
