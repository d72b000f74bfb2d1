/* SPDX-License-Identifier: MIT
 * embed.c - `sluice embed`: texts to vectors, or to scores, one line of JSON each.
 *
 * All texts are submitted at once, so that they share steps; results come in the texts' order.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/common.h"
#include "cmd/flags.h"
#include "cmd/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORDS 256  /* texts on the command line */
#define WINDOW    1024 /* requests in flight */

struct embed_options {
    const char *file, *query;
    int32_t dimensions, truncate;
    bool quiet;
};

#define OWN(field) offsetof(struct embed_options, field)

static const struct sl_flag embed_flags[] = {
    {SL_FLAG_STR, 'f', "file", NULL, OWN(file), 0, 0, "FILE",
     "a text in each line of FILE (- = stdin)"},
    {SL_FLAG_STR, 'q', "query", NULL, OWN(query), 0, 0, "TEXT",
     "score every text against TEXT (rerankers)"},
    {SL_FLAG_INT, 0, "dimensions", NULL, OWN(dimensions), 1, SL_MAX_HIDDEN, "N",
     "keep the first N of a vector (Matryoshka models)"},
    {SL_FLAG_INT, 0, "truncate-prompt-tokens", NULL, OWN(truncate), -1, SL_MAX_CONTEXT, "N",
     "truncate texts to N tokens, -1: to the model's limit"},
    {SL_FLAG_SWITCH, 0, "quiet", NULL, OWN(quiet), 0, 0, NULL, "print only the speed, no vectors"},
};

struct texts {
    char *data;
    const char **at;
    size_t *len;
    size_t n;
};

static int reserve(struct texts *t, size_t n, struct sl_error *err)
{
    t->at = sl_calloc(n + 1, sizeof *t->at);
    t->len = sl_calloc(n + 1, sizeof *t->len);
    return t->at != NULL && t->len != NULL ? 0 : sl_fail(err, SL_ENOMEM, "out of memory");
}

static int embed_read_lines(struct texts *t, const char *file, struct sl_error *err)
{
    size_t n = 0, n_lines = 1;
    int rc = sl_read_file(file, SL_MAX_TEXT, &t->data, &n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        n_lines += t->data[i] == '\n';
    if (rc == 0)
        rc = reserve(t, n_lines, err);
    for (size_t from = 0, to; rc == 0 && from < n; from = to + 1) {
        const char *end = memchr(t->data + from, '\n', n - from);
        to = end != NULL ? (size_t)(end - t->data) : n;
        t->at[t->n] = t->data + from;
        t->len[t->n++] = to - from - (to > from && t->data[to - 1] == '\r');
    }
    return rc;
}

static int read_texts(struct texts *t, const struct embed_options *opt, const char **words,
                      int n_words, struct sl_error *err)
{
    if ((opt->file != NULL) == (n_words > 0))
        return sl_fail(err, SL_EINVAL, "texts are needed: words of the command line, or -f FILE");
    if (opt->file != NULL)
        return embed_read_lines(t, opt->file, err);
    int rc = reserve(t, (size_t)n_words, err);
    for (; rc == 0 && t->n < (size_t)n_words; t->n++) {
        t->at[t->n] = words[t->n];
        t->len[t->n] = strlen(words[t->n]);
    }
    return rc;
}

static int embed_submit(struct sl_engine *eng, const struct embed_options *opt,
                        const struct texts *t, size_t i, struct sl_request **out,
                        struct sl_error *err)
{
    const struct sl_model_info *info = sl_engine_info(eng);
    int32_t max = opt->truncate < 0 ? info->max_model_len : opt->truncate, *ids = NULL, second = 0;
    size_t n_ids = 0;
    const char *a = opt->query != NULL ? opt->query : t->at[i];
    const char *b = opt->query != NULL ? t->at[i] : NULL;
    int rc =
        sl_tokenizer_encode_input(sl_engine_tokenizer(eng), a, b != NULL ? strlen(a) : t->len[i], b,
                                  t->len[i], max, &ids, &n_ids, &second, err);
    struct sl_request_desc desc = {
        .prompt = ids, .n_prompt = (int32_t)n_ids, .pooling = true, .second_from = second};
    sl_sampling_default(&desc.sampling);
    if (rc == 0)
        rc = sl_request_submit(eng, &desc, out, err);
    sl_free(ids);
    return rc != 0 ? sl_error_prefix(err, rc, "text %zu", i + 1) : 0;
}

static void put_values(struct sl_buf *b, const float *v, int32_t n, int32_t keep, bool unit)
{
    double length = 0;
    int32_t m = keep > 0 ? SL_MIN(keep, n) : n;
    for (int32_t i = 0; i < m; i++)
        length += (double)v[i] * (double)v[i];
    length = m < n && unit && length > 0 ? sqrt(length) : 1;
    for (int32_t i = 0; i < m; i++) {
        if (i > 0)
            sl_buf_puts(b, ", ");
        sl_buf_printf(b, "%.9g", (double)(float)((double)v[i] / length));
    }
}

static int print(const struct sl_engine *eng, const struct embed_options *opt, size_t i,
                 struct sl_request *req, int64_t *n_tokens, struct sl_error *err)
{
    const struct sl_model_info *info = sl_engine_info(eng);
    struct sl_chunk chunk;
    struct sl_buf b = {0};
    struct sl_usage usage;
    int32_t n;
    while (!sl_request_done(req)) {
        sl_request_wait(req, -1);
        while (sl_request_read(req, &chunk) == 1)
            continue;
    }
    const float *v = sl_request_pooled(req, &n);
    if (v == NULL) {
        *err = *sl_request_error(req);
        return err->code != 0 ? err->code : sl_fail(err, SL_ECANCELED, "cancelled");
    }
    sl_request_usage(req, &usage);
    *n_tokens += usage.n_prompt;
    if (opt->quiet)
        return 0;
    sl_buf_printf(&b, "{\"index\": %zu, \"%s\": [", i,
                  info->task == SL_TASK_SCORE ? "scores" : "embedding");
    const bool per_token = info->task == SL_TASK_TOKEN_EMBED;
    for (int32_t at = 0; at < n; at += info->n_pooled) {
        sl_buf_puts(&b, !per_token ? "" : at > 0 ? ", [" : "[");
        put_values(&b, v + at, info->n_pooled, opt->dimensions, info->normalized);
        sl_buf_puts(&b, per_token ? "]" : "");
    }
    sl_buf_printf(&b, "], \"prompt_tokens\": %d}\n", usage.n_prompt);
    int rc = sl_buf_ok(&b) ? sl_write_all(STDOUT_FILENO, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for a vector");
    sl_buf_deinit(&b);
    return rc;
}

static int check_use(const struct sl_engine *eng, const struct embed_options *opt,
                     struct sl_error *err)
{
    const struct sl_model_info *info = sl_engine_info(eng);
    if (info->scores_pairs && opt->query == NULL)
        return sl_fail(err, SL_EINVAL, "--query is needed: this model scores two texts together");
    if (!info->scores_pairs && opt->query != NULL)
        return sl_fail(err, SL_EINVAL, "--query: this model reads one text, not two");
    if (opt->dimensions > 0 && (info->task == SL_TASK_SCORE || opt->dimensions > info->n_pooled))
        return sl_fail(err, SL_EINVAL,
                       "--dimensions: %d is out of range for an output of %d values",
                       opt->dimensions, info->n_pooled);
    return 0;
}

static int embed_all(struct sl_engine *eng, const struct embed_options *opt, const struct texts *t,
                     struct sl_error *err)
{
    struct sl_request *open[WINDOW] = {NULL};
    uint64_t start = sl_now_ns();
    int64_t n_tokens = 0;
    size_t n_in = 0, n_out = 0;
    int rc = check_use(eng, opt, err);
    while (rc == 0 && n_out < t->n) {
        while (rc == 0 && n_in < t->n && n_in - n_out < WINDOW) {
            rc = embed_submit(eng, opt, t, n_in, &open[n_in % WINDOW], err);
            n_in += rc == 0;
        }
        if (rc != 0)
            break;
        struct sl_request **req = &open[n_out % WINDOW];
        rc = print(eng, opt, n_out, *req, &n_tokens, err);
        sl_request_release(*req);
        *req = NULL;
        n_out++;
    }
    for (size_t i = 0; i < WINDOW; i++)
        sl_request_release(open[i]);
    if (rc == 0) {
        double s = (double)(sl_now_ns() - start) / 1e9;
        fprintf(stderr, "[%zu texts, %lld tokens in %.3f s: %.0f texts/s, %.0f tokens/s]\n", t->n,
                (long long)n_tokens, s, (double)t->n / s, (double)n_tokens / s);
    }
    return rc;
}

static int embed_main(int argc, char **argv)
{
    struct embed_options opt = {0};
    struct sl_engine_config cfg = {.runner = "pooling"};
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    struct texts texts = {0};
    struct sl_cli_model model = {0};
    const char *words[1 + MAX_WORDS] = {NULL};
    int n_words;
    struct sl_flag_group groups[] = {
        {embed_flags, SL_COUNT(embed_flags), &opt, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_embed, groups, SL_COUNT(groups), argc, argv, words,
                            SL_COUNT(words), &n_words, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && n_words == 0)
        rc = sl_fail(&err, SL_EINVAL, "a model is needed");
    if (rc == 0)
        rc = read_texts(&texts, &opt, words + 1, n_words - 1, &err);
    if (rc == 0)
        rc = sl_cli_find_model(&model, words[0], &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_open_engine(&cfg, &eng, &err);
    if (rc == 0)
        rc = embed_all(eng, &opt, &texts, &err);
    sl_engine_destroy(eng);
    sl_free(texts.at);
    sl_free(texts.len);
    sl_free(texts.data);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_embed, &err);
}

const struct sl_command sl_cmd_embed = {
    .name = "embed",
    .usage = "MODEL [TEXT...] [FLAGS]",
    .summary = "texts to vectors or scores, a line of JSON each",
    .examples =
        "  sluice embed ./all-MiniLM-L6-v2 \"a text\" \"another one\"\n"
        "  sluice embed ./bge-small-en-v1.5 -f texts.txt > vectors.jsonl\n"
        "  sluice embed ./ms-marco-MiniLM-L6-v2 -q \"how tall is a giraffe\" -f texts.txt\n",
    .brief = "file query dimensions truncate-prompt-tokens quiet threads max-model-len "
             "max-num-seqs max-num-batched-tokens convert classifier-from-token revision "
             "download-dir offline",
    .run = embed_main,
};
