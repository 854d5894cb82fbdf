#!/usr/bin/env python3
"""No instruction above its level: disassembles the objects of the library.

    check_isa.py LIB_MK CPUID_C OBJECT...

Objects outside lib/kernel/<level> may use what every x86-64 has. Those of avx2 may use what the
flags of its folder allow, but nothing of AVX-512, those of avx512 no tiles. The flags of every folder must be asked for in
CPUID_C. Checks itself first.
"""
import re
import subprocess
import sys

# Mnemonics above the x86-64 baseline (SSE2). "tzcnt" is how "rep bsf" reads, which is old.
ABOVE = re.compile(
    r"^(?:v(?!er[rw]$|m[a-z]*call|mlaunch|mresume)[a-z0-9]+|k(?:mov|or|and|not|xor|xnor|add|shift|unpck|test)[a-z]*"
    r"|popcnt|lzcnt|andn|bextr|bls(?:i|r|msk)|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|movbe"
    r"|ad[co]x|crc32[a-z]?|aes[a-z0-9]+|pclmul[a-z]*|sha(?:1|256)[a-z0-9]+|gf2p8[a-z]+"
    r"|addsubp[sd]|h(?:add|sub)p[sd]|lddqu|movddup|movs[hl]dup"
    r"|pshufb|palignr|ph(?:add|sub)[dws]+|pmaddubsw|pmulhrsw|psign[bwd]|pabs[bwd]|phminposuw"
    r"|p?blend[a-z]+|dpp[sd]|extractps|insertps|mpsadbw|packusdw|pcmp(?:eq|gt)q|pcmp[ei]str[im]"
    r"|pextr[bdq]|pinsr[bdq]|pm(?:ax|in)(?:s[bd]|u[wd])|pmov[sz]x[bwdq]+|pmuldq|pmulld|ptest"
    r"|round[ps][sd]|movntdqa|extrq|insertq|movnts[sd]|rdrand|rdseed|xgetbv|cmpxchg16b)$")
# What only EVEX encodes: masks, wide registers, the upper sixteen, mask instructions.
EVEX = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|\{%?k[0-7]\}|%k[0-7]\b|\{1to\d+\}")
DOT = re.compile(r"\bvpdp|\bv?gf2p8")  # AVX-VNNI and GFNI have a folder of their own
TILES = re.compile(r"^(?:tile(?:loadd(?:t1)?|stored|zero|release)|[ls][dt]tilecfg|tdp\w+)\b|%tmm\d")
FLAG = re.compile(r"-m([\w-]+)")


def level_of(path):
    match = re.search(r"lib/kernel/(\w+)/[^/]+\.o$", path)
    return match.group(1) if match and match.group(1) != "ref" else None


def wrong(level, line):
    """Whether an instruction may not stand in an object of a level; None = common code."""
    if level == "amx":
        return False
    if TILES.search(line):
        return True
    if level == "avx512":
        return False
    if EVEX.search(line):
        return True
    if level == "avx2" and DOT.search(line):
        return True
    words = line.split()
    while words and words[0] in ("rep", "repz", "repnz", "lock", "bnd", "notrack", "data16", "cs"):
        words.pop(0)
    return bool(level is None and words and ABOVE.match(words[0]))


def scan(objdump, path, wrong_at):
    """(level, instructions, messages) of an object; wrong_at(level, instruction) tells."""
    level = level_of(path)
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], check=True,
                          capture_output=True, text=True).stdout
    count, messages, function = 0, [], "?"
    for line in text.splitlines():
        if line.endswith(">:"):
            function = line.split("<")[-1][:-2]
        match = re.match(r"\s*[0-9a-f]+:\t(.+)$", line)
        if not match:
            continue
        count += 1
        if wrong_at(level, match.group(1)):
            messages.append("%s: %s: %s" % (path, function, match.group(1)))
    return level, count, messages


def unasked(lib_mk, cpuid):
    """Instruction flags of a folder that the feature test does not ask for."""
    found = []
    for level, flags in re.findall(r"^LEVEL_(\w+) := (.*)$", lib_mk, re.M):
        for flag in FLAG.findall(flags):
            name = flag.replace("-", "_")
            if level != "neon" and not re.search(r'(?:"|bit_)%s\b' % name, cpuid, re.I):
                found.append("LEVEL_%s: -m%s is not asked for in the feature test" % (level, flag))
    return found


def self_test():
    bad = [(None, "vaddps %ymm0,%ymm1,%ymm2"), (None, "popcnt %rax,%rax"),
           (None, "pshufb %xmm0,%xmm1"), (None, "rep lzcnt %eax,%eax"), (None, "vzeroupper"),
           (None, "kmovw %k1,%eax"), (None, "pmulld %xmm0,%xmm1"), (None, "roundsd $0x1,%xmm0,%xmm1"),
           ("avx2", "vaddps %zmm0,%zmm1,%zmm2"), ("avx2", "vmovups %xmm17,%xmm1"),
           (None, "tilerelease"), ("avx2", "ldtilecfg (%rax)"), ("avx512", "tilezero %tmm3"),
           ("avx512", "tdpbssd %tmm6,%tmm4,%tmm0"), ("avx512", "sttilecfg (%rax)"),
           ("avx512", "tileloadd (%rax,%rcx,1),%tmm6"),
           ("avx2", "{vex} vpdpwssd %ymm0,%ymm1,%ymm2"),
           ("avx2", "vgf2p8affineqb $0x0,%ymm0,%ymm1,%ymm2"),
           ("avxvnni", "vpdpwssd %zmm0,%zmm1,%zmm2"), ("avx2", "vmovups (%rax),%ymm1{%k1}{z}"), ("avx2", "vaddps (%rax){1to8},%ymm0,%ymm1")]
    good = [(None, "addps %xmm0,%xmm1"), (None, "tzcnt %eax,%eax"), (None, "verr %ax"),
            (None, "rep stos %al,%es:(%rdi)"), (None, "pmuludq %xmm0,%xmm1"), (None, "cvtps2dq %xmm0,%xmm1"),
            (None, "call 20 <vsnprintf>"), ("avx2", "vaddps %ymm0,%ymm1,%ymm15"),
            ("avx512", "vaddps %zmm0,%zmm1,%zmm2{%k1}"), ("amx", "tdpbusd %tmm6,%tmm4,%tmm0"),
            ("avxvnni", "{vex} vpdpwssd %ymm0,%ymm1,%ymm2"),
            ("avxvnni", "vgf2p8affineqb $0x0,%ymm0,%ymm1,%ymm2"), ("amx", "vaddps %zmm0,%zmm1,%zmm2{%k1}")]
    wrongly = [line for level, line in bad if not wrong(level, line)]
    wrongly += [line for level, line in good if wrong(level, line)]
    wrongly += [] if unasked("LEVEL_avx2 := -mavx2 -mf16c", '"avx2"') else ["-mf16c"]
    wrongly += unasked("LEVEL_avx2 := -mavx2 -mf16c", '"avx2" bit_F16C')
    wrongly += [] if unasked("LEVEL_amx := -mamx-tile", "bit_AMX_INT8") else ["-mamx-tile"]
    wrongly += unasked("LEVEL_amx := -mamx-tile $(LEVEL_avx2)", "bit_AMX_TILE")
    return ["self-test: %s" % line for line in wrongly]


def report(objdump, paths, wrong_at, messages):
    """Prints these messages, those of the objects and the counts; the exit status."""
    counts = {}
    for path in paths:
        level, count, found = scan(objdump, path, wrong_at)
        counts[level or "common"] = counts.get(level or "common", 0) + count
        messages += found
    for message in messages[:40]:
        print(message)
    if not counts.get("common"):
        messages.append("no common code")
    print("instructions: %s; %d above their level"
          % (", ".join("%s %d" % item for item in sorted(counts.items())), len(messages)))
    return 1 if messages else 0


def main():
    messages = self_test()
    with open(sys.argv[1]) as lib_mk, open(sys.argv[2]) as cpuid:
        messages += unasked(lib_mk.read(), cpuid.read())
    return report("objdump", sys.argv[3:], wrong, messages)


if __name__ == "__main__":
    sys.exit(main())
