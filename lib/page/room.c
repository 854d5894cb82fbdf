#include "page/room.h"

#include "base/checked.h"

static tq_status end_of(uint64_t start, uint64_t n_tokens, uint64_t *end) {
    if (__builtin_add_overflow(start, n_tokens, end))
        return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "n_tokens: the sequence's length overflows");
    return TQ_OK;
}

static bool is_shared(const struct tqi_seqs *seqs, uint32_t page) {
    return seqs->pool->references[page] > 1;
}

/* ---- one layer of one sequence ----------------------------------------------------------- */

/* Pages of [first, last) that are shared and would be written. */
static uint64_t count_shared(const struct tqi_seqs *seqs, const struct tqi_seq *seq, uint64_t first,
                             uint64_t last) {
    uint64_t n = 0;
    for (uint64_t i = first; i < last; i++)
        n += is_shared(seqs, seq->pages[i]) ? 1 : 0;
    return n;
}

static tq_status make_code_room(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t start,
                                uint64_t end) {
    uint64_t first = start / seqs->page_tokens, last = tqi_div_up(end, seqs->page_tokens);
    uint64_t have = last < seq->n_pages ? last : seq->n_pages;
    uint64_t copies = count_shared(seqs, seq, first, have);
    uint64_t fresh = last > seq->n_pages ? last - seq->n_pages : 0;
    uint32_t chunks = seqs->pool->n_chunks;
    TQI_TRY(tqi_pool_reserve(seqs->pool, copies + fresh));
    tq_status status = tqi_seq_grow_table(seqs, seq, last);
    if (status != TQ_OK) {
        tqi_pool_shrink(seqs->pool, chunks);
        return status;
    }
    for (uint64_t i = first; i < have; i++)
        tqi_seq_unshare(seqs, seq, i);
    while (seq->n_pages < last)
        seq->pages[seq->n_pages++] = tqi_pool_take(seqs->pool);
    return TQ_OK;
}

tq_status tqi_seq_make_room(struct tqi_seqs *seqs, struct tqi_seq *seq, uint32_t layer,
                            uint64_t n_tokens) {
    const struct tqi_exact_rules *rules = &seqs->exact;
    struct tqi_exact_append a = {.length = seq->lengths[layer], .n = n_tokens};
    uint64_t end, pages = tqi_exact_count(rules, &seq->exact, a);
    uint32_t chunks = rules->pool ? rules->pool->n_chunks : 0;
    TQI_TRY(end_of(a.length, n_tokens, &end));
    TQI_TRY(tqi_exact_grow(rules, &seq->exact, a));
    if (rules->pool)
        TQI_TRY(tqi_pool_reserve(rules->pool, pages));
    tq_status status = make_code_room(seqs, seq, a.length, end);
    if (status == TQ_OK)
        tqi_exact_take(rules, &seq->exact, a);
    else if (rules->pool)
        tqi_pool_shrink(rules->pool, chunks);
    return status;
}

/* ---- all layers of many sequences -------------------------------------------------------- */

static uint64_t pages_after(const struct tqi_seqs *seqs, const struct tqi_room *room) {
    return tqi_div_up(seqs->slots[room->slot].lengths[0] + room->n_tokens, seqs->page_tokens);
}

/* Whether the tokens begin inside a page, which then may be shared. Pages behind it are
 * never shared: forks take no more than the length. */
static int begins_inside(const struct tqi_seqs *seqs, const struct tqi_room *room) {
    return room->n_tokens && seqs->slots[room->slot].lengths[0] % seqs->page_tokens;
}

static uint32_t *first_page(const struct tqi_seqs *seqs, const struct tqi_room *room) {
    const struct tqi_seq *seq = &seqs->slots[room->slot];
    return &seq->pages[seq->lengths[0] / seqs->page_tokens];
}

/* Notes how things are and counts the pages to take. Sequences of the step may share a
 * page among them; the last of them needs no copy when nobody else holds it, so references
 * are dropped while counting and put back. */
static tq_status count_pages(struct tqi_seqs *seqs, struct tqi_room *rooms, uint32_t n,
                             uint64_t *pages) {
    uint32_t *references = seqs->pool->references;
    *pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tqi_seq *seq = &seqs->slots[rooms[i].slot];
        uint64_t end;
        TQI_TRY(end_of(seq->lengths[0], rooms[i].n_tokens, &end));
    }
    for (uint32_t i = 0; i < n; i++) {
        struct tqi_room *room = &rooms[i];
        uint64_t after = pages_after(seqs, room);
        room->n_pages = seqs->slots[room->slot].n_pages;
        room->shared = begins_inside(seqs, room) && is_shared(seqs, *first_page(seqs, room));
        if (room->shared) {
            room->page = *first_page(seqs, room);
            references[room->page]--;
        }
        *pages += room->shared + (after > room->n_pages ? after - room->n_pages : 0);
    }
    for (uint32_t i = 0; i < n; i++)
        if (rooms[i].shared)
            references[rooms[i].page]++;
    return TQ_OK;
}

static tq_status grow_tables(struct tqi_seqs *seqs, const struct tqi_room *rooms, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        TQI_TRY(
            tqi_seq_grow_table(seqs, &seqs->slots[rooms[i].slot], pages_after(seqs, &rooms[i])));
    return TQ_OK;
}

static struct tqi_exact_append exact_append(const struct tqi_seqs *seqs,
                                            const struct tqi_room *room) {
    return (struct tqi_exact_append){seqs->slots[room->slot].lengths[0], room->n_tokens, 1};
}

/* Pages and tables for what the step keeps in 16 bits; nothing is taken yet. */
static tq_status reserve_exact(struct tqi_seqs *seqs, const struct tqi_room *rooms, uint32_t n) {
    uint64_t pages = 0;
    for (uint32_t i = 0; seqs->exact.pool && i < n; i++) {
        struct tqi_exact *e = &seqs->slots[rooms[i].slot].exact;
        pages += tqi_exact_count(&seqs->exact, e, exact_append(seqs, &rooms[i]));
        TQI_TRY(tqi_exact_grow(&seqs->exact, e, exact_append(seqs, &rooms[i])));
    }
    return seqs->exact.pool ? tqi_pool_reserve(seqs->exact.pool, pages) : TQ_OK;
}

static tq_status take_code_room(struct tqi_seqs *seqs, struct tqi_room *rooms, uint32_t n,
                                uint64_t pages) {
    uint32_t chunks = seqs->pool->n_chunks;
    TQI_TRY(tqi_pool_reserve(seqs->pool, pages));
    tq_status status = grow_tables(seqs, rooms, n);
    if (status != TQ_OK) {
        tqi_pool_shrink(seqs->pool, chunks);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct tqi_seq *seq = &seqs->slots[rooms[i].slot];
        uint64_t after = pages_after(seqs, &rooms[i]);
        if (rooms[i].shared)
            tqi_seq_unshare(seqs, seq, seq->lengths[0] / seqs->page_tokens);
        while (seq->n_pages < after)
            seq->pages[seq->n_pages++] = tqi_pool_take(seqs->pool);
    }
    return TQ_OK;
}

tq_status tqi_seqs_take_room(struct tqi_seqs *seqs, struct tqi_room *rooms, uint32_t n) {
    uint32_t chunks = seqs->exact.pool ? seqs->exact.pool->n_chunks : 0;
    uint64_t pages;
    TQI_TRY(count_pages(seqs, rooms, n, &pages));
    TQI_TRY(reserve_exact(seqs, rooms, n));
    tq_status status = take_code_room(seqs, rooms, n, pages);
    if (status != TQ_OK && seqs->exact.pool)
        tqi_pool_shrink(seqs->exact.pool, chunks);
    for (uint32_t i = 0; status == TQ_OK && i < n; i++)
        tqi_exact_take(&seqs->exact, &seqs->slots[rooms[i].slot].exact,
                       exact_append(seqs, &rooms[i]));
    return status;
}

void tqi_seqs_return_room(struct tqi_seqs *seqs, const struct tqi_room *rooms, uint32_t n,
                          uint32_t n_chunks) {
    /* Backwards, so that the stack of free pages is as before. */
    for (uint32_t i = n; i-- > 0;) {
        const struct tqi_room *room = &rooms[i];
        struct tqi_seq *seq = &seqs->slots[room->slot];
        while (seq->n_pages > room->n_pages)
            tqi_pool_release(seqs->pool, seq->pages[--seq->n_pages]);
        tqi_exact_settle(&seqs->exact, &seq->exact, seq->lengths);
        if (!room->shared)
            continue;
        tqi_pool_release(seqs->pool, *first_page(seqs, room));
        tqi_pool_share(seqs->pool, room->page);
        *first_page(seqs, room) = room->page;
    }
    tqi_pool_shrink(seqs->pool, n_chunks);
}
