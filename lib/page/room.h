/*
 * Room for tokens to come: pages that a sequence may write, taken before anything is
 * written. One sequence and layer, or all sequences of a step at once.
 */
#ifndef TQI_PAGE_ROOM_H
#define TQI_PAGE_ROOM_H

#include "page/seq.h"

/* Makes sure that tokens [lengths[layer], + n) have pages that this sequence may write:
 * takes new pages, copies a shared one. Changes nothing on failure. */
tq_status tqi_seq_make_room(struct tqi_seqs *seqs, struct tqi_seq *seq, uint32_t layer,
                            uint64_t n_tokens);

/* One sequence of a step; its lengths are the same in all layers. The caller sets slot and
 * n_tokens, the rest remembers how it was. */
struct tqi_room {
    uint32_t slot;   /* index of the sequence in tqi_seqs */
    uint32_t shared; /* whether the page that the tokens begin in was copied */
    uint64_t n_tokens;
    uint64_t n_pages; /* before */
    uint32_t page;    /* the shared one */
};

/* Makes room in n different sequences: in all or, on failure, in none. */
tq_status tqi_seqs_take_room(struct tqi_seqs *seqs, struct tqi_room *rooms, uint32_t n);
/* Takes the last take_room back, as if it had never been, before anything was written. The
 * pool shrinks to n_chunks. */
void tqi_seqs_return_room(struct tqi_seqs *seqs, const struct tqi_room *rooms, uint32_t n,
                          uint32_t n_chunks);

#endif
