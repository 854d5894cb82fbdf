#!/usr/bin/env python3
"""What a text file of the tree must not contain: tabs, trailing blanks, characters that
nobody sees, characters beyond ASCII in source code, paths of one machine.

    text.py              checks itself, then the tree
    text.py --self-test  checks itself only
"""
import re
import sys

import tree

# ---- the rules --------------------------------------------------------------------------

TABS_ALLOWED = re.compile(r"(^|/)(GNU)?[Mm]akefile$|\.mk$")
# Prose may have accents and arrows; code, scripts and build files may not.
PROSE = re.compile(r"\.(md|html|svg|txt)$|(^|/)(LICENSE|NOTICE|AUTHORS|CONTRIBUTORS)$")

# Joiners, marks of direction, soft hyphens, odd spaces, byte order marks, controls.
INVISIBLE = re.compile("[\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e"
                       "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff"
                       "\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
                       "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Folders that exist on one machine only; written so that this file passes.
MACHINE = re.compile(r"(?<![\w.~$)\]}/-])/(?:work|home|root|tmp)(?![\w-])")
BAD_BYTE = "\ufffd"


def is_binary(data):
    """Git's test: a zero byte near the start."""
    return b"\0" in data[:8000]


def check_line(path, line):
    """What is wrong with a line that has lost its line feed."""
    if line.endswith("\r"):
        yield "a carriage return"
        line = line[:-1]
    if "\t" in line and not TABS_ALLOWED.search(path):
        yield "a tab"
    if line != line.rstrip(" \t"):
        yield "a trailing blank"
    invisible = INVISIBLE.search(line)
    if invisible:
        yield "an invisible character, U+%04X" % ord(invisible.group())
    elif BAD_BYTE in line:
        yield "bytes that are not UTF-8"
    elif not PROSE.search(path) and not line.isascii():
        yield "a character beyond ASCII in source code"
    if MACHINE.search(line):
        yield "the path %s of one machine" % MACHINE.search(line).group()


def check(path, data):
    """All messages for one file."""
    if not data or is_binary(data):
        return []
    text = data.decode("utf-8", errors="replace")
    messages = ["%s:%d: %s" % (path, number, message)
                for number, line in enumerate(text.split("\n"), 1)
                for message in check_line(path, line)]
    last = text.count("\n") + 1
    if not text.endswith("\n"):
        messages.append("%s:%d: no line feed at the end" % (path, last))
    elif text.endswith("\n\n"):
        messages.append("%s:%d: an empty line at the end" % (path, last - 1))
    return messages


# ---- self-test --------------------------------------------------------------------------

SLASH = "/"
BAD = [
    ("a.c", b"\tint x;\n"),
    ("a.py", b"x = 1 \n"),
    ("Makefile", b"a:\n\tb \n"),
    ("a.c", b"int x;\r\n"),
    ("a.c", b"int x;"),
    ("a.c", b"int x;\n\n"),
    ("a.c", b"int x; /* \xc3\xa9 */\n"),
    ("a.md", b"zero\xe2\x80\x8bwidth\n"),
    ("a.md", b"no\xc2\xa0break\n"),
    ("a.md", b"\xef\xbb\xbfmark\n"),
    ("a.c", b"right\xe2\x80\xaeleft\n"),
    ("a.md", b"latin \xe9\n"),
    ("a.c", b"bell \x07\n"),
    ("a.md", b"see " + SLASH.encode() + b"work/main\n"),
    ("a.c", b'open("' + SLASH.encode() + b'tmp/x");\n'),
    ("a.sh", b"cd " + SLASH.encode() + b"home\n"),
    ("a.py", b"HOME = '" + SLASH.encode() + b"root/x'\n"),
]
GOOD = [
    ("a.c", b"int x;\n"),
    ("empty", b""),
    ("Makefile", b"a:\n\tb\n"),
    ("tools/a.mk", b"a:\n\tb\n"),
    ("a.md", b"na\xc3\xafve \xe2\x86\x92\n"),
    ("a.bin", b"\0\t \r"),
    ("a.c", b"x = step/root + a / work;\n"),
    ("a.md", b"https://example.org/home/x and ~/work and ../tmp and a/tmp\n"),
    ("a.c", b'#include "test/common/tmp.h"\n'),
]


def self_test():
    """Messages for texts that were judged wrongly."""
    wrong = ["self-test: %d messages for %r" % (len(check(path, data)), data)
             for path, data in BAD if len(check(path, data)) != 1]
    return wrong + ["self-test: caught: %s" % message
                    for path, data in GOOD for message in check(path, data)]


def main():
    messages = self_test()
    paths = [] if "--self-test" in sys.argv else tree.files()
    for path in paths:
        messages += check(path, tree.read(path))
    print("\n".join(messages), end="\n" if messages else "")
    print("text: %d files, %d synthetic texts, %d violations"
          % (len(paths), len(BAD) + len(GOOD), len(messages)))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
