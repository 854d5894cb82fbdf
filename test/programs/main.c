/* All CMocka programs are one, which does what the last two parts of its name say: it carries the
 * library once, not a hundred times (with sanitizers 60 MB each). build/<id>/test/unit/test_base
 * and the others are links to it. PROGRAMS lists them, those that take arguments by WITH; it is
 * from a header that make writes and names on the command line. */
#include <stdio.h>
#include <string.h>

#define DECLARE(folder, name) int main_##folder##_##name(void);
#define DECLARE_WITH(folder, name) int main_##folder##_##name(int argc, char **argv);
PROGRAMS(DECLARE, DECLARE_WITH)

#define ENTRY(folder, name) {"/" #folder "/" #name, main_##folder##_##name, NULL},
#define ENTRY_WITH(folder, name) {"/" #folder "/" #name, NULL, main_##folder##_##name},
static const struct {
    const char *name;
    int (*run)(void);
    int (*run_with)(int argc, char **argv);
} programs[] = {PROGRAMS(ENTRY, ENTRY_WITH)};

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 0 && i < sizeof programs / sizeof *programs; i++)
        if (ends_with(argv[0], programs[i].name))
            return programs[i].run ? programs[i].run() : programs[i].run_with(argc, argv);
    fprintf(stderr, "%s: no test program has this name\n", argc > 0 ? argv[0] : "(none)");
    return 2;
}
