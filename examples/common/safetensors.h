/* Reads a safetensors file: a little-endian u64 header length, a JSON header, raw data.
 * Every offset is checked against the file before it is used. For the examples and the
 * tests; the library itself reads no files. */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stdint.h>

enum { ST_MAX_DIMS = 4 };

struct st_file;

/* 0 on success; -1 with a message in st_error(). */
int st_open(const char *path, struct st_file **out);
void st_close(struct st_file *file);
/* Data of a tensor, NULL with a message when there is none of that name or its entry is
 * wrong. shape gets n_dims entries; dtype, for instance "F16", lives as long as the file. */
const void *st_tensor(const struct st_file *file, const char *name, int64_t shape[ST_MAX_DIMS],
                      int *n_dims, const char **dtype);
/* A string of __metadata__, NULL when there is none. */
const char *st_meta(const struct st_file *file, const char *key);
/* Message of the last failure in this thread. */
const char *st_error(void);

#endif
