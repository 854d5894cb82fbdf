/* Attention over a page: score, softmax, accumulate and finish of a level against the same
 * chain of the reference; and the bits of a row alone against those in a tile. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { ROWS_MAX = 32 };

/* What a chain of kernels leaves behind. */
struct outcome {
    double *out; /* [rows][dim] */
    double lse[ROWS_MAX];
};

struct setup {
    const struct page *page;
    const float *q; /* [rows][dim] */
    uint32_t rows, first, last;
    struct tqi_sight spans[ROWS_MAX];
    double scale, softcap;
    double shift[ROWS_MAX]; /* of the softcap */
};

/* The page is taken twice: the second time over a state that holds something, and as if others
 * followed, which kernels ask for in another way. */
static void run_chain(const struct tqi_level *level, const struct setup *s, struct outcome *o) {
    const struct tqi_rows *k = &s->page->k, *v = &s->page->v;
    uint32_t dim = k->layout.dim, stride = k->layout.tokens;
    size_t query = level->query_bytes(k), state = (level->state_bytes(v) + 63) / 64 * 64;
    size_t scores = (s->rows * stride * level->score_size + 63) / 64 * 64;
    size_t for_k = level->scratch_bytes(k), for_v = level->scratch_bytes(v);
    size_t scratch = ((for_k > for_v ? for_k : for_v) + 63) / 64 * 64;
    char *queries = guard_alloc(s->rows * query), *states = guard_alloc(s->rows * state);
    char *score = guard_alloc(scores), *room = guard_alloc(scratch);
    struct tqi_tile tile = {
        .blob = s->page->blob, .first = s->first, .last = s->last, .scale = 1.25f};
    for (uint32_t r = 0; r < s->rows; r++) {
        level->prepare(k, s->q + (size_t)r * dim, queries + r * query);
        level->state_clear(v, states + r * state);
    }
    tqi_level_enter(level, s->rows);
    for (int round = 0; round < 2; round++) {
        tile.next = tile.after = round == 1 ? s->page->blob : NULL;
        level->score[k->format->id].run(k, &tile, queries, s->rows, stride, score, room);
        if (s->softcap > 0)
            level->softcap(score, stride, s->shift, s->rows, s->last - s->first, s->scale,
                           s->softcap);
        level->softmax(states, state, score, stride, s->spans, s->rows, s->last - s->first,
                       s->softcap > 0 ? 1 : s->scale);
        level->accumulate[v->format->id].run(v, &tile, score, s->rows, stride, states, state, room);
    }
    tqi_level_leave(level);
    for (uint32_t r = 0; r < s->rows; r++)
        level->state_finish(v, states + r * state, NULL, o->out + (size_t)r * dim, &o->lse[r],
                            room);
    guard_free(queries, s->rows * query);
    guard_free(states, s->rows * state);
    guard_free(score, scores);
    guard_free(room, scratch);
}

/* Sums of such rows are made in binary32, others in integers. */
static bool in_floats(enum tqi_kind kind) {
    return kind == TQI_KIND_FP8 || kind == TQI_KIND_F16BIT || kind == TQI_KIND_POLAR;
}

static double tolerance_of(const struct page *p) {
    return in_floats(p->k.format->kind) && in_floats(p->v.format->kind) ? 1e-5 : 2e-4;
}

static double relative(const double *a, const double *b, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return size > 0 ? sqrt(error / size) : error > 0 ? INFINITY : 0;
}

/* The level whose bits a level promises; NULL = none, or this machine lacks it. */
static const struct tqi_level *twin_of(const struct tqi_level *level) {
    static const char *const twins[][2] = {
        {"amx", "avx512"}, {"avxvnni", "avx2"}, {"i8mm", "neon"}};
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        if (strcmp(level->name, twins[i][0]) == 0)
            return find_level(twins[i][1]);
    return NULL;
}

static void compare_twin(struct result *r, const struct tqi_level *level, const struct setup *s,
                         const struct outcome *mine) {
    const struct tqi_level *twin = twin_of(level);
    size_t n = (size_t)s->rows * s->page->k.layout.dim;
    if (!twin)
        return;
    struct outcome theirs = {.out = calloc(n, sizeof(double))};
    run_chain(twin, s, &theirs);
    judge(r,
          memcmp(theirs.out, mine->out, n * sizeof(double)) == 0 &&
              memcmp(theirs.lse, mine->lse, s->rows * sizeof(double)) == 0,
          "%s: %s / %s dim %u, %u rows: other bits than %s", level->name, s->page->k.format->name,
          s->page->v.format->name, s->page->k.layout.dim, s->rows, twin->name);
    free(theirs.out);
}

static void compare(struct result *r, const struct tqi_level *level, const struct setup *s) {
    uint32_t dim = s->page->k.layout.dim;
    size_t n = (size_t)s->rows * dim;
    struct outcome mine = {.out = calloc(n, sizeof(double))};
    struct outcome theirs = {.out = calloc(n, sizeof(double))};
    struct outcome alone = {.out = calloc(dim, sizeof(double))};
    run_chain(level, s, &mine);
    run_chain(tqi_level_ref(), s, &theirs);
    double tolerance = tolerance_of(s->page), error = relative(mine.out, theirs.out, n);
    for (uint32_t i = 0; i < s->rows; i++)
        if (!tqi_sight_empty(s->spans[i]) &&
            !(fabs(mine.lse[i] - theirs.lse[i]) < 2e-4 * (1 + fabs(theirs.lse[i]))))
            error = INFINITY;
    r->worst = error / tolerance > r->worst ? error / tolerance : r->worst;
    judge(r, error <= tolerance,
          "%s: %s / %s dim %u, page of %u, tokens %u to %u, %u rows: error %g", level->name,
          s->page->k.format->name, s->page->v.format->name, dim, s->page->k.layout.tokens, s->first,
          s->last, s->rows, error);
    compare_twin(r, level, s, &mine);
    uint32_t row = (uint32_t)(next_random() % s->rows);
    struct setup one = *s;
    one.q += (size_t)row * dim;
    one.rows = 1;
    one.spans[0] = s->spans[row];
    one.shift[0] = s->shift[row];
    if (!tqi_sight_empty(s->spans[row]) && row % 2)
        one.last = s->first + s->spans[row].last;
    run_chain(level, &one, &alone);
    judge(r,
          memcmp(alone.out, mine.out + (size_t)row * dim, dim * sizeof(double)) == 0 &&
              memcmp(&alone.lse[0], &mine.lse[row], sizeof(double)) == 0,
          "%s: %s / %s dim %u: row %u of %u has other bits alone", level->name,
          s->page->k.format->name, s->page->v.format->name, dim, row, s->rows);
    free(mine.out);
    free(theirs.out);
    free(alone.out);
}

/* All that is in the tile, or something of it, down to nothing. */
static void set_spans(struct setup *s, bool partly) {
    uint32_t n = s->last - s->first;
    for (uint32_t i = 0; i < s->rows; i++) {
        s->spans[i] = (struct tqi_sight){0, n};
        s->shift[i] = 3 * gaussian();
        if (!partly)
            continue;
        s->spans[i].last = (uint32_t)(next_random() % (n + 1));
        s->spans[i].first = i % 2 ? (uint32_t)(next_random() % (n + 1)) : 0;
    }
}

/* Case c over a page whose first `filled` tokens hold rows, others noise, NaN patterns among it. */
static void check_case(struct result *r, const struct tqi_level *level, const struct page *p,
                       size_t c, uint32_t rows, uint32_t filled, float *q) {
    uint32_t dim = p->k.layout.dim;
    struct setup s = {.page = p, .q = q, .rows = rows, .last = filled};
    s.scale = 1 / sqrt(dim);
    if (c % 3 == 1)
        s.last = 1 + (uint32_t)(next_random() % filled);
    if (c % 3 == 2)
        s.first = (uint32_t)(next_random() % s.last);
    for (uint32_t i = 0; i < s.rows * dim; i++)
        q[i] = (float)gaussian();
    set_spans(&s, c % 4 < 2);
    s.softcap = c % 5 >= 2 ? 0.25 * (double)(1 + next_random() % 40) : 0;
    compare(r, level, &s);
}

/* All of a page that is full, or some blocks of 64 tokens of a larger one, in shapes that kernels
 * may know when they are compiled, and with queries of a size that they may except. */
static void check_full(struct result *r, const struct tqi_level *level, const struct page *p,
                       uint32_t rows, bool partly, double size, float *q) {
    uint32_t dim = p->k.layout.dim;
    struct setup s = {.page = p, .q = q, .rows = rows, .last = p->k.layout.tokens};
    if (partly)
        s.first = 64 * (uint32_t)(next_random() % (s.last / 64));
    s.scale = 1 / sqrt(dim) / size;
    for (uint32_t i = 0; i < rows * dim; i++)
        q[i] = (float)(size * gaussian());
    set_spans(&s, false);
    compare(r, level, &s);
}

/* Queries and keys whose scores leave binary32: they saturate, outputs stay finite. */
static void check_saturated(struct result *r, const struct tqi_level *level, struct page *p,
                            uint32_t rows, float *q) {
    uint32_t dim = p->k.layout.dim, tokens = p->k.layout.tokens;
    const uint16_t largest = 0x7bff; /* 65504 */
    struct setup s = {.page = p, .q = q, .rows = rows, .last = tokens};
    struct outcome o = {.out = calloc((size_t)rows * dim, sizeof(double))};
    bool finite = true;
    s.scale = 0x1p-140;
    for (uint32_t i = 0; i < tokens; i++)
        memcpy(p->blob + p->k.layout.gains + (size_t)2 * i, &largest, sizeof largest);
    for (uint32_t i = 0; i < rows * dim; i++)
        q[i] = next_random() % 2 ? 0x1p127f : -0x1p127f;
    set_spans(&s, false);
    run_chain(level, &s, &o);
    for (uint32_t i = 0; i < rows * dim; i++)
        finite = finite && isfinite(o.out[i]);
    judge(r, finite, "%s: %s dim %u, page of %u, %u rows: large scores are not finite", level->name,
          p->k.format->name, dim, tokens, rows);
    compare_twin(r, level, &s, &o);
    free(o.out);
}

static void check_size(struct result *r, const struct tqi_level *level, struct page *p) {
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 7, 8, 32};
    uint32_t dim = p->k.layout.dim, tokens = p->k.layout.tokens;
    float *q = malloc(sizeof(float) * ROWS_MAX * dim);
    for (size_t half = 0; half < 2; half++) {
        uint32_t filled = half ? 1 + (uint32_t)(next_random() % tokens) : tokens;
        fill_page(p, filled);
        for (size_t c = half; c < sizeof row_counts / sizeof *row_counts; c += 2)
            check_case(r, level, p, c, row_counts[c], filled, q);
        if (filled < tokens || tokens < 64)
            continue;
        for (uint32_t rows = 1; rows <= 8; rows++) {
            if (dim != 128 && rows % 4 != 0) /* most kernels that know a shape know this one */
                continue;
            check_full(r, level, p, rows, false, 1, q);
            check_full(r, level, p, rows, true, 1, q);
            check_full(r, level, p, rows, true, 0x1p105, q);
            if (p->k.format->kind == TQI_KIND_LM || p->k.format->kind == TQI_KIND_INT8)
                check_saturated(r, level, p, rows, q);
            fill_page(p, filled);
        }
    }
    free(q);
}

void check_attend(struct result *r, const struct tqi_level *level, tq_format k, tq_format v) {
    static const uint32_t dims[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 576};
    static const uint32_t pages[] = {16, 32, 64, 128, 256};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t t = 0; t < sizeof pages / sizeof *pages; t++) {
            struct page p;
            if ((dims[d] > 128 && pages[t] > 64) ||
                tqi_rows_check_dim(tqi_format_by_id(k), dims[d], 1024) ||
                tqi_rows_check_dim(tqi_format_by_id(v), dims[d], 1024))
                continue;
            make_page(&p, k, v, dims[d], pages[t]);
            check_size(r, level, &p);
            free_page(&p);
        }
}
