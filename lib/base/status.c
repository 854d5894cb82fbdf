#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

/* Small on purpose: it lives in thread-local storage of every thread of a process
 * that loads the library. */
static _Thread_local char message[256];

tq_status tqi_fail(tq_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

void tqi_format_text(char *to, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(to, size, format, args);
    va_end(args);
}

const char *tqi_last_message(void) {
    return message;
}

const char *tqi_status_text(tq_status status) {
    switch (status) {
#define TQI_NAME(code) \
    case code:         \
        return #code
        TQI_NAME(TQ_OK);
        TQI_NAME(TQ_ERR_INVALID_ARGUMENT);
        TQI_NAME(TQ_ERR_INVALID_STATE);
        TQI_NAME(TQ_ERR_UNSUPPORTED);
        TQI_NAME(TQ_ERR_VERSION);
        TQI_NAME(TQ_ERR_NOT_FOUND);
        TQI_NAME(TQ_ERR_OUT_OF_MEMORY);
        TQI_NAME(TQ_ERR_OUT_OF_PAGES);
        TQI_NAME(TQ_ERR_BUFFER_TOO_SMALL);
        TQI_NAME(TQ_ERR_CORRUPT);
        TQI_NAME(TQ_ERR_MISMATCH);
        TQI_NAME(TQ_ERR_DEVICE);
        TQI_NAME(TQ_ERR_INTERNAL);
#undef TQI_NAME
    default:
        return "TQ_ERR_UNKNOWN";
    }
}
