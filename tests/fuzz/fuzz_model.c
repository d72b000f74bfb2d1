/* SPDX-License-Identifier: MIT
 * Whole model files up to the point where weights would be loaded. The first byte chooses: the
 * input is the config.json, the generation_config.json or the tokenizer_config.json of a small
 * sound model, or the front of a GGUF file whose weights are zeros.
 */
#include "base/log.h"
#include "engine/load/load_text.h"
#include "mem_files.h"
#include "models/model.h"
#include "synth/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CONFIG, GENERATION, TOKENIZER, GGUF, N_WHAT };

#define GGUF_BYTES (768u << 10)
#define MAX_INPUT  (16u << 10)

struct text {
    char *data;
    size_t n;
};

static const struct {
    const char *name;
    enum sl_int4_kind int4;
} families[] = {{"llama", 0},
                {"qwen3", 0},
                {"qwen2", 0},
                {"mistral", 0},
                {"llama", SL_INT4_GPTQ_V1},
                {"qwen2", SL_INT4_PACKED}};
#define N_FAMILIES SL_COUNT(families)

static struct text config[N_FAMILIES], weights[N_FAMILIES];
static struct text generation, tokenizer, tokenizer_config;
static uint8_t gguf[GGUF_BYTES];

static struct text take(const char *dir, const char *name)
{
    char path[256];
    struct text t = {NULL, 0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (sl_read_file(path, 16u << 20, &t.data, &t.n, NULL) == 0)
        (void)unlink(path);
    return t;
}

static int open_model(const char *path, bool with_text)
{
    struct sl_error err = {.code = 0};
    struct sl_ckpt *c;
    struct sl_model *m;
    struct sl_tokenizer *tok;
    struct sl_template *tpl;
    int rc = sl_ckpt_open(path, &c, &err);
    SL_ASSERT(rc == 0 || (err.code == rc && err.msg[0] != '\0'));
    if (rc != 0)
        return rc;
    if (with_text && sl_load_tokenizer(c, &tok, &err) == 0)
        sl_tokenizer_destroy(tok);
    if (with_text && sl_load_template(c, &tpl, &err) == 0 && tpl != NULL)
        sl_template_destroy(tpl);
    rc = sl_model_open(c, &m, &err);
    SL_ASSERT(rc == 0 || (err.code == rc && err.msg[0] != '\0'));
    if (rc == 0) {
        const struct sl_model_facts *f = sl_model_facts(m);
        struct sl_kv_layout kv;
        SL_ASSERT(f->n_layers > 0 && f->n_layers <= SL_MAX_LAYERS && f->hidden > 0);
        SL_ASSERT(f->n_heads > 0 && f->n_kv_heads > 0 && f->n_heads % f->n_kv_heads == 0);
        SL_ASSERT(f->n_vocab > 0 && f->n_vocab <= SL_MAX_VOCAB && f->context > 0);
        for (int32_t i = 0; i < f->n_eos; i++)
            SL_ASSERT(f->eos[i] >= 0 && f->eos[i] < f->n_vocab);
        SL_ASSERT(f->bos >= -1 && f->bos < f->n_vocab);
        if (sl_model_kv_layout(m, NULL, "auto", SL_DTYPE_BF16, 16, &kv, &err) == 0)
            SL_ASSERT(sl_kv_block_bytes(&kv) > 0);
        sl_model_close(m);
    }
    sl_ckpt_close(c);
    SL_ASSERT(mem_n_open == 0);
    return rc;
}

static int open_folder(size_t family, int what, struct text input)
{
    struct text c = what == CONFIG ? input : config[family];
    struct text g = what == GENERATION ? input : generation;
    struct text t = what == TOKENIZER ? input : tokenizer_config;
    mem_files[0] = (struct mem_file){"config.json", c.data, c.n};
    mem_files[1] = (struct mem_file){"generation_config.json", g.data, g.n};
    mem_files[2] = (struct mem_file){"tokenizer_config.json", t.data, t.n};
    mem_files[3] = (struct mem_file){"tokenizer.json", tokenizer.data, tokenizer.n};
    mem_files[4] = (struct mem_file){"model.safetensors", weights[family].data, weights[family].n};
    return open_model("dir", what == TOKENIZER);
}

static int open_gguf(const uint8_t *data, size_t n)
{
    n = SL_MIN(n, MAX_INPUT);
    memcpy(gguf, data, n);
    memset(gguf + n, 0, MAX_INPUT - n);
    memset(mem_files, 0, sizeof mem_files);
    mem_files[0] = (struct mem_file){"m.gguf", gguf, sizeof gguf};
    return open_model("dir/m.gguf", true);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char dir[] = "/tmp/sluice-fuzz-XXXXXX";
    (void)argc;
    (void)argv;
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < N_FAMILIES; i++) {
        struct sl_synth s = {.name = families[i].name, .dtype = SL_DTYPE_BF16, .byte_vocab = true};
        if (families[i].int4 != SL_INT4_NONE) {
            s.dtype = SL_DTYPE_INT4_G128;
            s.int4 = families[i].int4;
            s.int4_group = 32;
        }
        SL_ASSERT(sl_synth_shape(s.name, "tiny", &s.hp, NULL) == 0);
        s.hp.n_layers = SL_MIN(s.hp.n_layers, 2);
        SL_ASSERT(sl_synth_write(&s, dir, NULL) == 0);
        config[i] = take(dir, "config.json");
        weights[i] = take(dir, "model.safetensors");
        struct text *one[] = {&generation, &tokenizer, &tokenizer_config};
        static const char *const names[] = {"generation_config.json", "tokenizer.json",
                                            "tokenizer_config.json"};
        for (size_t k = 0; k < SL_COUNT(one); k++) {
            sl_free(one[k]->data);
            *one[k] = take(dir, names[k]);
        }
    }
    (void)rmdir(dir);
    mem_files_use();
    for (size_t i = 0; i < N_FAMILIES; i++)
        SL_ASSERT(open_folder(i, N_WHAT, config[i]) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    int what = data[0] % N_WHAT;
    struct text input = {(char *)(uintptr_t)(data + 1), size - 1};
    if (what == GGUF)
        (void)open_gguf(data + 1, size - 1);
    else
        (void)open_folder(data[0] / N_WHAT % N_FAMILIES, what, input);
    return 0;
}
