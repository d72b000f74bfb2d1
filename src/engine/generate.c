/* SPDX-License-Identifier: MIT
 *
 * sl_generate: tokenise, submit, read to the end, on the caller's thread.
 */
#include "base/err.h"

#define WAIT_MS 50 /* between calls of on_text while no token comes */

/* Hands on what is there. Returns what on_text said last, or 0. */
static int read_chunks(struct sl_request *req, const struct sl_generate_desc *d,
                       enum sl_finish *finish)
{
    struct sl_chunk chunk;
    int stop = 0;
    while (sl_request_read(req, &chunk) == 1) {
        if (chunk.finish != SL_RUNNING)
            *finish = chunk.finish;
        if (chunk.n_text > 0 && d->on_text != NULL && stop == 0)
            stop = d->on_text(d->arg, chunk.text, chunk.n_text);
    }
    return stop;
}

static int read_all(struct sl_request *req, const struct sl_generate_desc *d,
                    enum sl_finish *finish, struct sl_error *err)
{
    bool cancelled = false;
    while (!sl_request_done(req)) {
        sl_request_wait(req, WAIT_MS);
        int stop = read_chunks(req, d, finish);
        if (stop == 0 && !cancelled && d->on_text != NULL && !sl_request_done(req))
            stop = d->on_text(d->arg, "", 0);
        if (stop != 0 && !cancelled) {
            cancelled = true;
            sl_request_cancel(req);
        }
    }
    if (*finish != SL_FINISH_ERROR)
        return 0;
    const struct sl_error *why = sl_request_error(req);
    return sl_fail(err, why->code, "%s", why->msg);
}

int sl_generate(struct sl_engine *eng, const struct sl_generate_desc *d, enum sl_finish *finish,
                struct sl_usage *usage, struct sl_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct sl_request *req = NULL;
    enum sl_finish end = SL_RUNNING;
    struct sl_request_desc request = {
        .constraint = d->constraint, .adapter = d->adapter, .adapter_scale = d->adapter_scale};
    if (d->sampling != NULL)
        request.sampling = *d->sampling;
    else
        sl_engine_sampling_default(eng, &request.sampling);
    if (request.sampling.n != 1)
        return sl_fail(err, SL_EINVAL, "n: %d sequences, sl_generate makes one",
                       request.sampling.n);
    int rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), d->prompt, d->n_prompt, d->encode_flags,
                                 &ids, &n_ids, err);
    if (rc != 0)
        return rc;
    request.prompt = ids;
    request.n_prompt = (int32_t)n_ids; /* SL_MAX_TEXT bytes are fewer tokens */
    rc = sl_request_submit(eng, &request, &req, err);
    sl_free(ids);
    if (rc != 0)
        return rc;
    rc = read_all(req, d, &end, err);
    if (usage != NULL)
        sl_request_usage(req, usage);
    if (finish != NULL)
        *finish = end;
    sl_request_release(req);
    return rc;
}
