/* A prefix cache: prompts that do not fit into the pool are spilled to files, the least recently
 * used first, and loaded back when they are asked for again. Prints sizes and times, and compares
 * every answer with the one from before the spill. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tq/snapshot.h"

enum {
    LAYERS = 4,
    KV_HEADS = 4,
    DIM = 128,
    PROMPT = 2048,
    PROMPTS = 6,
    FIT = 3,
    ROW = KV_HEADS * DIM
};

struct prompt {
    tq_seq seq; /* 0 = not in the cache */
    FILE *file; /* NULL = never spilled */
    size_t bytes;
    unsigned used;     /* when it was asked for last */
    float answer[ROW]; /* of its first use */
};

static struct prompt prompts[PROMPTS];
static float rows[PROMPT * ROW];
static double append_ms, save_ms, write_ms, read_ms, load_ms;
static size_t spilled_bytes;
static unsigned now, spills, loads;

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

static double ms(void) {
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- spill and load -------------------------------------------------------------------- */

static void write_file(struct prompt *p, const void *bytes) {
    if (!p->file) /* prompts do not change: once is enough */
        p->file = tmpfile();
    if (!p->file || fseek(p->file, 0, SEEK_SET) ||
        fwrite(bytes, 1, p->bytes, p->file) != p->bytes || fflush(p->file))
        exit(1);
}

static void spill(tq_cache *cache, struct prompt *p) {
    must(tq_seq_blob_size(cache, p->seq, &p->bytes));
    void *bytes = malloc(p->bytes);
    if (!bytes)
        exit(1);
    double start = ms();
    must(tq_seq_save(cache, p->seq, bytes, p->bytes, &p->bytes));
    double saved = ms();
    write_file(p, bytes);
    write_ms += ms() - saved;
    save_ms += saved - start;
    free(bytes);
    must(tq_seq_destroy(cache, p->seq));
    p->seq = 0;
    spills++;
    spilled_bytes += p->bytes;
}

static int spill_oldest(tq_cache *cache) {
    struct prompt *oldest = NULL;
    for (int i = 0; i < PROMPTS; i++)
        if (prompts[i].seq && (!oldest || prompts[i].used < oldest->used))
            oldest = &prompts[i];
    if (!oldest)
        return 0;
    spill(cache, oldest);
    return 1;
}

/* Room for a prompt. */
static void make_room(tq_cache *cache) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    must(tq_cache_get_stats(cache, &stats));
    while (stats.pages_total - stats.pages_used < PROMPT / 64 && spill_oldest(cache))
        must(tq_cache_get_stats(cache, &stats));
}

/* A file is as little to be trusted as any other bytes: a damaged one gives a status. */
static void load(tq_cache *cache, struct prompt *p) {
    tq_blob_info info = {.struct_size = sizeof info};
    void *bytes = malloc(p->bytes);
    make_room(cache);
    double start = ms();
    if (!bytes || fseek(p->file, 0, SEEK_SET) || fread(bytes, 1, p->bytes, p->file) != p->bytes)
        exit(1);
    double read = ms();
    must(tq_blob_inspect(bytes, p->bytes, &info));
    must(tq_seq_load(cache, bytes, p->bytes, &p->seq));
    load_ms += ms() - read;
    read_ms += read - start;
    if (info.n_tokens != PROMPT)
        exit(1);
    free(bytes);
    loads++;
}

/* ---- prompts --------------------------------------------------------------------------- */

/* What a model would compute; that takes far longer than what is timed here. */
static void fill_rows(unsigned prompt, unsigned layer) {
    unsigned state = prompt * 977 + layer;
    for (int i = 0; i < PROMPT * ROW; i++) {
        state = state * 1664525u + 1013904223u;
        rows[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
}

static void append(tq_cache *cache, unsigned number, struct prompt *p) {
    tq_rows_in in = {.data = rows};
    make_room(cache);
    must(tq_seq_create(cache, &p->seq));
    for (uint32_t l = 0; l < LAYERS; l++) {
        fill_rows(number, l);
        double start = ms();
        must(tq_append(cache, p->seq, l, PROMPT, &in, &in, NULL));
        append_ms += ms() - start;
    }
}

static void ask(const tq_cache *cache, tq_seq seq, float *out) {
    float query[ROW];
    tq_rows_in q = {.data = query};
    tq_rows_out o = {.data = out};
    for (int i = 0; i < ROW; i++)
        query[i] = sinf((float)i);
    must(tq_attend(cache, seq, LAYERS - 1, 1, NULL, &q, &o, NULL, NULL));
}

/* Returns 0 when the answer is the one of the first time, bit for bit. */
static int use(tq_cache *cache, unsigned number) {
    struct prompt *p = &prompts[number];
    float answer[ROW];
    int first = !p->seq && !p->file;
    p->used = ++now;
    if (first)
        append(cache, number, p);
    else if (!p->seq)
        load(cache, p);
    ask(cache, p->seq, first ? p->answer : answer);
    return !first && memcmp(answer, p->answer, sizeof answer) != 0;
}

int main(void) {
    static const unsigned order[] = {0, 1, 2, 3, 0, 4, 5, 1, 1, 2, 3, 0, 5, 4, 0, 2};
    tq_context *ctx;
    tq_cache *cache;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = LAYERS,
                              .n_kv_heads = KV_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_4BIT_NC,
                              .max_pages = FIT * PROMPT / 64};
    int wrong = 0;
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        wrong += use(cache, order[i]);
    double mb = (double)spilled_bytes / spills / 1e6;
    printf("%d prompts of %d tokens, %d fit; a snapshot has %.2f MB\n", PROMPTS, PROMPT, FIT, mb);
    printf("append (codes only) %7.2f ms a prompt\n", append_ms / PROMPTS);
    printf("tq_seq_save         %7.2f ms, %5.2f GB/s, %u times\n", save_ms / spills,
           mb / (save_ms / spills), spills);
    printf("writing the file    %7.2f ms, %5.2f GB/s\n", write_ms / spills,
           mb / (write_ms / spills));
    printf("reading the file    %7.2f ms, %5.2f GB/s\n", read_ms / loads, mb / (read_ms / loads));
    printf("tq_seq_load         %7.2f ms, %5.2f GB/s, %u times\n", load_ms / loads,
           mb / (load_ms / loads), loads);
    printf("%d answers differ from those before\n", wrong);
    for (int i = 0; i < PROMPTS; i++)
        if (prompts[i].file)
            (void)fclose(prompts[i].file);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return wrong || !spills || !loads;
}
