#include "page/exact_edit.h"

#include <string.h>

#include "base/checked.h"

enum { TOKENS = TQI_EXACT_TOKENS };

static uint64_t lesser(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- put together ------------------------------------------------------------------------ */

struct tqi_exact_runs tqi_exact_runs_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer, uint64_t first,
                                        uint64_t n) {
    struct tqi_exact_runs runs = {0, 0};
    uint64_t end = first + n;
    if (!rules->pool)
        return runs;
    if (e->sinks[layer] > first)
        runs.head = lesser(e->sinks[layer], end) - first;
    if (e->starts[layer] < end)
        runs.tail = lesser(end - e->starts[layer], n);
    if (runs.head + runs.tail >= n)
        runs.head = runs.tail = n;
    return runs;
}

struct tqi_exact_state tqi_exact_joined(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer, uint64_t length,
                                        struct tqi_exact_runs runs, uint64_t n) {
    struct tqi_exact_state s = {e->sinks[layer], e->starts[layer]};
    if (s.sinks == length)
        s.sinks = lesser(length + runs.head, rules->sink_tokens);
    if (runs.tail < n)
        s.start = length + n - runs.tail;
    s.start = tqi_exact_window_start(rules, s.start, length + n);
    return s;
}

/* ---- taken out --------------------------------------------------------------------------- */

/* A border between tokens when [first, first + n) have left. */
static uint64_t moved(const struct tqi_exact_cut *cut, uint64_t at) {
    return at <= cut->first ? at : at < cut->first + cut->n ? cut->first : at - cut->n;
}

/* The first tokens that are exact may reach the window now. */
static void set_states(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                       const uint64_t *lengths, struct tqi_exact_cut *cut) {
    for (uint32_t l = 0; l < rules->n_layers; l++) {
        uint64_t sinks = moved(cut, e->sinks[l]), start = moved(cut, e->starts[l]);
        cut->heir.sinks[l] =
            start > sinks ? sinks : lesser(lengths[l] - cut->n, rules->sink_tokens);
        cut->heir.starts[l] = start;
    }
}

int tqi_exact_cut_moves(const struct tqi_exact_cut *cut, uint64_t number) {
    return (number + 1) * TOKENS > cut->first &&
           (number * TOKENS < cut->first || cut->n % TOKENS != 0);
}

static void take(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                 const struct tqi_exact_cut *cut, uint64_t number) {
    uint32_t *page = tqi_exact_entry(rules, &cut->heir, number);
    if (!tqi_exact_keeps(&cut->kept, number))
        return;
    if (tqi_exact_cut_moves(cut, number)) {
        *page = tqi_pool_take(rules->pool);
        return;
    }
    if (number * TOKENS >= cut->first)
        number += cut->n / TOKENS;
    *page = tqi_exact_page_at(rules, e, number);
    if (*page != TQI_EXACT_NO_PAGE)
        tqi_pool_share(rules->pool, *page);
}

/* A table for the pages, and how many of them may be new. */
static tq_status make_room(const struct tqi_exact_rules *rules, const uint64_t *lengths,
                           struct tqi_exact_cut *cut) {
    struct tqi_exact_kept *k = &cut->kept;
    *k = tqi_exact_kept_of(rules, &cut->heir, lengths, cut->n);
    struct tqi_exact_append window = {.length = k->from, .step = 1};
    uint64_t pages = tqi_div_up(k->sinks, TOKENS);
    if (k->from < k->to) {
        window.n = k->to - k->from;
        TQI_TRY(tqi_exact_grow(rules, &cut->heir, window));
        pages += tqi_div_up(k->to, TOKENS) - k->from / TOKENS;
    }
    return tqi_pool_reserve(rules->pool, pages);
}

tq_status tqi_exact_cut_begin(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                              const uint64_t *lengths, struct tqi_exact_cut *cut) {
    memset(&cut->heir, 0, sizeof cut->heir);
    if (!rules->pool)
        return TQ_OK;
    cut->n_chunks = rules->pool->n_chunks;
    TQI_TRY(tqi_exact_init(rules, &cut->heir));
    set_states(rules, e, lengths, cut);
    tq_status status = make_room(rules, lengths, cut);
    if (status != TQ_OK)
        tqi_exact_free(rules, &cut->heir);
    return status;
}

void tqi_exact_cut_cancel(const struct tqi_exact_rules *rules, struct tqi_exact_cut *cut) {
    if (!rules->pool)
        return;
    tqi_exact_free(rules, &cut->heir);
    tqi_pool_shrink(rules->pool, cut->n_chunks);
}

void tqi_exact_cut_take(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                        struct tqi_exact_cut *cut) {
    if (!rules->pool)
        return;
    for (uint64_t i = 0; i < rules->sink_tokens / TOKENS; i++)
        take(rules, e, cut, i);
    for (uint64_t i = 0; i < cut->heir.n_tail; i++)
        take(rules, e, cut, cut->heir.first + i);
}

void tqi_exact_cut_end(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                       struct tqi_exact_cut *cut) {
    if (!rules->pool)
        return;
    tqi_exact_end(rules, e);
    *e = cut->heir;
}
