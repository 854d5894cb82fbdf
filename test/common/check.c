#include "common/check.h"

#include <string.h>

void check_ok(tq_status status, const char *call, const char *file, int line) {
    if (status == TQ_OK)
        return;
    print_error("%s: %s: %s\n", call, tq_status_name(status), tq_last_error());
    _fail(file, line);
}

void check_spoil_message(void) {
    tq_format ignored;
    (void)tq_format_find("no such format: stale message", &ignored);
}

void check_failure(tq_status got, tq_status want, const char *word, const char *call,
                   const char *file, int line) {
    const char *message = tq_last_error();
    if (got != want) {
        print_error("%s: %s instead of %s: %s\n", call, tq_status_name(got), tq_status_name(want),
                    message);
        _fail(file, line);
    }
    if (strstr(message, "stale message") || !strstr(message, word)) {
        print_error("%s: the message \"%s\" does not name \"%s\"\n", call, message, word);
        _fail(file, line);
    }
}
