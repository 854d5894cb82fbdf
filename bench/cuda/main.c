/*
 * bench_cuda [--json FILE] [--commit ID] [--quick | --append | --logits | --snapshots | --prefill]
 * [--paged] [--case VARIANT,BATCH,TOKENS,GROUP,DIM[,QUERIES]]... [--fp8 native|converted]
 * [--sinks N] [--recent N]: decode attention, prompts and append on a GPU through tq.h, against a
 * plain read of the same bytes in the same run (of codes: those of sink and recent tokens in 16
 * bits come on top). With --case the named cases of attention alone (of append where VARIANT is
 * append:NAME), with
 * --append appends alone, with --logits the scores of 4-bit keys alone (logits.h), with --snapshots
 * saving and loading alone, by the clock, with --prefill prompts alone. bench/gpu_tables.py makes
 * tables and plots of the JSON.
 *
 * Times are of one layer of a planned step, medians over replays of a graph of back-to-back
 * calls: query rotation, attention, inverse rotation; "step" is append and attention. The plan
 * runs once per step for all layers and is not in them. --paged: beside each, the same sequences in
 * pages of an engine (tq/paged.h), whose calls plan anew in every layer, and ("layer") a layer
 * behind the first of its step, which has its plan. Sets of sequences are
 * taken in turn so that no call finds its pages in the L2 cache; pages lie in random order.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "snapshots.h"

static FILE *json;
static int json_rows, with_paged;

static void open_json(const char *path, const char *commit, const struct cudaDeviceProp *gpu) {
    int driver = 0, runtime = 0;
    char date[32];
    time_t now = time(NULL);
    must((json = fopen(path, "w")) != NULL, path);
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    fprintf(json,
            "{\"commit\": \"%s\", \"date\": \"%s\", \"machine\": \"%s\", "
            "\"multiprocessors\": %d, \"driver\": \"%d.%d\", \"runtime\": \"%d.%d\",\n\"rows\": [",
            commit, date, gpu->name, gpu->multiProcessorCount, driver / 1000, driver % 1000 / 10,
            runtime / 1000, runtime % 1000 / 10);
}

static void close_json(void) {
    if (!json)
        return;
    fprintf(json, "\n]}\n");
    must(fclose(json) == 0, "the JSON file");
}

static void print_json(const char *op, const struct run *r, double ms, double read) {
    if (!json)
        return;
    fprintf(json,
            "%s\n{\"op\": \"%s\", \"variant\": \"%s\", \"batch\": %u, \"tokens\": %llu, "
            "\"ragged\": %u, \"queries\": %u, \"group\": %u, \"dim\": %u, \"kv_heads\": %d, "
            "\"ms\": %.6f, "
            "\"bytes\": %.0f, \"read_ms\": %.6f, \"kernel\": \"%s\"}",
            json_rows++ ? "," : "", op, r->b.variant, r->b.batch, (unsigned long long)r->b.tokens,
            r->b.ragged, r->b.queries, r->b.group, r->b.dim, HEADS, ms, r->bytes, read,
            tq_cache_kernel_name(r->cache, 0,
                                 strstr(op, "append")           ? TQ_OP_ENCODE_K
                                 : op[0] == 'p' && op[1] == 'r' ? TQ_OP_PREFILL
                                                                : TQ_OP_SCORE));
    (void)fflush(json); /* a run that is stopped leaves its rows */
}

/* The same by pages of an engine. */
static void run_paged(struct run *r, uint32_t launches, double read) {
    struct paged p;
    open_paged(&p, r);
    double step = time_graph(paged_step_once, &p, r->sets, launches);
    double ms = time_graph(paged_attend_once, &p, r->sets, launches);
    double layer = time_graph(paged_layer_once, &p, r->sets, launches);
    printf("  paged %8.4f ms  layer %8.4f ms  step %8.4f ms", ms, layer, step);
    print_json("paged_attend", r, ms, read);
    print_json("paged_layer", r, layer, read);
    print_json("paged_step", r, step, read);
    close_paged(&p);
}

static void run_attend(struct bench b) {
    struct run r;
    open_run(&r, b, 1);
    double guess = r.bytes / 4e9 + 0.01; /* ms at 4 TB/s */
    uint32_t launches = (uint32_t)fmin(60, fmax(r.sets, 4 / guess)) + 1;
    double read = time_read(r.blobs, (uint32_t)r.blob, r.sets, launches);
    /* the step first: attention follows an append, be it a captured one */
    double step = time_graph(step_once, &r, r.sets, launches);
    double ms = time_graph(attend_once, &r, r.sets, launches);
    printf("%-8s %3u x %s%6llu  group %2u dim %3u  %8.4f ms  %5.0f GB/s  read %8.4f ms  %5.1f %%  "
           "step %8.4f ms",
           b.variant, b.batch, b.ragged ? "1.." : "", (unsigned long long)b.tokens, b.group, b.dim,
           ms, r.bytes / ms / 1e6, read, 100 * read / ms, step);
    print_json("attend", &r, ms, read);
    print_json("step", &r, step, read);
    if (with_paged)
        run_paged(&r, launches, read);
    printf("  %s", tq_cache_kernel_name(r.cache, 0, TQ_OP_SCORE));
    if (b.batch == 1)
        printf("  tq_attend %8.4f ms", time_graph(call_once, &r, r.sets, launches));
    printf("\n");
    fflush(stdout);
    close_run(&r);
}

static void run_append(const char *variant, uint32_t batch, uint32_t tokens, uint32_t dim) {
    struct run r;
    open_run(&r, (struct bench){.variant = variant, .batch = batch, .group = 1, .dim = dim},
             tokens);
    double ms = time_graph(append_once, &r, r.sets, 20);
    double in = 2.0 * tokens * HEADS * batch * dim * 2, paged = 0;
    if (with_paged) {
        struct paged p;
        open_paged(&p, &r);
        paged = time_graph(paged_append_once, &p, r.sets, 20);
        close_paged(&p);
    }
    printf("append %-8s %3u x %5u tokens, dim %3u  %8.4f ms  %5.0f GB/s of rows", variant, batch,
           tokens, dim, ms, in / ms / 1e6);
    if (with_paged)
        printf("  paged %8.4f ms", paged);
    printf("\n");
    fflush(stdout);
    r.b.tokens = tokens;
    r.bytes = in;
    print_json("append", &r, ms, 0);
    if (with_paged)
        print_json("paged_append", &r, paged, 0);
    close_run(&r);
}

/* Prompts: the last `queries` tokens of a sequence of `tokens` attend, causal. */
static void run_prefill(struct bench b) {
    struct run r;
    open_run(&r, b, 0);
    double pairs = (double)b.queries * ((double)b.tokens - ((double)b.queries - 1) / 2);
    double flop = 4.0 * b.batch * HEADS * b.group * b.dim * pairs;
    double ms = time_graph(attend_once, &r, r.sets, r.sets > 4 ? r.sets : 4);
    printf("prefill %-8s %3u x %5u of %6llu  group %2u dim %3u  %8.4f ms  %6.1f TFLOP/s\n",
           b.variant, b.batch, b.queries, (unsigned long long)b.tokens, b.group, b.dim, ms,
           flop / ms / 1e9);
    fflush(stdout);
    print_json("prefill", &r, ms, 0);
    close_run(&r);
}

static void print_logits(const struct logits_row *r) {
    printf("logits 4 bits %3u x %6u  group %2u dim 128  %8.4f ms  error %.1e  reads of the keys: "
           "4 bits %.4f bf16 %.4f (%.2fx) f32 %.4f ms (%.2fx)\n",
           r->batch, r->tokens, r->group, r->ms, r->error, r->read_ms, r->bf16_ms,
           r->bf16_ms / r->ms, r->f32_ms, r->f32_ms / r->ms);
    fflush(stdout);
    if (json)
        fprintf(json,
                "%s\n{\"op\": \"logits\", \"variant\": \"4bit_nc\", \"batch\": %u, \"tokens\": %u, "
                "\"group\": %u, \"dim\": 128, \"kv_heads\": %d, \"ms\": %.6f, \"bytes\": %.0f, "
                "\"logit_bytes\": %.0f, \"read_ms\": %.6f, \"bf16_read_ms\": %.6f, "
                "\"f32_read_ms\": %.6f}",
                json_rows++ ? "," : "", r->batch, r->tokens, r->group, HEADS, r->ms, r->key_bytes,
                r->logit_bytes, r->read_ms, r->bf16_ms, r->f32_ms);
}

static void run_all_logits(void) {
    run_logits(16, 32768, 1, print_logits);
    run_logits(16, 32768, 8, print_logits);
}

static const char *const variants[] = {"bf16",    "fp8",     "int8",   "k8v4",
                                       "4bit_nc", "k3v4_nc", "3bit_nc"};
enum { N_VARIANTS = sizeof variants / sizeof *variants };
/* Polar angles, sketches of the residual. */
static const char *const study[] = {"polar", "polar_qjl", "prod4", "prod3"};
enum { N_STUDY = sizeof study / sizeof *study };

static void run_more(void) {
    static const uint32_t groups[] = {1, 4, 16};
    for (size_t v = 4; v < N_VARIANTS; v += 2) {
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            run_attend((struct bench){variants[v], 64, groups[g], 128, 32768, 0, 0});
        run_attend((struct bench){variants[v], 1, 8, 128, 131072, 0, 0});
        run_attend((struct bench){variants[v], 64, 8, 128, 32768, 1, 0});
        run_attend((struct bench){variants[v], 16, 8, 128, 32768, 1, 0});
    }
    for (uint32_t dim = 64; dim <= 256; dim += dim < 128 ? 32 : 64)
        if (dim != 128)
            run_attend((struct bench){"4bit_nc", 32, 8, dim, 32768, 0, 0});
    for (size_t v = 1; v < N_VARIANTS; v += v == 1 ? 3 : 2) {
        for (uint64_t tokens = 1024; tokens <= 131072; tokens *= 4)
            run_attend((struct bench){variants[v], 16, 8, 128, tokens, 0, 0});
        for (uint32_t group = 1; group <= 4; group *= 4) /* few query rows */
            run_attend((struct bench){variants[v], 16, group, 128, 4096, 0, 0});
    }
}

/* A prompt, a chunk of each of some prompts, one token of each sequence. */
static void run_appends(int quick) {
    for (size_t v = 0; v < N_VARIANTS; v++)
        if (!quick || v == 4 || v == 6)
            run_append(variants[v], 1, 8192, 128);
    for (size_t v = 0; v < N_STUDY && !quick; v++)
        run_append(study[v], 1, 8192, 128);
    run_append("4bit_nc", 64, 1, 128);
    for (uint32_t tokens = 1; tokens <= 4096 && !quick; tokens *= 8)
        run_append("4bit_nc", 1, tokens, 128);
    for (uint32_t dim = 64; dim <= 256 && !quick; dim += dim < 128 ? 32 : 64)
        if (dim != 128)
            run_append("4bit_nc", 1, 8192, dim);
}

/* Chunks of prompts over what is compressed already, whole prompts, and how few rows pay. */
static void run_prefills(int quick) {
    static const char *const others[] = {"k3v2_nc", "2bit_nc"};
    static const uint32_t dims[] = {64, 256};
    for (size_t v = 0; v < N_VARIANTS; v++) {
        run_prefill((struct bench){variants[v], 1, 8, 128, 32768 + 2048, 0, 2048});
        if (quick)
            continue;
        run_prefill((struct bench){variants[v], 1, 8, 128, 8192 + 2048, 0, 2048});
        run_prefill((struct bench){variants[v], 1, 8, 128, 8192, 0, 8192});
        for (size_t d = 0; d < 2 && v != 3 && v != 5; d++)
            run_prefill((struct bench){variants[v], 1, 8, dims[d], 32768 + 2048, 0, 2048});
    }
    for (size_t v = 0; v < N_STUDY; v++)
        run_prefill((struct bench){study[v], 1, 8, 128, 32768 + 2048, 0, 2048});
    for (size_t v = 0; v < 2 && !quick; v++)
        run_prefill((struct bench){others[v], 1, 8, 128, 32768 + 2048, 0, 2048});
    for (uint32_t n = 8; n <= 512 && !quick; n *= 2)
        run_prefill((struct bench){"4bit_nc", 1, 8, 128, 32768, 0, n});
}

static void run_all(int quick) {
    for (size_t v = 0; v < N_VARIANTS; v++) {
        run_attend((struct bench){variants[v], 1, 8, 128, 32768, 0, 0});
        run_attend((struct bench){variants[v], 16, 8, 128, 32768, 0, 0});
        run_attend((struct bench){variants[v], 64, 8, 128, 32768, 0, 0});
        if (quick)
            continue;
        run_attend((struct bench){variants[v], 4, 8, 128, 32768, 0, 0});
        run_attend((struct bench){variants[v], 64, 8, 128, 4096, 0, 0});
    }
    for (size_t v = 0; v < N_STUDY; v++) {
        run_attend((struct bench){study[v], 64, 8, 128, 32768, 0, 0});
        if (quick)
            continue;
        run_attend((struct bench){study[v], 1, 8, 128, 32768, 0, 0});
        run_attend((struct bench){study[v], 16, 8, 128, 32768, 0, 0});
        run_attend((struct bench){study[v], 64, 8, 64, 32768, 0, 0});
    }
    run_all_logits();
    if (!quick)
        run_more();
    run_appends(quick);
    run_prefills(quick);
}

/* "4bit_nc,64,32768,8,128"; a batch that begins with r is ragged; "4bit_nc,1,32768,8,128,512": the
 * last 512 tokens as a prompt. */
static void run_case(char *text) {
    struct bench b = {.variant = strtok(text, ",")};
    char *field[4];
    for (int i = 0; i < 4; i++) {
        field[i] = strtok(NULL, ",");
        must(field[i] != NULL, "--case VARIANT,BATCH,TOKENS,GROUP,DIM");
    }
    b.ragged = *field[0] == 'r';
    b.batch = (uint32_t)strtoul(field[0] + b.ragged, NULL, 10);
    b.tokens = strtoull(field[1], NULL, 10);
    b.group = (uint32_t)strtoul(field[2], NULL, 10);
    b.dim = (uint32_t)strtoul(field[3], NULL, 10);
    const char *queries = strtok(NULL, ",");
    b.queries = queries ? (uint32_t)strtoul(queries, NULL, 10) : 0;
    if (strncmp(b.variant, "append:", 7) == 0)
        run_append(b.variant + 7, b.batch, (uint32_t)b.tokens, b.dim);
    else if (b.queries)
        run_prefill(b);
    else
        run_attend(b);
}

struct options {
    const char *json, *commit;
    int quick, append, cases, logits, paged, snapshots, prefill;
};

static struct options read_options(int argc, char **argv) {
    struct options o = {.commit = "unknown"};
    for (int i = 1; i < argc; i++) {
        o.quick |= strcmp(argv[i], "--quick") == 0;
        o.logits |= strcmp(argv[i], "--logits") == 0;
        o.append |= strcmp(argv[i], "--append") == 0;
        o.paged |= strcmp(argv[i], "--paged") == 0;
        o.prefill |= strcmp(argv[i], "--prefill") == 0;
        o.snapshots |= strcmp(argv[i], "--snapshots") == 0;
        o.cases |= strcmp(argv[i], "--case") == 0;
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            o.json = argv[++i];
        else if (strcmp(argv[i], "--fp8") == 0 && i + 1 < argc)
            context_flags =
                strcmp(argv[++i], "native") == 0 ? TQ_CONTEXT_FP8_NATIVE : TQ_CONTEXT_FP8_CONVERTED;
        else if (strcmp(argv[i], "--sinks") == 0 && i + 1 < argc)
            sink_tokens = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--recent") == 0 && i + 1 < argc)
            recent_tokens = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
            o.commit = argv[++i];
    }
    return o;
}

int main(int argc, char **argv) {
    int n = 0;
    struct options o = read_options(argc, argv);
    struct cudaDeviceProp properties;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("bench_cuda: SKIPPED, this machine has no usable GPU\n");
        return 0;
    }
    CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors; ms per layer inside a graph, all rotations included\n",
           properties.name, properties.multiProcessorCount);
    with_paged = o.paged;
    if (o.json)
        open_json(o.json, o.commit, &properties);
    CUDA(cudaStreamCreate(&stream));
    make_data();
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--case") == 0)
            run_case(argv[++i]);
    if (o.snapshots)
        time_snapshots();
    else if (o.logits)
        run_all_logits();
    else if (o.prefill)
        run_prefills(o.quick);
    else if (o.append)
        run_appends(o.quick);
    else if (!o.cases)
        run_all(o.quick);
    close_json();
    return 0;
}
