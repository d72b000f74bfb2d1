/* SPDX-License-Identifier: MIT
 * hostile_model.h - opens a model of 8 tokens all the way: container, hyper-parameters, tensors,
 * vocabulary, template; when that succeeds, an engine has to say two tokens. For the tables of
 * hostile files.
 */
#ifndef SL_TESTS_HOSTILE_MODEL_H
#define SL_TESTS_HOSTILE_MODEL_H

#include "fault.h"
#include "folder.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/load/load_text.h"
#include "io/checkpoint.h"
#include "models/model.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <setjmp.h>

#include <cmocka.h>

enum { VOCAB = 8, HIDDEN = 16 };

static struct folder dir;
static int n_cases, n_opened;

static inline struct sl_engine_config tiny_config(const char *path)
{
    return (struct sl_engine_config){.model = path,
                                     .n_threads = 1,
                                     .max_model_len = 16,
                                     .max_num_seqs = 1,
                                     .max_num_batched_tokens = 16,
                                     .kv_cache_bytes = 1u << 16,
                                     .block_size = 16};
}

/* A model that opens must run. */
static inline void two_tokens(const char *path, const char *label)
{
    static const int32_t prompt[] = {2, 3};
    struct sl_engine_config cfg = tiny_config(path);
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    struct sl_request_desc d = {.prompt = prompt, .n_prompt = 2};
    size_t n = 0;
    sl_sampling_default(&d.sampling);
    d.sampling.temperature = 0;
    d.sampling.ignore_eos = true;
    d.sampling.max_tokens = 2;
    if (sl_engine_create(&cfg, &eng, &err) != 0 || sl_request_submit(eng, &d, &req, &err) != 0)
        fail_msg("%s: opens, but does not run: %s", label, err.msg);
    while (!sl_request_done(req)) {
        sl_request_wait(req, -1);
        while (sl_request_read(req, &chunk))
            n += chunk.n_tokens;
    }
    sl_request_release(req);
    sl_engine_destroy(eng);
    if (n != 2)
        fail_msg("%s: opens, but says %zu tokens", label, n);
}

/* Whatever vocabulary was accepted must bear whatever text comes, and its own ids. */
static inline void use_tokenizer(const struct sl_tokenizer *tok)
{
    static const char text[] =
        "abc <s>a\xCC\x81\xFF\xED\xA0\x80 \xE2\x96\x81\0b ab\xF0\x9F\x98\x80";
    for (unsigned flags = 0; flags < 4; flags++) {
        struct sl_ids ids = {0};
        struct sl_error err = {0};
        char *back = NULL;
        size_t n = 0;
        int rc = sl_tokenizer_encode_into(tok, text, sizeof text - 1, flags, &ids, &err);
        if (rc == SL_EFORMAT && strstr(err.msg, "no unknown token") != NULL) {
            sl_free(ids.data);
            continue; /* a Unigram vocabulary without one cannot write every text */
        }
        if (rc != 0)
            fail_msg("a text is not encoded: %s", err.msg);
        for (size_t i = 0; i < ids.n; i++)
            assert_in_range(ids.data[i], 0, VOCAB - 1);
        assert_int_equal(sl_tokenizer_decode(tok, ids.data, ids.n, false, &back, &n, NULL), 0);
        sl_free(back);
        sl_free(ids.data);
    }
}

static inline int open_all(const char *path, struct sl_error *err)
{
    struct sl_ckpt *c = NULL;
    struct sl_model *m = NULL;
    struct sl_tokenizer *tok = NULL;
    struct sl_template *tpl = NULL;
    int rc = sl_ckpt_open(path, &c, err);
    if (rc == 0)
        rc = sl_model_open(c, &m, err);
    if (rc == 0)
        rc = sl_load_tokenizer(c, &tok, err);
    if (rc == 0)
        rc = sl_load_template(c, &tpl, err);
    if (rc == 0)
        use_tokenizer(tok);
    sl_template_destroy(tpl);
    sl_tokenizer_destroy(tok);
    sl_model_close(m);
    sl_ckpt_close(c);
    return rc;
}

/* code 0: must open and run. Else the error must have that code and name all of `named`, which are
 * separated by '|'. */
static inline void expect_path(const char *path, int code, const char *named, const char *label)
{
    struct sl_error err = {0};
    uint64_t n_file = 1 << 16;
    fault_arm(-1, 0);
    int rc = open_all(path, &err);
    n_cases++;
    if (rc != code)
        fail_msg("%s: code %d (%s), expected %d", label, rc, err.msg, code);
    if (fault.bytes > 96 * n_file) /* 1,024 layers have tables of 6.2 MB */
        fail_msg("%s: %" PRIu64 " bytes allocated", label, fault.bytes);
    assert_true(fault_clean());
    sl_sys = &sl_sys_real;
    for (const char *s = named; rc != 0 && *s != '\0'; s += strspn(s, "|")) {
        char part[160];
        size_t n = strcspn(s, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, s);
        if (strstr(err.msg, part) == NULL)
            fail_msg("%s: message \"%s\" does not name \"%s\"", label, err.msg, part);
        s += n;
    }
    if (rc == 0) {
        n_opened++;
        two_tokens(path, label);
    }
}

/* A new file each time: some file systems write an overwritten one to the disk at once. */
static inline void write_new(const char *path, const void *data, size_t n)
{
    struct sl_error err = {0};
    (void)unlink(path);
    if (sl_write_file(path, data, n, &err) != 0)
        fail_msg("%s", err.msg);
}

#endif
