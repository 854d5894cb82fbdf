/*
 * The write path at speed, for head dims that are powers of two and pages of 64 tokens: a warp
 * per eight tokens, kv head and side. The same bytes as encode_any.cu.
 */
#include "encode/oct_codes.cuh"

namespace tqi {
namespace {

enum { WARPS = 4, PAGE_TOKENS = 64 };

struct FastEncodeJob {
    EncodeJob job;
    FastBook book[2];
    uint64_t first_oct, n_octs;
};

/* ---- lm -------------------------------------------------------------------------------------- */

template <int D, int BITS>
TQI_ENCODE_INLINE void store_k_lm(const Side &s, const OctPlace &p, const uint32_t w[D / 32]) {
    constexpr int J = D / 32;
    if (!p.is_fresh())
        return;
    if constexpr (BITS == 4) {
        uint32_t *at = k_words<J>(s, p, 1);
#pragma unroll
        for (int j = 0; j < J; j++)
            at[j * 128] = place_signs(w[j]);
    } else {
        static_assert(BITS == 3 && J % 4 == 0, "sets of four words of a token");
        uint32_t *at = (uint32_t *)(p.blob + s.layout.codes) + p.slot / 32 * (J / 4 * 3) * 128 +
                       (p.slot % 32 / 4 * 4 + p.t) * 4 + p.slot % 4;
#pragma unroll
        for (int q = 0; q < J / 4; q++)
            store_set3(at + q * 3 * 128, w + 4 * q, ~0u);
    }
}

/* Chunk j of lane t, transposed, is dim (D/4) t + 8 j + g. */
template <int D>
TQI_ENCODE_INLINE void store_v_lm4(const Side &s, const OctPlace &p, uint32_t w[D / 32]) {
    uint32_t *at = (uint32_t *)(p.blob + s.layout.codes) + p.slot / 32 * (D / 32) * 128;
    uint32_t mask = place_signs(fresh_nibbles(p.fresh));
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t d = D / 4 * p.t + 8 * j + p.g, column = d % (D / 8) / 4;
        uint32_t word = place_signs(transpose_nibbles(w[j], p.g));
        merge_word(at + column * 128 + v_element<D>(p, d), mask, word);
    }
}

/* Columns 4 q..4 q + 3 of a lane of values make a set: two chunks, and in each of them lanes g
 * and g + 4. The lower four lanes take the sets of the even pairs of chunks, the others those
 * of the odd ones. */
template <int D>
TQI_ENCODE_INLINE void store_v_lm3(const Side &s, const OctPlace &p, uint32_t w[D / 32]) {
    constexpr int J = D / 32;
    static_assert(J % 4 == 0, "sets of four columns");
    uint32_t *at = (uint32_t *)(p.blob + s.layout.codes) + p.slot / 32 * (J / 4 * 3) * 128;
    uint32_t mask = fresh_nibbles(p.fresh);
    bool upper = p.g & 4;
#pragma unroll
    for (int j = 0; j < J; j++)
        w[j] = transpose_nibbles(w[j], p.g);
#pragma unroll
    for (int q = 0; q < J / 4; q++) {
        uint32_t *c = w + 4 * q, set[4];
        uint32_t a = __shfl_xor_sync(~0u, upper ? c[0] : c[2], 16);
        uint32_t b = __shfl_xor_sync(~0u, upper ? c[1] : c[3], 16);
        set[0] = upper ? a : c[0];
        set[1] = upper ? c[2] : a;
        set[2] = upper ? b : c[1];
        set[3] = upper ? c[3] : b;
        uint32_t d = D / 4 * p.t + 32 * q + (upper ? 16 : 0) + p.g % 4; /* of the first column */
        store_set3(at + d % (D / 8) / 16 * 3 * 128 + v_element<D>(p, d), set, mask);
    }
}

template <int D, int BITS, int SIDE>
TQI_ENCODE_INLINE void encode_lm(const FastEncodeJob &f, const OctPlace &p) {
    constexpr int N = D / 4, J = D / 32;
    const Side &s = f.job.side[SIDE];
    const FastBook &book = f.book[SIDE];
    float x[N], sum;
    uint32_t w[J], squares = 0;
    int e = rotated_row<N>(f.job, SIDE, p, D, x, &sum);
    float norm = sqrtf(sum), inv = norm > 0 ? 1.0f / norm : 0;
#pragma unroll
    for (int j = 0; j < J; j++) {
        w[j] = pack8<BITS>(x + 8 * j, inv, book);
        squares = add_squares(w[j], book, squares);
    }
    squares = row_sum(squares);
    store_gain(s, p, ldexpf(norm * s.gain_factor / sqrtf((float)squares), e));
    if constexpr (SIDE == TQI_SIDE_K)
        store_k_lm<D, BITS>(s, p, w);
    else if constexpr (BITS == 4)
        store_v_lm4<D>(s, p, w);
    else
        store_v_lm3<D>(s, p, w);
}

/* ---- 8 bits ------------------------------------------------------------------------------------
 */

/* Dims 8 j + 4 h + 0..3 of the lane in w[2 j + h]. */
template <int D>
TQI_ENCODE_INLINE void store_k8(const Side &s, const OctPlace &p, const uint32_t *w) {
    if (!p.is_fresh())
        return;
    uint32_t *at = k_words<D / 32>(s, p, 2);
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        at[i * 128] = w[i];
}

template <int D, bool FP8>
TQI_ENCODE_INLINE void store_v8(const Side &s, const OctPlace &p, uint32_t *w) {
    constexpr int J = D / 32;
    uint32_t *at = (uint32_t *)(p.blob + s.layout.codes) + p.slot / 32 * J * 2 * 128;
    /* int8: tokens 0 1 4 5 | 2 3 6 7, e4m3: 0 4 1 5 | 2 6 3 7 */
    uint32_t masks[2] = {FP8 ? fresh_bytes(p.fresh, 0, 4, 1, 5) : fresh_bytes(p.fresh, 0, 1, 4, 5),
                         FP8 ? fresh_bytes(p.fresh, 2, 6, 3, 7) : fresh_bytes(p.fresh, 2, 3, 6, 7)};
#pragma unroll
    for (int j = 0; j < J; j++) {
        uint32_t *c = w + 2 * j, d = D / 4 * p.t + 8 * j + p.g;
        transpose_bytes(c, p.g);
        uint32_t *to = at + d % (D / 8) / 4 * 128 + v_element<D>(p, d);
        merge_word(to, masks[0], __byte_perm(c[0], c[1], FP8 ? 0x5140 : 0x5410));
        merge_word(to + J * 128, masks[1], __byte_perm(c[0], c[1], FP8 ? 0x7362 : 0x7632));
    }
}

template <int D, int SIDE>
TQI_ENCODE_INLINE void encode_int8(const FastEncodeJob &f, const OctPlace &p) {
    constexpr int N = D / 4;
    const Side &s = f.job.side[SIDE];
    float x[N], sum, largest = 0;
    uint32_t w[N / 4];
    int squares = 0, e = rotated_row<N>(f.job, SIDE, p, D, x, &sum);
#pragma unroll
    for (int i = 0; i < N; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = row_max(largest);
    float inv = largest > 0 ? 127.0f / largest : 0;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint32_t b[4]; /* adding 1.5 x 2^23 rounds to the nearest integer, ties to even */
#pragma unroll
        for (int k = 0; k < 4; k++)
            b[k] = __float_as_uint(x[4 * i + k] * inv + 12582912.0f);
        w[i] =
            __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
        squares = __dp4a((int)w[i], (int)w[i], squares);
    }
    squares = (int)row_sum((uint32_t)squares);
    float gain = squares ? sqrtf(sum) * s.gain_factor / sqrtf((float)squares) : 0;
    store_gain(s, p, ldexpf(gain, e));
    if constexpr (SIDE == TQI_SIDE_K)
        store_k8<D>(s, p, w);
    else
        store_v8<D, false>(s, p, w);
}

/* Nearest even, saturating at 448; x is finite. */
TQI_ENCODE_INLINE uint32_t e4m3_bits(float f) {
    uint32_t u = __float_as_uint(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    /* below 2^-6 the codes are multiples of 2^-9: adding 2^14 rounds to them */
    uint32_t small = __float_as_uint(fabsf(f) + 0x1p14f) - 0x46800000u;
    uint32_t normal = (a - (120u << 23) + 0x7ffffu + (a >> 20 & 1)) >> 20;
    return sign | (a >= 0x43e00000u ? 0x7eu : a >= 0x3c800000u ? normal : small);
}

template <int D, int SIDE>
TQI_ENCODE_INLINE void encode_fp8(const FastEncodeJob &f, const OctPlace &p) {
    constexpr int N = D / 4;
    const Side &s = f.job.side[SIDE];
    float x[N], scale = s.inv_scale[p.head], bad = 0;
    uint32_t w[N / 4];
    load_row<N>(f.job, SIDE, p, D, x);
#pragma unroll
    for (int i = 0; i < N; i++)
        bad +=
            fabsf(x[i]) >= FLT_MAX || isnan(x[i]) ? 1 : 0; /* with a mean infinities are FLT_MAX */
    if (__any_sync(~0u, bad != 0))
        load_careful<N>(f.job, SIDE, p, D, x);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        w[i] = e4m3_bits(x[4 * i] * scale) | e4m3_bits(x[4 * i + 1] * scale) << 8 |
               e4m3_bits(x[4 * i + 2] * scale) << 16 | e4m3_bits(x[4 * i + 3] * scale) << 24;
    if constexpr (SIDE == TQI_SIDE_K)
        store_k8<D>(s, p, w);
    else
        store_v8<D, true>(s, p, w);
}

/* ---- the kernel
 * ---------------------------------------------------------------------------------- */

template <int D, int F, int SIDE>
TQI_ENCODE_INLINE void encode_side(const FastEncodeJob &f, const OctPlace &p) {
    if constexpr (F == TQ_FORMAT_LM4)
        encode_lm<D, 4, SIDE>(f, p);
    else if constexpr (F == TQ_FORMAT_LM3)
        encode_lm<D, 3, SIDE>(f, p);
    else if constexpr (F == TQ_FORMAT_INT8)
        encode_int8<D, SIDE>(f, p);
    else
        encode_fp8<D, SIDE>(f, p);
}

/* Warp index: (eight tokens, kv head, side), side fastest. */
template <int D, int KF, int VF>
__global__ void __launch_bounds__(WARPS * 32)
    tqk_encode_fast(const __grid_constant__ FastEncodeJob f) {
    const EncodeJob &job = f.job;
    uint64_t index = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32, side = index & 1,
             head = (uint32_t)((index >> 1) % job.n_heads);
    uint64_t oct = (index >> 1) / job.n_heads;
    if (oct >= f.n_octs)
        return;
    uint64_t token = (f.first_oct + oct) * 8;
    OctPlace p;
    p.g = lane / 4;
    p.t = lane % 4;
    p.head = head;
    p.slot = (uint32_t)(token % PAGE_TOKENS) + p.g;
    p.row = token + p.g - job.length;
    p.fresh = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        p.fresh |= token + i >= job.length && token + i < job.end ? 1u << i : 0;
    p.blob = job.pages.base +
             job.ids.id[token / PAGE_TOKENS - job.first_page] * job.pages.page_bytes +
             (uint64_t)head * job.pages.blob_bytes;
    if (side == TQI_SIDE_K)
        encode_side<D, KF, TQI_SIDE_K>(f, p);
    else
        encode_side<D, VF, TQI_SIDE_V>(f, p);
}

/* ---- host --------------------------------------------------------------------------------------
 */

void fill_book(const Side &s, FastBook *b) {
    memset(b, 0, sizeof *b);
    if (s.layout.kind != TQI_KIND_LM)
        return;
    uint32_t words[2] = {0, 0}, bits = s.layout.bits;
    for (uint32_t t = 0; t + 1 < s.levels; t++)
        b->threshold[t] = -s.threshold[t] * 0x1p60f;
    b->middle = s.threshold[3];
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t level = bits == 4           ? i
                         : i >= 2 * s.levels ? 0
                         : i < s.levels      ? s.levels - 1 - i
                                             : i - s.levels;
        words[i / 4] |= (uint32_t)(s.v2[level] & 255) << 8 * (i % 4);
    }
    b->low = words[0];
    b->high = words[1];
}

/* Rows whose 16-byte pieces are aligned. */
uint32_t is_aligned(const RowsIn &rows) {
    uint64_t size = rows.dtype == TQ_F32 ? 4 : 2;
    uint64_t all = (uint64_t)rows.data | (uint64_t)rows.token_stride * size |
                   (uint64_t)rows.head_stride * size;
    return all % 16 == 0;
}

template <int D, int KF, int VF> tq_status run(const FastEncodeJob &f, cudaStream_t stream) {
    uint64_t warps = f.n_octs * f.job.n_heads * 2;
    LaunchShape shape = {(warps + WARPS - 1) / WARPS, WARPS * 32, 0, stream, false};
    return launch(tqk_encode_fast<D, KF, VF>, shape, "tqk_encode_fast", f);
}

struct Entry {
    uint32_t dim, k_format, v_format;
    const char *name;
    tq_status (*run)(const FastEncodeJob &f, cudaStream_t stream);
};

#define ENTRY(d, kf, vf)                                                           \
    {                                                                              \
        d, TQ_FORMAT_##kf, TQ_FORMAT_##vf, "tqk_encode_fast_" #kf "_" #vf "_d" #d, \
            run<d, TQ_FORMAT_##kf, TQ_FORMAT_##vf>                                 \
    }
const Entry entries[] = {ENTRY(128, LM4, LM4), ENTRY(128, LM3, LM4),   ENTRY(128, LM3, LM3),
                         ENTRY(128, FP8, LM4), ENTRY(128, INT8, INT8), ENTRY(128, FP8, FP8),
                         ENTRY(64, LM4, LM4),  ENTRY(256, LM4, LM4)};

const Entry *find_entry(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                        const tqi_layout &v) {
    for (const Entry &e : entries)
        if (e.k_format == k_format && e.v_format == v_format && e.dim == k.dim && e.dim == v.dim &&
            k.tokens == PAGE_TOKENS)
            return &e;
    return nullptr;
}

} /* namespace */

const char *fast_encoder_name(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                              const tqi_layout &v) {
    const Entry *e = find_entry(k_format, v_format, k, v);
    return e ? e->name : nullptr;
}

bool encode_takes_groups(const Side side[2]) {
    (void)side;
    return false;
}

tq_status encode(const EncodeJob &job, cudaStream_t stream) {
    const Side *s = job.side;
    const Entry *e = find_entry(s[0].format, s[1].format, s[0].layout, s[1].layout);
    if (!e || job.pieces)
        return encode_any(job, stream);
    FastEncodeJob f;
    f.job = job;
    f.job.aligned = is_aligned(job.rows[0]) | is_aligned(job.rows[1]) << 1;
    for (int i = 0; i < 2; i++)
        fill_book(s[i], &f.book[i]);
    uint64_t start = job.first_page * PAGE_TOKENS,
             end = start + (uint64_t)job.n_pages * PAGE_TOKENS;
    uint64_t first = start > job.length ? start : job.length, last = end < job.end ? end : job.end;
    f.first_oct = first / 8;
    f.n_octs = (last + 7) / 8 - f.first_oct;
    return e->run(f, stream);
}

} /* namespace tqi */
