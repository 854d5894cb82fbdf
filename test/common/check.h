/* CMocka with the headers that it asks for, and checks that say what went wrong. */
#ifndef TEST_COMMON_CHECK_H
#define TEST_COMMON_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tq/tq.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Work is divided by this under the sanitizers, which slow the reference kernels down;
 * checks and tolerances stay. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FEWER = 4 };
#else
enum { FEWER = 1 };
#endif

/* Fails with the condition and a formatted message. */
#define CHECK(condition, ...)                                           \
    do {                                                                \
        if (!(condition)) {                                             \
            print_error("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            print_error(__VA_ARGS__);                                   \
            print_error("\n");                                          \
            fail();                                                     \
        }                                                               \
    } while (0)

/* The call succeeds; else fails in the library's words. */
#define OK(call) check_ok((call), #call, __FILE__, __LINE__)

/* The call fails with that status and leaves a message of its own that holds the word. */
#define FAILS(call, status, word)                                           \
    do {                                                                    \
        check_spoil_message();                                              \
        check_failure((call), (status), (word), #call, __FILE__, __LINE__); \
    } while (0)

/* got <= limit; NaN fails too. */
#define AT_MOST(got, limit, ...)                                             \
    do {                                                                     \
        double check_got = (got), check_limit = (limit);                     \
        if (!(check_got <= check_limit)) {                                   \
            print_error("%s:%d: ", __FILE__, __LINE__);                      \
            print_error(__VA_ARGS__);                                        \
            print_error(": got %.9g, limit %.9g\n", check_got, check_limit); \
            fail();                                                          \
        }                                                                    \
    } while (0)

void check_ok(tq_status status, const char *call, const char *file, int line);
/* Makes tq_last_error() say something that no test expects. */
void check_spoil_message(void);
void check_failure(tq_status got, tq_status want, const char *word, const char *call,
                   const char *file, int line);

#endif
