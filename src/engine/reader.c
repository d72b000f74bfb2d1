/* SPDX-License-Identifier: MIT
 * The reader's side of a request. It turns ids into text itself, so the engine thread does no work
 * on text for requests without stop strings. For those with, the engine says up to which byte the
 * text may be shown; what lies beyond is kept in r_held, less than one stop string.
 */
#include "base/check.h"
#include "engine/core.h"

#include <string.h>

const char sl_stop_repetition[] = "repetition_detected";

struct view { /* what the engine has published of a sequence */
    int32_t n_tokens;
    enum sl_finish finish;
    bool skip_last;
    uint64_t text_limit;
};

static struct view view_of(struct sl_rseq *rs)
{
    uint64_t pub = atomic_load_explicit(&rs->published, memory_order_acquire);
    /* Stored before `published`, so at least as new: it never allows more than may be shown. */
    uint64_t limit = atomic_load_explicit(&rs->text_limit, memory_order_relaxed);
    return (struct view){.n_tokens = sl_pub_tokens(pub),
                         .finish = sl_pub_finish(pub),
                         .skip_last = (pub & SL_PUB_SKIP_LAST) != 0,
                         .text_limit = limit};
}

static struct sl_token reader_token(const struct sl_request *req, const struct sl_rseq *rs,
                                    int32_t i)
{
    SL_ASSERT(i >= 0 && i < req->max_out);
    struct sl_token t = {.id = rs->out[i]};
    if (rs->logprobs != NULL) {
        t.logprob = rs->logprobs[i].logprob;
        t.rank = rs->logprobs[i].rank;
        t.n_top = req->n_top;
        t.top = req->n_top > 0 ? rs->tops + (size_t)i * (size_t)req->n_top : NULL;
    }
    return t;
}

/* Moves new tokens into r_tokens and their text after the n bytes in r_text. */
static size_t take_tokens(struct sl_request *req, struct sl_rseq *rs, const struct view *v,
                          size_t n, int32_t *n_taken)
{
    const struct sl_tokenizer *tok = req->eng->tokenizer;
    size_t max_bytes = tok != NULL ? sl_detok_max_bytes(tok) : 0;
    int32_t n_vocab = tok != NULL ? sl_tokenizer_n_vocab(tok) : 0;
    *n_taken = 0;
    SL_ASSERT(rs->r_n <= v->n_tokens && v->n_tokens <= req->max_out); /* it only grows */
    while (rs->r_n < v->n_tokens && *n_taken < SL_CHUNK_TOKENS && n + max_bytes <= req->text_cap) {
        struct sl_token *t = &req->r_tokens[(*n_taken)++];
        *t = reader_token(req, rs, rs->r_n);
        bool silent = v->skip_last && rs->r_n == v->n_tokens - 1;
        int32_t id = rs->out[rs->r_n++];
        /* Rows of logits may be wider than the vocabulary: such an id has no text. */
        if (!silent && id < n_vocab) {
            size_t more = sl_detok_push(&rs->r_detok, id, req->r_text + n);
            SL_ASSERT(more <= max_bytes);
            n += more;
            rs->r_made += more;
        }
        t->text_end = rs->r_made;
    }
    return n;
}

static void reader_put_finish(struct sl_request *req, struct sl_rseq *rs, const struct view *v,
                              struct sl_chunk *out)
{
    SL_ASSERT(!rs->r_done && req->r_n_done < req->n_seqs && rs->stop_idx < req->stops.n);
    rs->r_done = true;
    req->r_n_done++;
    out->finish = v->finish;
    out->stop_token_id = rs->stop_token_id;
    if (rs->repeats)
        out->stop_str = sl_stop_repetition;
    if (rs->stop_idx >= 0)
        out->stop_str = req->stops.list[rs->stop_idx].text;
}

static int read_seq(struct sl_request *req, struct sl_rseq *rs, struct sl_chunk *out)
{
    if (rs->r_done)
        return 0;
    struct view v = view_of(rs);
    size_t n = rs->r_n_held;
    SL_ASSERT(n <= req->text_cap && (n == 0 || rs->r_held != NULL));
    if (n > 0)
        memcpy(req->r_text, rs->r_held, n);
    int32_t n_taken;
    n = take_tokens(req, rs, &v, n, &n_taken);
    bool last = v.finish != SL_RUNNING && rs->r_n == v.n_tokens;
    /* The end of the text, half a character, needs room too: if there is none, next time. */
    if (last && req->eng->tokenizer != NULL && req->pooled == NULL) {
        last = n + sl_detok_max_bytes(req->eng->tokenizer) <= req->text_cap;
        if (last)
            n += sl_detok_finish(&rs->r_detok, req->r_text + n);
    }
    uint64_t room = v.text_limit > rs->r_shown ? v.text_limit - rs->r_shown : 0;
    size_t shown = n < room ? n : (size_t)room;
    rs->r_n_held = v.finish == SL_RUNNING ? n - shown : 0;
    SL_ASSERT(rs->r_n_held <= SL_MAX_STOP_BYTES);
    if (rs->r_n_held > 0)
        memcpy(rs->r_held, req->r_text + shown, rs->r_n_held);
    if (n_taken == 0 && shown == 0 && !last)
        return 0;
    SL_ASSERT(n <= req->text_cap);
    rs->r_shown += shown;
    *out = (struct sl_chunk){.seq_idx = rs->seq.idx,
                             .text = shown > 0 ? req->r_text : "",
                             .n_text = shown,
                             .tokens = req->r_tokens,
                             .n_tokens = (size_t)n_taken,
                             .stop_token_id = -1};
    if (last)
        reader_put_finish(req, rs, &v, out);
    return 1;
}

int sl_request_read(struct sl_request *req, struct sl_chunk *out)
{
    SL_ASSERT(req->r_next_seq >= 0 && req->r_next_seq < req->n_seqs);
    for (int32_t i = 0; i < req->n_seqs; i++) {
        int32_t at = (req->r_next_seq + i) % req->n_seqs;
        if (read_seq(req, &req->seqs[at], out)) {
            req->r_next_seq = (at + 1) % req->n_seqs;
            return 1;
        }
    }
    return 0;
}

bool sl_request_done(const struct sl_request *req)
{
    return req->r_n_done == req->n_seqs;
}

const struct sl_token *sl_request_prompt_logprobs(const struct sl_request *req)
{
    return atomic_load_explicit(&req->prompt_logprobs_ready, memory_order_acquire)
               ? req->prompt_logprobs
               : NULL;
}
