#include <string.h>

#include "api/objects.h"

static tq_status check_size(const char *name, uint32_t size, size_t first) {
    TQI_REQUIRE(size >= first, "%s: struct_size is %u, at least %zu is needed", name, size, first);
    TQI_REQUIRE(size <= TQI_STRUCT_SIZE_LIMIT, "%s: struct_size is %u, more than %d", name, size,
                TQI_STRUCT_SIZE_LIMIT);
    return TQ_OK;
}

static uint32_t size_of(const void *s) {
    uint32_t size;
    memcpy(&size, s, sizeof size);
    return size;
}

tq_status tqi_struct_in(const char *name, void *to, size_t size, size_t first, const void *from) {
    uint32_t given = size_of(from);
    TQI_TRY(check_size(name, given, first));
    for (size_t i = size; i < given; i++)
        if (((const unsigned char *)from)[i])
            return tqi_fail(TQ_ERR_VERSION,
                            "%s: byte %zu is set, but this library knows only %zu bytes", name, i,
                            size);
    memset(to, 0, size);
    memcpy(to, from, given < size ? given : size);
    return TQ_OK;
}

tq_status tqi_struct_check_out(const char *name, size_t first, const void *out) {
    return check_size(name, size_of(out), first);
}

void tqi_struct_out(void *out, const void *from, size_t size) {
    uint32_t given = size_of(out);
    size_t known = given < size ? given : size;
    memcpy((char *)out + sizeof given, (const char *)from + sizeof given, known - sizeof given);
    memset((char *)out + known, 0, given - known);
}
