#include "encode/slots.h"

#include "base/checked.h"

/* Tokens of a page may share words, so that no two tasks may write to one: a task takes the pages
 * of one residue class, of one head, and finds them by a pass over all slots. */
struct cut {
    const struct tqi_encode_job *job;
    const int64_t *slots;
    uint32_t n_tokens;
    uint32_t classes;
};

static void task(void *arg, uint32_t index, uint32_t worker) {
    const struct cut *cut = arg;
    const struct tqi_page_view *view = &cut->job->view;
    uint32_t head = index / cut->classes, class = index % cut->classes;
    for (uint32_t i = 0; i < cut->n_tokens; i++) {
        if (cut->slots[i] < 0)
            continue;
        uint64_t slot = (uint64_t)cut->slots[i], page = slot / view->page_tokens;
        if (page % cut->classes != class)
            continue;
        uint8_t *blob = tqi_view_page(view, page) + head * view->blob_bytes;
        tqi_encode_token(cut->job, i, head, blob, (uint32_t)(slot % view->page_tokens), worker);
    }
}

void tqi_encode_slots(const struct tqi_encode_job *job, const int64_t *slots, uint32_t n_tokens) {
    uint32_t heads = job->layer->n_kv_heads, workers = job->executor->n_workers;
    uint64_t wanted = workers > 1 ? tqi_div_up(4 * (uint64_t)workers, heads) : 1;
    struct cut cut = {job, slots, n_tokens, (uint32_t)wanted};
    tqi_executor_run(job->executor, heads * cut.classes, task, &cut);
}
