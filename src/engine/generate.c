/* SPDX-License-Identifier: MIT
 *
 * sl_generate: tokenise, submit, read to the end, on the caller's thread.
 */
#include "base/err.h"
#include "sluice.h"

#define WAIT_MS 50 /* between calls of on_text while no token comes */

struct text_reader {
    const struct sl_generate_desc *desc;
    bool stopped; /* on_text said so: it is not called again, whatever the engine still has */
};

static void hand_on(struct text_reader *r, const char *text, size_t n_text)
{
    if (!r->stopped && r->desc->on_text != NULL)
        r->stopped = r->desc->on_text(r->desc->arg, text, n_text) != 0;
}

/* Tokens keep coming until the engine has seen the cancellation. They are read and dropped: text
 * after a gap is no part of the answer. */
static enum sl_finish read_all(struct text_reader *r, struct sl_request *req)
{
    enum sl_finish finish = SL_RUNNING;
    struct sl_chunk chunk;
    while (!sl_request_done(req)) {
        bool was_stopped = r->stopped;
        sl_request_wait(req, WAIT_MS);
        while (sl_request_read(req, &chunk) == 1) {
            SL_ASSERT(chunk.seq_idx == 0 && finish == SL_RUNNING);
            if (chunk.finish != SL_RUNNING)
                finish = chunk.finish;
            if (chunk.n_text > 0)
                hand_on(r, chunk.text, chunk.n_text);
        }
        if (!sl_request_done(req))
            hand_on(r, "", 0);
        if (r->stopped && !was_stopped)
            sl_request_cancel(req);
    }
    SL_ASSERT(finish != SL_RUNNING); /* each sequence has an end, and there is one */
    return finish;
}

int sl_generate(struct sl_engine *eng, const struct sl_generate_desc *d, enum sl_finish *finish,
                struct sl_usage *usage, struct sl_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct sl_request *req = NULL;
    struct text_reader reader = {.desc = d};
    struct sl_request_desc request = {
        .constraint = d->constraint, .adapter = d->adapter, .adapter_scale = d->adapter_scale};
    if (d->sampling != NULL)
        request.sampling = *d->sampling;
    else
        sl_engine_sampling_default(eng, &request.sampling);
    if (request.sampling.n != 1)
        return sl_fail(err, SL_EINVAL, "n is %d: sl_generate returns one sequence",
                       request.sampling.n);
    int rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), d->prompt, d->n_prompt, d->encode_flags,
                                 &ids, &n_ids, err);
    if (rc != 0)
        return rc;
    SL_ASSERT(n_ids <= INT32_MAX); /* SL_MAX_TEXT bytes are fewer tokens */
    request.prompt = ids;
    request.n_prompt = (int32_t)n_ids;
    rc = sl_request_submit(eng, &request, &req, err);
    sl_free(ids);
    if (rc != 0)
        return rc;
    enum sl_finish end = read_all(&reader, req);
    if (reader.stopped) {
        end = SL_FINISH_ABORT; /* it may have ended by itself meanwhile, or failed */
    } else if (end == SL_FINISH_ERROR) {
        const struct sl_error *why = sl_request_error(req);
        rc = sl_fail(err, why->code, "%s", why->msg);
    }
    if (usage != NULL)
        sl_request_usage(req, usage);
    if (finish != NULL)
        *finish = end;
    sl_request_release(req);
    return rc;
}
