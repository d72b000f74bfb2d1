/* SPDX-License-Identifier: MIT
 * Embeddings and scores of tiny models against transformers or mlx-embeddings in float32
 * (tools/gen_golden.py, gen_golden_roberta.py), for every instruction set, and that a text's bits
 * do not depend on its neighbours, on threads or on where its pages lie. And what the files beside
 * a model may say.
 */
#include "models/model_rig.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const goldens[] = {"bert",
                                      "bert_cls",
                                      "bert_classifier",
                                      "qwen3_embed",
                                      "qwen3_classifier",
                                      "xlm_roberta",
                                      "xlm_roberta_mean",
                                      "xlm_roberta_classifier",
                                      "gte",
                                      "gte_classifier",
                                      "jina_v3",
                                      "modernbert",
                                      "nomic_bert",
                                      "embedding_gemma",
                                      "bert_dense",
                                      "eurobert",
                                      "colbert",
                                      "colbert_modernbert"};
static const char *const ggufs[] = {"bert",       "bert_cls",   "xlm_roberta", "embedding_gemma",
                                    "modernbert", "nomic_bert", "eurobert"};
static const char *const isas[] = {"c", "avx2", "avx512"};

enum { MAX_TEXTS = 8, MAX_WIDTH = 64, MAX_ROWS = 40, MAX_TABLE = 64 };

struct text {
    const int32_t *ids;
    int32_t n, second_from, n_values;
    const float *want;
    float have[MAX_ROWS * MAX_WIDTH];
};

struct golden {
    char *data;
    int32_t n_texts, width;
    struct text texts[MAX_TEXTS];
};

static void open_golden(struct golden *g, const char *name, char *folder, size_t n_folder)
{
    struct sl_error err = {0};
    char path[256];
    size_t n;
    snprintf(folder, n_folder, "tests/golden/models/%s", name);
    snprintf(path, sizeof path, "%s/golden.bin", folder);
    if (sl_read_file(path, 1 << 20, &g->data, &n, &err) != 0)
        fail_msg("%s: %s", path, err.msg);
    const int32_t *at = (const int32_t *)(const void *)g->data;
    g->n_texts = at[0];
    g->width = at[1];
    assert_true(g->n_texts <= MAX_TEXTS && g->width <= MAX_WIDTH);
    at += 2;
    const bool per_token = strstr(name, "colbert") != NULL;
    for (int32_t i = 0; i < g->n_texts; i++) {
        struct text *t = &g->texts[i];
        *t = (struct text){.n = at[0], .second_from = at[1], .ids = at + 2};
        t->n_values = g->width * (per_token ? t->n : 1);
        assert_true(t->n_values <= MAX_ROWS * MAX_WIDTH);
        t->want = (const float *)(const void *)(at + 2 + t->n);
        at += 2 + t->n + t->n_values;
    }
    assert_ptr_equal(at, g->data + n);
}

/* Texts from .. to - 1 in one step, each in pages from the pool's other end. */
static void run(struct rig *g, struct golden *want, int32_t from, int32_t to)
{
    static int32_t tokens[RIG_MAX_TOKENS], positions[RIG_MAX_TOKENS], rows[MAX_TEXTS];
    int32_t tables[MAX_TABLE], second[MAX_TEXTS], n_tables = 0;
    struct sl_span spans[MAX_TEXTS];
    struct sl_batch b = {.tokens = tokens,
                         .positions = positions,
                         .spans = spans,
                         .block_tables = tables,
                         .logit_rows = rows,
                         .second_from = second};
    for (int32_t i = from; i < to; i++) {
        const struct text *t = &want->texts[i];
        second[b.n_spans] = t->second_from > 0 ? t->second_from : INT32_MAX;
        spans[b.n_spans++] = (struct sl_span){b.n_tokens, t->n, 0, n_tables, 0};
        for (int32_t p = 0; p < SL_CEIL_DIV(t->n, g->kv.block_size); p++, n_tables++)
            tables[n_tables] = (g->n_pages - 1) - n_tables * 2 % g->n_pages;
        for (int32_t k = 0; k < t->n; k++) {
            tokens[b.n_tokens] = t->ids[k];
            positions[b.n_tokens++] = k;
        }
        rows[b.n_logits++] = b.n_tokens - 1;
    }
    assert_true(n_tables <= MAX_TABLE && n_tables * 2 <= g->n_pages);
    const float *out = sl_run_enqueue(g->run, &b);
    for (int32_t i = from; i < to; out += want->texts[i++].n_values)
        memcpy(want->texts[i].have, out, (size_t)want->texts[i].n_values * sizeof *out);
}

static void same(const struct golden *a, const struct golden *b, const char *what)
{
    for (int32_t i = 0; i < a->n_texts; i++)
        if (memcmp(a->texts[i].have, b->texts[i].have,
                   (size_t)a->texts[i].n_values * sizeof(float)) != 0)
            fail_msg("%s: text %d has other bits", what, i);
}

/* gguf: the same model from a file that the gguf package wrote (tools/gen_golden_gguf.py). */
static void check(const char *name, bool gguf, const char *isa, struct golden *first,
                  bool has_first)
{
    struct golden all;
    char folder[200];
    open_golden(&all, name, folder, sizeof folder);
    if (gguf)
        snprintf(folder, sizeof folder, "tests/golden/gguf/%s.gguf", name);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct rig g;
        rig_open(&g, folder,
                 &(struct rig_options){.isa = isa, .kv_dtype = "f32", .n_threads = threads});
        const struct sl_model_facts *f = sl_model_facts(g.model);
        assert_int_equal(f->n_out, all.width);
        assert_int_equal(f->task, strstr(name, "classifier") ? SL_TASK_SCORE
                                  : strstr(name, "colbert")  ? SL_TASK_TOKEN_EMBED
                                                             : SL_TASK_EMBED);
        struct golden alone = all;
        run(&g, &all, 0, all.n_texts);
        for (int32_t i = 0; i < all.n_texts; i++)
            run(&g, &alone, i, i + 1);
        same(&all, &alone, name);
        rig_close(&g);
        for (int32_t i = 0; i < all.n_texts; i++) {
            double e =
                rig_nmse(all.texts[i].have, all.texts[i].want, (size_t)all.texts[i].n_values);
            if (!(e < 1e-10))
                fail_msg("%s, %s: text %d differs from its oracle, NMSE %.3g", name, isa, i, e);
        }
        if (has_first)
            same(&all, first, isa);
        else
            *first = all;
        has_first = true;
    }
    sl_free(all.data);
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t m = 0; m < SL_COUNT(goldens); m++) {
        struct golden first;
        bool has_first = false;
        for (size_t i = 0; i < SL_COUNT(isas); i++) {
            if (!rig_has_isa(isas[i])) {
                printf("skip: %s: not on this processor\n", isas[i]);
                continue;
            }
            check(goldens[m], false, isas[i], &first, has_first);
            has_first = true;
        }
        for (size_t i = 0; i < SL_COUNT(ggufs); i++)
            if (strcmp(goldens[m], ggufs[i]) == 0)
                check(goldens[m], true, "c", &first, has_first);
    }
}

/* ---------------------------------------------------------------- files beside a model */

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[400];
    struct sl_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = sl_sys->open(path, 0101 | 01000, 0600); /* O_WRONLY, O_CREAT, O_TRUNC */
    assert_true(fd >= 0);
    assert_int_equal(sl_write_all(fd, text, strlen(text), &err), 0);
    sl_sys->close(fd);
}

/* What opening a golden's model says with other modules and another pooling; "" is success. */
static void expect(const char *modules, const char *pooling, const char *want)
{
    static const char *const links[] = {"config.json", "model.safetensors"};
    char folder[] = "/tmp/sl_test_pooled_XXXXXX", from[600], to[200], cwd[300], sub[200];
    struct sl_ckpt *ckpt = NULL;
    struct sl_model *model = NULL;
    struct sl_error err = {0};
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(cwd, sizeof cwd));
    for (size_t i = 0; i < SL_COUNT(links); i++) {
        snprintf(from, sizeof from, "%s/tests/golden/models/bert/%s", cwd, links[i]);
        snprintf(to, sizeof to, "%s/%s", folder, links[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(sub, sizeof sub, "%s/1_Pooling", folder);
    assert_int_equal(mkdir(sub, 0700), 0);
    write_file(folder, "modules.json", modules);
    if (pooling != NULL)
        write_file(folder, "1_Pooling/config.json", pooling);
    assert_int_equal(sl_ckpt_open(folder, &ckpt, &err), 0);
    int rc = sl_model_open(ckpt, &model, &err);
    if ((rc == 0) != (want[0] == '\0') || (rc != 0 && strstr(err.msg, want) == NULL))
        fail_msg("%s: \"%s\", expected \"%s\"", modules, rc == 0 ? "" : err.msg, want);
    sl_model_close(model);
    sl_ckpt_close(ckpt);
    static const char *const made[] = {"modules.json", "1_Pooling/config.json", "config.json",
                                       "model.safetensors"};
    for (size_t i = 0; i < SL_COUNT(made); i++) {
        snprintf(to, sizeof to, "%s/%s", folder, made[i]);
        (void)unlink(to);
    }
    (void)rmdir(sub);
    (void)rmdir(folder);
}

#define MODULE(type, path) \
    "{\"idx\": 0, \"name\": \"0\", \"path\": \"" path "\", \"type\": \"" type "\"}"
#define TRANSFORMER MODULE("sentence_transformers.models.Transformer", "")
#define POOLING     MODULE("sentence_transformers.models.Pooling", "1_Pooling")
#define DENSE       MODULE("pylate.models.Dense.Dense", "1_Pooling")
#define MEAN        "{\"word_embedding_dimension\": 32, \"pooling_mode_mean_tokens\": true}"

static void test_modules(void **state)
{
    (void)state;
    static const char good[] = "[" TRANSFORMER "," POOLING "]";
    expect(good, MEAN, "");
    expect(good, "{\"pooling_mode\": \"cls\"}", "");
    expect(good, NULL, "1_Pooling/config.json is missing");
    expect(good, "[]", "is not an object");
    expect(good, "{}", "names no pooling mode");
    expect(good, "{\"pooling_mode\": \"weightedmean\"}", "\"weightedmean\" is not supported");
    expect(good, "{\"pooling_mode_mean_sqrt_len_tokens\": true}", "is not supported");
    expect(good, "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true}",
           "together with another");
    expect(good, "{\"word_embedding_dimension\": 33, \"pooling_mode_mean_tokens\": true}",
           "word_embedding_dimension");
    expect("{}", MEAN, "modules.json is not a list");
    expect("[" TRANSFORMER "]", MEAN, "names no pooling");
    expect("nonsense", MEAN, "modules.json: line 1");
    expect("[" TRANSFORMER "," POOLING "," MODULE("x.WordWeights", "2_WordWeights") "]", MEAN,
           "\"WordWeights\", is not supported");
    expect("[" TRANSFORMER "," MODULE("x.Pooling", "../bert") "]", MEAN,
           "not the name of a file of a model");
    expect("[" TRANSFORMER "," MODULE("x.Pooling", "/etc") "]", MEAN,
           "not the name of a file of a model");
}

/* Of a module that is a matrix, here in the folder of the pooling. */
static void test_dense_modules(void **state)
{
    (void)state;
    static const char one[] = "[" TRANSFORMER "," DENSE "]";
    expect(one, NULL, "1_Pooling/config.json is missing");
    expect(one, "{\"in_features\": 32, \"out_features\": 8}",
           "1_Pooling/model.safetensors is missing");
    expect(one, "{\"in_features\": 31, \"out_features\": 8}",
           "in_features is 31, what is in front gives 32");
    expect(one, "{\"in_features\": 32}", "out_features must be a number from 1 to");
    expect(one, "{\"in_features\": 32, \"out_features\": 0}", "out_features must be a number");
    expect(one, "{\"in_features\": 32, \"out_features\": 8, \"activation_function\": \"x.ELU\"}",
           "activation_function \"ELU\" is not supported");
    expect(one, "{\"in_features\": 32, \"out_features\": 8, \"use_residual\": true}",
           "use_residual true is not supported");
    expect("[" TRANSFORMER "," POOLING "," MODULE("x.Normalize", "2") "," DENSE "]", MEAN,
           "module 3, \"Dense\", is not supported");
    expect("[" TRANSFORMER "," DENSE "," DENSE "," DENSE "]",
           "{\"in_features\": 32, \"out_features\": 32}", "more than 2 Dense modules");
}

/* A score by two tokens' logits is there for every family that generates, labels or not. */
static void test_two_tokens_of_each_family(void **state)
{
    (void)state;
    static const char *const names[] = {"llama2", "llama3", "mistral", "qwen2", "qwen3"};
    static const int32_t yes_no[2] = {1, 2};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char folder[200];
        struct sl_ckpt *ckpt = NULL;
        struct sl_model *model = NULL;
        struct sl_error err = {0};
        snprintf(folder, sizeof folder, "tests/golden/models/%s", names[i]);
        if (sl_ckpt_open(folder, &ckpt, &err) != 0 || sl_model_open(ckpt, &model, &err) != 0 ||
            sl_model_set_task(model, NULL, NULL, yes_no, &err) != 0)
            fail_msg("%s: %s", names[i], err.msg);
        const struct sl_model_facts *f = sl_model_facts(model);
        assert_true(f->task == SL_TASK_SCORE && f->n_out == 1 && f->pool == SL_POOL_LAST);
        sl_model_close(model);
        sl_ckpt_close(ckpt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_dense_modules),
        cmocka_unit_test(test_two_tokens_of_each_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
