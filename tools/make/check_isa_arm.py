#!/usr/bin/env python3
"""No instruction above its level in the objects of an AArch64 build.

    check_isa_arm.py OBJDUMP LIB_MK CPUID_C OBJECT...

Objects outside lib/kernel/<level> may use what every AArch64 has, those of neon also what its folder's
flags allow, those of i8mm also matrix multiplications. The flags must be asked for in CPUID_C.
Checks itself first.
"""
import re
import sys

import check_isa

MATRIX = re.compile(r"^(?:(?:s|u|us)mmla|usdot|sudot)\s")
# Armv8.1 and 8.2 with dot products: what the flags of neon let a compiler use.
ABOVE_BASE = re.compile(
    r"^(?:[su]dot|sqrdml[as]h|(?:cas|swp|ld(?:add|clr|eor|set|[su]max|[su]min)|st(?:add|clr|eor|set))(?:a|l|al|p)*[bh]?)\s")
# SVE, bf16, sums of halves, complex numbers: no level has them.
NEVER = re.compile(r"\bz\d+\.[bhsd]|^(?:bf[a-z0-9]+|fmlal2?|fmlsl2?|fcmla|fcadd|f?jcvtzs)\s"
                   r"|^f(?:add|sub|mul|div|ml[as]|max|min|abs|neg|sqrt|cm\w+)\s+v\d+\.[48]h")
BITFIELD = re.compile(r"^bf(?:i|xil|m|c)\s")
ASKED = {"dotprod": "DOT_PRODUCT", "i8mm": "MATRIX_BYTES"}


def wrong(level, line):
    """Whether an instruction may not stand in an object of a level; None = common code."""
    if NEVER.search(line) and not BITFIELD.match(line):
        return True
    if MATRIX.match(line):
        return level != "i8mm"
    return level is None and bool(ABOVE_BASE.match(line))


def unasked(lib_mk, cpuid):
    """Extensions in the flags of a folder that the feature test does not ask for."""
    found = []
    for level, flags in re.findall(r"^LEVEL_(\w+) := (.*)$", lib_mk, re.M):
        for extension in re.findall(r"\+(\w+)", flags):
            if not re.search(r"& %s\b" % ASKED.get(extension, "unknown"), cpuid):
                found.append("LEVEL_%s: +%s is not asked for in the feature test" % (level, extension))
    return found


def self_test():
    bad = [(None, "sdot\tv0.4s, v1.16b, v2.16b"), (None, "casal\tx0, x1, [x2]"),
           (None, "ldaddal\tw0, w1, [x2]"), ("neon", "smmla\tv0.4s, v1.16b, v2.16b"),
           ("neon", "usdot\tv0.4s, v1.16b, v2.4b[0]"), ("i8mm", "bfmmla\tv0.4s, v1.8h, v2.8h"),
           ("neon", "fmla\tv0.8h, v1.8h, v2.8h"), ("i8mm", "ld1b\t{z0.b}, p0/z, [x0]"),
           ("neon", "fmlal\tv0.4s, v1.4h, v2.4h")]
    good = [(None, "fmla\tv0.4s, v1.4s, v2.s[0]"), (None, "bfi\tw0, w1, #3, #4"),
            (None, "ldar\tw0, [x1]"), (None, "stlxr\tw0, w1, [x2]"), (None, "fcvtl\tv0.4s, v1.4h"),
            (None, "bfxil\tx0, x1, #0, #8"), ("neon", "sdot\tv0.4s, v1.16b, v2.4b[0]"),
            ("i8mm", "smmla\tv0.4s, v1.16b, v2.16b"), (None, "umlal\tv0.4s, v1.4h, v2.4h")]
    wrongly = [line for level, line in bad if not wrong(level, line)]
    wrongly += [line for level, line in good if wrong(level, line)]
    wrongly += [] if unasked("LEVEL_i8mm := $(LEVEL_neon)+i8mm", "x & DOT_PRODUCT") else ["+i8mm"]
    wrongly += unasked("LEVEL_i8mm := $(LEVEL_neon)+i8mm", "x & MATRIX_BYTES")
    return ["self-test: %s" % line for line in wrongly]


def main():
    messages = self_test()
    with open(sys.argv[2]) as lib_mk, open(sys.argv[3]) as cpuid:
        messages += unasked(lib_mk.read(), cpuid.read())
    return check_isa.report(sys.argv[1], sys.argv[4:], wrong, messages)


if __name__ == "__main__":
    sys.exit(main())
