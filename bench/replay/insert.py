#!/usr/bin/env python3
"""insert.py DOCUMENT TABLE: the table between the document's marks for it."""
import re
import sys


def main():
    document, table = sys.argv[1:]
    with open(document, encoding="utf-8") as f:
        text = f.read()
    with open(table, encoding="utf-8") as f:
        block = f.read().strip()
    begin, end = "<!-- replay: begin -->", "<!-- replay: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit("%s: needs %s and %s once" % (document, begin, end))
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    whole = "%s\n\n%s\n\n%s" % (begin, block, end)
    with open(document, "w", encoding="utf-8") as f:
        f.write(re.sub(pattern, lambda _: whole, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
