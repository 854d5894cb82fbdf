#include "page/exact.h"

#include <string.h>

#include "base/checked.h"

enum { TOKENS = TQI_EXACT_TOKENS };
#define NO_PAGE TQI_EXACT_NO_PAGE

static uint64_t lesser(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint32_t head_of(const struct tqi_exact_rules *rules) {
    return rules->sink_tokens / TOKENS;
}

static uint64_t entries_of(const struct tqi_exact_rules *rules, const struct tqi_exact *e) {
    return head_of(rules) + e->n_tail;
}

uint64_t tqi_exact_pages(uint32_t sink_tokens, uint32_t recent_tokens) {
    /* A window begins anywhere in a page, and ends in one that is being written. */
    return sink_tokens / TOKENS + (recent_tokens ? tqi_div_up(recent_tokens, TOKENS) + 1 : 0);
}

/* ---- memory ------------------------------------------------------------------------------ */

static tq_status set_capacity(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                              uint64_t n) {
    if (n <= e->capacity)
        return TQ_OK;
    uint64_t capacity = e->capacity * 2 > n ? e->capacity * 2 : n;
    uint32_t *pages = tqi_alloc(rules->heap, capacity, sizeof *pages, TQ_MEM_HOST);
    if (!pages)
        return TQ_ERR_OUT_OF_MEMORY;
    if (e->capacity)
        memcpy(pages, e->pages, e->capacity * sizeof *pages);
    tqi_free(rules->heap, e->pages, e->capacity, sizeof *pages, TQ_MEM_HOST);
    for (uint64_t i = e->capacity; i < capacity; i++)
        pages[i] = NO_PAGE;
    e->pages = pages;
    e->capacity = capacity;
    return TQ_OK;
}

tq_status tqi_exact_init(const struct tqi_exact_rules *rules, struct tqi_exact *e) {
    memset(e, 0, sizeof *e);
    if (!rules->pool)
        return TQ_OK;
    e->sinks = tqi_calloc(rules->heap, rules->n_layers, sizeof *e->sinks);
    e->starts = tqi_calloc(rules->heap, rules->n_layers, sizeof *e->starts);
    if (e->sinks && e->starts && set_capacity(rules, e, head_of(rules)) == TQ_OK)
        return TQ_OK;
    tqi_exact_free(rules, e);
    return TQ_ERR_OUT_OF_MEMORY;
}

void tqi_exact_free(const struct tqi_exact_rules *rules, struct tqi_exact *e) {
    tqi_free(rules->heap, e->sinks, rules->n_layers, sizeof *e->sinks, TQ_MEM_HOST);
    tqi_free(rules->heap, e->starts, rules->n_layers, sizeof *e->starts, TQ_MEM_HOST);
    tqi_free(rules->heap, e->pages, e->capacity, sizeof *e->pages, TQ_MEM_HOST);
    memset(e, 0, sizeof *e);
}

void tqi_exact_end(const struct tqi_exact_rules *rules, struct tqi_exact *e) {
    for (uint64_t i = 0; e->sinks && i < entries_of(rules, e); i++)
        if (e->pages[i] != NO_PAGE)
            tqi_pool_release(rules->pool, e->pages[i]);
    tqi_exact_free(rules, e);
}

/* ---- pages ------------------------------------------------------------------------------- */

uint32_t *tqi_exact_entry(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                          uint64_t number) {
    uint32_t head = head_of(rules);
    return &e->pages[number < head ? number : head + number - e->first];
}

uint32_t tqi_exact_page_at(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                           uint64_t number) {
    int covered = number < head_of(rules) || (number >= e->first && number - e->first < e->n_tail);
    return covered ? *tqi_exact_entry(rules, e, number) : NO_PAGE;
}

/* Page numbers [first, last). */
struct numbers {
    uint64_t first, last;
};

static struct numbers numbers_of(uint64_t from, uint64_t to) {
    if (from >= to)
        return (struct numbers){0, 0};
    return (struct numbers){from / TOKENS, tqi_div_up(to, TOKENS)};
}

/* Pages that an append writes to: of sinks, of the window. */
static struct numbers sinks_of(const struct tqi_exact_rules *rules, struct tqi_exact_append a) {
    return numbers_of(a.length, lesser(a.length + a.n, rules->sink_tokens));
}

uint64_t tqi_exact_keep_from(const struct tqi_exact_rules *rules, struct tqi_exact_append a) {
    uint64_t end = a.length + a.n;
    if (!rules->recent_tokens)
        return end;
    uint64_t from = end > rules->recent_tokens ? end - rules->recent_tokens : 0;
    return a.step || from < a.length ? a.length : from;
}

static struct numbers window_of(const struct tqi_exact_rules *rules, struct tqi_exact_append a) {
    return numbers_of(tqi_exact_keep_from(rules, a), a.length + a.n);
}

static uint64_t count(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                      struct numbers n) {
    uint64_t pages = 0;
    for (uint64_t i = n.first; i < n.last; i++) {
        uint32_t page = tqi_exact_page_at(rules, e, i);
        pages += page == NO_PAGE || rules->pool->references[page] > 1;
    }
    return pages;
}

uint64_t tqi_exact_count(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                         struct tqi_exact_append a) {
    if (!rules->pool)
        return 0;
    return count(rules, e, sinks_of(rules, a)) + count(rules, e, window_of(rules, a));
}

tq_status tqi_exact_grow(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                         struct tqi_exact_append a) {
    struct numbers n = window_of(rules, a);
    uint32_t head = head_of(rules);
    n.first = n.first < head ? head : n.first;
    if (!rules->pool || n.first >= n.last)
        return TQ_OK;
    if (!e->n_tail)
        e->first = n.first;
    uint64_t first = lesser(e->first, n.first), before = e->first - first;
    uint64_t last = e->first + e->n_tail > n.last ? e->first + e->n_tail : n.last;
    TQI_TRY(set_capacity(rules, e, head + last - first));
    uint32_t *tail = e->pages + head;
    memmove(tail + before, tail, e->n_tail * sizeof *tail);
    for (uint64_t i = 0; i < before; i++)
        tail[i] = NO_PAGE;
    e->first = first;
    e->n_tail = last - first;
    return TQ_OK;
}

static void take(const struct tqi_exact_rules *rules, struct tqi_exact *e, struct numbers n) {
    struct tqi_pool *pool = rules->pool;
    for (uint64_t i = n.first; i < n.last; i++) {
        uint32_t *page = tqi_exact_entry(rules, e, i), old = *page;
        if (old != NO_PAGE && pool->references[old] == 1)
            continue;
        *page = tqi_pool_take(pool);
        if (old == NO_PAGE)
            continue;
        tqi_pool_copy_page(pool, *page, old);
        tqi_pool_release(pool, old);
    }
}

void tqi_exact_take(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                    struct tqi_exact_append a) {
    if (!rules->pool)
        return;
    take(rules, e, sinks_of(rules, a));
    take(rules, e, window_of(rules, a));
}

/* ---- trim -------------------------------------------------------------------------------- */

struct tqi_exact_kept tqi_exact_kept_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, const uint64_t *lengths,
                                        uint64_t less) {
    struct tqi_exact_kept k = {0, UINT64_MAX, 0};
    for (uint32_t l = 0; l < rules->n_layers; l++) {
        uint64_t end = lengths[l] - less;
        k.sinks = e->sinks[l] > k.sinks ? e->sinks[l] : k.sinks;
        if (e->starts[l] >= end)
            continue;
        k.from = lesser(k.from, e->starts[l]);
        k.to = end > k.to ? end : k.to;
    }
    return k;
}

int tqi_exact_keeps(const struct tqi_exact_kept *k, uint64_t number) {
    uint64_t first = number * TOKENS, last = first + TOKENS;
    return first < k->sinks || (first < k->to && last > k->from);
}

static void drop(const struct tqi_exact_rules *rules, const struct tqi_exact_kept *k,
                 uint32_t *page, uint64_t number) {
    if (*page == NO_PAGE || tqi_exact_keeps(k, number))
        return;
    tqi_pool_release(rules->pool, *page);
    *page = NO_PAGE;
}

static void trim(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                 const uint64_t *lengths) {
    struct tqi_exact_kept k = tqi_exact_kept_of(rules, e, lengths, 0);
    uint32_t head = head_of(rules), *tail = e->pages ? e->pages + head : NULL;
    uint64_t holes = 0;
    for (uint32_t i = 0; i < head; i++)
        drop(rules, &k, &e->pages[i], i);
    for (uint64_t i = 0; i < e->n_tail; i++)
        drop(rules, &k, &tail[i], e->first + i);
    while (e->n_tail && tail[e->n_tail - 1] == NO_PAGE)
        e->n_tail--;
    while (holes < e->n_tail && tail[holes] == NO_PAGE)
        holes++;
    if (!holes)
        return;
    memmove(tail, tail + holes, (e->n_tail - holes) * sizeof *tail);
    for (uint64_t i = e->n_tail - holes; i < e->n_tail; i++)
        tail[i] = NO_PAGE;
    e->first += holes;
    e->n_tail -= holes;
}

/* ---- what is exact ------------------------------------------------------------------------ */

uint64_t tqi_exact_window_start(const struct tqi_exact_rules *rules, uint64_t start,
                                uint64_t length) {
    uint64_t from = length > rules->recent_tokens ? length - rules->recent_tokens : 0;
    return start > from ? start : from;
}

static uint64_t sinks_after(const struct tqi_exact_rules *rules, uint64_t sinks,
                            struct tqi_exact_append a) {
    return sinks == a.length ? lesser(a.length + a.n, rules->sink_tokens) : sinks;
}

void tqi_exact_appended(const struct tqi_exact_rules *rules, struct tqi_exact *e, uint32_t layer,
                        struct tqi_exact_append a) {
    if (!rules->pool)
        return;
    e->sinks[layer] = sinks_after(rules, e->sinks[layer], a);
    if (!a.step || !rules->recent_tokens)
        e->starts[layer] = tqi_exact_window_start(rules, e->starts[layer], a.length + a.n);
}

void tqi_exact_settle(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                      const uint64_t *lengths) {
    for (uint32_t l = 0; rules->pool && l < rules->n_layers; l++) {
        e->sinks[l] = lesser(e->sinks[l], lengths[l]);
        e->starts[l] = tqi_exact_window_start(rules, lesser(e->starts[l], lengths[l]), lengths[l]);
    }
    if (rules->pool)
        trim(rules, e, lengths);
}

tq_status tqi_exact_fork(const struct tqi_exact_rules *rules, const struct tqi_exact *from,
                         uint64_t n, struct tqi_exact *to) {
    if (!rules->pool)
        return TQ_OK;
    TQI_TRY(set_capacity(rules, to, entries_of(rules, from)));
    to->first = from->first;
    to->n_tail = from->n_tail;
    for (uint32_t l = 0; l < rules->n_layers; l++) {
        to->sinks[l] = lesser(from->sinks[l], n);
        to->starts[l] = lesser(from->starts[l], n);
    }
    for (uint64_t i = 0; i < entries_of(rules, from); i++) {
        to->pages[i] = from->pages[i];
        if (to->pages[i] != NO_PAGE)
            tqi_pool_share(rules->pool, to->pages[i]);
    }
    return TQ_OK;
}

/* ---- views ------------------------------------------------------------------------------- */

struct tqi_exact_view tqi_exact_view_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer) {
    struct tqi_exact_view v = {.pages = e->pages, .n_head = head_of(rules), .first = e->first};
    v.sinks = e->sinks[layer];
    v.start = e->starts[layer] > v.sinks ? e->starts[layer] : v.sinks;
    return v;
}

struct tqi_exact_view tqi_exact_view_after(const struct tqi_exact_rules *rules,
                                           const struct tqi_exact *e, uint32_t layer,
                                           struct tqi_exact_append a) {
    struct tqi_exact_view v = tqi_exact_view_of(rules, e, layer);
    uint64_t start = e->starts[layer];
    v.sinks = sinks_after(rules, v.sinks, a);
    start = rules->recent_tokens ? start : a.length + a.n;
    v.start = start > v.sinks ? start : v.sinks;
    return v;
}
