/*
 * replay [--live] [--seed N] TIMES.json...: requests served by a scheduler over a pool of fixed
 * memory, for several variants of the cache; prints tables in Markdown. With times measured by
 * bench_cuda, and by peers_torch.py, around a model of the rest of a decoder, or with --live in
 * real steps on this CPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "live.h"
#include "times.h"
#include "tq/tq.h"

static const char *const variants[] = {"bf16", "fp8", "4bit_nc", "k3v4_nc", "3bit_nc"};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* The shape of Qwen3-32B; the machine's rates are those that docs/PERFORMANCE.md names. */
static const struct model model = {"32B", 32.8e9, 64, 64, 128};
static const struct machine machine = {4.3e12, 7.9e14, 141e9, 12e9};

/* What is asked and answered: little and little, little and much, much and little. */
static const struct lengths chat_prompt = {1000, 1.0, 32768}, chat_answer = {250, 0.8, 2048};
static const struct lengths thought_prompt = {500, 0.8, 8192}, thought_answer = {4000, 0.6, 16384};
static const struct lengths text_prompt = {12000, 0.7, 65536}, text_answer = {400, 0.6, 2048};

/* Files of times. */
struct files {
    const char **paths;
    int n;
};

static int read_variant(const struct files *files, const char *variant, struct times *out) {
    int status = read_times(files->paths, files->n, variant, out);
    if (status)
        fprintf(stderr, "replay: the files lack times of %s\n", variant);
    out->model = &model;
    out->machine = &machine;
    return status;
}

/* ---- lines of the tables --------------------------------------------------------------------- */

struct line {
    struct outcome outcome;
    struct latency latency;
};

static void print_head(const char *title) {
    printf(
        "\n%s\n\n| load | variant | requests at once, mean (most) | gave way | first token, P50 / "
        "P99 s | per token, P50 / P99 ms | tokens/s |\n|---|---|---|---|---|---|---|\n",
        title);
}

static void print_line(const char *load, const char *variant, const struct line *l,
                       const struct line *base) {
    const struct latency *t = &l->latency;
    printf("| %s | `%s` | %.0f (%u) | %u | %.2f / %.2f | %.1f / %.1f | %.0f, %.2fx |\n", load,
           variant, l->outcome.mean_running, l->outcome.most_running, l->outcome.preemptions,
           t->first_p50, t->first_p99, 1e3 * t->token_p50, 1e3 * t->token_p99, t->tokens_per_second,
           t->tokens_per_second / base->latency.tokens_per_second);
}

/* Runs a load; complains when the books are wrong. */
static int run_line(const struct load *load, const struct limits *limits,
                    const struct engine *engine, struct line *l) {
    struct request *requests = make_requests(load);
    int status = requests ? replay(limits, requests, load->n, engine, &l->outcome) : -1;
    if (status == 0)
        status = latency_of(requests, load->n, &l->outcome, &l->latency);
    free(requests);
    if (status == 0 && (l->outcome.finished + l->outcome.refused != load->n ||
                        l->outcome.pages_left || l->outcome.most_pages > limits->pages))
        status = -1;
    if (status)
        fprintf(stderr, "replay: load %s failed\n", load->name);
    return status;
}

/* ---- measured times ---------------------------------------------------------------------------
 */

static double page_bytes(const char *variant, uint32_t *page_tokens) {
    tq_context *context = NULL;
    tq_context_config cc = {.struct_size = sizeof cc};
    tq_footprint f = {.struct_size = sizeof f};
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = 8,
                         .n_q_heads = 64,
                         .head_dim = 128,
                         .max_seqs = 1,
                         .max_pages = 1};
    if (tq_context_create(&cc, &context) != TQ_OK ||
        tq_variant_find(variant, &c.variant) != TQ_OK ||
        tq_cache_estimate(context, &c, &f) != TQ_OK)
        fprintf(stderr, "replay: %s\n", tq_last_error());
    tq_context_destroy(context);
    *page_tokens = f.page_tokens;
    return (double)f.bytes_per_page;
}

static void nothing(void *arg, uint32_t request) {
    (void)arg;
    (void)request;
}

static int run_modelled(const struct load *load, uint32_t most_running, const struct files *files) {
    struct line first;
    memset(&first, 0, sizeof first);
    for (int v = 0; v < N_VARIANTS; v++) {
        struct times times;
        struct line l;
        struct limits limits = {.most_running = most_running, .step_tokens = 2048};
        if (read_variant(files, variants[v], &times))
            return -1;
        limits.pages = modelled_pages(&times, page_bytes(variants[v], &limits.page_tokens));
        limits.reserve = limits.pages / 100;
        if (run_line(load, &limits, &(struct engine){modelled_step, nothing, &times}, &l))
            return -1;
        if (v == 0)
            first = l;
        print_line(load->name, variants[v], &l, &first);
    }
    return 0;
}

static void print_pools(const struct files *files) {
    printf("\n| variant | bytes a token | tokens that fit | 4K requests | 32K requests |\n"
           "|---|---|---|---|---|\n");
    for (int v = 0; v < N_VARIANTS; v++) {
        struct times times;
        uint32_t page_tokens = 0;
        if (read_variant(files, variants[v], &times))
            continue;
        double bytes = page_bytes(variants[v], &page_tokens);
        uint64_t pages = modelled_pages(&times, bytes), tokens = pages * page_tokens;
        printf("| `%s` | %.0f | %llu | %llu | %llu |\n", variants[v],
               bytes * model.layers / page_tokens, (unsigned long long)tokens,
               (unsigned long long)(tokens / 4096), (unsigned long long)(tokens / 32768));
    }
}

static int replay_modelled(const struct files *files, uint64_t seed) {
    enum { MOST = 1024 };
    const struct {
        struct load load;
        uint32_t most_running;
    } runs[] = {
        {{"chat, 2 a second", 2, 600, chat_prompt, chat_answer, seed}, MOST},
        {{"chat, 6 a second", 6, 1200, chat_prompt, chat_answer, seed}, MOST},
        {{"chat, 800 at once", 0, 800, chat_prompt, chat_answer, seed}, MOST},
        {{"reasoning, 1 in 4 s", 0.25, 100, thought_prompt, thought_answer, seed}, MOST},
        {{"reasoning, 1 a second", 1, 400, thought_prompt, thought_answer, seed}, MOST},
        {{"reasoning, 300 at once", 0, 300, thought_prompt, thought_answer, seed}, MOST},
        {{"reasoning, 300 at once, 40 run", 0, 300, thought_prompt, thought_answer, seed}, 40},
        {{"documents, 1 in 4 s", 0.25, 100, text_prompt, text_answer, seed}, MOST},
        {{"documents, 100 at once", 0, 100, text_prompt, text_answer, seed}, MOST},
    };
    print_pools(files);
    print_head("Times measured on the GPU inside a model of the rest:");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        if (run_modelled(&runs[i].load, runs[i].most_running, files))
            return -1;
    return 0;
}

/* ---- live -------------------------------------------------------------------------------------
 */

static int run_live(const struct load *load) {
    struct line first;
    memset(&first, 0, sizeof first);
    for (int v = 0; v < N_VARIANTS; v++) {
        struct limits limits = {.page_tokens = 32, .most_running = 32, .step_tokens = 128};
        struct line l;
        struct live *live = live_open(variants[v], 4 << 20, &limits, load->n);
        if (!live)
            return -1;
        limits.pages = live_pages(live);
        limits.reserve = limits.pages / 100;
        struct engine engine = live_engine(live);
        int status = run_line(load, &limits, &engine, &l);
        uint32_t wrong = live_mismatches(live);
        live_close(live);
        if (wrong)
            fprintf(stderr, "replay: the cache held other pages in %u steps\n", wrong);
        if (status || wrong)
            return -1;
        if (v == 0)
            first = l;
        print_line(load->name, variants[v], &l, &first);
    }
    return 0;
}

static int replay_live(uint64_t seed) {
    const struct lengths prompt = {200, 0.8, 1024}, answer = {40, 0.6, 128};
    const struct load loads[] = {{"5 a second", 5, 40, prompt, answer, seed},
                                 {"50 a second", 50, 60, prompt, answer, seed},
                                 {"burst of 60", 0, 60, prompt, answer, seed}};
    print_head("Real steps on this CPU, one thread, 4 layers, 2 kv heads, group 4, head_dim 64, "
               "4 MiB of pages:");
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        if (run_live(&loads[i]))
            return -1;
    return 0;
}

int main(int argc, char **argv) {
    struct files files = {calloc((size_t)argc, sizeof *files.paths), 0};
    uint64_t seed = 1;
    int live = 0;
    for (int i = 1; files.paths && i < argc; i++) {
        if (strcmp(argv[i], "--live") == 0)
            live = 1;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            files.paths[files.n++] = argv[i];
    }
    if (!live && files.n == 0) {
        fprintf(stderr, "replay [--live] [--seed N] TIMES.json...\n");
        free(files.paths);
        return 2;
    }
    int status = live ? replay_live(seed) : replay_modelled(&files, seed);
    free(files.paths);
    return status ? 1 : 0;
}
