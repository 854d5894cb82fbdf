/* Status codes with a message: the one way an error leaves the library. */
#ifndef TQI_BASE_STATUS_H
#define TQI_BASE_STATUS_H

#include "tq/tq.h"

#if defined(__GNUC__)
#define TQI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define TQI_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Stores the message for tq_last_error() of this thread and returns `status`. */
tq_status tqi_fail(tq_status status, const char *format, ...) TQI_PRINTF(2, 3);
const char *tqi_last_message(void);
/* A text of at most size - 1 bytes and its end, for outputs that are not errors. */
void tqi_format_text(char *to, size_t size, const char *format, ...) TQI_PRINTF(3, 4);
const char *tqi_status_text(tq_status status);

#ifdef __cplusplus
}
#endif

/* Leaves the calling function when a step failed; the step has set the message. */
#define TQI_TRY(call)                \
    do {                             \
        tq_status tqi_try_ = (call); \
        if (tqi_try_ != TQ_OK)       \
            return tqi_try_;         \
    } while (0)

/* Leaves the calling function with a message when an argument is wrong. */
#define TQI_REQUIRE(condition, ...)                                \
    do {                                                           \
        if (!(condition))                                          \
            return tqi_fail(TQ_ERR_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)

#endif
