#include "base/status.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

uint32_t tq_version_number(void) {
    return TQ_VERSION_NUMBER;
}

const char *tq_version_string(void) {
    return TEXT(TQ_VERSION_MAJOR) "." TEXT(TQ_VERSION_MINOR) "." TEXT(TQ_VERSION_PATCH);
}

uint32_t tq_abi_version(void) {
    return TQ_ABI_VERSION;
}

uint32_t tq_format_version(void) {
    return TQ_FORMAT_VERSION;
}

const char *tq_status_name(tq_status status) {
    return tqi_status_text(status);
}

const char *tq_last_error(void) {
    return tqi_last_message();
}
