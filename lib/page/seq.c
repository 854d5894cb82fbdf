#include "page/seq.h"

#include <string.h>

#include "base/checked.h"

static tq_seq id_of(const struct tqi_seqs *seqs, const struct tqi_seq *seq) {
    uint64_t slot = (uint64_t)(seq - seqs->slots);
    return (uint64_t)seq->generation << 32 | (slot + 1);
}

void tqi_seqs_init(struct tqi_seqs *seqs, struct tqi_heap *heap, struct tqi_pool *pool,
                   uint32_t page_tokens, uint32_t max_seqs) {
    memset(seqs, 0, sizeof *seqs);
    seqs->heap = heap;
    seqs->pool = pool;
    seqs->n_layers = pool->n_layers;
    seqs->page_tokens = page_tokens;
    seqs->max_seqs = max_seqs;
}

static void drop_memory(struct tqi_seqs *seqs, struct tqi_seq *seq) {
    tqi_free(seqs->heap, seq->pages, seq->page_capacity, sizeof *seq->pages, TQ_MEM_HOST);
    tqi_free(seqs->heap, seq->lengths, seqs->n_layers, sizeof *seq->lengths, TQ_MEM_HOST);
    tqi_exact_free(&seqs->exact, &seq->exact);
    seq->pages = NULL;
    seq->lengths = NULL;
    seq->n_pages = seq->page_capacity = 0;
}

void tqi_seqs_destroy(struct tqi_seqs *seqs) {
    for (uint32_t i = 0; i < seqs->n_slots; i++)
        drop_memory(seqs, &seqs->slots[i]);
    tqi_free(seqs->heap, seqs->slots, seqs->slot_capacity, sizeof *seqs->slots, TQ_MEM_HOST);
    memset(seqs, 0, sizeof *seqs);
}

/* Ids of a dead sequence must never come alive again: a slot that has used up its
 * generations is not used any more. */
static void retire(struct tqi_seqs *seqs, struct tqi_seq *seq) {
    tqi_exact_end(&seqs->exact, &seq->exact);
    drop_memory(seqs, seq);
    seq->alive = 0;
    seqs->n_alive--;
    if (++seq->generation == 0)
        return;
    seq->next_free = seqs->first_free;
    seqs->first_free = (uint32_t)(seq - seqs->slots) + 1;
}

void tqi_seqs_reset(struct tqi_seqs *seqs) {
    for (uint32_t i = 0; i < seqs->n_slots; i++)
        if (seqs->slots[i].alive)
            retire(seqs, &seqs->slots[i]);
    tqi_pool_reset(seqs->pool);
    if (seqs->exact.pool)
        tqi_pool_reset(seqs->exact.pool);
}

struct tqi_seq *tqi_seq_find(const struct tqi_seqs *seqs, tq_seq id) {
    uint64_t slot = (id & UINT32_MAX) - 1; /* 0 wraps to a slot that can't exist */
    if (slot < seqs->n_slots) {
        struct tqi_seq *seq = &seqs->slots[slot];
        if (seq->alive && seq->generation == id >> 32)
            return seq;
    }
    (void)tqi_fail(TQ_ERR_NOT_FOUND, "no sequence with id 0x%llx in this cache",
                   (unsigned long long)id);
    return NULL;
}

static tq_status grow_slots(struct tqi_seqs *seqs) {
    uint32_t capacity = seqs->slot_capacity ? seqs->slot_capacity * 2 : 16;
    struct tqi_seq *slots = tqi_calloc(seqs->heap, capacity, sizeof *slots);
    if (!slots)
        return TQ_ERR_OUT_OF_MEMORY;
    if (seqs->n_slots)
        memcpy(slots, seqs->slots, seqs->n_slots * sizeof *slots);
    tqi_free(seqs->heap, seqs->slots, seqs->slot_capacity, sizeof *slots, TQ_MEM_HOST);
    seqs->slots = slots;
    seqs->slot_capacity = capacity;
    return TQ_OK;
}

/* A slot that is not alive; may be a new one. */
static tq_status pick_slot(struct tqi_seqs *seqs, struct tqi_seq **out) {
    if (seqs->n_alive >= seqs->max_seqs)
        return tqi_fail(TQ_ERR_INVALID_STATE, "max_seqs: %u sequences exist already",
                        seqs->n_alive);
    if (seqs->first_free) {
        *out = &seqs->slots[seqs->first_free - 1];
        seqs->first_free = (*out)->next_free;
        return TQ_OK;
    }
    if (seqs->n_slots == seqs->slot_capacity)
        TQI_TRY(grow_slots(seqs));
    *out = &seqs->slots[seqs->n_slots++];
    return TQ_OK;
}

static tq_status create(struct tqi_seqs *seqs, struct tqi_seq **out) {
    struct tqi_seq *seq = NULL;
    struct tqi_exact exact;
    uint64_t *lengths = tqi_calloc(seqs->heap, seqs->n_layers, sizeof *lengths);
    if (!lengths)
        return TQ_ERR_OUT_OF_MEMORY;
    tq_status status = tqi_exact_init(&seqs->exact, &exact);
    if (status == TQ_OK)
        status = pick_slot(seqs, &seq);
    if (status != TQ_OK) {
        tqi_exact_free(&seqs->exact, &exact);
        tqi_free(seqs->heap, lengths, seqs->n_layers, sizeof *lengths, TQ_MEM_HOST);
        return status;
    }
    /* tqi_fail() never returns TQ_OK. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    seq->alive = 1;
    seq->lengths = lengths;
    seq->exact = exact;
    seqs->n_alive++;
    *out = seq;
    return TQ_OK;
}

tq_status tqi_seqs_create(struct tqi_seqs *seqs, tq_seq *out) {
    struct tqi_seq *seq = NULL;
    TQI_TRY(create(seqs, &seq));
    *out = id_of(seqs, seq);
    return TQ_OK;
}

/* Gives back pages from index `keep` on. */
static void release_pages(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t keep) {
    while (seq->n_pages > keep)
        tqi_pool_release(seqs->pool, seq->pages[--seq->n_pages]);
}

void tqi_seqs_end(struct tqi_seqs *seqs, struct tqi_seq *seq) {
    release_pages(seqs, seq, 0);
    retire(seqs, seq);
}

uint64_t tqi_seq_shortest(const struct tqi_seqs *seqs, const struct tqi_seq *seq) {
    uint64_t n = seq->lengths[0];
    for (uint32_t l = 1; l < seqs->n_layers; l++)
        n = seq->lengths[l] < n ? seq->lengths[l] : n;
    return n;
}

uint64_t tqi_seq_longest(const struct tqi_seqs *seqs, const struct tqi_seq *seq) {
    uint64_t n = seq->lengths[0];
    for (uint32_t l = 1; l < seqs->n_layers; l++)
        n = seq->lengths[l] > n ? seq->lengths[l] : n;
    return n;
}

tq_status tqi_seq_check_prefix(const struct tqi_seqs *seqs, const struct tqi_seq *seq, uint64_t n) {
    uint64_t shortest = tqi_seq_shortest(seqs, seq), longest = tqi_seq_longest(seqs, seq);
    TQI_REQUIRE(n <= longest, "n_tokens: %llu asked for, the sequence has %llu",
                (unsigned long long)n, (unsigned long long)longest);
    if (n > shortest)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "n_tokens: layers differ in length (%llu to %llu), so that only the first "
                        "%llu tokens are complete",
                        (unsigned long long)shortest, (unsigned long long)longest,
                        (unsigned long long)shortest);
    return TQ_OK;
}

tq_status tqi_seq_check_range(const struct tqi_seqs *seqs, const struct tqi_seq *seq,
                              uint64_t first, uint64_t n) {
    uint64_t end;
    TQI_REQUIRE(!__builtin_add_overflow(first, n, &end), "first, n_tokens: %llu and %llu overflow",
                (unsigned long long)first, (unsigned long long)n);
    return tqi_seq_check_prefix(seqs, seq, end);
}

uint64_t tqi_seq_rest(const struct tqi_seqs *seqs, const struct tqi_seq *seq, uint64_t first,
                      uint64_t n) {
    uint64_t longest = tqi_seq_longest(seqs, seq);
    return n != UINT64_MAX ? n : first < longest ? longest - first : 0;
}

tq_status tqi_seq_grow_table(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t pages) {
    if (pages <= seq->page_capacity)
        return TQ_OK;
    uint64_t capacity = seq->page_capacity * 2 > pages ? seq->page_capacity * 2 : pages;
    uint32_t *table = tqi_calloc(seqs->heap, capacity, sizeof *table);
    if (!table)
        return TQ_ERR_OUT_OF_MEMORY;
    if (seq->n_pages)
        memcpy(table, seq->pages, seq->n_pages * sizeof *table);
    tqi_free(seqs->heap, seq->pages, seq->page_capacity, sizeof *table, TQ_MEM_HOST);
    seq->pages = table;
    seq->page_capacity = capacity;
    return TQ_OK;
}

tq_status tqi_seqs_fork(struct tqi_seqs *seqs, struct tqi_seq *src, uint64_t n_tokens,
                        tq_seq *out) {
    struct tqi_seq *fork = NULL;
    uint64_t n = n_tokens == UINT64_MAX ? tqi_seq_longest(seqs, src) : n_tokens;
    TQI_TRY(tqi_seq_check_prefix(seqs, src, n));
    uint64_t pages = tqi_div_up(n, seqs->page_tokens), src_slot = (uint64_t)(src - seqs->slots);
    TQI_TRY(create(seqs, &fork));
    src = &seqs->slots[src_slot]; /* creating may have moved the slots */
    tq_status status = tqi_seq_grow_table(seqs, fork, pages);
    if (status == TQ_OK)
        status = tqi_exact_fork(&seqs->exact, &src->exact, n, &fork->exact);
    if (status != TQ_OK) {
        retire(seqs, fork);
        return status;
    }
    for (uint64_t i = 0; i < pages; i++) {
        fork->pages[i] = src->pages[i];
        tqi_pool_share(seqs->pool, fork->pages[i]);
    }
    fork->n_pages = pages;
    for (uint32_t l = 0; l < seqs->n_layers; l++)
        fork->lengths[l] = n;
    tqi_exact_settle(&seqs->exact, &fork->exact, fork->lengths);
    *out = id_of(seqs, fork);
    return TQ_OK;
}

void tqi_seq_set_length(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t n_tokens) {
    release_pages(seqs, seq, tqi_div_up(n_tokens, seqs->page_tokens));
    for (uint32_t l = 0; l < seqs->n_layers; l++)
        seq->lengths[l] = n_tokens;
    tqi_exact_settle(&seqs->exact, &seq->exact, seq->lengths);
}

tq_status tqi_seqs_truncate(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t n_tokens) {
    TQI_TRY(tqi_seq_check_prefix(seqs, seq, n_tokens));
    tqi_seq_set_length(seqs, seq, n_tokens);
    return TQ_OK;
}

void tqi_seq_unshare(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t index) {
    uint32_t old = seq->pages[index];
    if (seqs->pool->references[old] == 1)
        return;
    uint32_t own = tqi_pool_take(seqs->pool);
    tqi_pool_copy_page(seqs->pool, own, old);
    tqi_pool_release(seqs->pool, old);
    seq->pages[index] = own;
}
