#include "safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

struct st_file {
    unsigned char *bytes;
    uint64_t size;
    uint64_t data; /* offset of the data section */
    cJSON *header;
};

enum { MAX_HEADER = 1 << 20 };

static _Thread_local char message[200];

static int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return -1;
}

const char *st_error(void) {
    return message;
}

static int read_all(const char *path, struct st_file *f) {
    FILE *in = fopen(path, "rb");
    long size;
    if (!in)
        return fail("%s: cannot be opened", path);
    if (fseek(in, 0, SEEK_END) != 0 || (size = ftell(in)) < 8 || fseek(in, 0, SEEK_SET) != 0) {
        (void)fclose(in);
        return fail("%s: too short for a safetensors file", path);
    }
    f->size = (uint64_t)size;
    f->bytes = malloc((size_t)f->size);
    size_t got = f->bytes ? fread(f->bytes, 1, (size_t)f->size, in) : 0;
    (void)fclose(in);
    return got == f->size ? 0 : fail("%s: cannot be read", path);
}

static int parse(const char *path, struct st_file *f) {
    uint64_t length;
    memcpy(&length, f->bytes, sizeof length);
    if (length > MAX_HEADER || length > f->size - 8)
        return fail("%s: header of %llu bytes does not fit", path, (unsigned long long)length);
    f->data = 8 + length;
    f->header = cJSON_ParseWithLength((const char *)f->bytes + 8, (size_t)length);
    return f->header ? 0 : fail("%s: header is not JSON", path);
}

int st_open(const char *path, struct st_file **out) {
    struct st_file *f = calloc(1, sizeof *f);
    if (!f)
        return fail("out of memory");
    if (read_all(path, f) != 0 || parse(path, f) != 0) {
        st_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

void st_close(struct st_file *f) {
    if (!f)
        return;
    cJSON_Delete(f->header);
    free(f->bytes);
    free(f);
}

static uint64_t element_size(const char *dtype) {
    if (strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0)
        return 2;
    return strcmp(dtype, "F32") == 0 ? 4 : 0;
}

/* A whole number that a double holds exactly. */
static int whole(const cJSON *n, uint64_t limit, uint64_t *out) {
    if (!cJSON_IsNumber(n) || n->valuedouble < 0 || n->valuedouble > (double)limit)
        return -1;
    *out = (uint64_t)n->valuedouble;
    return (double)*out == n->valuedouble ? 0 : -1;
}

/* Elements of the shape; 0 when it is malformed. */
static uint64_t read_shape(const cJSON *shape, int64_t out[ST_MAX_DIMS], int *n_dims) {
    uint64_t elements = 1, n;
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > ST_MAX_DIMS)
        return 0;
    *n_dims = cJSON_GetArraySize(shape);
    for (int i = 0; i < *n_dims; i++) {
        if (whole(cJSON_GetArrayItem(shape, i), 1u << 30, &n) != 0 || n == 0 ||
            elements > (UINT64_C(1) << 40) / n)
            return 0;
        out[i] = (int64_t)n;
        elements *= n;
    }
    return elements;
}

const void *st_tensor(const struct st_file *f, const char *name, int64_t shape[ST_MAX_DIMS],
                      int *n_dims, const char **dtype) {
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(f->header, name);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    uint64_t begin, end, room = f->size - f->data, size, elements;
    if (!cJSON_IsString(type) || (size = element_size(type->valuestring)) == 0) {
        (void)fail("%s: no such tensor of a known type", name);
        return NULL;
    }
    elements = read_shape(cJSON_GetObjectItemCaseSensitive(entry, "shape"), shape, n_dims);
    if (elements == 0 || whole(cJSON_GetArrayItem(range, 0), room, &begin) != 0 ||
        whole(cJSON_GetArrayItem(range, 1), room, &end) != 0 || end < begin ||
        end - begin != elements * size) {
        (void)fail("%s: shape and offsets disagree", name);
        return NULL;
    }
    *dtype = type->valuestring;
    return f->bytes + f->data + begin;
}

const char *st_meta(const struct st_file *f, const char *key) {
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(f->header, "__metadata__");
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(meta, key);
    return cJSON_IsString(value) ? value->valuestring : NULL;
}
