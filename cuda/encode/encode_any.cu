/*
 * The write path for every format, head dim and page size: a block takes one page of one kv
 * head and side, a warp codes a row at a time, then the block packs the codes of a group of
 * tokens into words. The encode contract is spec/rows.h; this file is compiled without
 * contraction, so that codes equal those of the CPU bit for bit.
 */
#include "common/codes.cuh"
#include "encode/page_work.cuh"
#include "encode/polar_any.cuh"
#include "encode/row_any.cuh"

namespace tqi {
namespace {

enum { MAX_WARPS = 8, WIDE_DIM = 512 };

/* Shared memory: codes of a group, then per warp a row and a tree. */
uint32_t warps_of(uint32_t dim) {
    return dim > WIDE_DIM ? MAX_WARPS / 2 : MAX_WARPS;
}

size_t shared_of(uint32_t dim) {
    size_t codes = (size_t)TQI_GROUP_MAX * ((dim + 31) / 32 * 32);
    return codes + (size_t)warps_of(dim) * 2 * tree_size(dim) * sizeof(float);
}

/* ---- packing by the block ------------------------------------------------------------------ */

/* The tokens of a group that are new, and their codes. */
struct PackWork {
    const Side *side;
    uint8_t *blob;
    const uint8_t *codes; /* [token of the group][dim_pad] */
    uint32_t group, first, last;
    bool shared; /* other blocks write to the group too */
};

/* Eight codes of a word: bit n of `valid` says that code n is new. */
struct Eight {
    uint8_t code[8];
    uint32_t valid;
    bool shared;
};

__device__ Eight gather(const PackWork &p, uint32_t word_in_group, uint32_t lane) {
    const tqi_layout &l = p.side->layout;
    Eight e = {};
    e.shared = p.shared;
    for (uint32_t c = 0; c < 8; c++) {
        uint32_t token, dim;
        if (l.side == TQI_SIDE_V) {
            uint32_t column = lane / 4, octs = l.group / 8;
            token = column % octs * 8 + ((c & 1) | (c >> 1 & 1) << 2 | (c >> 2) << 1);
            dim = column / octs * (l.dim_pad / 8) + word_in_group * 4 + lane % 4;
        } else {
            token = lane / 16 * 4 + lane % 4;
            dim = lane / 4 % 4 * (l.dim_pad / 4) + word_in_group * 8 + c;
        }
        if (token >= p.first && token < p.last) {
            e.code[c] = p.codes[token * l.dim_pad + dim];
            e.valid |= 1u << c;
        }
    }
    return e;
}

/* A word or a byte of a plane. */
template <class Word>
__device__ void put_bits(Word *word, uint32_t mask, uint32_t bits, bool shared) {
    if (shared)
        exchange_bits(word, bits, mask);
    else if (mask)
        *word = (Word)((*word & ~mask) | bits);
}

/* Bit `bit` of every code to position `at` of its nibble. */
__device__ void put_nibble_bits(uint32_t *word, const Eight &e, uint32_t bit, uint32_t width,
                                uint32_t at) {
    uint32_t mask = 0, bits = 0, ones = (1u << width) - 1;
    for (uint32_t c = 0; c < 8; c++) {
        mask |= (e.valid >> c & 1) * ones << (4 * c + at);
        bits |= (e.valid >> c & 1) * (e.code[c] >> bit & ones) << (4 * c + at);
    }
    put_bits(word, mask, bits, e.shared);
}

__device__ void put_plane(uint8_t *at, const Eight &e, uint32_t bit) {
    uint32_t bits = 0;
    for (uint32_t c = 0; c < 8; c++)
        bits |= (e.code[c] >> bit & 1u) << c;
    put_bits(at, e.valid, bits & e.valid, e.shared);
}

__device__ void put_word4(uint32_t *word, const Eight &e) {
    uint32_t mask = 0, bits = 0;
    for (uint32_t c = 0; c < 8; c++)
        if (e.valid >> c & 1) {
            mask |= 7u << 4 * c | 1u << sign_bit4(c);
            bits |= (e.code[c] & 7u) << 4 * c | (uint32_t)(e.code[c] >> 3) << sign_bit4(c);
        }
    put_bits(word, mask, bits, e.shared);
}

__device__ void put_word3(const PackWork &p, uint32_t word, uint32_t lane, const Eight &e) {
    const tqi_layout &l = p.side->layout;
    SharedWord s = share_of(l, word);
    if (s.member != 3 && !(s.planes && s.member == s.members - 1)) {
        put_nibble_bits(word_at(l, p.blob, s.slab + s.member, lane), e, 0, 3, 0);
        return;
    }
    for (uint32_t bit = 0; bit < 3; bit++)
        if (bit < s.members - 1)
            put_nibble_bits(word_at(l, p.blob, s.slab + bit, lane), e, bit, 1, 3);
        else
            put_plane(plane_at(l, p.blob, s, bit - (s.members - 1), lane), e, bit);
}

__device__ void put_word2(const PackWork &p, uint32_t word, uint32_t lane, const Eight &e) {
    const tqi_layout &l = p.side->layout;
    SharedWord s = share_of(l, word);
    if (!s.planes) {
        put_nibble_bits(word_at(l, p.blob, s.slab, lane), e, 0, 2, 2 * s.member);
        return;
    }
    for (uint32_t bit = 0; bit < 2; bit++)
        put_plane(plane_at(l, p.blob, s, bit, lane), e, bit);
}

/* A thread takes all words of a set that the group has in one lane: sets share bits, so no
 * two threads touch the same bytes. */
__device__ void pack_group(const PackWork &p) {
    const tqi_layout &l = p.side->layout;
    uint32_t size = tqi_share(l.bits), columns = l.dim_pad / 32, lanes = tqi_slab_lanes(&l);
    uint32_t from = p.group * columns, to = from + columns;
    uint32_t first_set = from / size, n_sets = (to - 1) / size - first_set + 1;
    for (uint32_t i = threadIdx.x; i < n_sets * lanes; i += blockDim.x) {
        uint32_t set = first_set + i / lanes, lane = i % lanes;
        uint32_t begin = max(set * size, from), end = min((set + 1) * size, to);
        for (uint32_t word = begin; word < end; word++) {
            Eight e = gather(p, word - from, lane);
            if (l.bits == 4)
                put_word4(word_at(l, p.blob, word, lane), e);
            else if (l.bits == 3)
                put_word3(p, word, lane, e);
            else
                put_word2(p, word, lane, e);
        }
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

__device__ void encode_row(const RowWork &r, const EncodeJob &job, uint32_t side, uint32_t head,
                           uint8_t *blob, uint32_t slot, uint64_t row) {
    const Side &s = job.side[side];
    load_row(r, job, side, row, head);
    if (s.layout.kind == TQI_KIND_LM)
        encode_lm(r, s, blob, slot);
    else if (s.layout.kind == TQI_KIND_INT8)
        encode_int8(r, s, blob, slot);
    else if (s.layout.kind == TQI_KIND_POLAR)
        encode_polar(r, s, blob, slot);
    else
        encode_plain(r, s, blob, slot, s.inv_scale[head]);
    r.warp.sync();
}

/* Block index: (page, piece or row; head; side), side fastest. */
__global__ void tqk_encode_any(const __grid_constant__ EncodeJob job) {
    extern __shared__ float shared[];
    uint32_t side = blockIdx.x & 1, head = (blockIdx.x >> 1) % job.n_heads;
    uint32_t page = (blockIdx.x >> 1) / job.n_heads;
    const Side &s = job.side[side];
    const tqi_layout &l = s.layout;
    uint32_t size = tree_size(l.dim), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    uint8_t *codes = (uint8_t *)(shared + (size_t)warps * 2 * size);
    RowWork r = {{threadIdx.x & 31, 32}, shared + (size_t)warp * 2 * size, nullptr, nullptr};
    r.tree = r.x + size;
    PageWork w;
    if (!page_work(job, page, &w))
        return;
    uint32_t first = w.first, last = w.last;
    uint8_t *blob =
        job.pages.base + w.id * job.pages.page_bytes + (size_t)head * job.pages.blob_bytes;
    for (uint32_t group = first / l.group; group * l.group < last; group++) {
        uint32_t base = group * l.group;
        uint32_t from = max(first, base), to = min(last, base + l.group);
        for (uint32_t slot = from + warp; slot < to; slot += warps) {
            r.codes = codes + (slot - base) * l.dim_pad;
            encode_row(r, job, side, head, blob, slot, w.row + (slot - first));
        }
        if (l.kind != TQI_KIND_LM && l.kind != TQI_KIND_POLAR)
            continue; /* wide codes are in place already */
        __syncthreads();
        const bool shared_group = job.slots != nullptr;
        if (l.kind == TQI_KIND_LM)
            pack_group(PackWork{&s, blob, codes, group, from - base, to - base, shared_group});
        else
            pack_polar(l, blob, codes, base, from - base, to - base, shared_group);
        __syncthreads();
    }
}

} /* namespace */

bool encode_any_runs() {
    cudaFuncAttributes attributes;
    bool ok = cudaFuncGetAttributes(&attributes, tqk_encode_any) == cudaSuccess;
    (void)cudaGetLastError();
    return ok;
}

tq_status encode_any_prepare(uint32_t dim) {
    if (shared_of(dim) <= 48 * 1024)
        return TQ_OK;
    return check(cudaFuncSetAttribute(tqk_encode_any, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared_of(1024)),
                 "shared memory of the encoder");
}

tq_status encode_any(const EncodeJob &job, cudaStream_t stream) {
    uint32_t k = job.side[0].layout.dim, v = job.side[1].layout.dim, dim = k > v ? k : v;
    uint64_t pages = job.pieces || job.slots ? job.max_pieces : job.n_pages;
    LaunchShape shape = {pages * job.n_heads * 2, warps_of(dim) * 32, shared_of(dim), stream,
                         false};
    return launch(tqk_encode_any, shape, "tqk_encode_any", job);
}

} /* namespace tqi */
