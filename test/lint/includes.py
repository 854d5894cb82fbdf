#!/usr/bin/env python3
"""Who may include and call what. The table below is the architecture of the tree; a file
that no row covers is a violation too, so that a new folder has to be thought about.

    includes.py              checks itself, then the tree
    includes.py --self-test  checks itself only
"""
import os
import re
import sys

import tree

# ---- the table --------------------------------------------------------------------------

PLAIN = {"stdbool.h", "stddef.h", "stdint.h", "limits.h", "float.h", "math.h", "string.h"}
HOSTED = PLAIN | {"assert.h", "ctype.h", "errno.h", "inttypes.h", "stdarg.h", "stdio.h",
                  "stdlib.h", "time.h"}
CMOCKA = {"cmocka.h", "setjmp.h"}
INTRINSICS = {"immintrin.h", "arm_neon.h"}
ANY = None

KERNEL = ["lib/kernel/kernel.h", "lib/kernel/kernels.def", "lib/kernel/study.h"]
STAGES = KERNEL + ["lib/kernel/stages.h"]
LAYER = KERNEL + ["lib/kernel/layer.h"]
PUBLIC = ["include/tq"]
LEVEL = PUBLIC + ["lib/base/half.h", "lib/spec", "lib/kernel/simd"] + STAGES
DRIVER = PUBLIC + ["lib/base", "lib/spec", "lib/page/view.h"] + LAYER

# Folder, what it may include besides itself, system headers. The first row that covers a
# file counts. "SELF" is the file's own folder where the row's folder has subfolders.
ROWS = [
    ("include/tq", [], {"stddef.h", "stdint.h"}),
    ("lib/base", PUBLIC, PLAIN),
    ("lib/spec/gen", [], HOSTED),
    ("lib/spec", PUBLIC + ["lib/base"], PLAIN),
    ("lib/threads", PUBLIC + ["lib/base"],
     PLAIN | {"pthread.h", "stdatomic.h", "sched.h", "signal.h", "unistd.h"}),
    ("lib/kernel/ref", PUBLIC + ["lib/base/half.h", "lib/spec"] + STAGES, PLAIN),
    ("lib/kernel/simd", PUBLIC + ["lib/base/half.h", "lib/spec"] + STAGES, PLAIN),
    ("lib/kernel/amx", LEVEL + ["lib/kernel/avx512"], PLAIN | INTRINSICS),
    ("lib/kernel/avxvnni", LEVEL + ["lib/kernel/avx2"], PLAIN | INTRINSICS),
    ("lib/kernel/i8mm", LEVEL + ["lib/kernel/neon"], PLAIN | INTRINSICS),
    ("lib/kernel/*", LEVEL, PLAIN | INTRINSICS),
    ("lib/kernel", PUBLIC + ["lib/spec"] + LAYER, PLAIN),
    ("lib/encode", DRIVER, PLAIN),
    ("lib/attend", DRIVER, PLAIN),
    ("lib/page", PUBLIC + ["lib/base", "lib/spec/layout.h", "lib/spec/codes.h"], PLAIN),
    ("lib/device", DRIVER + ["lib/page/pool.h", "lib/encode", "lib/attend"], PLAIN),
    ("lib/snapshot", PUBLIC + ["lib/base"], PLAIN),
    ("lib/api", DRIVER + ["lib/page", "lib/encode", "lib/attend", "lib/device", "lib/snapshot",
                          "lib/threads"], PLAIN),
    ("cuda", PUBLIC + ["lib/base/status.h", "lib/spec", "lib/device/device.h",
                       "lib/device/step.h", "lib/device/paged.h", "lib/page/view.h"], ANY),
    ("bindings", PUBLIC, ANY),
    ("examples", PUBLIC, ANY),
    ("bench/cuda", PUBLIC + ["cuda/attend"], ANY),
    ("bench", PUBLIC, ANY),
    ("test/oracle", [], HOSTED | CMOCKA),
    ("test/common", PUBLIC, ANY),
    ("test/unit", PUBLIC + ["lib", "test/common", "cuda/attend/schedule.h",
                            "cuda/attend/key_operands.h", "cuda/encode/buckets.h",
                            "bench/replay/replay.h"], HOSTED | CMOCKA),
    ("test/check", PUBLIC + ["lib", "test/common"], ANY),
    ("test/api", PUBLIC + ["test/common"], ANY),
    *[("test/" + name, PUBLIC, ANY) for name in ("abi", "isa", "instructions", "install")],
    ("test/programs", [], HOSTED),
    ("test/fuzz", PUBLIC + ["test/common"], ANY),
    ("test/cuda", PUBLIC + ["test/common", "test/oracle", "lib/base/rng.h"], ANY),
    ("test/cuda_host", PUBLIC + ["cuda/attend/fast_job.h"], ANY),
    ("test/accuracy", PUBLIC + ["test/common", "test/oracle", "examples/common"], ANY),
]

# System headers that one file alone has.
EXTRA = {
    "lib/base/status.c": {"stdarg.h", "stdio.h"},
    "lib/base/hash.c": {"xxhash.h"},
    "lib/base/heap.c": {"stdlib.h"},
    "lib/base/rng.c": {"Random123/philox.h"},
    "lib/device/cpuid.c": {"cpuid.h", "sys/auxv.h", "sys/syscall.h", "unistd.h"},
}

# What the library may not call: pattern, words for it, files or folders that may; "*" = all
# calls of the pattern.
CALLS = [
    (r"(?:malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|memalign|valloc"
     r"|strdup|strndup|alloca)", "memory comes from lib/base/heap.h",
     {"aligned_alloc": {"lib/base/heap.c"}, "free": {"lib/base/heap.c"}}),
    (r"(?:v?[fsd]?printf|v?snprintf|v?asprintf|f?puts|f?putc|putchar|f?open|fread|fwrite|fflush"
     r"|perror)", "only lib/base/status.c formats text", {"vsnprintf": {"lib/base/status.c"}}),
    (r"(?:secure_getenv|getenv|setenv|putenv)", "the library reads no environment", {}),
    (r"(?:pthread_\w+|thrd_\w+|mtx_\w+|cnd_\w+|call_once)", "threads live in lib/threads", {"*": {"lib/threads"}}),
    (r"(?:abort|exit|_exit|quick_exit|atexit|system|assert|signal|longjmp)",
     "the library neither ends nor interrupts the process", {}),
    (r"s?rand(?:om)?|time|clock|gettimeofday|clock_gettime", "results depend on input only", {}),
]
# Functions of libm whose last bit differs between machines; in lib/spec they would change
# bytes. Square roots and the like are exactly rounded everywhere.
INEXACT = (r"(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|asin|acos|atan|atan2|sinh"
           r"|cosh|tanh|erf|erfc|[lt]gamma|hypot|cbrt)f?")
INTRINSIC = r"\b(?:_mm\d*_\w+|__m(?:64|128|256|512)\w*|__builtin_ia32_\w+|v\w+q?_[fsup]\d+)\b"

SOURCES = (".c", ".h", ".def", ".cu", ".cuh", ".cc", ".cpp", ".hpp")
SEARCH = ["include", "lib", "test", "examples", "cuda"]

# ---- the check --------------------------------------------------------------------------


def covers(folder, path):
    """Whether a row's folder holds the path; "x/*" means any folder inside x."""
    if folder.endswith("/*"):
        return path.startswith(folder[:-1]) and "/" in path[len(folder) - 1:]
    return tree.under(path, folder)


def row_of(path):
    """The first row that covers a path."""
    return next((row for row in ROWS if covers(row[0], path)), None)


def own_folder(row, path):
    """The folder whose files a file may always include."""
    return os.path.dirname(path) if row[0].endswith("/*") else row[0]


def resolve(path, name, known):
    """Path of a quoted include, as the compiler would find it."""
    for folder in [os.path.dirname(path)] + SEARCH:
        candidate = os.path.normpath(os.path.join(folder, name))
        if candidate in known:
            return candidate
    return None


def allowed(row, path, target):
    """Whether a row lets a file include a file of the tree."""
    inside = [folder for folder, _, _ in ROWS if tree.under(target, folder) and folder != row[0]
              and tree.under(folder, row[0])]
    if tree.under(target, own_folder(row, path)) and not inside:
        # Levels are no part of lib/kernel, the generator no part of lib/spec.
        return row[0] != "lib/kernel" or target.count("/") == 2
    return any(tree.under(target, item) for item in row[1]) and not private(row, target)


def private(row, target):
    """Files that only their own folder includes, whatever the row says."""
    if tree.under(target, "lib/spec/gen"):
        return True
    return target.endswith("_data.h") and row[0] not in ("lib/spec", "cuda", "test/unit")


def check_system(row, path, name):
    """A message for a system header that the row does not list."""
    if row[2] is ANY or name in row[2] or name in EXTRA.get(path, ()):
        return None
    return "<%s> is none of the system headers of %s" % (name, row[0])


def check_quoted(row, path, name, known):
    """A message for a file of the tree that the row does not list."""
    target = resolve(path, name, known)
    if target is None:
        library = name.split("/")[0] in ("cjson",)
        return None if library and row[2] is ANY else '"%s" is not in the tree' % name
    if target.endswith(".c"):
        return '"%s": a .c file is compiled, not included' % name
    if not allowed(row, path, target):
        return "%s may not include %s" % (row[0], target)
    return None


def check_includes(path, text, known):
    """(line, message) for every include that is not allowed."""
    row = row_of(path)
    if row is None:
        yield 1, "no row of the table in includes.py covers this file"
        return
    code = tree.without_comments(text)
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', code, re.M):
        name = match.group(2)
        if match.group(1) == "<":
            message = check_system(row, path, name)
        else:
            message = check_quoted(row, path, name, known)
        if message:
            yield tree.line_of(code, match.start()), message


def is_level(path):
    """Whether a file belongs to a SIMD level."""
    return covers("lib/kernel/*", path) and not any(
        tree.under(path, "lib/kernel/" + folder) for folder in ("ref", "simd"))


def call_sites(pattern, code):
    """Calls of functions of that name; members of structs are something else."""
    return re.finditer(r"(?<![\w.>])(%s)\s*\(" % pattern, code)


def check_calls(path, text):
    """(line, message) for every call that the library may not make."""
    if not tree.under(path, "lib") or tree.under(path, "lib/spec/gen"):
        return
    code = tree.bare(text)
    for pattern, why, exceptions in CALLS:
        for match in call_sites(pattern, code):
            may = exceptions.get(match.group(1), exceptions.get("*", ()))
            if not any(tree.under(path, item) for item in may):
                yield tree.line_of(code, match.start()), "%s(): %s" % (match.group(1), why)
    if tree.under(path, "lib/spec"):
        for match in call_sites(INEXACT, code):
            yield (tree.line_of(code, match.start()),
                   "%s() is not exactly rounded on every machine" % match.group(1))
    if not is_level(path):
        for match in re.finditer(INTRINSIC, code):
            yield (tree.line_of(code, match.start()),
                   "%s: intrinsics live in the folders of the levels" % match.group())


def check(path, text, known):
    """All messages for one file."""
    found = list(check_includes(path, text, known)) + list(check_calls(path, text))
    return ["%s:%d: %s" % (path, line, message) for line, message in sorted(found)]


# ---- self-test --------------------------------------------------------------------------

# A tree of empty files to include.
WORLD = ["include/tq/tq.h", "include/tq/paged.h", "lib/base/half.h", "lib/base/heap.h",
         "lib/spec/rows.h", "lib/spec/layout.h", "lib/spec/codebook_data.h", "lib/spec/gen/gen.h",
         "lib/base/status.h", "lib/kernel/kernel.h", "lib/kernel/layer.h",
         "lib/kernel/kernels.def", "lib/kernel/ref/ref.h", "lib/kernel/avx2/avx2.h",
         "lib/kernel/avx512/avx512.h", "lib/kernel/amx/amx.h",
         "lib/encode/encode.h", "lib/encode/encode.c", "lib/attend/attend.h", "lib/page/pool.h",
         "lib/page/view.h", "lib/snapshot/container.h", "lib/device/device.h",
         "lib/threads/pool.h", "lib/base/executor.h", "lib/api/objects.h", "test/oracle/oracle.h",
         "test/common/rows.h", "test/unit/unit.h", "examples/common/safetensors.h"]

# (path, one line of text): the line breaks a rule.
BAD = [
    ("include/tq/tq.h", "#include <string.h>"),
    ("include/tq/tq.h", '#include "base/half.h"'),
    ("lib/base/a.c", '#include "spec/rows.h"'),
    ("lib/base/a.c", "#include <stdio.h>"),
    ("lib/base/a.c", "  #  include <stdlib.h>"),
    ("lib/base/heap.c", "#include <stdio.h>"),
    ("lib/base/heap.c", "p = malloc(4);"),
    ("lib/base/status.c", "#include <stdlib.h>"),
    ("lib/base/status.c", "fprintf(f, x);"),
    ("lib/spec/a.c", '#include "kernel/kernel.h"'),
    ("lib/spec/a.c", '#include "page/view.h"'),
    ("lib/spec/a.c", '#include "gen/gen.h"'),
    ("lib/spec/a.c", "x = exp(y);"),
    ("lib/spec/a.c", "x = cosf(y);"),
    ("lib/spec/gen/a.c", '#include "spec/rows.h"'),
    ("lib/kernel/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/kernel/a.c", '#include "kernel/avx2/avx2.h"'),
    ("lib/kernel/a.c", '#include "page/view.h"'),
    ("lib/kernel/a.c", '#include "spec/codebook_data.h"'),
    ("lib/kernel/ref/a.c", '#include "kernel/avx2/avx2.h"'),
    ("lib/kernel/ref/a.c", '#include "kernel/layer.h"'),
    ("lib/kernel/ref/a.c", '#include "base/heap.h"'),
    ("lib/kernel/ref/a.c", '#include "page/view.h"'),
    ("lib/kernel/ref/a.c", '#include "attend/attend.h"'),
    ("lib/kernel/ref/a.c", "#include <immintrin.h>"),
    ("lib/kernel/ref/a.c", "x = _mm256_add_ps(a, b);"),
    ("lib/kernel/ref/a.c", "__m128i x;"),
    ("lib/kernel/ref/a.c", "x = vaddq_f32(a, b);"),
    ("lib/kernel/ref/a.c", "p = calloc(1, 2);"),
    ("lib/kernel/avx2/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/kernel/avx2/a.c", '#include "kernel/layer.h"'),
    ("lib/kernel/avx512/a.c", '#include "kernel/avx2/avx2.h"'),
    ("lib/kernel/avx512/a.c", '#include "kernel/amx/amx.h"'),
    ("lib/kernel/avxvnni/a.c", '#include "kernel/avx512/avx512.h"'),
    ("lib/kernel/amx/a.c", '#include "kernel/avx2/avx2.h"'),
    ("lib/kernel/amx/a.c", '#include "kernel/layer.h"'),
    ("lib/encode/a.c", '#include "attend/attend.h"'),
    ("lib/encode/a.c", '#include "page/pool.h"'),
    ("lib/encode/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/encode/a.c", '#include "device/device.h"'),
    ("lib/attend/a.c", '#include "encode/encode.h"'),
    ("lib/attend/a.c", '#include "../encode/encode.h"'),
    ("lib/attend/a.c", "x = getenv(y);"),
    ("lib/attend/a.c", "pthread_create(&t, 0, f, 0);"),
    ("lib/attend/a.c", "x = _mm_setzero_ps();"),
    ("lib/page/a.c", '#include "kernel/kernel.h"'),
    ("lib/page/a.c", '#include "encode/encode.h"'),
    ("lib/page/a.c", '#include "spec/rows.h"'),
    ("lib/base/a.c", "#include <xxhash.h>"),
    ("lib/snapshot/a.c", '#include "page/pool.h"'),
    ("lib/page/a.c", '#include "snapshot/container.h"'),
    ("lib/device/a.c", '#include "api/objects.h"'),
    ("lib/device/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/api/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/api/a.c", '#include "encode/encode.c"'),
    ("lib/api/a.c", '#include "nowhere.h"'),
    ("lib/api/a.c", "free(p);"),
    ("lib/api/a.c", "assert(p);"),
    ("lib/api/a.c", "x = rand();"),
    ("lib/api/a.c", "if (x) abort();"),
    ("cuda/a.cu", '#include "kernel/kernel.h"'),
    ("cuda/a.cu", '#include "attend/attend.h"'),
    ("bindings/rust/a.c", '#include "spec/rows.h"'),
    ("examples/a.c", '#include "spec/rows.h"'),
    ("bench/a.c", '#include "test/oracle/oracle.h"'),
    ("test/oracle/a.c", '#include "tq/tq.h"'),
    ("test/oracle/a.c", '#include "base/half.h"'),
    ("test/oracle/a.c", "#include <cjson/cJSON.h>"),
    ("test/unit/a.c", '#include "oracle/oracle.h"'),
    ("test/unit/a.c", '#include "spec/gen/gen.h"'),
    ("test/api/a.c", '#include "base/half.h"'),
    ("test/accuracy/a.c", '#include "spec/rows.h"'),
    ("lib/news/a.c", ""),
    ("lib/threads/a.c", '#include "spec/rows.h"'),
    ("lib/threads/a.c", "p = malloc(4);"),
    ("lib/attend/a.c", '#include "threads/pool.h"'),
    ("lib/api/a.c", "pthread_create(&t, 0, f, 0);"),
    ("lib/api/a.c", "#include <pthread.h>"),
    ("test/new/a.c", ""),
    ("a.c", ""),
]

# The same, but nothing is wrong.
GOOD = [
    ("include/tq/tq.h", "#include <stddef.h>"),
    ("include/tq/paged.h", '#include "tq/tq.h"'),
    ("include/tq/tq.h", "    void (*free)(void *user);"),
    ("lib/base/a.c", '#include "base/heap.h"'),
    ("lib/base/a.c", "// free(p), malloc(4)"),
    ("lib/base/a.c", '/* #include "spec/rows.h" */'),
    ("lib/base/a.c", 'x = "malloc(4)";'),
    ("lib/base/status.c", "vsnprintf(m, sizeof m, f, a);"),
    ("lib/base/heap.c", "free(aligned_alloc(a, b));"),
    ("lib/base/heap.c", "heap->hooks.free(p); h->free(p);"),
    ("lib/base/status.h", "__attribute__((format(printf, fmt, args)))"),
    ("lib/spec/a.c", "x = sqrt(y);"),
    ("lib/spec/a.c", '#include "spec/codebook_data.h"'),
    ("lib/spec/gen/a.c", "x = exp(y); printf(z);"),
    ("lib/threads/a.c", "pthread_mutex_lock(&m);"),
    ("lib/threads/a.c", '#include "base/executor.h"'),
    ("lib/api/a.c", '#include "threads/pool.h"'),
    ("lib/kernel/a.c", '#include "kernel/layer.h"'),
    ("lib/kernel/ref/a.c", '#include "kernel/kernels.def"'),
    ("lib/kernel/ref/a.c", '#include "base/half.h"'),
    ("lib/kernel/ref/a.c", '#include "kernel/ref/ref.h"'),
    ("lib/kernel/ref/a.c", "x = exp(from - to);"),
    ("lib/kernel/avx2/a.c", '#include "avx2.h"'),
    ("lib/kernel/avx2/a.c", "#include <immintrin.h>"),
    ("lib/kernel/amx/a.c", '#include "kernel/avx512/avx512.h"'),
    ("lib/kernel/avxvnni/a.c", '#include "kernel/avx2/avx2.h"'),
    ("lib/kernel/amx/a.c", '#include "kernel/amx/amx.h"'),
    ("lib/kernel/avx2/a.c", "x = _mm256_add_ps(a, b);"),
    ("lib/encode/a.c", '#include "kernel/layer.h"'),
    ("lib/attend/a.c", '#include "page/view.h"'),
    ("lib/page/a.c", '#include "spec/layout.h"'),
    ("lib/device/a.c", '#include "page/pool.h"'),
    ("lib/base/hash.c", "#include <xxhash.h>"),
    ("lib/api/a.c", '#include "page/pool.h"'),
    ("lib/api/a.c", '#include "snapshot/container.h"'),
    ("lib/api/a.c", "tqi_free(&h, p, 1, 2, s);"),
    ("cuda/a.cu", "#include <cuda_runtime.h>"),
    ("cuda/a.cu", '#include "device/device.h"'),
    ("examples/a.c", '#include "common/safetensors.h"'),
    ("examples/a.c", "#include <cjson/cJSON.h>"),
    ("test/oracle/a.c", '#include "oracle.h"'),
    ("test/unit/a.c", '#include "kernel/ref/ref.h"'),
    ("test/unit/a.c", '#include "unit/unit.h"'),
    ("test/api/a.c", '#include "common/rows.h"'),
    ("test/accuracy/a.c", '#include "oracle/oracle.h"'),
]


def self_test():
    """Messages for lines that were judged wrongly."""
    wrong = []
    for path, line in BAD:
        if len(check(path, "\n" + line + "\n", set(WORLD + [path]))) != 1:
            wrong.append("self-test: %s: not caught: %s" % (path, line))
    for path, line in GOOD:
        wrong += ["self-test: caught: " + message
                  for message in check(path, "\n" + line + "\n", set(WORLD + [path]))]
    return wrong


def main():
    messages = self_test()
    known = set() if "--self-test" in sys.argv else set(tree.files())
    sources = [path for path in sorted(known) if path.endswith(SOURCES)]
    for path in sources:
        messages += check(path, tree.read_text(path), known)
    print("\n".join(messages), end="\n" if messages else "")
    print("includes: %d files, %d synthetic lines, %d violations"
          % (len(sources), len(BAD) + len(GOOD), len(messages)))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
