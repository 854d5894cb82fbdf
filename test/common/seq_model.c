#include "common/seq_model.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

uint32_t model_shortest(const struct model_seq *s) {
    uint32_t n = s->n[0];
    for (int l = 1; l < MODEL_LAYERS; l++)
        n = s->n[l] < n ? s->n[l] : n;
    return n;
}

uint32_t model_longest(const struct model_seq *s) {
    uint32_t n = s->n[0];
    for (int l = 1; l < MODEL_LAYERS; l++)
        n = s->n[l] > n ? s->n[l] : n;
    return n;
}

uint32_t model_pages_for(const struct model_pool *p, uint32_t n) {
    return (n + p->page_tokens - 1) / p->page_tokens;
}

uint32_t model_pages_used(const struct model_pool *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        n += p->references[i] > 0;
    return n;
}

uint32_t model_pages_shared(const struct model_pool *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        n += p->references[i] > 1;
    return n;
}

static uint32_t take_page(struct model_pool *p) {
    uint32_t page = 0;
    while (p->references[page])
        page++;
    p->references[page] = 1;
    return page;
}

void model_keep_pages(struct model_pool *p, struct model_seq *s, uint32_t n) {
    while (s->n_pages > n)
        p->references[s->pages[--s->n_pages]]--;
}

int model_make_room(struct model_pool *p, struct model_seq *s, uint32_t first, uint32_t last) {
    uint32_t needed = last > s->n_pages ? last - s->n_pages : 0;
    for (uint32_t i = first; i < last && i < s->n_pages; i++)
        needed += p->references[s->pages[i]] > 1;
    if (p->max_pages && model_pages_used(p) + needed > p->max_pages)
        return 0;
    for (uint32_t i = first; i < last; i++) {
        if (i < s->n_pages && p->references[s->pages[i]] == 1)
            continue;
        if (i < s->n_pages)
            p->references[s->pages[i]]--;
        s->pages[i] = take_page(p);
        s->n_pages = i + 1 > s->n_pages ? i + 1 : s->n_pages;
    }
    return 1;
}

int model_make_rooms(struct model_pool *p, uint32_t n, struct model_seq *const *seqs,
                     const uint32_t *n_tokens) {
    struct model_pool pool = *p;
    struct model_seq *before = must_alloc(n, sizeof *before);
    int room = 1;
    for (uint32_t i = 0; i < n; i++)
        before[i] = *seqs[i];
    for (uint32_t i = 0; room && i < n; i++)
        room = n_tokens[i] == 0 || model_make_room(p, seqs[i], seqs[i]->n[0] / p->page_tokens,
                                                   model_pages_for(p, seqs[i]->n[0] + n_tokens[i]));
    for (uint32_t i = 0; !room && i < n; i++)
        *seqs[i] = before[i];
    if (!room)
        *p = pool;
    free(before);
    return room;
}

/* A token is exact as long as it is among the first sink_tokens and all before it are exact too,
 * or among the last recent_tokens and all behind it are. */
static void settle(const struct model_pool *p, struct model_seq *s, uint32_t layer) {
    uint8_t *exact = s->exact[layer];
    uint32_t n = s->n[layer], head = 0, tail = 0;
    while (head < n && head < p->sink_tokens && exact[head])
        head++;
    while (tail < n && tail < p->recent_tokens && exact[n - 1 - tail])
        tail++;
    for (uint32_t i = 0; i < n; i++)
        exact[i] = i < head || i >= n - tail;
}

void model_append(const struct model_pool *p, struct model_seq *s, uint32_t layer,
                  const uint32_t *list, uint32_t n) {
    memcpy(s->list[layer] + s->n[layer], list, n * sizeof *list);
    memset(s->exact[layer] + s->n[layer], 1, n);
    s->n[layer] += n;
    settle(p, s, layer);
}

void model_truncate(struct model_pool *p, struct model_seq *s, uint32_t n) {
    model_keep_pages(p, s, model_pages_for(p, n));
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        s->n[l] = n;
        settle(p, s, l);
    }
}

void model_share(struct model_pool *p, const struct model_seq *from, struct model_seq *to,
                 uint32_t n) {
    *to = *from;
    for (uint32_t i = 0; i < to->n_pages; i++)
        p->references[to->pages[i]]++;
    model_truncate(p, to, n);
}

static void drop_pages(struct model_pool *p, struct model_seq *s, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i++)
        p->references[s->pages[i]]--;
    memmove(s->pages + first, s->pages + last, (s->n_pages - last) * sizeof *s->pages);
    s->n_pages -= last - first;
}

int model_remove(struct model_pool *p, struct model_seq *s, uint32_t first, uint32_t n) {
    uint32_t page = first / p->page_tokens, longest = model_longest(s);
    if (n == 0)
        return 1;
    if (first + n == longest) {
        model_truncate(p, s, first);
        return 1;
    }
    if (n % p->page_tokens == 0) { /* pages change their place, one is put together of two */
        uint32_t split = first % p->page_tokens != 0;
        if (split && !model_make_room(p, s, page, page + 1))
            return 0;
        drop_pages(p, s, page + split, page + split + n / p->page_tokens);
    } else {
        uint32_t end = model_pages_for(p, longest - n);
        if (!model_make_room(p, s, page, end))
            return 0;
        model_keep_pages(p, s, end);
    }
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        uint32_t behind = s->n[l] - first - n;
        memmove(s->list[l] + first, s->list[l] + first + n, behind * sizeof s->list[l][0]);
        memmove(s->exact[l] + first, s->exact[l] + first + n, behind);
        s->n[l] -= n;
        settle(p, s, l);
    }
    return 1;
}

int model_add_range(struct model_pool *p, struct model_seq *to, const struct model_seq *from,
                    uint32_t first, uint32_t n) {
    uint32_t length = to->n[0];
    if (n && !model_make_room(p, to, length / p->page_tokens, model_pages_for(p, length + n)))
        return 0;
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        memmove(to->list[l] + length, from->list[l] + first, n * sizeof to->list[l][0]);
        memmove(to->exact[l] + length, from->exact[l] + first, n);
        to->n[l] += n;
        settle(p, to, l);
    }
    return 1;
}

void model_reorder(struct model_pool *p, uint32_t n, struct model_seq *const *seqs,
                   const uint32_t *parents) {
    struct model_seq *old = must_alloc(n + 1, sizeof *old);
    for (uint32_t i = 0; i < n; i++)
        model_share(p, seqs[i], &old[i], seqs[i]->n[0]);
    for (uint32_t i = 0; i < n; i++) {
        tq_seq id = seqs[i]->id;
        model_keep_pages(p, seqs[i], 0);
        model_share(p, &old[parents[i]], seqs[i], old[parents[i]].n[0]);
        seqs[i]->id = id;
    }
    for (uint32_t i = 0; i < n; i++)
        model_keep_pages(p, &old[i], 0);
    free(old);
}
