/*
 * libturboquant: LLM key/value caches at 2 to 16 bits per value, and attention
 * computed on the codes themselves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TQ_TQ_H
#define TQ_TQ_H

#include <stddef.h>
#include <stdint.h>

/**
 * @file tq.h
 * @brief The public interface of libturboquant.
 *
 * A cache holds the keys and values of many sequences for the layers of one
 * model. The shortest useful program creates a context, a cache and a sequence,
 * appends rows and attends:
 *
 * @code
 * tq_context *ctx; tq_cache *cache; tq_seq seq; tq_variant variant;
 * tq_context_create(NULL, &ctx);
 * tq_variant_find("4bit_nc", &variant);
 * tq_cache_config cfg = {sizeof cfg};
 * cfg.n_layers = 1; cfg.n_kv_heads = 8; cfg.n_q_heads = 64;
 * cfg.head_dim = 128; cfg.variant = variant;
 * tq_cache_create(ctx, &cfg, &cache);
 * tq_seq_create(cache, &seq);
 * tq_append(cache, seq, 0, n_tokens, &k, &v, NULL);
 * tq_attend(cache, seq, 0, 1, NULL, &q, &out, NULL, NULL);
 * @endcode
 *
 * A serving engine runs many sequences per call instead: tq/batch.h, which this header
 * includes.
 *
 * ### Rules that hold for every function
 *
 * - **Status.** Functions return ::tq_status: 0 on success, negative on failure.
 *   tq_last_error() then explains the failure in words. A failing call leaves
 *   every object and every output as it was, unless its comment says otherwise.
 * - **Zero is the default.** In every configuration field zero means "the
 *   library's default"; fields without a default say that they are required.
 * - **struct_size.** Structs that can grow begin with it; set it to sizeof the
 *   struct. A shorter struct of an older header is accepted and its missing tail
 *   reads as zero. A longer struct of a newer header is accepted while the part
 *   this library does not know is zero, else ::TQ_ERR_VERSION. Sizes below the
 *   first published one or above 4096 are ::TQ_ERR_INVALID_ARGUMENT. In outputs
 *   the library writes no byte beyond struct_size and zero-fills a tail that it
 *   does not know.
 * - **Threads.** Functions that take a `const` handle may run at the same time
 *   on the same handle. All others need exclusive access to the handle they take
 *   as non-const. Different handles are independent. The library starts no
 *   threads but those of tq_threadpool_create(): work is spread through a ::tq_executor.
 * - **Streams.** A ::tq_stream is a `cudaStream_t` or `CUstream`; pass NULL on
 *   the CPU. On the CPU every call has finished when it returns.
 * - **Memory.** Every byte the library holds comes from the context's
 *   ::tq_allocator. Row data lives in the memory of the cache's device and is
 *   read only inside the rows that a call announces; nothing is read past them.
 * - **Numbers.** Finite input never fails. In tq_append() and
 *   tq_codec_encode() a NaN element becomes 0 and an infinite element the
 *   largest finite value of the input type, in that element only; the cache
 *   counts them in ::tq_cache_stats.
 */

/* ------------------------------------------------------------------------ */
/** @defgroup version Versions
 *  Three numbers: the release, the binary interface and the byte format.
 *  @{ */

#ifndef TQ_API
#if defined(_WIN32) && defined(TQ_SHARED)
#ifdef TQ_BUILD
#define TQ_API __declspec(dllexport)
#else
#define TQ_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
/** Marks the functions that the shared library exports. */
#define TQ_API __attribute__((visibility("default")))
#else
#define TQ_API
#endif
#endif

#if defined(__GNUC__)
/** Warns when a status that must be looked at is dropped. */
#define TQ_WARN_UNUSED __attribute__((warn_unused_result))
#else
#define TQ_WARN_UNUSED
#endif

#define TQ_VERSION_MAJOR 0 /**< Release, major part (semantic versioning). */
#define TQ_VERSION_MINOR 1 /**< Release, minor part. */
#define TQ_VERSION_PATCH 0 /**< Release, patch part. */
/** Release of this header as one comparable number. */
#define TQ_VERSION_NUMBER (TQ_VERSION_MAJOR * 10000 + TQ_VERSION_MINOR * 100 + TQ_VERSION_PATCH)
#define TQ_ABI_VERSION 0    /**< Binary interface; the digit in libturboquant.so.0. */
#define TQ_FORMAT_VERSION 0 /**< Byte format of pages and codes; 0 = not frozen yet. */

#ifdef __cplusplus
extern "C" {
#endif

/** @brief Release of the library that is running, as ::TQ_VERSION_NUMBER.
 *  @return the number; compare with the header's to detect a mixed install.
 *  Thread-safe, cannot fail. */
TQ_API uint32_t tq_version_number(void);
/** @brief Release of the running library as text, for instance "0.1.0".
 *  @return static storage, never NULL. Thread-safe, cannot fail. */
TQ_API const char *tq_version_string(void);
/** @brief Binary interface of the running library, as ::TQ_ABI_VERSION.
 *  @return the number. Bindings check it when they load the library. */
TQ_API uint32_t tq_abi_version(void);
/** @brief Byte format that the running library writes, as ::TQ_FORMAT_VERSION.
 *  @return the number. Thread-safe, cannot fail. */
TQ_API uint32_t tq_format_version(void);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup status Status and messages
 *  @{ */

/** Result of a call: 0 is success, negative values are errors. Values are
 *  pinned: they never change meaning and are never used again. */
typedef int32_t tq_status;

/** The values of ::tq_status. */
enum {
    TQ_OK = 0,                    /**< Success. */
    TQ_ERR_INVALID_ARGUMENT = -1, /**< A NULL, a range, a shape or a type is wrong. */
    TQ_ERR_INVALID_STATE = -2,    /**< The call does not fit the object's state (order of calls). */
    TQ_ERR_UNSUPPORTED = -3,      /**< Meaningful, but this build, CPU or GPU can't do it. */
    TQ_ERR_VERSION = -4,          /**< A struct carries fields that this library does not know. */
    TQ_ERR_NOT_FOUND = -5,        /**< No such sequence, format, variant or device. */
    TQ_ERR_OUT_OF_MEMORY = -10,   /**< The allocator returned NULL. */
    TQ_ERR_OUT_OF_PAGES = -11,    /**< The page pool is full; free a sequence and try again. */
    TQ_ERR_BUFFER_TOO_SMALL = -12, /**< The caller's buffer is too small; nothing was written. */
    TQ_ERR_CORRUPT = -20,          /**< Stored bytes failed validation. */
    TQ_ERR_MISMATCH = -21,         /**< Valid stored bytes of another configuration. */
    TQ_ERR_DEVICE = -30,           /**< The device reported an error, perhaps of earlier work. */
    TQ_ERR_INTERNAL = -99          /**< A bug in the library. */
};

/** @brief Name of a status, for instance "TQ_ERR_OUT_OF_PAGES".
 *  @param status any value
 *  @return static storage; "TQ_ERR_UNKNOWN" for values this library does not know. */
TQ_API const char *tq_status_name(tq_status status);

/** @brief Explanation of the last failure in the calling thread.
 *  @return text valid until the next failing call of this thread; "" when none
 *  has failed yet; never NULL. A successful call does not clear it. */
TQ_API const char *tq_last_error(void);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup types Plain types
 *  Fixed-width integers instead of enums, so that no compiler switch can change
 *  a size.
 *  @{ */

typedef int32_t tq_dtype;    /**< Element type of row data: ::TQ_F32, ::TQ_F16 or ::TQ_BF16. */
typedef int32_t tq_device;   /**< ::TQ_DEVICE_CPU or ::TQ_DEVICE_CUDA. */
typedef int32_t tq_memory;   /**< Memory space that an allocator is asked for. */
typedef uint32_t tq_format;  /**< How one row (one token, one head, K or V) is coded; from 1. */
typedef uint32_t tq_variant; /**< A named pair (K format, V format); from 1, 0 is an error. */
typedef uint64_t tq_seq;     /**< Sequence id, tagged with a generation; 0 is never valid. */
typedef void *tq_stream;     /**< `cudaStream_t` or `CUstream`; NULL on the CPU. */

/** The values of ::tq_dtype. */
enum {
    TQ_F32 = 0, /**< IEEE binary32. */
    TQ_F16 = 1, /**< IEEE binary16. */
    TQ_BF16 = 2 /**< bfloat16. */
};
/** The values of ::tq_device. */
enum {
    TQ_DEVICE_CPU = 0, /**< Host memory, host kernels. */
    TQ_DEVICE_CUDA = 1 /**< NVIDIA GPU of compute capability 8.0 or newer. */
};
/** The values of ::tq_memory. */
enum {
    TQ_MEM_HOST = 0,        /**< Ordinary host memory. */
    TQ_MEM_HOST_PINNED = 1, /**< Page-locked host memory. */
    TQ_MEM_DEVICE = 2       /**< Memory of the context's device. */
};

typedef struct tq_context tq_context; /**< Device, hooks and kernel table; immutable. */
typedef struct tq_cache tq_cache;     /**< Page pool and sequences for the layers of a model. */
typedef struct tq_batch tq_batch;     /**< Steps over many sequences of a cache. */
typedef struct tq_codec tq_codec;     /**< One format at one dimension: rows to codes and back. */
typedef struct tq_threadpool tq_threadpool; /**< Threads behind a ::tq_executor. */

/** Rows to read: element (token, head, dim) is at
 *  `data[token * token_stride + head * head_stride + dim]`.
 *
 *  Strides count elements and may be negative; the dims of a row are adjacent.
 *  head_stride 0 means adjacent heads (the row length); token_stride 0 means adjacent
 *  tokens (number of heads times the head stride). Data needs only the natural alignment of its
 *  element type. The layout of this struct is frozen; it has no struct_size. */
typedef struct tq_rows_in {
    const void *data;     /**< First element; device memory on CUDA. */
    int64_t token_stride; /**< Elements from one token to the next; 0 = adjacent. */
    int64_t head_stride;  /**< Elements from one head to the next; 0 = adjacent. */
    tq_dtype dtype;       /**< Element type. */
    uint32_t reserved;    /**< Must be 0. */
} tq_rows_in;

/** Rows to write; like ::tq_rows_in. The rows of one call must not overlap. */
typedef struct tq_rows_out {
    void *data;           /**< First element; device memory on CUDA. */
    int64_t token_stride; /**< Elements from one token to the next; 0 = adjacent. */
    int64_t head_stride;  /**< Elements from one head to the next; 0 = adjacent. */
    tq_dtype dtype;       /**< Element type; results are rounded to nearest even. */
    uint32_t reserved;    /**< Must be 0. */
} tq_rows_out;
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup context Context and hooks
 *  @{ */

/** Memory hooks. Both or neither are given; they are copied at context creation
 *  and must stay callable until the last object of the context is destroyed. They
 *  may be called from any thread that calls the library, but not from executor
 *  tasks, and must neither throw nor jump out. */
typedef struct tq_allocator {
    uint32_t struct_size; /**< sizeof(tq_allocator). */
    uint32_t reserved;    /**< Must be 0. */
    void *user;           /**< Passed to both hooks. */
    /** Returns at least `size` bytes (never 0) aligned to `alignment`, a power of
     *  two of at least 16, or NULL. Contents may be arbitrary. */
    void *(*alloc)(void *user, size_t size, size_t alignment, tq_memory space);
    /** Takes back what alloc returned, with the same size and alignment. */
    void (*free)(void *user, void *ptr, size_t size, size_t alignment, tq_memory space);
} tq_allocator;

/** Parallel-for hook. Without one the library works in the calling thread.
 *  Results do not depend on the number of workers or on the order of tasks. */
typedef struct tq_executor {
    uint32_t struct_size; /**< sizeof(tq_executor). */
    uint32_t n_workers;   /**< Upper bound of `worker` below, exclusive; at least 1. */
    void *user;           /**< Passed to parallel_for. */
    /** Runs `task(arg, index, worker)` once for every index in [0, n_tasks) and
     *  returns when all have finished. Two tasks that run at the same time must
     *  get different `worker` numbers, all below n_workers. */
    void (*parallel_for)(void *user, uint32_t n_tasks,
                         void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg);
} tq_executor;

/** Configuration of a context. All fields may be zero. */
typedef struct tq_context_config {
    uint32_t struct_size;           /**< sizeof(tq_context_config). */
    uint32_t flags;                 /**< ::TQ_CONTEXT_FP8_NATIVE or such; 0 as a rule. */
    tq_device device;               /**< Where caches live; default ::TQ_DEVICE_CPU. */
    int32_t device_index;           /**< Ordinal of the GPU; 0 on the CPU. */
    uint64_t cpu_features_disabled; /**< TQ_CPU_* bits to ignore; all ones = reference kernels. */
    const tq_allocator *allocator;  /**< NULL = the C library's aligned allocation. */
    const tq_executor *executor;    /**< NULL = the calling thread does all work. */
} tq_context_config;

/** Attention over fp8 keys and values multiplies e4m3 on the tensor cores wherever the GPU and the
 *  build can, within 2e-3 of exact attention. Without a flag the faster way for the shape runs;
 *  tq_cache_kernel_name() tells which. */
#define TQ_CONTEXT_FP8_NATIVE 1u
/** Attention over fp8 never does: e4m3 becomes f16 in registers. Not together with
 *  ::TQ_CONTEXT_FP8_NATIVE. Neither flag means anything on the CPU. */
#define TQ_CONTEXT_FP8_CONVERTED 2u

#define TQ_CPU_AVX2 (UINT64_C(1) << 0)       /**< x86 AVX2 and FMA. */
#define TQ_CPU_AVX512 (UINT64_C(1) << 1)     /**< x86 AVX-512 F, BW, DQ, VL. */
#define TQ_CPU_AVX512VNNI (UINT64_C(1) << 2) /**< x86 AVX-512 VNNI and VBMI. */
/** x86 AMX-TILE and AMX-INT8, where Linux grants tiles to the process: tq_context_create() asks
 *  for them (arch_prctl, ARCH_REQ_XCOMP_PERM) on a CPU that has them, unless this bit or one of
 *  AVX-512 is disabled. Granted, they stay so until the process executes another program, for all
 *  threads and children; signal stacks (sigaltstack) must then be as large as the system says
 *  (AT_MINSIGSTKSZ, some 11 KB). Refused, this bit is not among tq_context_cpu_features(). */
#define TQ_CPU_AMX (UINT64_C(1) << 3)
#define TQ_CPU_AVXVNNI (UINT64_C(1) << 4)  /**< x86 AVX-VNNI, with GFNI. */
#define TQ_CPU_NEON (UINT64_C(1) << 32)    /**< Arm Advanced SIMD. */
#define TQ_CPU_DOTPROD (UINT64_C(1) << 33) /**< Arm dot product instructions. */
#define TQ_CPU_I8MM (UINT64_C(1) << 34)    /**< Arm matrix multiplications of bytes. */

/** @brief Creates a context.
 *  @param[in] config NULL for all defaults; copied, with the hooks it points to
 *  @param[out] out the context; untouched on failure
 *  @retval TQ_ERR_INVALID_ARGUMENT out is NULL, an unknown device, a bad hook
 *  @retval TQ_ERR_UNSUPPORTED the device is not in this build or not usable
 *  @retval TQ_ERR_NOT_FOUND no GPU of that index
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  The caller owns the context and destroys it after all its caches and codecs.
 *  Contexts are independent: two of them may use different kernels or devices. */
TQ_API TQ_WARN_UNUSED tq_status tq_context_create(const tq_context_config *config,
                                                  tq_context **out);
/** @brief Destroys a context.
 *  @param ctx NULL is allowed. Its caches and codecs must be gone already. */
TQ_API void tq_context_destroy(tq_context *ctx);
/** @brief CPU features that the context's kernels use.
 *  @param ctx a context
 *  @return TQ_CPU_* bits that are both present and not disabled; 0 for NULL */
TQ_API uint64_t tq_context_cpu_features(const tq_context *ctx);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup threads Threads
 *  For programs without a parallel-for of their own, and for engines whose threads all enter
 *  every operation as "the ith of nth".
 *  @{ */

/** The pool starts no threads: those of tq_threadpool_lend() work in it. */
#define TQ_THREADPOOL_LENT 1u

/** Configuration of a pool. All fields may be zero. */
typedef struct tq_threadpool_config {
    uint32_t struct_size; /**< sizeof(tq_threadpool_config). */
    uint32_t flags;       /**< ::TQ_THREADPOOL_LENT or 0. */
    /** Threads that work, the calling one included; lent: the most that may come. At most
     *  1024; 0 = as many as CPUs that the process may run on. */
    uint32_t n_threads;
    uint32_t reserved;             /**< Must be 0. */
    const tq_allocator *allocator; /**< NULL = the C library's aligned allocation. */
} tq_threadpool_config;

/** @brief Creates a pool.
 *  @param[in] config NULL for all defaults; copied @param[out] out the pool; untouched on failure
 *  @retval TQ_ERR_INVALID_ARGUMENT out is NULL, unknown flags, too many threads, a bad hook
 *  @retval TQ_ERR_OUT_OF_MEMORY memory or a thread could not be had
 *
 *  Between calls threads poll for some ten microseconds at most, then sleep. They take no
 *  signals. In a child of fork() a pool has no threads: the calling one does the work. */
TQ_API TQ_WARN_UNUSED tq_status tq_threadpool_create(const tq_threadpool_config *config,
                                                     tq_threadpool **out);
/** @brief Ends the threads.
 *  @param pool NULL is allowed. The contexts that use its executor must be gone already. */
TQ_API void tq_threadpool_destroy(tq_threadpool *pool);
/** @brief The pool as an executor, for tq_context_config::executor.
 *  @param pool a pool @return memory of the pool; NULL for NULL
 *
 *  Any number of contexts may share it. The pool serves one call at a time; a call that finds
 *  it at work, from another thread or from inside a task, is done by its own thread alone. */
TQ_API const tq_executor *tq_threadpool_executor(const tq_threadpool *pool);
/** @brief Lends the calling thread, the ith of nth, to a call.
 *  @param pool with ::TQ_THREADPOOL_LENT
 *  @param ith below nth @param nth at most n_threads of the pool
 *  @param call uses tq.h in contexts over the pool's executor, as often as it likes; it must
 *  neither throw nor jump out. Its results go through arg @param arg passed to call
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, ith or nth out of range, nth differs inside a call
 *  @retval TQ_ERR_INVALID_STATE the pool has threads of its own, or a thread has come to its
 *  next call while the one before, of other threads or itself, is still running
 *
 *  Each of the nth threads calls this once with the same call and arg: the first to come runs
 *  call(arg), the others take tasks of it. When it returns in any thread, call(arg) has
 *  finished; arg and what call wrote must stay until it has returned in all. Nobody waits for
 *  threads that have not come: slices may as well run one after the other in one thread. Data
 *  that other threads make for the call needs the engine's barrier before it, none is needed
 *  behind it. nth may change from call to call once all threads have returned. */
TQ_API tq_status tq_threadpool_lend(tq_threadpool *pool, uint32_t ith, uint32_t nth,
                                    void (*call)(void *arg), void *arg);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup formats Formats and variants
 *  A *format* says how one row is coded, a *variant* names a pair of formats.
 *  The lists can be walked by index, so that a program needs no table of its own.
 *  @{ */

#define TQ_FORMAT_BF16 1u       /**< bfloat16, not rotated. */
#define TQ_FORMAT_F16 2u        /**< IEEE half, saturating, not rotated. */
#define TQ_FORMAT_FP8 3u        /**< e4m3, saturating, scale per layer and head, not rotated. */
#define TQ_FORMAT_INT8 4u       /**< Rotated, symmetric 8-bit integers, gain per row. */
#define TQ_FORMAT_LM4 5u        /**< Rotated, 4-bit Lloyd-Max codes, gain per row. */
#define TQ_FORMAT_LM3 6u        /**< Rotated, 3-bit Lloyd-Max codes, gain per row. */
#define TQ_FORMAT_LM2 7u        /**< Rotated, 2-bit Lloyd-Max codes, gain per row. */
#define TQ_FORMAT_POLAR 11u     /**< Rotated, recursive polar angles in blocks of 16 dims. */
#define TQ_FORMAT_POLAR_QJL 12u /**< polar and the 1-bit sketch of its residual; keys only. */
#define TQ_FORMAT_LM3_QJL 13u   /**< lm3 and the 1-bit sketch of its residual; keys only. */
#define TQ_FORMAT_LM2_QJL 14u   /**< lm2 and the 1-bit sketch of its residual; keys only. */

#define TQ_VARIANT_BF16 1u       /**< bf16 / bf16. */
#define TQ_VARIANT_F16 2u        /**< f16 / f16. */
#define TQ_VARIANT_FP8 3u        /**< fp8 / fp8. */
#define TQ_VARIANT_INT8 4u       /**< int8 / int8. */
#define TQ_VARIANT_K8V4 5u       /**< fp8 / lm4. */
#define TQ_VARIANT_4BIT_NC 6u    /**< lm4 / lm4. */
#define TQ_VARIANT_K3V4_NC 7u    /**< lm3 / lm4. */
#define TQ_VARIANT_3BIT_NC 8u    /**< lm3 / lm3. */
#define TQ_VARIANT_K3V2_NC 9u    /**< lm3 / lm2. */
#define TQ_VARIANT_2BIT_NC 10u   /**< lm2 / lm2. */
#define TQ_VARIANT_POLAR 11u     /**< polar / lm4. */
#define TQ_VARIANT_POLAR_QJL 12u /**< polar_qjl / lm4. */
#define TQ_VARIANT_PROD4 13u     /**< lm3_qjl / lm4. */
#define TQ_VARIANT_PROD3 14u     /**< lm2_qjl / lm3. */

#define TQ_ROLE_K 1u /**< The format can hold keys. */
#define TQ_ROLE_V 2u /**< The format can hold values. */

#define TQ_FORMAT_UNBIASED_DOT 1u   /**< The expected score of a key is exact (residual sketch). */
#define TQ_FORMAT_PORTABLE_CODES 2u /**< Every CPU and GPU kernel writes the same bytes. */
#define TQ_FORMAT_ROTATED 4u        /**< Rows pass the signed Hadamard rotation. */

/** What the library knows about a format. Output struct. */
typedef struct tq_format_info {
    uint32_t struct_size; /**< Set by the caller: sizeof(tq_format_info). */
    tq_format id;         /**< Stable number, TQ_FORMAT_*. */
    const char *name;     /**< Stable name, for instance "lm4"; static storage. */
    const char *summary;  /**< One line for people; static storage. */
    uint32_t roles;       /**< ::TQ_ROLE_K, ::TQ_ROLE_V. */
    uint32_t millibits;   /**< Bits per value times 1000, gains included, at head_dim 128. */
    uint32_t devices;     /**< Bit `1u << TQ_DEVICE_*` for every device with kernels. */
    uint32_t flags;       /**< TQ_FORMAT_UNBIASED_DOT and so on. */
    double mse;           /**< Expected ||x - x^||^2 / ||x||^2 of Gaussian rows at head_dim 128. */
    double dot_error;     /**< Expected RMS error of q.k times sqrt(head_dim), unit q and k. */
} tq_format_info;

/** What the library knows about a variant. Output struct. */
typedef struct tq_variant_info {
    uint32_t struct_size;          /**< Set by the caller: sizeof(tq_variant_info). */
    tq_variant id;                 /**< Stable number, TQ_VARIANT_*. */
    const char *name;              /**< Stable name, for instance "4bit_nc"; static storage. */
    const char *summary;           /**< One line for people; static storage. */
    tq_format k_format;            /**< Format of the keys. */
    tq_format v_format;            /**< Format of the values. */
    uint32_t bytes_per_token_head; /**< K and V of one token and kv head, gains included, at 128. */
    uint32_t flags;                /**< Flags that both formats have. */
} tq_variant_info;

/** @brief Number of formats. @return at least 1; indices run from 0. */
TQ_API uint32_t tq_format_count(void);
/** @brief Describes the format at an index (not an id).
 *  @param index below tq_format_count()
 *  @param[in,out] info struct_size set by the caller, the rest filled
 *  @retval TQ_ERR_NOT_FOUND index too large
 *  @retval TQ_ERR_INVALID_ARGUMENT info is NULL or its struct_size is bad */
TQ_API tq_status tq_format_get(uint32_t index, tq_format_info *info);
/** @brief Finds a format by its exact name.
 *  @param name for instance "lm3" @param[out] out the id; untouched on failure
 *  @retval TQ_ERR_NOT_FOUND no format of that name
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL argument */
TQ_API tq_status tq_format_find(const char *name, tq_format *out);
/** @brief Number of variants. @return at least 1; indices run from 0. */
TQ_API uint32_t tq_variant_count(void);
/** @brief Describes the variant at an index (not an id).
 *  @param index below tq_variant_count()
 *  @param[in,out] info struct_size set by the caller, the rest filled
 *  @retval TQ_ERR_NOT_FOUND index too large
 *  @retval TQ_ERR_INVALID_ARGUMENT info is NULL or its struct_size is bad */
TQ_API tq_status tq_variant_get(uint32_t index, tq_variant_info *info);
/** @brief Finds a variant by its exact name.
 *  @param name for instance "4bit_nc" @param[out] out the id; untouched on failure
 *  @retval TQ_ERR_NOT_FOUND no variant of that name
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL argument */
TQ_API tq_status tq_variant_find(const char *name, tq_variant *out);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup cache Cache
 *  @{ */

/** Formats of one layer. Frozen layout; used in arrays. */
typedef struct tq_layer_formats {
    tq_format k_format; /**< TQ_FORMAT_* with ::TQ_ROLE_K. */
    tq_format v_format; /**< TQ_FORMAT_* with ::TQ_ROLE_V. */
} tq_layer_formats;

/** Configuration of a cache. */
typedef struct tq_cache_config {
    uint32_t struct_size; /**< sizeof(tq_cache_config). */
    uint32_t flags;       /**< None that works yet; see ::TQ_CACHE_MLA. */
    uint32_t n_layers;    /**< Required, 1 to 65536. */
    uint32_t n_kv_heads;  /**< Required, 1 to 65536. */
    uint32_t n_q_heads;   /**< Multiple of n_kv_heads, at most 128 times; 0 = n_kv_heads. */
    /** Required. Multiple of 16 from 32 to 1024; formats that rotate need 2^k or
     *  m * 2^k with m = 12, 20, 28 or 36 (so 64, 80, 96, 112, 128, 160, 192, 224,
     *  256, 320, 512, 576 among others). */
    uint32_t head_dim;
    uint32_t v_head_dim; /**< Row length of V; 0 = head_dim. */
    tq_variant variant;  /**< Required unless layer_formats is given; then it must be 0. */
    const tq_layer_formats *layer_formats; /**< n_layers pairs, or NULL; copied. */
    uint32_t boundary_layers;              /**< First and last n layers are kept in bf16 instead. */
    uint32_t page_tokens;                  /**< 16, 32, 64, 128 or 256; 0 = 64. */
    uint32_t max_seqs;  /**< Sequences that can exist at once; 0 = 256; at most 2^24. */
    uint32_t reserved;  /**< Must be 0. */
    uint64_t max_pages; /**< Pages, each for all layers; 0 = grow on demand (CPU only). */
    uint64_t seed;      /**< Of rotation and sketch; part of the identity of codes. */
    /** First tokens of a sequence that are kept in 16 bits beside their codes; rounded up to a
     *  multiple of 16, at most 2^20. The type is that of a layer's first append, bf16 for f32, or
     *  of rows that were loaded or copied before. */
    uint32_t sink_tokens;
    /** Last tokens that are kept so, at most 2^20: codes are then made of the rows rounded to
     *  16 bits. A token leaves the window for ever: in tq_append() when the layer has got
     *  recent_tokens more, in a batch at commit. What is exact stays so in forks, snapshots and
     *  copies, when other tokens are cut off or removed, and when sequences are reordered. A
     *  window is one run of tokens: one that ends in codes (see tq/snapshot.h) is over. */
    uint32_t recent_tokens;
} tq_cache_config;

/** Flag of a cache whose values are the first v_head_dim dims of its keys (multi-head latent
 *  attention): ::TQ_ERR_UNSUPPORTED with the reason, by this release. */
#define TQ_CACHE_MLA 1u

/** Memory that a cache needs. Output struct. */
typedef struct tq_footprint {
    uint32_t struct_size;     /**< Set by the caller: sizeof(tq_footprint). */
    uint32_t page_tokens;     /**< Tokens in a page, default resolved. */
    uint64_t bytes_per_token; /**< All layers, gains included; of a full page, rounded up. */
    uint64_t bytes_per_page;  /**< All layers and heads. */
    uint64_t host_bytes;      /**< Host memory of a cache with max_pages pages; see below. */
    uint64_t device_bytes;    /**< Device memory of a cache with max_pages pages. */
    uint64_t protected_bytes; /**< Of these, sink and recent tokens of max_seqs + 1. */
} tq_footprint;

/** @brief Tells what a cache would need, without creating it.
 *  @param ctx a context
 *  @param config as for tq_cache_create(); checked the same way
 *  @param[in,out] out struct_size set by the caller, the rest filled; host_bytes
 *  is exact at creation when max_pages is given, and the fixed part when it is 0
 *  @return what tq_cache_create() would return, but for memory */
TQ_API tq_status tq_cache_estimate(const tq_context *ctx, const tq_cache_config *config,
                                   tq_footprint *out);
/** @brief Creates a cache. Synchronizing.
 *  @param ctx must outlive the cache
 *  @param config copied
 *  @param[out] out the cache, owned by the caller; untouched on failure
 *  @retval TQ_ERR_INVALID_ARGUMENT a field is missing or out of range
 *  @retval TQ_ERR_UNSUPPORTED no kernel for a layer's formats, head_dim or group on this device
 *  @retval TQ_ERR_NOT_FOUND an unknown variant or format
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  Everything that can be refused is refused here, never at append or attend. */
TQ_API TQ_WARN_UNUSED tq_status tq_cache_create(tq_context *ctx, const tq_cache_config *config,
                                                tq_cache **out);
/** @brief Destroys a cache and all its sequences. Synchronizing.
 *  @param cache NULL is allowed */
TQ_API void tq_cache_destroy(tq_cache *cache);
/** @brief Drops all sequences and statistics and keeps memory, means and scales.
 *  @param cache a cache. Sequence ids handed out before become ::TQ_ERR_NOT_FOUND;
 *  means and scales may be set again.
 *  @retval TQ_ERR_INVALID_ARGUMENT cache is NULL */
TQ_API tq_status tq_cache_reset(tq_cache *cache);

/** @brief Sets the channel means that are subtracted before coding (centring).
 *  @param cache a cache @param layer below n_layers
 *  @param k_mean [n_kv_heads][head_dim] host f32, or NULL for none
 *  @param v_mean [n_kv_heads][v_head_dim] host f32, or NULL for none
 *  @retval TQ_ERR_INVALID_STATE the layer has been appended to
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer or a mean that is not finite
 *
 *  Softmax does not notice a vector that is subtracted from all keys of a head, so
 *  tq_attend() restores it exactly: lse += scale * q.k_mean, out += v_mean. Codes
 *  of centred rows are much better where keys have large channel means. */
TQ_API tq_status tq_cache_set_means(tq_cache *cache, uint32_t layer, const float *k_mean,
                                    const float *v_mean);
/** @brief Measures the channel means over some rows and sets them.
 *  @param cache a cache @param layer below n_layers @param n_tokens at least 1
 *  @param k,v rows [n_tokens][n_kv_heads], in the cache's device memory; either may be
 *  NULL for no mean on that side
 *  @return as tq_cache_set_means(); elements that are not finite are replaced as in
 *  tq_append(), but not counted in the statistics */
TQ_API tq_status tq_cache_fit_means(tq_cache *cache, uint32_t layer, uint32_t n_tokens,
                                    const tq_rows_in *k, const tq_rows_in *v);
/** @brief Sets the fp8 scales: a stored value is e4m3(x / scale), read as e4m3 * scale.
 *  @param cache a cache @param layer below n_layers
 *  @param k_scale,v_scale [n_kv_heads] host f32, positive normal numbers; NULL = 1.0.
 *  Only for a side whose format is fp8.
 *  @retval TQ_ERR_INVALID_STATE the layer has been appended to
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer or scale, or the side is not fp8 */
TQ_API tq_status tq_cache_set_fp8_scales(tq_cache *cache, uint32_t layer, const float *k_scale,
                                         const float *v_scale);

/** @brief Sets the attention-sink logits of a layer: learned scores, one for each query
 *  head, that take part in every softmax and carry no value.
 *  @param cache a cache @param layer below n_layers
 *  @param logits [n_q_heads] host f32, after scale and softcap; -infinity = no sink for the
 *  head; NULL = for none. Copied. May change at any time between calls.
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, a NaN or +infinity
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed: the logits are what they were
 *
 *  With the sink's logit s: lse = ln(sum of exp(scores) + exp(s)), and the output of the
 *  values, means included, is multiplied by 1 - exp(s - lse). Parts of a sequence that are
 *  attended apart and merged need the sink in one of them only. Synchronizing on CUDA; the
 *  device keeps the address of the logits, so that captured graphs see the new ones. */
TQ_API tq_status tq_cache_set_sink_logits(tq_cache *cache, uint32_t layer, const float *logits);

/** @brief The configuration with all defaults resolved.
 *  @param cache a cache
 *  @param[in,out] out struct_size set by the caller, the rest filled; layer_formats
 *  points at memory of the cache, valid until it is destroyed. To create another cache
 *  from it, set variant to 0: layer_formats says it all
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or a bad struct_size */
TQ_API tq_status tq_cache_get_config(const tq_cache *cache, tq_cache_config *out);

/** Counters of a cache. Output struct. */
typedef struct tq_cache_stats {
    uint32_t struct_size;     /**< Set by the caller: sizeof(tq_cache_stats). */
    uint32_t n_seqs;          /**< Sequences alive. */
    uint64_t pages_total;     /**< Pages that memory is held for. */
    uint64_t pages_used;      /**< Pages of at least one sequence. */
    uint64_t pages_shared;    /**< Pages of more than one sequence; counted once in pages_used. */
    uint64_t tokens;          /**< Sum over sequences of the shortest layer's length. */
    uint64_t host_bytes;      /**< Host memory held by the cache, every byte of it. */
    uint64_t device_bytes;    /**< Device memory held by the cache. */
    uint64_t nan_values;      /**< NaN elements that append replaced by 0 since create or reset. */
    uint64_t inf_values;      /**< Infinite elements that append replaced since create or reset. */
    uint64_t protected_bytes; /**< Of the bytes above, 16-bit pages of sink and recent tokens. */
} tq_cache_stats;
/** @brief Reads the counters.
 *  @param cache a cache @param[in,out] out struct_size set by the caller, the rest filled
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or a bad struct_size */
TQ_API tq_status tq_cache_get_stats(const tq_cache *cache, tq_cache_stats *out);

/** A stage whose kernel can be asked for. */
typedef int32_t tq_op;
/** The values of ::tq_op. */
enum {
    TQ_OP_ENCODE_K = 0,   /**< Key rows to codes in a page. */
    TQ_OP_ENCODE_V = 1,   /**< Value rows to codes in a page. */
    TQ_OP_SCORE = 2,      /**< Queries times key codes, for one query row of a sequence. */
    TQ_OP_ACCUMULATE = 3, /**< Probabilities times value codes, likewise. */
    TQ_OP_PREFILL = 4     /**< Both, for many query rows of a sequence. */
};
/** @brief Name of the kernel that runs, for instance "tqk_score_lm4_ref".
 *  @param cache a cache @param layer below n_layers @param op a ::tq_op
 *  @return static storage; NULL when an argument is out of range */
TQ_API const char *tq_cache_kernel_name(const tq_cache *cache, uint32_t layer, tq_op op);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup seq Sequences
 *  A sequence has one length per layer: within a step the layers are appended to
 *  one after the other. Calls that need one length say so.
 *  @{ */

/** @brief Creates an empty sequence.
 *  @param cache a cache @param[out] out its id; untouched on failure
 *  @retval TQ_ERR_INVALID_STATE max_seqs sequences exist already
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API TQ_WARN_UNUSED tq_status tq_seq_create(tq_cache *cache, tq_seq *out);
/** @brief Destroys a sequence and gives its unshared pages back to the pool.
 *  @param cache a cache @param seq its id, invalid afterwards for ever
 *  @retval TQ_ERR_NOT_FOUND no such sequence */
TQ_API tq_status tq_seq_destroy(tq_cache *cache, tq_seq seq);
/** @brief Creates a sequence that begins with the first tokens of another one.
 *  @param cache a cache @param src the sequence to share with
 *  @param n_tokens how many; UINT64_MAX = all, which needs equal lengths in all layers
 *  @param[out] out the new id; untouched on failure
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT more tokens than the longest layer has
 *  @retval TQ_ERR_INVALID_STATE more than the shortest layer has while lengths differ, or
 *  max_seqs sequences exist already
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  No token is copied: pages are shared and counted once. The first append of either
 *  sequence to a shared partial page copies that page. */
TQ_API TQ_WARN_UNUSED tq_status tq_seq_fork(tq_cache *cache, tq_seq src, uint64_t n_tokens,
                                            tq_seq *out);
/** @brief Shortens a sequence to its first tokens, in all layers.
 *  @param cache a cache @param seq a sequence @param n_tokens the new length
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT more tokens than the longest layer has
 *  @retval TQ_ERR_INVALID_STATE more than the shortest layer has while lengths differ */
TQ_API tq_status tq_seq_truncate(tq_cache *cache, tq_seq seq, uint64_t n_tokens);
/** @brief Takes tokens out of the middle of a sequence, in all layers. Synchronizing.
 *  @param cache a cache @param seq a sequence
 *  @param first first token to go @param n_tokens how many; 0 changes nothing
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT tokens beyond the longest layer's length
 *  @retval TQ_ERR_INVALID_STATE tokens beyond the shortest layer's while lengths differ, or
 *  the sequence is part of a planned batch
 *  @retval TQ_ERR_OUT_OF_PAGES shared pages have to be written and no page is free for a copy
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  Codes of the tokens behind move up as they are and decode to the same rows; so do rows that are
 *  kept in 16 bits. A multiple of page_tokens costs one page, whatever the length; else all pages
 * behind are written again. Keys keep the position that RoPE gave them: they were rotated
 * afterwards, and no rotation of codes can change it. examples/shift_positions.c gives keys new
 * positions by decoding, turning and coding them again. */
TQ_API tq_status tq_seq_remove(tq_cache *cache, tq_seq seq, uint64_t first, uint64_t n_tokens);
/** @brief Sequences take over each other's tokens, all at once, as beam search does it.
 *  @param cache a cache @param n_seqs entries of both lists; 0 does nothing
 *  @param seqs sequences, each named once
 *  @param parents seqs[i] becomes what seqs[parents[i]] was before the call; a parent may be
 *  named any number of times, and parents[i] = i changes nothing
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL, a sequence named twice, a parent not below n_seqs
 *  @retval TQ_ERR_INVALID_STATE layers of a sequence differ in length, or it is part of a
 *  planned batch
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed
 *
 *  Page tables are copied and pages shared as in tq_seq_fork(); no token moves. Ids stay. */
TQ_API tq_status tq_seq_reorder(tq_cache *cache, uint32_t n_seqs, const tq_seq *seqs,
                                const uint32_t *parents);
/** @brief Length of a sequence in one layer.
 *  @param cache a cache @param seq a sequence @param layer below n_layers
 *  @param[out] out tokens
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer or out is NULL */
TQ_API tq_status tq_seq_length(const tq_cache *cache, tq_seq seq, uint32_t layer, uint64_t *out);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup run Append and attend
 *  One sequence and one layer per call.
 *  @{ */

/** @brief Codes rows and adds them to the end of a sequence in one layer.
 *  @param cache a cache @param seq a sequence @param layer below n_layers
 *  @param n_tokens 0 is allowed and does nothing; k and v are not looked at then
 *  @param k rows [n_tokens][n_kv_heads] of head_dim elements, after RoPE
 *  @param v rows [n_tokens][n_kv_heads] of v_head_dim elements
 *  @param stream see the rules above
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, rows or dtype
 *  @retval TQ_ERR_OUT_OF_PAGES max_pages reached: nothing was appended
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed: nothing was appended
 *
 *  The codes do not depend on how rows are split over calls. Source: TurboQuant,
 *  arXiv 2504.19874, Alg. 1 and 2; PolarQuant, arXiv 2502.02617; QJL, arXiv 2406.03482. */
TQ_API TQ_WARN_UNUSED tq_status tq_append(tq_cache *cache, tq_seq seq, uint32_t layer,
                                          uint32_t n_tokens, const tq_rows_in *k,
                                          const tq_rows_in *v, tq_stream stream);

#define TQ_ATTEND_CAUSAL 1u /**< Query i of n sees the first length - n + i + 1 tokens. */
/** A query token by itself gets the same bits alone and in any batch: work is cut by its
 *  sequence's length only, which costs some speed on a GPU. On the CPU it is always so. */
#define TQ_ATTEND_BATCH_INVARIANT 2u
#define TQ_ATTEND_ALIBI 4u /**< Linear position bias: ::TQ_ERR_UNSUPPORTED, by this release. */

/** Parameters of an attention call. */
typedef struct tq_attend_params {
    uint32_t struct_size; /**< sizeof(tq_attend_params). */
    uint32_t flags;       /**< TQ_ATTEND_*; 0: every query sees all tokens. */
    float scale;          /**< Factor of q.k; 0 = 1 / sqrt(head_dim). Must be finite. */
    uint32_t reserved;    /**< Must be 0. */
    /** Caps the logits: cap * tanh(scale * q.k / cap), with the key as it was before
     *  centring. 0 = off; finite, not negative. */
    float logit_softcap;
    /** Sliding window: of the tokens that a query sees, only the last `window`, its own
     *  included; 0 = all. Tokens before it are not read. */
    uint32_t window;
} tq_attend_params;

/** @brief Attention of some query rows over a sequence in one layer, on the codes.
 *  @param cache a cache @param seq a sequence @param layer below n_layers
 *  @param n_queries query tokens; 0 is allowed and does nothing; q and out are not looked
 *  at then
 *  @param params NULL for all defaults
 *  @param q rows [n_queries][n_q_heads] of head_dim elements, after RoPE; query head h
 *  reads kv head h / (n_q_heads / n_kv_heads)
 *  @param out rows [n_queries][n_q_heads] of v_head_dim elements
 *  @param lse [n_queries][n_q_heads] f32: natural logarithm of the sum of exp(scores);
 *  may be NULL
 *  @param stream see the rules above
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, rows, dtype or parameters
 *  @retval TQ_ERR_UNSUPPORTED ::TQ_ATTEND_ALIBI
 *  @retval TQ_ERR_OUT_OF_MEMORY scratch memory could not be had; out may be partly written
 *  only after an error of the device
 *
 *  A query that sees no token gets out = 0 and lse = -infinity, with a sink too. A query
 *  element that is not finite makes its own output row NaN and no other. Results agree with
 * attention over the decoded rows, relative to the whole output: reference kernels to 1e-6, float
 * SIMD kernels to 1e-5, integer kernels to 2e-4 (in proportion where scale |q| |k| exceeds 16), FP8
 * tensor cores to 2e-3. On the CPU they do not depend on executor, batch or split of appends. */
TQ_API TQ_WARN_UNUSED tq_status tq_attend(const tq_cache *cache, tq_seq seq, uint32_t layer,
                                          uint32_t n_queries, const tq_attend_params *params,
                                          const tq_rows_in *q, const tq_rows_out *out, float *lse,
                                          tq_stream stream);

/** @brief Decodes stored rows, for inspection, tests and format changes. Synchronizing.
 *  @param cache a cache @param seq a sequence @param layer below n_layers
 *  @param first first token @param n_tokens how many
 *  @param k rows [n_tokens][n_kv_heads] of head_dim elements to write, or NULL
 *  @param v rows [n_tokens][n_kv_heads] of v_head_dim elements to write, or NULL
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT tokens beyond the layer's length, bad rows or dtype
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed: k and v are as they were
 *  @retval TQ_ERR_DEVICE k and v may be partly written
 *
 *  Rows come back in the caller's basis: un-rotated, with means added; tokens that are kept in 16
 *  bits as they are kept. */
TQ_API tq_status tq_read_rows(const tq_cache *cache, tq_seq seq, uint32_t layer, uint64_t first,
                              uint32_t n_tokens, const tq_rows_out *k, const tq_rows_out *v);
/** @brief Copies the stored bytes of one page and kv head to host memory. Synchronizing.
 *  @param cache a cache @param seq a sequence @param layer below n_layers
 *  @param page index of the page in the sequence: token / page_tokens
 *  @param kv_head below n_kv_heads
 *  @param[out] buf NULL to ask for the size only @param size bytes of buf
 *  @param[out] written bytes of the page
 *  @retval TQ_ERR_NOT_FOUND no such sequence
 *  @retval TQ_ERR_INVALID_ARGUMENT bad layer, head, a page beyond the length, written NULL
 *  @retval TQ_ERR_BUFFER_TOO_SMALL size is too small; written tells what is needed
 *
 *  docs/FORMAT.md specifies the bytes. Slots beyond the layer's length and gaps between sections
 *  are zero, whatever the memory held before.
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed, on CUDA only */
TQ_API tq_status tq_read_page(const tq_cache *cache, tq_seq seq, uint32_t layer, uint64_t page,
                              uint32_t kv_head, void *buf, size_t size, size_t *written);
/** @} */

/* ------------------------------------------------------------------------ */
/** @defgroup codec Codec
 *  The same numerics without pages: for tests, offline evaluation, vector search and
 *  engines with a store of their own.
 *  @{ */

/** Gains that make a coded row's inner product with the row itself exact, where otherwise its norm
 *  is: scores then don't shrink, on average over seeds they are exact (EDEN, arXiv 2105.08339).
 *  `int8`, `lm4`, `lm3`, `lm2`. Costs no byte, and half a microsecond a row when coding. */
#define TQ_CODEC_UNBIASED 1u

/** Configuration of a codec. */
typedef struct tq_codec_config {
    uint32_t struct_size; /**< sizeof(tq_codec_config). */
    tq_format format;     /**< Required. */
    uint32_t dim;         /**< Required; the rule of tq_cache_config::head_dim, up to 4096. */
    uint32_t flags;       /**< TQ_CODEC_*. */
    uint64_t seed;        /**< Of rotation and sketch. */
} tq_codec_config;

/** @brief Creates a codec.
 *  @param ctx must outlive the codec; CPU only
 *  @param config copied @param[out] out the codec, owned by the caller
 *  @retval TQ_ERR_NOT_FOUND unknown format
 *  @retval TQ_ERR_INVALID_ARGUMENT bad dim, unknown flags
 *  @retval TQ_ERR_UNSUPPORTED the format can't rotate that dim, or has no unbiased gains, or the
 *  context is not CPU
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API TQ_WARN_UNUSED tq_status tq_codec_create(tq_context *ctx, const tq_codec_config *config,
                                                tq_codec **out);
/** @brief Destroys a codec. @param codec NULL is allowed */
TQ_API void tq_codec_destroy(tq_codec *codec);
/** @brief Bytes of one coded row.
 *  @param codec a codec @return bytes; 0 for NULL. Codes of row i start at i times this. */
TQ_API size_t tq_codec_row_bytes(const tq_codec *codec);
/** @brief Codes rows.
 *  @param codec a codec @param n_rows rows
 *  @param rows row i at `data + i * token_stride` (0 = adjacent); head_stride must be 0
 *  @param[out] codes n_rows * tq_codec_row_bytes() bytes of host memory, any alignment
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or bad rows
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API tq_status tq_codec_encode(const tq_codec *codec, uint64_t n_rows, const tq_rows_in *rows,
                                 void *codes);
/** @brief Decodes rows, in the caller's basis.
 *  @param codec a codec @param n_rows rows
 *  @param codes n_rows * tq_codec_row_bytes() bytes of host memory, any alignment
 *  @param rows where to write, as in tq_codec_encode()
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or bad rows
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API tq_status tq_codec_decode(const tq_codec *codec, uint64_t n_rows, const void *codes,
                                 const tq_rows_out *rows);
/** @brief Estimates inner products of one query with coded rows, without decoding them.
 *
 *  Up to a dim of 1024 by the kernels of attention, 16 rows at a time; longer rows by the
 *  reference. A row's estimate does not depend on the rows beside it.
 *  @param codec a codec
 *  @param query dim elements; token_stride and head_stride are not used and must be 0;
 *  elements that are not finite are replaced as in tq_codec_encode()
 *  @param n_rows rows @param codes as in tq_codec_decode()
 *  @param[out] dots n_rows estimates of query.row; unbiased for formats with
 *  ::TQ_FORMAT_UNBIASED_DOT and for codecs with ::TQ_CODEC_UNBIASED
 *  @retval TQ_ERR_INVALID_ARGUMENT a NULL or bad rows
 *  @retval TQ_ERR_OUT_OF_MEMORY allocation failed */
TQ_API tq_status tq_codec_dot(const tq_codec *codec, const tq_rows_in *query, uint64_t n_rows,
                              const void *codes, float *dots);
/** @} */

#ifdef __cplusplus
}
#endif

#include "tq/batch.h"

#endif /* TQ_TQ_H */
