#include "page/edit.h"

#include <string.h>

#include "base/checked.h"

tq_status tqi_seq_own_pages(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t first,
                            uint64_t last) {
    uint64_t shared = 0;
    for (uint64_t i = first; i < last; i++)
        shared += seqs->pool->references[seq->pages[i]] > 1;
    TQI_TRY(tqi_pool_reserve(seqs->pool, shared));
    for (uint64_t i = first; i < last; i++)
        tqi_seq_unshare(seqs, seq, i);
    return TQ_OK;
}

void tqi_seq_drop_pages(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t first, uint64_t last) {
    /* From the end, as truncate does it: low numbers are taken first again. */
    for (uint64_t i = last; i-- > first;)
        tqi_pool_release(seqs->pool, seq->pages[i]);
    if (seq->n_pages > last)
        memmove(seq->pages + first, seq->pages + last, (seq->n_pages - last) * sizeof *seq->pages);
    seq->n_pages -= last - first;
}

/* ---- reorder ----------------------------------------------------------------------------- */

/* What a sequence will be. */
struct heir {
    uint32_t *pages; /* NULL: it stays what it is, or is empty */
    uint64_t n_pages, length;
    struct tqi_exact exact;
};

static tq_status check_one(const struct tqi_seqs *seqs, uint32_t i, const struct tqi_seq *seq) {
    TQI_REQUIRE(!seq->marked, "seqs: number %u is named twice", i);
    if (seq->step)
        return tqi_fail(TQ_ERR_INVALID_STATE, "seqs: number %u is part of a planned batch", i);
    if (tqi_seq_shortest(seqs, seq) != tqi_seq_longest(seqs, seq))
        return tqi_fail(TQ_ERR_INVALID_STATE, "seqs: layers of number %u differ in length", i);
    return TQ_OK;
}

static void unmark(struct tqi_seqs *seqs, uint32_t n, const tq_seq *ids) {
    for (uint32_t i = 0; i < n; i++)
        tqi_seq_find(seqs, ids[i])->marked = 0;
}

/* All sequences and parents exist, every sequence is named once. */
static tq_status check_list(struct tqi_seqs *seqs, uint32_t n, const tq_seq *ids,
                            const uint32_t *parents) {
    tq_status status = TQ_OK;
    uint32_t done = 0;
    for (; done < n; done++) {
        struct tqi_seq *seq = tqi_seq_find(seqs, ids[done]);
        status = seq ? check_one(seqs, done, seq) : TQ_ERR_NOT_FOUND;
        if (status != TQ_OK)
            break;
        seq->marked = 1;
    }
    unmark(seqs, done, ids);
    for (uint32_t i = 0; status == TQ_OK && i < n; i++)
        if (parents[i] >= n)
            status = tqi_fail(TQ_ERR_INVALID_ARGUMENT, "parents: number %u is %u, there are %u", i,
                              parents[i], n);
    return status;
}

static void free_heirs(struct tqi_seqs *seqs, uint32_t n, struct heir *heirs) {
    for (uint32_t i = 0; i < n; i++) {
        tqi_free(seqs->heap, heirs[i].pages, heirs[i].n_pages, sizeof(uint32_t), TQ_MEM_HOST);
        tqi_exact_end(&seqs->exact, &heirs[i].exact);
    }
    tqi_free(seqs->heap, heirs, n, sizeof *heirs, TQ_MEM_HOST);
}

static tq_status make_heir(struct tqi_seqs *seqs, const struct tqi_seq *parent, struct heir *heir) {
    uint64_t n_pages = tqi_div_up(parent->lengths[0], seqs->page_tokens);
    TQI_TRY(tqi_exact_init(&seqs->exact, &heir->exact));
    TQI_TRY(tqi_exact_fork(&seqs->exact, &parent->exact, parent->lengths[0], &heir->exact));
    if (n_pages == 0)
        return TQ_OK;
    heir->pages = tqi_calloc(seqs->heap, n_pages, sizeof(uint32_t));
    if (!heir->pages)
        return TQ_ERR_OUT_OF_MEMORY;
    heir->n_pages = n_pages;
    heir->length = parent->lengths[0];
    memcpy(heir->pages, parent->pages, n_pages * sizeof(uint32_t));
    return TQ_OK;
}

/* Tables of all sequences that change; holds no references to pages of codes yet. */
static tq_status make_heirs(struct tqi_seqs *seqs, uint32_t n, const tq_seq *ids,
                            const uint32_t *parents, struct heir **out) {
    struct heir *heirs = tqi_calloc(seqs->heap, n, sizeof *heirs);
    if (!heirs)
        return TQ_ERR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const struct tqi_seq *parent = tqi_seq_find(seqs, ids[parents[i]]);
        tq_status status = parents[i] == i ? TQ_OK : make_heir(seqs, parent, &heirs[i]);
        if (status != TQ_OK) {
            free_heirs(seqs, n, heirs);
            return status;
        }
    }
    *out = heirs;
    return TQ_OK;
}

/* The sequence gives back what it has; its old table is left to be freed with the heir. */
static void succeed(struct tqi_seqs *seqs, struct tqi_seq *seq, struct heir *heir) {
    uint32_t *old = seq->pages;
    uint64_t capacity = seq->page_capacity;
    tqi_seq_drop_pages(seqs, seq, 0, seq->n_pages);
    struct tqi_exact old_exact = seq->exact;
    seq->pages = heir->pages;
    seq->n_pages = seq->page_capacity = heir->n_pages;
    seq->exact = heir->exact;
    heir->exact = old_exact;
    for (uint32_t l = 0; l < seqs->n_layers; l++)
        seq->lengths[l] = heir->length;
    heir->pages = old;
    heir->n_pages = capacity;
}

tq_status tqi_seqs_reorder(struct tqi_seqs *seqs, uint32_t n, const tq_seq *ids,
                           const uint32_t *parents) {
    struct heir *heirs;
    TQI_TRY(check_list(seqs, n, ids, parents));
    TQI_TRY(make_heirs(seqs, n, ids, parents, &heirs));
    /* All references first: a page that only changes hands is never free in between. */
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t p = 0; p < heirs[i].n_pages; p++)
            tqi_pool_share(seqs->pool, heirs[i].pages[p]);
    for (uint32_t i = 0; i < n; i++)
        if (parents[i] != i)
            succeed(seqs, tqi_seq_find(seqs, ids[i]), &heirs[i]);
    free_heirs(seqs, n, heirs);
    return TQ_OK;
}
