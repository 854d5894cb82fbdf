/* Every struct that begins with struct_size, in and out, from callers of older and newer headers.
 */
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/rig.h"
#include "tq/recommend.h"

enum { LIMIT = 4096, HEAD_DIM = 32 };

/* One cache with two tokens, for all tests. */
static struct rig rig;
static tq_seq seq;
static float *rows;
static struct test_heap spare_heap;
static tq_allocator spare_hooks;

static int set_up(void **state) {
    struct rng rng = {1};
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, HEAD_DIM, 1, 1);
    (void)state;
    rig_open(&rig, &c);
    spare_hooks = test_allocator(&spare_heap);
    seq = rig_seq(&rig);
    rows = random_rows(&rng, 2 * HEAD_DIM, 1);
    rig_append(&rig, seq, 0, 2, rows, rows);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(rows);
    rig_close(&rig);
    return 0;
}

/* ---- inputs ---------------------------------------------------------------------------- */

/* Holds any of the structs, and the longest one that is too long. */
union input {
    uint32_t struct_size;
    tq_context_config context;
    tq_allocator allocator;
    tq_executor executor;
    tq_cache_config cache;
    tq_attend_params attend;
    tq_codec_config codec;
    tq_recommend_query recommend;
    uint64_t words[LIMIT / 8 + 2];
};

static void run_here(void *user, uint32_t n_tasks,
                     void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg) {
    (void)user;
    for (uint32_t i = 0; i < n_tasks; i++)
        task(arg, i, 0);
}

static void fill_context(union input *in) {
    in->context.cpu_features_disabled = UINT64_MAX;
}

static void fill_allocator(union input *in) {
    in->allocator = spare_hooks;
}

static void fill_executor(union input *in) {
    in->executor.n_workers = 1;
    in->executor.parallel_for = run_here;
}

static void fill_cache(union input *in) {
    in->cache = plain_config(TQ_VARIANT_FP8, HEAD_DIM, 1, 2);
}

static void fill_attend(union input *in) {
    in->attend.flags = TQ_ATTEND_CAUSAL;
    in->attend.scale = 0.5f;
}

static void fill_codec(union input *in) {
    in->codec.format = TQ_FORMAT_LM3;
    in->codec.dim = HEAD_DIM;
}

static void fill_recommend(union input *in) {
    in->recommend.head_dim = HEAD_DIM;
}

/* Calls that read the struct. Outputs stay untouched when it is refused. */
static tq_status make_context(const tq_context_config *config) {
    tq_context *const untouched = (tq_context *)&rig, *ctx = untouched;
    tq_status status = tq_context_create(config, &ctx);
    CHECK((status == TQ_OK) == (ctx != untouched), "%s: out", tq_status_name(status));
    if (status == TQ_OK)
        tq_context_destroy(ctx);
    return status;
}

static tq_status use_context(const void *s) {
    return make_context(s);
}

static tq_status use_allocator(const void *s) {
    tq_context_config config = {.struct_size = sizeof config, .allocator = s};
    return make_context(&config);
}

static tq_status use_executor(const void *s) {
    tq_context_config config = {.struct_size = sizeof config, .executor = s};
    return make_context(&config);
}

static tq_status use_cache(const void *s) {
    tq_cache *const untouched = (tq_cache *)&rig, *cache = untouched;
    tq_status status = tq_cache_create(rig.ctx, s, &cache);
    CHECK((status == TQ_OK) == (cache != untouched), "%s: out", tq_status_name(status));
    if (status == TQ_OK)
        tq_cache_destroy(cache);
    return status;
}

static tq_status use_estimate(const void *s) {
    static const tq_footprint untouched = {.struct_size = sizeof untouched, .host_bytes = 1};
    tq_footprint out = untouched;
    tq_status status = tq_cache_estimate(rig.ctx, s, &out);
    int same = memcmp(&out, &untouched, sizeof out) == 0;
    CHECK((status == TQ_OK) != same, "%s: out", tq_status_name(status));
    return status;
}

static tq_status use_attend(const void *s) {
    float out[HEAD_DIM] = {-7}, lse = -7;
    tq_rows_in q = rows_in(rows);
    tq_rows_out to = rows_out(out);
    tq_status status = tq_attend(rig.cache, seq, 0, 1, s, &q, &to, &lse, NULL);
    int same = out[0] == -7 && lse == -7;
    CHECK((status == TQ_OK) != same, "%s: out", tq_status_name(status));
    return status;
}

static tq_status use_codec(const void *s) {
    tq_codec *const untouched = (tq_codec *)&rig, *codec = untouched;
    tq_status status = tq_codec_create(rig.ctx, s, &codec);
    CHECK((status == TQ_OK) == (codec != untouched), "%s: out", tq_status_name(status));
    if (status == TQ_OK)
        tq_codec_destroy(codec);
    return status;
}

static tq_status use_recommend(const void *s) {
    return tq_recommend(s, &(tq_recommendation){.struct_size = sizeof(tq_recommendation)});
}

static const struct input_case {
    const char *name;
    uint32_t size, first; /* bytes now and when it was first published */
    void (*fill)(union input *in);
    tq_status (*use)(const void *s);
} inputs[] = {
    {"context config", sizeof(tq_context_config), 40, fill_context, use_context},
    {"allocator", sizeof(tq_allocator), 32, fill_allocator, use_allocator},
    {"executor", sizeof(tq_executor), 24, fill_executor, use_executor},
    {"cache config", sizeof(tq_cache_config), 72, fill_cache, use_cache},
    {"cache config", sizeof(tq_cache_config), 72, fill_cache, use_estimate},
    {"attend params", sizeof(tq_attend_params), 16, fill_attend, use_attend},
    {"codec config", sizeof(tq_codec_config), 24, fill_codec, use_codec},
    {"recommend query", sizeof(tq_recommend_query), 40, fill_recommend, use_recommend},
};

static union input filled(const struct input_case *c, uint32_t struct_size) {
    union input in = {.words = {0}};
    c->fill(&in);
    in.struct_size = struct_size;
    return in;
}

/* The call sees memory that ends where the struct ends, up to the next aligned address: a
 * look behind it ends the program. */
static tq_status use_fenced(const struct input_case *c, const union input *in) {
    size_t bytes = in->struct_size < 8 ? 8 : ((size_t)in->struct_size + 7) / 8 * 8;
    struct fenced f = fence_copy(in, bytes > LIMIT ? c->size : bytes);
    tq_status status = c->use(f.data);
    fence_free(&f);
    return status;
}

static void test_input_short(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (uint32_t size = 0; size < inputs[i].first; size++) {
            union input in = filled(&inputs[i], size);
            FAILS(use_fenced(&inputs[i], &in), TQ_ERR_INVALID_ARGUMENT, inputs[i].name);
            FAILS(use_fenced(&inputs[i], &in), TQ_ERR_INVALID_ARGUMENT, "struct_size");
        }
}

/* A struct of an older header: what it lacks reads as zero. */
static void test_input_older(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (uint32_t size = inputs[i].first; size < inputs[i].size; size++) {
            union input in = filled(&inputs[i], size);
            memset((char *)&in + size, 0xff, sizeof in - size);
            OK(use_fenced(&inputs[i], &in));
            OK(inputs[i].use(&in));
        }
}

static void test_input_exact(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++) {
        union input in = filled(&inputs[i], inputs[i].size);
        in.words[inputs[i].size / 8] = UINT64_MAX; /* not the struct's */
        OK(use_fenced(&inputs[i], &in));
        OK(inputs[i].use(&in));
    }
}

static void test_input_longer(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (uint32_t size = inputs[i].size + 1; size <= LIMIT; size += size < 200 ? 1 : 397) {
            union input in = filled(&inputs[i], size);
            OK(use_fenced(&inputs[i], &in));
            ((unsigned char *)&in)[size] = 1;
            OK(inputs[i].use(&in));
        }
}

static void check_tail_byte(const struct input_case *c, uint32_t size, uint32_t at) {
    for (uint32_t bit = 1; bit < 256; bit *= 16) {
        union input in = filled(c, size);
        ((unsigned char *)&in)[at] = (unsigned char)bit;
        FAILS(use_fenced(c, &in), TQ_ERR_VERSION, c->name);
    }
}

static void test_input_unknown_tail(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++) {
        uint32_t size = inputs[i].size;
        check_tail_byte(&inputs[i], size + 1, size);
        for (uint32_t at = size; at < size + 16; at++)
            check_tail_byte(&inputs[i], size + 16, at);
        check_tail_byte(&inputs[i], LIMIT, size);
        check_tail_byte(&inputs[i], LIMIT, LIMIT / 2);
        check_tail_byte(&inputs[i], LIMIT, LIMIT - 1);
    }
}

static const uint32_t too_long[] = {LIMIT + 1, LIMIT + 8, 65536, UINT32_C(1) << 31, UINT32_MAX};

static void test_input_too_long(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (size_t j = 0; j < COUNT(too_long); j++) {
            union input in = filled(&inputs[i], too_long[j]);
            FAILS(use_fenced(&inputs[i], &in), TQ_ERR_INVALID_ARGUMENT, inputs[i].name);
            FAILS(use_fenced(&inputs[i], &in), TQ_ERR_INVALID_ARGUMENT, "struct_size");
        }
}

/* ---- outputs --------------------------------------------------------------------------- */

static tq_status get_format(void *s) {
    return tq_format_get(4, s);
}

static tq_status get_variant(void *s) {
    return tq_variant_get(5, s);
}

static tq_status get_footprint(void *s) {
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, HEAD_DIM, 1, 1);
    return tq_cache_estimate(rig.ctx, &c, s);
}

static tq_status get_config(void *s) {
    return tq_cache_get_config(rig.cache, s);
}

static tq_status get_stats(void *s) {
    return tq_cache_get_stats(rig.cache, s);
}

static tq_status get_recommendation(void *s) {
    return tq_recommend(&(tq_recommend_query){.struct_size = 40, .head_dim = HEAD_DIM}, s);
}

static tq_status get_blob_info(void *s) {
    struct blob b = blob_save(&rig, seq);
    tq_status status = tq_blob_inspect(b.bytes, 128, s);
    return blob_free(&b), status;
}

static const struct output_case {
    const char *name;
    uint32_t size, first; /* bytes now and when it was first published */
    tq_status (*get)(void *s);
} outputs[] = {
    {"format info", sizeof(tq_format_info), 56, get_format},
    {"variant info", sizeof(tq_variant_info), 40, get_variant},
    {"footprint", sizeof(tq_footprint), 40, get_footprint},
    {"cache config", sizeof(tq_cache_config), 72, get_config},
    {"cache stats", sizeof(tq_cache_stats), 72, get_stats},
    {"recommendation", sizeof(tq_recommendation), sizeof(tq_recommendation), get_recommendation},
    {"blob info", sizeof(tq_blob_info), 64, get_blob_info},
};

/* Between canaries, filled with 0xff; as many bytes as struct_size says, within reason. */
static struct guarded output(const struct output_case *c, uint32_t struct_size) {
    uint32_t bytes = struct_size < 4 ? 4 : struct_size > LIMIT ? c->size : struct_size;
    struct guarded g = guard_make(bytes, 0);
    memcpy(g.data, &struct_size, sizeof struct_size);
    return g;
}

static void check_refused(const struct output_case *c, uint32_t struct_size) {
    struct guarded g = output(c, struct_size), before = output(c, struct_size);
    FAILS(c->get(g.data), TQ_ERR_INVALID_ARGUMENT, c->name);
    FAILS(c->get(g.data), TQ_ERR_INVALID_ARGUMENT, "struct_size");
    CHECK(memcmp(g.data, before.data, g.bytes) == 0, "%s of %u bytes: written", c->name,
          struct_size);
    guard_free(&g);
    guard_free(&before);
}

static void test_output_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(outputs); i++) {
        for (uint32_t size = 0; size < outputs[i].first; size++)
            check_refused(&outputs[i], size);
        for (size_t j = 0; j < COUNT(too_long); j++)
            check_refused(&outputs[i], too_long[j]);
    }
}

/* Every known byte is written: what was there before does not matter. */
static void test_output_exact(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(outputs); i++) {
        const struct output_case *c = &outputs[i];
        struct guarded a = output(c, c->size), b = output(c, c->size);
        memset((char *)b.data + 4, 0, c->size - 4);
        OK(c->get(a.data));
        OK(c->get(b.data));
        CHECK(memcmp(a.data, b.data, c->size) == 0, "%s: bytes not written", c->name);
        guard_free(&a);
        guard_free(&b);
    }
}

/* Older structs get what they have room for, newer ones zeros in the tail. */
static void check_other(const struct output_case *c, uint32_t size) {
    struct guarded exact = output(c, c->size), g = output(c, size);
    const unsigned char *bytes = g.data;
    OK(c->get(exact.data));
    OK(c->get(g.data));
    CHECK(memcmp(bytes, &size, sizeof size) == 0, "%s: struct_size changed", c->name);
    CHECK(memcmp(bytes + 4, (char *)exact.data + 4, (size < c->size ? size : c->size) - 4) == 0,
          "%s of %u bytes", c->name, size);
    for (uint32_t i = c->size; i < size; i++)
        CHECK(bytes[i] == 0, "%s of %u bytes: byte %u is not cleared", c->name, size, i);
    guard_free(&exact);
    guard_free(&g);
}

static void test_output_other_sizes(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(outputs); i++) {
        for (uint32_t size = outputs[i].first; size < outputs[i].size + 20; size++)
            check_other(&outputs[i], size);
        check_other(&outputs[i], LIMIT);
    }
}

/* The outputs above hold what was asked for: otherwise equal bytes would prove nothing. */
static void test_output_contents(void **state) {
    tq_footprint footprint = {.struct_size = sizeof footprint};
    (void)state;
    OK(get_footprint(&footprint));
    assert_string_equal(format_at(4).name, "lm4");
    assert_string_equal(variant_at(5).name, "4bit_nc");
    assert_int_equal(footprint.page_tokens, 64);
    assert_int_equal(rig.c.head_dim, HEAD_DIM);
    assert_int_equal(rig_stats(&rig).tokens, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_short),        cmocka_unit_test(test_input_older),
        cmocka_unit_test(test_input_exact),        cmocka_unit_test(test_input_longer),
        cmocka_unit_test(test_input_unknown_tail), cmocka_unit_test(test_input_too_long),
        cmocka_unit_test(test_output_refused),     cmocka_unit_test(test_output_exact),
        cmocka_unit_test(test_output_other_sizes), cmocka_unit_test(test_output_contents),
    };
    return cmocka_run_group_tests_name("struct_size", tests, set_up, tear_down);
}
