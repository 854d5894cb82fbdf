#!/usr/bin/env python3
"""Sizes that keep the tree readable: lines of files and functions, share of comments.

    sizes.py              checks itself, then the tree
    sizes.py --self-test  checks itself only
    sizes.py --stats      prints what was measured as well
"""
import functools
import re
import statistics
import sys

import tree

# ---- the caps ---------------------------------------------------------------------------

# Lines of a file; the first pattern that matches counts. Generated tables have no cap.
FILE_CAPS = [
    (r".*_data\.h$", None),
    (r"include/tq/tq\.h$", 900),
    (r".*\.(c|h|def|cu|cuh|cc|hpp|py|sh|mk|rs)$", 400),
]
# Lines of a function, from the line of its name to its closing brace.
FUNCTION_CAPS = [
    (r"lib/|include/", 60),
    (r"cuda/", 250),
    (r"(test|examples|bench|bindings)/", 100),
]
# Median of the lengths of all functions below a folder, and what nine tenths do not exceed.
SPREAD_CAPS = [("lib", 15, 30), ("cuda", 20, 60), ("examples", 15, 40), ("test/unit", 15, 40),
               ("test/api", 15, 40), ("test/accuracy", 15, 40), ("test/oracle", 15, 40)]
# Least share of comments in per cent: of the characters of every public header, of the
# characters of all files of a kernel folder together.
COMMENT_FLOORS = [(r"include/tq/[^/]+\.h$", 50), (r"lib/kernel/[^/]+/", 10)]

CODE = (".c", ".h", ".cu", ".cuh", ".cc", ".hpp")

# ---- measuring --------------------------------------------------------------------------


def without_directives(code):
    """Preprocessor lines blanked, continued ones as well."""
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: tree.blank(m.group()), code, flags=re.M)


def name_before(code, brace):
    """Offset and name of the function whose body opens at a brace; None for another brace."""
    head = code[:brace].rstrip()
    for word in ("const", "noexcept", "override"):
        if head.endswith(word):
            head = head[:-len(word)].rstrip()
    depth, end = 0, len(head) - 1
    if not head.endswith(")"):
        return None
    while end >= 0:
        depth += {")": 1, "(": -1}.get(head[end], 0)
        if depth == 0:
            break
        end -= 1
    head = head[:max(end, 0)].rstrip()
    match = re.search(r"[A-Za-z_]\w*$", head[-100:])
    return (len(head) - len(match.group()), match.group()) if match else None


# What stands before a brace that only groups declarations.
GROUPING = re.compile(r'(?:extern\s+"[^"]*"|\bnamespace(?:\s+[\w:]+)?)$')


@functools.lru_cache(maxsize=None)
def functions(text):
    """(name, first line, lines) of every function of a C or CUDA file, not of methods."""
    code = without_directives(tree.bare(text))
    depth, groups, opened, found = 0, 0, None, []
    for offset, character in enumerate(code):
        if character == "{":
            if depth == 0 and GROUPING.search(code[max(0, offset - 200):offset].rstrip()):
                groups += 1
                continue
            if depth == 0:
                opened = name_before(code, offset)
            depth += 1
        elif character == "}" and depth == 0:
            groups = max(0, groups - 1)
        elif character == "}":
            depth -= 1
            if depth == 0 and opened:
                first = tree.line_of(code, opened[0])
                found.append((opened[1], first, tree.line_of(code, offset) - first + 1))
                opened = None
    return found


def comment_characters(text):
    """(in comments, in all), blanks not counted."""
    total = len(re.sub(r"\s", "", text))
    code = len(re.sub(r"\s", "", tree.without_comments(text)))
    return total - code, total


def lines_of(text):
    """Lines of a file."""
    return len(text.splitlines())


def cap_of(caps, path):
    """The cap of the first pattern that matches."""
    return next((cap for pattern, cap in caps if re.match(pattern, path)), None)


def percentile(values, share):
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, int(len(ordered) * share)))]


# ---- the check --------------------------------------------------------------------------


def check_lengths(path, text):
    """Files and functions that are too long."""
    cap, lines = cap_of(FILE_CAPS, path), lines_of(text)
    if cap and lines > cap:
        yield "%s:%d: the file has %d lines, at most %d are allowed" % (path, cap + 1, lines, cap)
    cap = cap_of(FUNCTION_CAPS, path)
    if not cap or not path.endswith(CODE):
        return
    for name, first, length in functions(text):
        if length > cap:
            yield "%s:%d: %s() has %d lines, at most %d are allowed" % (path, first, name, length,
                                                                        cap)


def check_spread(files):
    """Folders whose usual function is too long."""
    for folder, median_cap, p90_cap in SPREAD_CAPS:
        lengths = [length for path, text in files.items()
                   if path.startswith(folder + "/") and path.endswith(CODE)
                   for _, _, length in functions(text)]
        if not lengths:
            continue
        median, p90 = statistics.median(lengths), percentile(lengths, 0.9)
        if median > median_cap:
            yield "%s:1: the median function has %g lines, at most %d are allowed" % (
                folder, median, median_cap)
        if p90 > p90_cap:
            yield "%s:1: a tenth of the functions has %d lines or more, at most %d are allowed" % (
                folder, p90, p90_cap)


def check_comments(files):
    """Public headers and kernel folders that explain too little."""
    for pattern, floor in COMMENT_FLOORS:
        sums = {}
        for path, text in files.items():
            match = re.match(pattern, path)
            if match and path.endswith(CODE):
                counts = sums.setdefault(match.group().rstrip("/"), [0, 0])
                for i, n in enumerate(comment_characters(text)):
                    counts[i] += n
        for name, (comment, total) in sorted(sums.items()):
            if total and comment * 100 < total * floor:
                yield "%s:1: %.0f %% of the text is comment, at least %d %% are asked for" % (
                    name, 100.0 * comment / total, floor)


def check(files):
    """All messages for a tree {path: text}."""
    messages = []
    for path, text in sorted(files.items()):
        messages += check_lengths(path, text)
    return messages + list(check_spread(files)) + list(check_comments(files))


# ---- self-test --------------------------------------------------------------------------


def function_of(lines):
    """A function of so many lines."""
    return "static int f(int a,\n             int b) {\n" + "    a++;\n" * (lines - 3) + "}\n"


SHORT = function_of(5) * 20
DENSE = "/* why */\n"
SPARSE = "int a_long_name_that_says_nothing_about_why(int which, int of, int these);\n"

# (how many messages, tree)
CASES = [
    (0, {"lib/base/a.c": function_of(60) + SHORT}),
    (1, {"lib/base/a.c": function_of(61) + SHORT}),
    (0, {"test/unit/a.c": function_of(100) + SHORT}),
    (1, {"test/unit/a.c": function_of(101) + SHORT}),
    (0, {"cuda/sm90/a.cu": function_of(250) + SHORT}),
    (1, {"cuda/sm90/a.cu": function_of(251) + SHORT}),
    (0, {"lib/base/a.c": "int x;\n" * 400}),
    (1, {"lib/base/a.c": "int x;\n" * 401}),
    (1, {"tools/make/a.py": "x = 1\n" * 401}),
    (0, {"lib/spec/codebook_data.h": "int x;\n" * 4000}),
    (0, {"include/tq/tq.h": DENSE * 900}),
    (1, {"include/tq/tq.h": DENSE * 901}),
    (1, {"include/tq/tq.h": SPARSE * 9}),
    (1, {"include/tq/paged.h": DENSE + SPARSE * 9}),
    (0, {"lib/kernel/ref/a.c": DENSE * 3 + SPARSE, "lib/kernel/ref/b.c": SPARSE}),
    (1, {"lib/kernel/ref/a.c": SPARSE * 40, "lib/kernel/avx2/a.c": DENSE}),
    (1, {"lib/base/a.c": function_of(16) * 9}),
    (2, {"lib/base/a.c": function_of(31) * 9}),
    (1, {"lib/base/a.c": SHORT + function_of(40) * 2, "lib/api/a.c": function_of(40) * 2}),
]

# Names and lengths that the parser must find.
PARSED = """
/* int no(void) { */
extern "C" {
#define M(x) \\
    int macro_##x(void) { return 0; }
struct s { int a; };
static const int table[] = {1, 2};
enum { A, B };
int one(void) { return '}' + sizeof "}"; }
static struct s two(int (*f)(int),
                    int b)
{
    if (b) {
        return f(b) ? *(struct s *){0} : (struct s){1};
    }
}
}
namespace a::b {
namespace {
template <int N> __global__ void __launch_bounds__(N) three(int *x) {
    x[0] = N;
}
}
__device__ int four() noexcept { return 4; }
}
"""


def self_test():
    """Messages for cases that were judged wrongly."""
    wrong = []
    found = functions(PARSED)
    if found != [("one", 9, 1), ("two", 10, 7), ("three", 20, 3), ("four", 24, 1)]:
        wrong.append("self-test: the parser found %s" % found)
    for number, (expected, files) in enumerate(CASES):
        messages = check(files)
        if len(messages) != expected:
            wrong.append("self-test: case %d: %s" % (number, messages))
    return wrong


def stats(files):
    """What was measured, a line a folder."""
    groups = {}
    for path, text in files.items():
        if path.endswith(CODE) and not path.endswith("_data.h"):
            parts = path.split("/")
            depth = 3 if path.startswith(("lib/kernel/ref/", "lib/spec/gen/")) else 2
            groups.setdefault("/".join(parts[:min(depth, len(parts) - 1)]), []).append(text)
    print("%-18s %5s %26s %5s %26s %8s" % ("folder", "files", "lines: median p90 max", "funcs",
                                           "lines: median p90 max", "comment"))
    for folder, texts in sorted(groups.items()):
        lines = [lines_of(text) for text in texts]
        lengths = [n for text in texts for _, _, n in functions(text)] or [0]
        comment, total = map(sum, zip(*[comment_characters(text) for text in texts]))
        print("%-18s %5d %14g %5d %5d %5d %14g %5d %5d %7.0f%%"
              % (folder, len(texts), statistics.median(lines), percentile(lines, 0.9), max(lines),
                 len(lengths), statistics.median(lengths), percentile(lengths, 0.9),
                 max(lengths), 100.0 * comment / total))


def main():
    messages = self_test()
    paths = [] if "--self-test" in sys.argv else tree.files()
    files = {path: tree.read_text(path) for path in paths if cap_of(FILE_CAPS, path)}
    messages += check(files)
    if "--stats" in sys.argv:
        stats(files)
    print("\n".join(messages), end="\n" if messages else "")
    print("sizes: %d files, %d synthetic trees, %d violations"
          % (len(files), len(CASES) + 1, len(messages)))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
