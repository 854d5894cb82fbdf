/* Measured times and a model around them. */
#include "times.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- curves ---------------------------------------------------------------------------------- */

double time_at(const struct curve *c, double tokens) {
    if (tokens <= 0 || c->n == 0)
        return 0;
    if (tokens <= c->tokens[0] || c->n == 1)
        return c->seconds[0];
    uint32_t i = 1;
    while (i + 1 < c->n && c->tokens[i] < tokens)
        i++;
    double slope = (c->seconds[i] - c->seconds[i - 1]) / (c->tokens[i] - c->tokens[i - 1]);
    return c->seconds[i] + slope * (tokens - c->tokens[i]);
}

/* In order; of two times at the same tokens the lesser one. */
static void add_point(struct curve *c, double tokens, double seconds) {
    uint32_t i = c->n;
    for (uint32_t k = 0; k < c->n; k++)
        if (c->tokens[k] == tokens) {
            c->seconds[k] = seconds < c->seconds[k] ? seconds : c->seconds[k];
            return;
        }
    if (c->n == MOST_POINTS)
        return;
    for (; i && c->tokens[i - 1] > tokens; i--) {
        c->tokens[i] = c->tokens[i - 1];
        c->seconds[i] = c->seconds[i - 1];
    }
    c->tokens[i] = tokens;
    c->seconds[i] = seconds;
    c->n++;
}

/* ---- the file -------------------------------------------------------------------------------- */

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    long size = -1;
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size >= 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)size + 1);
    if (text) {
        size_t n = fread(text, 1, (size_t)size, f);
        text[n] = 0;
    }
    if (f)
        fclose(f);
    return text;
}

static double number(const cJSON *row, const char *key) {
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(row, key);
    return cJSON_IsNumber(x) ? x->valuedouble : -1;
}

static int is(const cJSON *row, const char *key, const char *value) {
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(row, key);
    return cJSON_IsString(x) && strcmp(x->valuestring, value) == 0;
}

enum { PROMPT = 8192, CHUNK = 2048 };

/* Whether the row is of sequences of equal length in the model's shape. */
static int fits(const cJSON *row, const struct times *t, const char *op) {
    return is(row, "variant", t->variant) && is(row, "op", op) && number(row, "dim") == 128 &&
           number(row, "ragged") == 0 && number(row, "tokens") > 0 && number(row, "ms") > 0 &&
           (number(row, "group") == 8 || strcmp(op, "append") == 0);
}

static double tokens_of(const cJSON *row) {
    return number(row, "batch") * number(row, "tokens");
}

/* A chunk's attention: by the variant's kernels, or of bf16 by a peer's. */
static void take_chunk(struct times *t, const cJSON *row) {
    int peer = cJSON_HasObjectItem(row, "peer"), bf16 = strcmp(t->variant, "bf16") == 0;
    double tokens = number(row, "tokens");
    double pairs = CHUNK * (tokens - (CHUNK - 1) / 2.0);
    if (is(row, "op", "prefill") && number(row, "queries") == CHUNK && number(row, "ms") > 0 &&
        (bf16 ? peer : fits(row, t, "prefill")))
        add_point(&t->pair, tokens, number(row, "ms") / 1e3 / pairs);
}

static void take_row(struct times *t, const cJSON *row, const cJSON *rows) {
    const cJSON *step;
    take_chunk(t, row);
    if (fits(row, t, "append") && tokens_of(row) == PROMPT)
        add_point(&t->append, PROMPT, number(row, "ms") / 1e3);
    if (!fits(row, t, "attend"))
        return;
    add_point(&t->attend, tokens_of(row), number(row, "ms") / 1e3);
    cJSON_ArrayForEach(step, rows) { /* what a token of each sequence adds */
        double more = number(step, "ms") - number(row, "ms");
        if (fits(step, t, "step") && number(step, "batch") == number(row, "batch") &&
            number(step, "tokens") == number(row, "tokens") && more > 0)
            add_point(&t->append, number(row, "batch"), more / 1e3);
    }
}

static int read_file(const char *path, struct times *out) {
    char *text = read_text(path);
    cJSON *all = text ? cJSON_Parse(text) : NULL;
    const cJSON *row, *rows = cJSON_GetObjectItemCaseSensitive(all, "rows");
    cJSON_ArrayForEach(row, rows) take_row(out, row, rows);
    int status = all ? 0 : -1;
    cJSON_Delete(all);
    free(text);
    return status;
}

int read_times(const char *const *paths, int n, const char *variant, struct times *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->variant, sizeof out->variant, "%s", variant);
    for (int i = 0; i < n; i++)
        if (read_file(paths[i], out))
            return -1;
    return out->attend.n > 1 && out->append.n > 1 && out->pair.n > 0 ? 0 : -2;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Everything but the cache: weights are read once, or their products take longer. */
static double rest_of_model(const struct times *t, double tokens) {
    double read = 2 * t->model->parameters / t->machine->bytes_per_second;
    double multiply = 2 * t->model->parameters * tokens / t->machine->operations_per_second;
    return read > multiply ? read : multiply;
}

/* A layer's attention of a chunk over what is before it and itself; beyond the longest measured
 * context a pair takes as long as there. */
static double chunk_time(const struct times *t, const struct item *item) {
    double pairs = item->append * (item->before + 0.5 * (item->append + 1.0));
    double context = (double)item->before + item->append;
    double longest = t->pair.tokens[t->pair.n - 1];
    return pairs * time_at(&t->pair, context < longest ? context : longest);
}

double modelled_step(void *arg, const struct step *step) {
    const struct times *t = arg;
    double context = 0, tokens = 0, chunks = 0;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct item *item = &step->items[i];
        tokens += item->append;
        if (item->append == 1)
            context += item->before + 1.0;
        else
            chunks += chunk_time(t, item);
    }
    double layer = time_at(&t->attend, context) + time_at(&t->append, tokens) + chunks;
    return t->model->layers * layer + rest_of_model(t, tokens);
}

uint64_t modelled_pages(const struct times *t, double bytes_per_page) {
    const struct machine *m = t->machine;
    double room = m->memory - m->kept - 2 * t->model->parameters;
    double all = bytes_per_page * t->model->layers;
    return room > all ? (uint64_t)(room / all) : 0;
}
