/* Changes of whole page tables: pages of a sequence to itself, pages taken out, sequences in
 * another order. Tokens inside pages are moved by the caller. */
#ifndef TQI_PAGE_EDIT_H
#define TQI_PAGE_EDIT_H

#include "page/seq.h"

/* Makes pages [first, last) of the table this sequence's own: copies those that are shared.
 * Changes nothing on failure. */
tq_status tqi_seq_own_pages(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t first,
                            uint64_t last);
/* Takes pages [first, last) out of the table; those behind move up. Lengths stay. */
void tqi_seq_drop_pages(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t first, uint64_t last);

/* Sequence i of the list becomes what sequence parents[i] of it was, all at once: tables are
 * copied, pages shared. Each is named once and has one length in all layers. */
tq_status tqi_seqs_reorder(struct tqi_seqs *seqs, uint32_t n, const tq_seq *ids,
                           const uint32_t *parents);

#endif
