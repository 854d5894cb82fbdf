/* Makes the numeric tables of the library from the densities they belong to.

       gen codebook > lib/spec/codebook_data.h
       gen hadamard > lib/spec/hadamard_data.h
       gen report

   The headers are committed: a build needs this program only where a table is to change. The output
   is the same on every machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"

static int usage(void) {
    fputs("usage: gen codebook | hadamard | report\n", stderr);
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        bool (*print)(void);
    } outputs[] = {
        {"codebook", gen_print_codebook_header},
        {"hadamard", gen_print_hadamard_header},
        {"report", gen_print_report},
    };
    if (argc != 2) {
        return usage();
    }
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        if (strcmp(argv[1], outputs[i].name) == 0) {
            if (!outputs[i].print()) {
                fputs("gen: a table could not be made\n", stderr);
                return EXIT_FAILURE;
            }
            if (fflush(stdout) != 0 || ferror(stdout)) {
                fputs("gen: cannot write the output\n", stderr);
                return EXIT_FAILURE;
            }
            return EXIT_SUCCESS;
        }
    }
    return usage();
}
