/* SPDX-License-Identifier: MIT
 * Adapters: the input is the adapter_config.json, or the adapter_model.safetensors, of an adapter
 * of a small model whose other file is sound. What is accepted can be multiplied with.
 */
#include "base/log.h"
#include "mem_files.h"
#include "models/lora.h"
#include "synth/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_RANK = 64 };

static struct sl_model *model;
static char *config, *weights;
static size_t n_config, n_weights;

static void read_back(const char *dir, const char *name, char **data, size_t *n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    SL_ASSERT(sl_read_file(path, 1u << 20, data, n, NULL) == 0);
    (void)unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static char dir[] = "/tmp/sluice-fuzz-XXXXXX";
    struct sl_synth s = {.name = "qwen3", .dtype = SL_DTYPE_BF16, .byte_vocab = true};
    struct sl_synth_lora lora = {.rank = 2, .alpha = 4, .size = 0.3, .dtype = SL_DTYPE_F16};
    struct sl_ckpt *ckpt;
    (void)argc;
    (void)argv;
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(mkdtemp(dir) != NULL);
    SL_ASSERT(sl_synth_shape(s.name, "tiny", &s.hp, NULL) == 0);
    s.hp.n_layers = 2;
    SL_ASSERT(sl_synth_write(&s, dir, NULL) == 0);
    SL_ASSERT(sl_ckpt_open(dir, &ckpt, NULL) == 0 && sl_model_open(ckpt, &model, NULL) == 0);
    SL_ASSERT(sl_synth_lora_write(model, &lora, dir, NULL) == 0);
    read_back(dir, "adapter_config.json", &config, &n_config);
    read_back(dir, "adapter_model.safetensors", &weights, &n_weights);
    mem_files_use();
    return 0;
}

static void check(const struct sl_lora *l)
{
    SL_ASSERT(l->w.n_mats == sl_model_n_lora_mats(model));
    for (int32_t i = 0; i < l->w.n_mats; i++) {
        const struct sl_lora_mat *m = &l->mats[i];
        SL_ASSERT(m->rank >= 0 && m->rank <= MAX_RANK && m->rank <= l->w.max_rank);
        SL_ASSERT(m->rank == 0 || (m->a != NULL && m->b != NULL && isfinite(m->scale)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_error err = {.code = 0};
    const struct sl_lora_options opt = {.max_rank = MAX_RANK, .bf16 = size % 2 != 0};
    struct sl_lora *l;
    if (size == 0)
        return 0;
    const bool is_config = data[0] % 2 == 0;
    mem_files[0] = (struct mem_file){"adapter_config.json", config, n_config};
    mem_files[1] = (struct mem_file){"adapter_model.safetensors", weights, n_weights};
    mem_files[is_config ? 0 : 1].data = data + 1;
    mem_files[is_config ? 0 : 1].n_bytes = size - 1;
    int rc = sl_lora_open(model, "dir", &opt, &l, &err);
    SL_ASSERT(rc == 0 || (err.code == rc && err.msg[0] != '\0'));
    if (rc == 0)
        check(l);
    sl_lora_close(l);
    SL_ASSERT(mem_n_open == 0);
    return 0;
}
