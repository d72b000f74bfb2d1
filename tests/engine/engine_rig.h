/* SPDX-License-Identifier: MIT
 * engine_rig.h - an engine on a scripted model: the token at absolute position p is script[p],
 * whatever the sequence, and a byte-level tokenizer whose pieces cut words and characters in
 * awkward places.
 */
#ifndef SL_TESTS_ENGINE_RIG_H
#define SL_TESTS_ENGINE_RIG_H

#include "base/check.h"
#include "base/sys.h"
#include "engine/engine.h"
#include "engine/late_runner.h"
#include "text/tokenizer/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RIG_LEN 512

/* Ids of the rig's tokenizer. */
enum rig_id {
    T_EOS,
    T_A,
    T_B,
    T_C,
    T_X,
    T_SPACE,
    T_NEWLINE,
    T_AB,
    T_BC,
    T_ABC,
    T_C3, /* first byte of e acute */
    T_A9, /* its second */
    T_EACUTE,
    T_USER,
    T_N
};

static const char rig_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
    "\"added_tokens\":[{\"id\":0,\"content\":\"<eos>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"<eos>\":0,\"a\":1,\"b\":2,\"c\":3,\"x\":4,\"\u0120\":5,"
    "\"\u010a\":6,\"ab\":7,\"bc\":8,\"abc\":9,\"\u00c3\":10,\"\u00a9\":11,\"\u00c3\u00a9\":12,"
    "\"User:\":13},\"merges\":[]}}";

struct rig {
    int32_t script[RIG_LEN + 1];
    int32_t n_vocab, nan_pos;      /* the row of nan_pos holds no number; -1: never */
    atomic_int n_steps, fail_step; /* the fail_step-th step fails with fail_code; 0: never */
    int fail_code, max_logits;
    float *rows;
    struct sl_tokenizer *tok;
    struct sl_engine *eng;
    struct sl_host_model model; /* forward NULL: the script */
    struct sl_host_runner *host;
    struct late_runner late;
};

/* Engines are started with a runner that is one step behind (late_runner.h). */
static bool rig_late;
/* Started and not stopped. */
static struct rig *rig_open;

static inline int rig_step(void *ctx, const struct sl_batch *b, const float **logits,
                           struct sl_error *err)
{
    struct rig *g = ctx;
    int step = atomic_fetch_add(&g->n_steps, 1) + 1;
    SL_ASSERT(b->n_logits <= g->max_logits); /* the engine's thread: cmocka cannot fail there */
    for (int32_t r = 0; r < b->n_logits; r++) {
        int32_t pos = b->positions[b->logit_rows[r]];
        float *row = g->rows + (size_t)r * (size_t)g->n_vocab;
        for (int32_t i = 0; i < g->n_vocab; i++)
            row[i] = (float)((i * 7 + pos) % 5) * 0.25f;
        row[g->script[pos + 1]] = 12.0f;
        if (pos == g->nan_pos)
            row[0] = NAN;
    }
    *logits = g->rows;
    if (step == atomic_load(&g->fail_step))
        return sl_fail(err, g->fail_code, "scripted failure");
    return 0;
}

/* parts: what differs from a small engine with 64 pages of 4 tokens; fields left 0 are filled in.
 */
static inline void rig_start(struct rig *g, const struct sl_engine_parts *parts)
{
    static const int32_t eos[] = {T_EOS};
    struct sl_engine_parts p = *parts;
    struct sl_error err;
    g->n_vocab = T_N;
    g->nan_pos = g->nan_pos != 0 ? g->nan_pos : -1;
    if (p.info.max_num_seqs == 0)
        p.info.max_num_seqs = 8;
    if (p.info.max_num_batched_tokens == 0)
        p.info.max_num_batched_tokens = 32;
    if (p.info.block_size == 0)
        p.info.block_size = 4;
    if (p.info.n_pages == 0)
        p.info.n_pages = 64;
    if (p.info.max_model_len == 0)
        p.info.max_model_len = RIG_LEN;
    p.info.n_vocab = g->n_vocab;
    g->max_logits = p.info.max_num_seqs + 4 + 2 * p.speculative.num_speculative_tokens;
    g->rows = sl_calloc((size_t)g->max_logits, (size_t)g->n_vocab * sizeof(float));
    assert_non_null(g->rows);
    if (sl_tokenizer_from_json(rig_json, sizeof rig_json - 1, NULL, 0, &g->tok, &err) != 0)
        fail_msg("tokenizer: %s", err.msg);
    if (g->model.forward == NULL)
        g->model = (struct sl_host_model){.ctx = g, .n_vocab = g->n_vocab, .forward = rig_step};
    if (p.runner.submit == NULL && rig_late) {
        late_init(&g->late, &g->model, p.info.max_num_batched_tokens, g->max_logits, &p.runner);
        if (g->model.draft != NULL) {
            struct sl_runner drafter;
            if (sl_host_runner_create(&g->model, g->max_logits, &g->host, &err) != 0)
                fail_msg("runner: %s", err.msg);
            sl_host_runner_use(g->host, &drafter);
            late_drafts(&g->late, &drafter, &p.runner);
        }
    } else if (p.runner.submit == NULL) {
        if (sl_host_runner_create(&g->model, g->max_logits, &g->host, &err) != 0)
            fail_msg("runner: %s", err.msg);
        sl_host_runner_use(g->host, &p.runner);
    }
    p.tokenizer = g->tok;
    p.eos_ids = eos;
    p.n_eos_ids = 1;
    sl_sampling_default(&p.sampling);
    if (sl_engine_start(&p, &g->eng, &err) != 0)
        fail_msg("engine: %s", err.msg);
    rig_open = g;
}

static inline void rig_stop(struct rig *g)
{
    rig_open = NULL;
    sl_engine_destroy(g->eng);
    if (g->late.tokens != NULL)
        late_deinit(&g->late);
    memset(&g->late, 0, sizeof g->late);
    sl_host_runner_destroy(g->host);
    g->host = NULL;
    g->model = (struct sl_host_model){0};
    sl_tokenizer_destroy(g->tok);
    sl_free(g->rows);
}

/* Teardown of tests whose rig is static: a test that failed left its engine, whose thread would go
 * on beside the next test, on a rig that is set to zeros. */
static inline int rig_end(void **state)
{
    (void)state;
    if (rig_open != NULL)
        rig_stop(rig_open);
    return 0;
}

/* The tokens after a prompt of n_prompt tokens, then `x` for ever. */
static inline void rig_script(struct rig *g, int32_t n_prompt, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i <= RIG_LEN; i++)
        g->script[i] = T_X;
    for (int32_t i = 0; i < n; i++)
        g->script[n_prompt + i] = ids[i];
}

#define RIG_TEXT 4096

struct rig_out { /* what one sequence gave */
    char text[RIG_TEXT];
    size_t n_text;
    int32_t ids[RIG_LEN];
    struct sl_token tokens[RIG_LEN];
    int32_t n, n_ends;
    enum sl_finish finish;
    int32_t stop_token_id;
    const char *stop_str;
};

/* Takes what is there; checks that chunks are whole characters and nothing follows the end. */
static inline void rig_read(struct sl_request *req, struct rig_out *outs)
{
    struct sl_chunk c;
    while (sl_request_read(req, &c)) {
        struct rig_out *o = &outs[c.seq_idx];
        assert_int_equal(o->n_ends, 0);
        assert_true(o->n_text + c.n_text < RIG_TEXT && o->n + (int32_t)c.n_tokens <= RIG_LEN);
        assert_true(c.n_text + c.n_tokens > 0 || c.finish != SL_RUNNING);
        if (c.n_text > 0)
            assert_true(((uint8_t)c.text[0] & 0xc0) != 0x80);
        memcpy(o->text + o->n_text, c.text, c.n_text);
        o->n_text += c.n_text;
        for (size_t i = 0; i < c.n_tokens; i++) {
            o->tokens[o->n] = c.tokens[i];
            o->ids[o->n++] = c.tokens[i].id;
        }
        o->finish = c.finish;
        o->stop_token_id = c.stop_token_id;
        o->stop_str = c.stop_str;
        o->n_ends += c.finish != SL_RUNNING;
    }
    outs[0].text[outs[0].n_text] = '\0';
}

#endif
