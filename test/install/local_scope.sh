#!/bin/sh
# local_scope.sh FOLDER CC: another library with tq_ symbols is loaded first, globally; ours,
# loaded by full path with local scope, still calls its own functions.
set -eu
dir=$1
cc=$2
make=${MAKE:-make}
"$make" --no-print-directory -s install PREFIX=/opt/tq DESTDIR="$dir/scope" >/dev/null
cat >"$dir/impostor.c" <<'C'
const char *tq_last_error(void);
const char *tq_last_error(void) { return "impostor"; }
int tq_seq_create(void *a, void *b);
int tq_seq_create(void *a, void *b) { (void)a; (void)b; return 77; }
C
cat >"$dir/loader.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    if (argc != 3 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) return 1;
    void *ours = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (!ours) { puts(dlerror()); return 1; }
    int (*create)(void *, void *);
    const char *(*message)(void);
    *(void **)&create = dlsym(ours, "tq_seq_create");
    *(void **)&message = dlsym(ours, "tq_last_error");
    return create(NULL, NULL) == -1 && strstr(message(), "cache") ? 0 : 1;
}
C
"$cc" -shared -fPIC -o "$dir/impostor.so" "$dir/impostor.c"
"$cc" -o "$dir/loader" "$dir/loader.c" -ldl
"$dir/loader" "$dir/impostor.so" "$dir/scope/opt/tq/lib/libturboquant.so.0"
