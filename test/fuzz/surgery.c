/* Tokens that are taken out, reordered, copied, saved and loaded. */
#include <stdlib.h>

#include "fuzz/run.h"
#include "tq/snapshot.h"

int run_did(struct run *r, tq_status status, tq_status want) {
    if (r->heap.refused != r->refused) {
        r->refused = r->heap.refused;
        MUST(status == TQ_ERR_OUT_OF_MEMORY);
        return 0;
    }
    MUST(status == want);
    MUST(status == TQ_OK || *tq_last_error());
    return status == TQ_OK;
}

struct model_seq *run_any_seq(struct run *r) {
    return &r->m->seqs[take_below(&r->in, MAX_SEQS)];
}

void run_check_new_id(const struct run *r, tq_seq id) {
    MUST(id != 0);
    for (int i = 0; i < MAX_SEQS; i++)
        MUST(r->m->seqs[i].id != id);
}

tq_status run_room_for_seq(const struct run *r) {
    return model_alive(r->m) >= r->m->c.max_seqs ? TQ_ERR_INVALID_STATE : TQ_OK;
}

/* ---- surgery --------------------------------------------------------------------------- */

static uint32_t min(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

void run_remove_some(struct run *r) {
    struct model_seq *s = run_any_seq(r);
    uint32_t first = take_below(&r->in, MAX_TOKENS), n = take_below(&r->in, MAX_TOKENS);
    tq_status want = model_prefix(r->m, s, first + n);
    struct model before = *r->m;
    if (want == TQ_OK && !model_remove(r->m, s, first, n))
        want = TQ_ERR_OUT_OF_PAGES;
    if (!run_did(r, tq_seq_remove(r->cache, s->id, first, n), want))
        *r->m = before;
}

/* Any list: dead sequences, twice the same, parents that there are not. */
void run_reorder(struct run *r) {
    uint32_t n = take_below(&r->in, MAX_SEQS + 1), slots[MAX_SEQS], parents[MAX_SEQS], used = 0;
    tq_seq ids[MAX_SEQS];
    tq_status want = TQ_OK;
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = take_below(&r->in, MAX_SEQS);
        const struct model_seq *s = &r->m->seqs[slots[i]];
        ids[i] = s->id;
        if (want != TQ_OK)
            continue;
        if (!s->alive)
            want = TQ_ERR_NOT_FOUND;
        else if (used >> slots[i] & 1)
            want = TQ_ERR_INVALID_ARGUMENT;
        else if (model_shortest(r->m, s) != model_longest(r->m, s))
            want = TQ_ERR_INVALID_STATE;
        used |= 1u << slots[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        parents[i] = take_below(&r->in, n + (take8(&r->in) == 0));
        if (want == TQ_OK && parents[i] >= n)
            want = TQ_ERR_INVALID_ARGUMENT;
    }
    if (run_did(r, tq_seq_reorder(r->cache, n, ids, parents), want))
        model_reorder(r->m, n, slots, parents);
}

/* A range of a sequence that another call names. */
struct span {
    struct model_seq *from;
    uint32_t first, n;
    uint64_t asked;
};

static struct span take_span(struct run *r) {
    struct span s = {.from = run_any_seq(r), .first = take_below(&r->in, MAX_TOKENS)};
    s.n = take_below(&r->in, MAX_TOKENS + 4);
    s.asked = s.n;
    if (s.n <= MAX_TOKENS)
        return s;
    uint32_t longest = model_longest(r->m, s.from);
    s.asked = UINT64_MAX;
    s.n = longest - min(longest, s.first);
    return s;
}

/* What a call that makes a new sequence of it says. */
static tq_status new_verdict(const struct run *r, const struct span *s) {
    const struct model_seq empty = {.alive = 1};
    tq_status want = model_prefix(r->m, s->from, s->first + s->n);
    want = want == TQ_OK ? run_room_for_seq(r) : want;
    return want == TQ_OK && !model_has_room_for(r->m, &empty, 0, s->n) ? TQ_ERR_OUT_OF_PAGES : want;
}

static void add_new(struct run *r, tq_seq id, const struct span *s) {
    struct model_seq *to = model_free_slot(r->m), from = *s->from;
    run_check_new_id(r, id);
    model_create(to, id);
    model_add_range(r->m, to, &from, s->first, s->n);
}

void run_copy(struct run *r) {
    struct span s = take_span(r);
    tq_seq id = 0;
    tq_status status = tq_seq_copy(r->cache, r->cache, s.from->id, s.first, s.asked, &id);
    if (run_did(r, status, new_verdict(r, &s)))
        add_new(r, id, &s);
    else
        MUST(id == 0);
}

/* The snapshot of a range; NULL when there is none. */
static uint8_t *save(struct run *r, const struct span *s, size_t *size) {
    size_t written = 0;
    tq_status want = model_prefix(r->m, s->from, s->first + s->n);
    if (!run_did(r, tq_seq_save_range(r->cache, s->from->id, s->first, s->asked, NULL, 0, size),
                 want))
        return NULL;
    uint8_t *bytes = fuzz_alloc(*size);
    tq_status status =
        tq_seq_save_range(r->cache, s->from->id, s->first, s->asked, bytes, *size, &written);
    if (run_did(r, status, TQ_OK)) {
        MUST(written == *size);
        return bytes;
    }
    free(bytes);
    return NULL;
}

void run_load(struct run *r) {
    struct span s = take_span(r);
    size_t size = 0;
    tq_seq id = 0;
    uint8_t *bytes = save(r, &s, &size);
    if (!bytes)
        return;
    if (run_did(r, tq_seq_load(r->cache, bytes, size, &id), new_verdict(r, &s)))
        add_new(r, id, &s);
    else
        MUST(id == 0);
    free(bytes);
}

void run_load_append(struct run *r) {
    struct span s = take_span(r);
    struct model_seq *to = run_any_seq(r), from = *s.from;
    size_t size = 0;
    uint32_t longest = model_longest(r->m, to);
    uint8_t *bytes = to->alive && longest + s.n > MAX_TOKENS ? NULL : save(r, &s, &size);
    if (!bytes)
        return;
    tq_status want = model_prefix(r->m, to, longest);
    if (want == TQ_OK && !model_has_room_for(r->m, to, 0, s.n))
        want = TQ_ERR_OUT_OF_PAGES;
    if (run_did(r, tq_seq_load_append(r->cache, to->id, bytes, size), want))
        model_add_range(r->m, to, &from, s.first, s.n);
    free(bytes);
}
