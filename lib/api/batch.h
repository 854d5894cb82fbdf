/* What the two files of batches share: batch.c has the life of a step, batch_run.c its
 * layers. */
#ifndef TQI_API_BATCH_H
#define TQI_API_BATCH_H

#include "api/objects.h"

/* What is known of a layer of a batch. */
enum tqi_layer_flags {
    TQI_LAYER_APPENDED = 1, /* in the step at hand */
    TQI_LAYER_CAPTURED = 2  /* by a graph, which appends in every step from then on */
};

#define TQI_CHECK_BATCH(batch) TQI_REQUIRE((batch) != NULL, "batch: must not be NULL")

/* TQ_ERR_INVALID_STATE when nothing is planned. */
tq_status tqi_check_planned(const tq_batch *batch);

#endif
