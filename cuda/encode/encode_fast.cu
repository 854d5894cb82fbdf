/* Which kernel writes a layer, and what it gets: fast_kernel.cuh or encode_any.cu. */
#include "encode/fast_job.h"
#include "encode/key_job.h"

namespace tqi {
namespace {

enum { GROUP_TOKENS = 32, WARPS_PER_SM = 16, MOST_LOG2_WINDOW = 5 };

struct Entry {
    uint32_t dim;
    const char *name;
    fast_encode_fn *run, *run_slots;
    fast_prepare_fn *prepare, *prepare_slots;
    tq_status start(const FastEncodeJob &f, cudaStream_t stream) const {
        return f.job.slots ? run_slots(f, stream) : run(f, stream);
    }
    tq_status make_ready() const {
        TQI_TRY(prepare());
        return prepare_slots();
    }
};

#define ENTRY(d)               \
    {d,                        \
     "tqk_encode_fast_d" #d,   \
     encode_fast_d##d,         \
     encode_slots_d##d,        \
     prepare_encode_fast_d##d, \
     prepare_encode_slots_d##d},
const Entry entries[] = {TQI_FAST_ENCODE_DIMS(ENTRY)};

/* Sets of words that share slabs must not reach into the next token group. */
bool has_closed_groups(const tqi_layout &l) {
    return l.kind != TQI_KIND_LM || l.dim / 32 % tqi_share(l.bits) == 0;
}

const Entry *find_entry(const tqi_layout &l) {
    for (const Entry &e : entries)
        if (e.dim == l.dim && l.group == GROUP_TOKENS && l.kind != TQI_KIND_POLAR &&
            l.sketch_size == 0 && has_closed_groups(l))
            return &e;
    return nullptr;
}

void fill_book(const Side &s, FastBook *b) {
    memset(b, 0, sizeof *b);
    if (s.layout.kind != TQI_KIND_LM)
        return;
    uint32_t words[2] = {0, 0};
    for (uint32_t i = 0; i <= TQI_LAST_BUCKET; i++)
        b->step[i] = tqi_bucket_step(s.threshold, s.levels - 2, i);
    for (uint32_t i = 0; i < s.levels; i++)
        words[i / 4] |= (uint32_t)(s.v2[i] & 255) << 8 * (i % 4);
    b->square_low = words[0];
    b->square_high = words[1];
}

/* Rows whose 16-byte pieces are aligned. */
uint32_t is_aligned(const RowsIn &rows) {
    uint64_t size = rows.dtype == TQ_F32 ? 4 : 2;
    uint64_t all = (uint64_t)rows.data | (uint64_t)rows.token_stride * size |
                   (uint64_t)rows.head_stride * size;
    return all % 16 == 0;
}

/* The simple path: token groups that the pages of this launch have new tokens of. */
void count_groups(FastEncodeJob *f) {
    EncodeJob &job = f->job;
    uint64_t start = job.first_page * job.pages.page_tokens;
    uint64_t end = start + (uint64_t)job.n_pages * job.pages.page_tokens;
    uint64_t first = start > job.length ? start : job.length, last = end < job.end ? end : job.end;
    first -= first % GROUP_TOKENS;
    f->launch_start = start;
    f->first_token = (uint32_t)(first - start);
    job.max_pieces = (uint32_t)((last - first + GROUP_TOKENS - 1) / GROUP_TOKENS);
}

/* Slots: rows that a warp looks at; as few as there are warps for. */
void choose_window(FastEncodeJob *f) {
    EncodeJob &job = f->job;
    const uint64_t warps = (uint64_t)job.n_sms * WARPS_PER_SM;
    while (f->log2_window < MOST_LOG2_WINDOW &&
           (job.max_rows >> f->log2_window) * 2 * job.n_heads > warps)
        f->log2_window++;
    job.max_pieces = (uint32_t)((job.max_rows + (1u << f->log2_window) - 1) >> f->log2_window);
}

} /* namespace */

/* Keys have kernels of their own where they are polar or have a sketch. */
static bool is_fast(const tqi_layout &k, const tqi_layout &v) {
    return (find_entry(k) || takes_keys(k)) && find_entry(v);
}

const char *fast_encoder_name(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                              const tqi_layout &v) {
    (void)k_format;
    (void)v_format;
    return is_fast(k, v) ? find_entry(takes_keys(k) ? v : k)->name : nullptr;
}

bool encode_takes_groups(const EncodeJob &job) {
    return !job.rounds[0] && !job.rounds[1] && is_fast(job.side[0].layout, job.side[1].layout);
}

tq_status encode_fast_prepare(const Side side[2]) {
    if (!is_fast(side[0].layout, side[1].layout))
        return TQ_OK;
    const Entry *k = find_entry(side[0].layout);
    if (k)
        TQI_TRY(k->make_ready());
    return find_entry(side[1].layout)->make_ready();
}

tq_status encode(const EncodeJob &job, cudaStream_t stream) {
    const Side *s = job.side;
    if (!encode_takes_groups(job) || (job.slots && takes_keys(s[0].layout)))
        return encode_any(job, stream);
    FastEncodeJob f;
    f.job = job;
    f.job.aligned = is_aligned(job.rows[0]) | is_aligned(job.rows[1]) << 1;
    f.simple = 0;
    for (int i = 0; i < 2; i++) {
        fill_book(s[i], &f.book[i]);
        bool simple = f.job.aligned >> i & 1 && job.rows[i].dtype != TQ_F32 && !s[i].mean;
        f.simple |= (uint32_t)simple << i;
    }
    f.log2_parts = f.log2_window = 0;
    if (job.slots)
        choose_window(&f);
    else if (!job.pieces)
        count_groups(&f);
    const Entry *k = find_entry(s[0].layout), *v = find_entry(s[1].layout);
    f.joins = 0;
    f.inverse_heads = UINT32_MAX / job.n_heads;
    f.sides = k == v ? 3 : 1;
    TQI_TRY(k ? k->start(f, stream) : encode_keys(f.job, stream));
    if (k == v)
        return TQ_OK;
    f.sides = 2;
    f.joins = k != nullptr;
    return v->start(f, stream);
}

} /* namespace tqi */
