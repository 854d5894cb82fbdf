/* One token back into the caller's basis: codes, sketch, inverse rotation. */
#include <string.h>

#include "kernel/ref/ref.h"

void tqk_decode_ref(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                    double *out, void *scratch) {
    uint32_t dim = rows->layout.dim;
    double factor, *signs = scratch, line[36];
    tqk_unpack_ref(rows, tile, token, out, &factor);
    for (uint32_t i = 0; i < dim; i++)
        out[i] *= factor;
    if (rows->format->sketch) {
        tqk_unpack_sketch_ref(rows, tile, token, signs, &factor);
        tqk_unrotate_exact_ref(&rows->sketch[1], signs, line);
        tqk_unrotate_exact_ref(&rows->sketch[0], signs, line);
        for (uint32_t i = 0; i < dim; i++)
            out[i] += factor * signs[i];
    }
    if (tqi_format_rotates(rows->format))
        tqk_unrotate_exact_ref(&rows->rotation, out, line);
}
