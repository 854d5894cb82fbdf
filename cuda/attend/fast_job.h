/*
 * The fast read path: tensor cores on the codes, a page of 64 tokens at a time, between
 * prepare_operands() and merge_pieces().
 */
#ifndef TQI_CUDA_ATTEND_FAST_JOB_H
#define TQI_CUDA_ATTEND_FAST_JOB_H

#include "attend/attend_job.h"

extern "C" {
#include "attend/key_operands.h"
}

namespace tqi {

struct FastJob {
    AttendJob call;        /* queries are not used */
    uint32_t warps, slots; /* of a block; page slots of a warp */
    uint32_t planes;       /* queries become planes of e4m3 (e4m3.cuh) */
    uint32_t whole;        /* the stream kernel prepares and merges by itself */
    uint32_t *arrived;     /* [item] whole: blocks that have left their piece */
    uint32_t page_bytes;   /* of call.pages, in 32 bits */
    uint32_t ahead;        /* of a worker's first pages: prepare asks the second cache for them */
    float k_step;          /* of the integers of K, 1 for float formats */
    uint32_t table[2][2];  /* K, V: values of the book as bytes */
    uint32_t power[2];     /* 16, 256: for multiply_add() */
    float cap, cap_rate;   /* softcap in powers of two, 0 = none; 2 / softcap */
    /* Workspace: */
    uint32_t *fragments;   /* [item, whole: block][NT, e4m3: query_blocks(NT)][word][lane] */
    float *q_scale;        /* [item or block][row of the item] */
    int32_t *q_half;       /* the same: half the sum of the query's integers */
    float2 *q_sketch;      /* the same, of sketches: factor before q_scale, half the sum */
    uint32_t shared_limit; /* bytes of a block; whole: operands are kept there where they fit */
};

/* What the MMAs of a kernel multiply. */
enum Arithmetic : uint32_t {
    ON_CONVERTED,      /* integers, or 16-bit floats that e4m3 becomes in registers */
    ON_E4M3_MMA,       /* e4m3, by mma.sync: sm_89, sm_120 */
    ON_WGMMA,          /* e4m3, by wgmma: sm_90a */
    ON_WGMMA_INTEGERS, /* integers, by wgmma: sm_90a */
    N_ARITHMETICS
};

/* On e4m3 itself, for which there is another way. */
inline bool is_native(Arithmetic a) {
    return a == ON_E4M3_MMA || a == ON_WGMMA;
}

/* A kernel for one pair of formats, head dim and tile height. */
struct FastKernel {
    uint32_t k_format, v_format, dim, heads; /* heads: rows of an item, 4 NT */
    /* Of a block; page slots of a warp: fewer where they do not fit. On wgmma a warpgroup takes
     * the place of a warp. */
    uint32_t warps, slots;
    uint32_t whole; /* can do without prepare and merge, by itself, for few items */
    uint32_t turn;  /* pages that a warp takes at a time, whole launches aside */
    const char *name;
    uint32_t blob_bytes;
    /* Shared memory of a block. */
    size_t (*shared)(uint32_t warps, uint32_t slots);
    tq_status (*prepare)(); /* once per device */
    tq_status (*run)(const FastJob &job, cudaStream_t stream);
    Arithmetic arithmetic;
    uint32_t faster; /* than the kernel on converted numbers, as measured */
    bool (*runs)();  /* whether its code is there for the current GPU; NULL = always */
    uint32_t entry;  /* pages that entering an item takes as long as; 0 = 1 */
    /* Which is faster for whole launches and where the longest sequence of a step has less than
     * `long_tokens`; NULL = itself. */
    const FastKernel *few;
    uint32_t long_tokens;
    uint32_t serves; /* rows of a kv head that it stands for, at most `heads`; 0 = heads */
};

/* The kernel that does without prepare and merge; NULL = there is none. */
inline const FastKernel *kernel_of_few(const FastKernel &kernel) {
    return kernel.few ? kernel.few : kernel.whole ? &kernel : nullptr;
}

/* What a whole kernel keeps beside the shared memory that its launch asks for. */
enum { WHOLE_SHARED = 256 };

/* Allows launches to ask for all of a block's shared memory but what the kernel keeps beside. */
template <class... Params> tq_status allow_shared(void (*kernel)(Params...), int beside) {
    int limit = 0, device = 0;
    TQI_CUDA(cudaGetDevice(&device));
    TQI_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit - beside),
        "shared memory of attention");
}

/* Warps and page slots of a block with `limit` bytes of shared memory: the kernel's, or fewer
 * slots, then fewer warps. No warps: not a page fits. */
struct BlockShape {
    uint32_t warps, slots;
};
BlockShape shape_of_block(const FastKernel &kernel, uint32_t limit);
/* All of this build; NULL behind the last. */
const FastKernel *fast_kernel(uint32_t index);

/* Which kernels may serve: by Arithmetic, whether the current GPU runs it; TQ_CONTEXT_FP8_*. */
struct KernelChoice {
    uint32_t runs, flags;
};
uint32_t arithmetics_that_run();
inline KernelChoice without_native(const KernelChoice &choice) {
    return KernelChoice{choice.runs & ~(1u << ON_E4M3_MMA | 1u << ON_WGMMA),
                        choice.flags & ~TQ_CONTEXT_FP8_NATIVE};
}

/* The kernel for a layer, NULL when there is none: then attend_any() serves. */
const FastKernel *find_fast(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                            const tqi_layout &v, uint32_t rows, const KernelChoice &choice);
/* Once per device and layer. */
tq_status prepare_fast(const Side &k, const Side &v);

/* Whether keys are multiplied as integers, so that queries are: 16-bit fixed point in two bytes. */
__host__ __device__ inline bool has_integer_query(const Side &k) {
    return k.format >= TQ_FORMAT_INT8 && k.layout.kind != TQI_KIND_POLAR;
}

/* Words of 4 bytes that a lane holds of an item's query, per NT; behind them the projection's. */
__host__ __device__ inline uint32_t query_words(const Side &k) {
    return k.layout.dim / 32 * (has_integer_query(k) ? 2 : 4);
}
__host__ __device__ inline uint32_t fragment_words(const Side &k) {
    return query_words(k) + (k.sketch_flips ? k.layout.dim / 16 : 0);
}

/* Queries to fragments. */
tq_status prepare_operands(const FastJob &job, cudaStream_t stream);
/* Queries to rows in binary32, for attend_any(). */
tq_status prepare_rows(const AttendJob &job, cudaStream_t stream);
/* Whether the code that runs here waits for its predecessor by itself. */
bool code_overlaps();

} /* namespace tqi */

#endif
