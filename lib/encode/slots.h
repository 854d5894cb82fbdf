/* The write path where every token names its place. */
#ifndef TQI_ENCODE_SLOTS_H
#define TQI_ENCODE_SLOTS_H

#include "encode/encode.h"

/* Codes token i of the job into slots[i]: page * page_tokens + token of the page, negative for
 * none. Of the job, sequences are not used. */
void tqi_encode_slots(const struct tqi_encode_job *job, const int64_t *slots, uint32_t n_tokens);

#endif
