/* SPDX-License-Identifier: MIT
 * mkmodel - writes a random model of any supported family, size and format: a checkpoint to test,
 * measure and debug with where no download is possible.
 */
#include "base/check.h"
#include "base/str.h"
#include "base/sys.h"
#include "models/model.h"
#include "synth/synth.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: mkmodel --out PATH [options]\n"
    "\n"
    "Writes a model with random weights: a Hugging Face folder, or one GGUF file. Family, shape,\n"
    "dtype and seed give the same weights in both formats (large matrices in block formats repeat\n"
    "a pool of blocks). Memory use stays at some 20 MB.\n"
    "\n"
    "  mkmodel --family qwen3 --vocab bytes --out tiny               a folder that talks bytes\n"
    "  mkmodel --shape 8b --dtype q4_k --format gguf --out 8b.gguf   4.5 GB to measure with\n"
    "  mkmodel --rope llama3 --tokenizer DIR --shape 1b --out m      with a real tokenizer\n"
    "\n"
    "what\n"
    "  --family NAME     an architecture of docs/SUPPORT.md as its file names it: llama, mistral,\n"
    "                    qwen2, qwen3, olmo2, olmo3, smollm3, gemma3, glm4, phi3, ernie4_5,\n"
    "                    seed_oss, exaone4, arcee, ... (default llama)\n"
    "  --shape NAME      tiny, 0.6b, 1b, 4b, 8b (default tiny); the flags below change it\n"
    "  --hidden N  --intermediate N  --layers N  --heads N  --kv-heads N  --head-dim N\n"
    "  --experts N  --top-experts N  --expert-intermediate N\n"
    "  --state-heads N  --state-groups N  --state-key-dim N  --state-value-dim N\n"
    "                    of recurrent layers, where the family has them\n"
    "  --context N       longest sequence\n"
    "  --vocab N|bytes   tokens; \"bytes\" writes a tokenizer of single bytes (both may be given)\n"
    "  --bos N  --eos N  ids named in the metadata, to go with --tokenizer\n"
    "  --tied, --untied  does the output matrix share the embedding\n"
    "  --mtp             with a module that predicts further tokens, where the family has one\n"
    "  --window N        sliding window of mistral, 0 = none\n"
    "  --rope NAME       plain, linear, llama3, yarn (default plain)\n"
    "  --theta X  --factor X  --original-context N\n"
    "                    of RoPE (defaults: the family's theta; factor 4, llama3: 32;\n"
    "                    context / factor)\n"
    "  --seed N          of the weights (default 1)\n"
    "an adapter instead\n"
    "  --adapter-of PATH writes a random LoRA adapter of that model, as PEFT does; --dtype, "
    "--seed\n"
    "                    and --out as above\n"
    "  --rank N  --alpha X\n"
    "                    (default 16, twice the rank)\n"
    "  --targets LIST    q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj (default all)\n"
    "  --rslora          scaled by alpha / sqrt(rank)\n"
    "a drafter instead\n"
    "  --eagle3-of PATH  writes a random EAGLE-3 drafter of that model: one layer of its shape;\n"
    "                    --dtype, --seed and --out as above\n"
    "  --draft-vocab N   tokens that it can say (default a quarter of the model's)\n"
    "  --dflash-of PATH  writes a random DFlash drafter of that model, of --layers (default 5)\n"
    "                    of its shape, which makes blocks of 16 tokens\n"
    "how\n"
    "  --format NAME     hf or gguf (default hf)\n"
    "  --dtype NAME      f32, f16, bf16; hf also fp8, int4; GGUF also q8_0, q4_0, q4_k and\n"
    "                    the other formats of docs/SUPPORT.md (default bf16)\n"
    "  --experts-dtype NAME\n"
    "                    of experts alone, GGUF: --dtype bf16 --experts-dtype mxfp4\n"
    "  --fp8-scales NAME block (128 x 128), channel or tensor (default block)\n"
    "  --int4-as NAME    gptq, gptq_v2, awq or compressed-tensors (default awq)\n"
    "  --int4-group N    columns that share a scale, -1: all of a row (default 128)\n"
    "  --int4-symmetric  without zero points\n"
    "  --int4-head       the output matrix too, if it is not tied\n"
    "  --tokenizer DIR   copies tokenizer.json, tokenizer_config.json and chat_template.jinja\n"
    "                    from DIR (hf)\n"
    "  --old-config      RoPE as transformers before 5 spelled it (hf)\n"
    "  --out PATH        folder or file to write\n"
    "  --quiet           no progress\n"
    "  --help            this text\n";

struct args {
    const char *family, *shape, *format, *dtype, *fp8_scales, *rope, *tokenizer, *out;
    const char *int4_as, *int4_group;
    const char *hidden, *intermediate, *layers, *heads, *kv_heads, *head_dim, *context, *window;
    const char *experts, *top_experts, *expert_intermediate, *experts_dtype;
    const char *state_heads, *state_groups, *state_key_dim, *state_value_dim;
    const char *adapter_of, *rank, *alpha, *targets, *eagle3_of, *dflash_of, *draft_vocab;
    const char *vocab, *bos, *eos, *theta, *factor, *original_context, *seed;
    bool bytes, tied, untied, mtp, old_config, rslora, int4_symmetric, int4_head, quiet, help;
};

struct flag {
    const char *name;
    size_t offset;
    bool takes_value;
};

#define VALUE(name, field)                       \
    {                                            \
        name, offsetof(struct args, field), true \
    }
#define SWITCH(name, field)                       \
    {                                             \
        name, offsetof(struct args, field), false \
    }
static const struct flag flags[] = {
    VALUE("--family", family),
    VALUE("--shape", shape),
    VALUE("--format", format),
    VALUE("--dtype", dtype),
    VALUE("--fp8-scales", fp8_scales),
    VALUE("--int4-as", int4_as),
    VALUE("--int4-group", int4_group),
    SWITCH("--int4-symmetric", int4_symmetric),
    SWITCH("--int4-head", int4_head),
    VALUE("--rope", rope),
    VALUE("--tokenizer", tokenizer),
    VALUE("--out", out),
    VALUE("--experts", experts),
    VALUE("--experts-dtype", experts_dtype),
    VALUE("--top-experts", top_experts),
    VALUE("--expert-intermediate", expert_intermediate),
    VALUE("--hidden", hidden),
    VALUE("--intermediate", intermediate),
    VALUE("--layers", layers),
    VALUE("--heads", heads),
    VALUE("--kv-heads", kv_heads),
    VALUE("--head-dim", head_dim),
    VALUE("--state-heads", state_heads),
    VALUE("--state-groups", state_groups),
    VALUE("--state-key-dim", state_key_dim),
    VALUE("--state-value-dim", state_value_dim),
    VALUE("--context", context),
    VALUE("--window", window),
    VALUE("--vocab", vocab),
    VALUE("--bos", bos),
    VALUE("--eos", eos),
    VALUE("--theta", theta),
    VALUE("--factor", factor),
    VALUE("--original-context", original_context),
    VALUE("--seed", seed),
    SWITCH("--mtp", mtp),
    VALUE("--eagle3-of", eagle3_of),
    VALUE("--dflash-of", dflash_of),
    VALUE("--draft-vocab", draft_vocab),
    VALUE("--adapter-of", adapter_of),
    VALUE("--rank", rank),
    VALUE("--alpha", alpha),
    VALUE("--targets", targets),
    SWITCH("--rslora", rslora),
    SWITCH("--tied", tied),
    SWITCH("--untied", untied),
    SWITCH("--old-config", old_config),
    SWITCH("--quiet", quiet),
    SWITCH("--help", help),
};

static int unknown_flag(const char *name, struct sl_error *err)
{
    const char *names[SL_COUNT(flags)];
    for (size_t i = 0; i < SL_COUNT(flags); i++)
        names[i] = flags[i].name;
    const char *near = sl_nearest(name, names, SL_COUNT(flags));
    return sl_fail(err, SL_EINVAL, "unknown flag %.60s%s%s (mkmodel --help lists them)", name,
                   near ? ", did you mean " : "", near ? near : "");
}

static int parse(int argc, char **argv, struct args *a, struct sl_error *err)
{
    for (int i = 1; i < argc; i++) {
        const struct flag *f = NULL;
        for (size_t k = 0; k < SL_COUNT(flags) && f == NULL; k++) {
            if (strcmp(argv[i], flags[k].name) == 0)
                f = &flags[k];
        }
        if (f == NULL)
            return unknown_flag(argv[i], err);
        uint8_t *at = (uint8_t *)a + f->offset;
        if (!f->takes_value) {
            *(bool *)(void *)at = true;
            continue;
        }
        if (i + 1 == argc)
            return sl_fail(err, SL_EINVAL, "%s needs a value", f->name);
        const char *value = argv[++i];
        if (f->offset == offsetof(struct args, vocab) && strcmp(value, "bytes") == 0)
            a->bytes = true;
        else
            *(const char **)(void *)at = value;
    }
    return 0;
}

static int set_int(const char *flag, const char *s, int64_t min, int64_t max, int32_t *out,
                   struct sl_error *err)
{
    int64_t x;
    if (s == NULL)
        return 0;
    if (!sl_parse_i64(s, strlen(s), &x) || x < min || x > max)
        return sl_fail(err, SL_EINVAL, "%s is \"%.40s\", must be %lld to %lld", flag, s,
                       (long long)min, (long long)max);
    *out = (int32_t)x;
    return 0;
}

static int set_double(const char *flag, const char *s, double min, double max, double *out,
                      struct sl_error *err)
{
    double x;
    if (s == NULL)
        return 0;
    if (!sl_parse_double(s, strlen(s), &x) || x < min || x > max)
        return sl_fail(err, SL_EINVAL, "%s is \"%.40s\", must be %g to %g", flag, s, min, max);
    *out = x;
    return 0;
}

static int set_rope(const struct args *a, struct sl_hparams *hp, struct sl_error *err)
{
    static const char *const names[] = {"plain", "linear", "llama3", "yarn"};
    struct sl_rope_params *p = &hp->ropes[0];
    const char *want = a->rope ? a->rope : "plain";
    int32_t original = 0;
    int rc;
    size_t i = 0;
    while (i < SL_COUNT(names) && strcmp(want, names[i]) != 0)
        i++;
    if (i == SL_COUNT(names))
        return sl_fail(err, SL_EINVAL, "--rope is \"%.40s\" (choose plain, linear, llama3 or yarn)",
                       want);
    p->scaling = (enum sl_rope_scaling)i;
    p->factor = p->scaling == SL_ROPE_LLAMA3 ? 32 : p->scaling == SL_ROPE_PLAIN ? 1 : 4;
    p->low_freq_factor = 1;
    p->high_freq_factor = 4;
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = true;
    if ((rc = set_double("--theta", a->theta, 2, 1e15, &p->theta, err)) ||
        (rc = set_double("--factor", a->factor, 1, 1e6, &p->factor, err)) ||
        (rc =
             set_int("--original-context", a->original_context, 1, SL_MAX_CONTEXT, &original, err)))
        return rc;
    int32_t scaled = (int32_t)((double)hp->context / p->factor);
    p->original_context = original ? original : SL_MAX(scaled, 1);
    return 0;
}

static int set_state(const struct args *a, struct sl_hparams *hp, struct sl_error *err)
{
    int rc;
    const bool any = a->state_heads != NULL || a->state_groups != NULL ||
                     a->state_key_dim != NULL || a->state_value_dim != NULL;
    if (any && hp->state_heads == 0)
        return sl_fail(err, SL_EINVAL, "--state-...: the family has no heads with a state");
    if ((rc = set_int("--state-heads", a->state_heads, 1, SL_MAX_HEADS, &hp->state_heads, err)) ||
        (rc =
             set_int("--state-groups", a->state_groups, 1, SL_MAX_HEADS, &hp->state_groups, err)) ||
        (rc = set_int("--state-key-dim", a->state_key_dim, 1, SL_MAX_STATE_DIM, &hp->state_k_dim,
                      err)))
        return rc;
    return set_int("--state-value-dim", a->state_value_dim, 1, SL_MAX_STATE_DIM, &hp->state_v_dim,
                   err);
}

/* The rotated part of a head stays the same share of it. */
static int set_head_dim(const char *flag, struct sl_hparams *hp, struct sl_error *err)
{
    const int32_t was = hp->head_dim;
    const int rc = set_int("--head-dim", flag, 2, SL_MAX_HEAD_DIM, &hp->head_dim, err);
    for (size_t r = 0; r < SL_COUNT(hp->ropes) && rc == 0; r++)
        hp->ropes[r].n_dims = hp->ropes[r].n_dims * hp->head_dim / was / 2 * 2;
    return rc;
}

static int set_shape(const struct args *a, struct sl_synth *s, struct sl_error *err)
{
    struct sl_hparams *hp = &s->hp;
    int rc;
    s->name = a->family ? a->family : "llama";
    s->byte_vocab = a->bytes;
    s->old_rope = a->old_config;
    if ((rc = sl_synth_shape(s->name, a->shape ? a->shape : "tiny", hp, err)) ||
        (rc = set_int("--experts", a->experts, 1, SL_MAX_EXPERTS, &hp->n_experts, err)) ||
        (rc = set_int("--top-experts", a->top_experts, 1, SL_MAX_TOP_EXPERTS, &hp->top_experts,
                      err)) ||
        (rc = set_int("--expert-intermediate", a->expert_intermediate, 1, 4 * SL_MAX_HIDDEN,
                      &hp->expert_intermediate, err)) ||
        (rc = set_int("--hidden", a->hidden, 1, SL_MAX_HIDDEN, &hp->hidden, err)) ||
        (rc = set_int("--intermediate", a->intermediate, 1, 4 * SL_MAX_HIDDEN, &hp->intermediate,
                      err)) ||
        (rc = set_int("--layers", a->layers, 1, SL_MAX_LAYERS, &hp->n_layers, err)) ||
        (rc = set_int("--heads", a->heads, 1, SL_MAX_HEADS, &hp->n_heads, err)) ||
        (rc = set_int("--kv-heads", a->kv_heads, 1, SL_MAX_HEADS, &hp->n_kv_heads, err)) ||
        (rc = set_head_dim(a->head_dim, hp, err)) || (rc = set_state(a, hp, err)) ||
        (rc = set_int("--context", a->context, 1, SL_MAX_CONTEXT, &hp->context, err)) ||
        (rc = set_int("--window", a->window, 0, SL_MAX_CONTEXT, &hp->window, err)) ||
        (rc = set_int("--vocab", a->vocab, 1, SL_MAX_VOCAB, &hp->n_vocab, err)) ||
        (rc = set_int("--bos", a->bos, 1, SL_MAX_VOCAB, &s->bos, err)) ||
        (rc = set_int("--eos", a->eos, 1, SL_MAX_VOCAB, &s->eos, err)))
        return rc;
    if (a->tied && a->untied)
        return sl_fail(err, SL_EINVAL, "--tied and --untied exclude each other");
    if (a->tied)
        hp->has &= ~(unsigned)SL_HAS_HEAD;
    if (a->untied)
        hp->has |= SL_HAS_HEAD;
    if (a->window != NULL && strcmp(s->name, "mistral") != 0)
        return sl_fail(err, SL_EINVAL, "--window is for mistral, not %s", s->name);
    return set_rope(a, hp, err);
}

static int set_scales(const struct args *a, struct sl_synth *s, struct sl_error *err)
{
    static const char *const names[] = {"block", "channel", "tensor"};
    size_t i = 0;
    if (a->fp8_scales == NULL)
        return 0;
    if (s->dtype != SL_DTYPE_FP8_E4M3)
        return sl_fail(err, SL_EINVAL, "--fp8-scales goes with --dtype fp8");
    while (i < SL_COUNT(names) && strcmp(a->fp8_scales, names[i]) != 0)
        i++;
    if (i == SL_COUNT(names))
        return sl_fail(err, SL_EINVAL,
                       "--fp8-scales is \"%.40s\" (choose block, channel or tensor)",
                       a->fp8_scales);
    s->scales = (enum sl_synth_scales)i;
    return 0;
}

static int set_int4(const struct args *a, struct sl_synth *s, struct sl_error *err)
{
    if (s->dtype != SL_DTYPE_INT4_G128) {
        if (a->int4_as != NULL || a->int4_group != NULL || a->int4_symmetric || a->int4_head)
            return sl_fail(err, SL_EINVAL, "flags --int4-... go with --dtype int4");
        return 0;
    }
    s->int4 = sl_synth_int4_kind(a->int4_as != NULL ? a->int4_as : "awq");
    if (s->int4 == SL_INT4_NONE)
        return sl_fail(err, SL_EINVAL,
                       "--int4-as is \"%.40s\" (choose gptq, gptq_v2, awq or compressed-tensors)",
                       a->int4_as);
    s->int4_group = 128;
    s->int4_symmetric = a->int4_symmetric;
    s->int4_head = a->int4_head;
    return set_int("--int4-group", a->int4_group, -1, SL_MAX_HIDDEN, &s->int4_group, err);
}

static int set_format(const struct args *a, struct sl_synth *s, struct sl_error *err)
{
    const char *format = a->format ? a->format : "hf", *dtype = a->dtype ? a->dtype : "bf16";
    uint64_t seed = 1;
    if (strcmp(format, "hf") != 0 && strcmp(format, "gguf") != 0)
        return sl_fail(err, SL_EINVAL, "--format is \"%.40s\" (choose hf or gguf)", format);
    s->format = strcmp(format, "gguf") == 0 ? SL_CKPT_GGUF : SL_CKPT_HF;
    int d = sl_dtype_from_name(strcmp(dtype, "fp8") == 0    ? "fp8_e4m3"
                               : strcmp(dtype, "int4") == 0 ? "int4_g128"
                                                            : dtype);
    if (d < 0 || (d == SL_DTYPE_INT4_G128) != (strcmp(dtype, "int4") == 0) ||
        d == SL_DTYPE_INT4_G32)
        return sl_fail(err, SL_EINVAL, "--dtype \"%.40s\" is unknown", dtype);
    s->dtype = (enum sl_dtype)d;
    if (s->format == SL_CKPT_HF && s->dtype != SL_DTYPE_INT4_G128 &&
        sl_dtype_info(s->dtype)->st_name == NULL)
        return sl_fail(err, SL_EINVAL, "--dtype %s needs --format gguf", dtype);
    if (s->format == SL_CKPT_GGUF && sl_dtype_info(s->dtype)->gguf_id < 0)
        return sl_fail(err, SL_EINVAL, "--dtype %s needs --format hf", dtype);
    if (a->experts_dtype != NULL) {
        d = sl_dtype_from_name(a->experts_dtype);
        if (d < 0 || sl_dtype_info((enum sl_dtype)d)->gguf_id < 0)
            return sl_fail(err, SL_EINVAL, "--experts-dtype \"%.40s\" is no format of GGUF",
                           a->experts_dtype);
        s->experts_apart = true;
        s->experts_dtype = (enum sl_dtype)d;
    }
    if (set_scales(a, s, err) != 0 || set_int4(a, s, err) != 0)
        return err->code;
    if (s->format == SL_CKPT_GGUF && (a->tokenizer != NULL || a->old_config))
        return sl_fail(err, SL_EINVAL, "--tokenizer and --old-config are for --format hf");
    if (a->seed != NULL && !sl_parse_u64(a->seed, strlen(a->seed), &seed))
        return sl_fail(err, SL_EINVAL, "--seed is \"%.40s\", must be a whole number", a->seed);
    s->seed = seed;
    if (a->out == NULL)
        return sl_fail(err, SL_EINVAL, "--out PATH says where to write (mkmodel --help)");
    return 0;
}

static int copy_tokenizer(const char *from, const char *to, struct sl_error *err)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    int n_copied = 0, rc = 0;
    for (size_t i = 0; i < SL_COUNT(files) && rc == 0; i++) {
        char src[4096], dst[4096], *data;
        size_t n;
        if (snprintf(src, sizeof src, "%s/%s", from, files[i]) >= (int)sizeof src ||
            snprintf(dst, sizeof dst, "%s/%s", to, files[i]) >= (int)sizeof dst)
            return sl_fail(err, SL_EINVAL, "%.100s...: path is too long", from);
        if (access(src, R_OK) != 0)
            continue; /* each is optional, one must be there */
        if ((rc = sl_read_file(src, SL_MAX_JSON_FILE, &data, &n, err)) != 0)
            break;
        rc = sl_write_file(dst, data, n, err);
        sl_free(data);
        n_copied++;
    }
    if (rc == 0 && n_copied == 0)
        return sl_fail(err, SL_ENOTFOUND, "--tokenizer %.150s: no tokenizer files there", from);
    return rc;
}

/* The drafter's own size. */
static int size_drafter(const struct args *a, const struct sl_model *m, struct sl_synth_draft *spec,
                        struct sl_error *err)
{
    const int32_t n = sl_model_facts(m)->n_vocab;
    if (a->dflash_of == NULL) {
        spec->n_vocab = SL_MAX(n / 4, 1);
        return set_int("--draft-vocab", a->draft_vocab, 1, n, &spec->n_vocab, err);
    }
    spec->block = 16;
    spec->n_layers = 5;
    return set_int("--layers", a->layers, 1, SL_SYNTH_DRAFT_LAYERS, &spec->n_layers, err);
}

static int write_drafter(const struct args *a, struct sl_error *err)
{
    struct sl_synth_draft spec = {.seed = 1};
    struct sl_ckpt *ckpt = NULL;
    struct sl_model *m = NULL;
    const int d = sl_dtype_from_name(a->dtype ? a->dtype : "bf16");
    int rc = 0;
    if (d != SL_DTYPE_F32 && d != SL_DTYPE_F16 && d != SL_DTYPE_BF16)
        rc = sl_fail(err, SL_EINVAL, "--dtype of a drafter is f32, f16 or bf16");
    else if (a->seed != NULL && !sl_parse_u64(a->seed, strlen(a->seed), &spec.seed))
        rc = sl_fail(err, SL_EINVAL, "--seed is \"%.40s\", must be a whole number", a->seed);
    else if (a->out == NULL)
        rc = sl_fail(err, SL_EINVAL, "--out PATH says where to write (mkmodel --help)");
    spec.dtype = (enum sl_dtype)d;
    if (rc == 0)
        rc = sl_ckpt_open(a->dflash_of != NULL ? a->dflash_of : a->eagle3_of, &ckpt, err);
    if (rc == 0)
        rc = sl_model_open(ckpt, &m, err);
    if (rc == 0)
        rc = size_drafter(a, m, &spec, err);
    if (rc == 0)
        rc = sl_synth_draft_write(m, &spec, a->out, err);
    if (m != NULL)
        sl_model_close(m);
    if (ckpt != NULL)
        sl_ckpt_close(ckpt);
    return rc;
}

static int write_adapter(const struct args *a, struct sl_error *err)
{
    struct sl_synth_lora spec = {
        .rank = 16, .size = 0.3, .rslora = a->rslora, .targets = a->targets, .seed = 1};
    struct sl_ckpt *ckpt = NULL;
    struct sl_model *m = NULL;
    const char *dtype = a->dtype ? a->dtype : "bf16";
    int d = sl_dtype_from_name(dtype);
    int rc = set_int("--rank", a->rank, 1, 256, &spec.rank, err);
    spec.alpha = 2.0 * spec.rank;
    if (rc == 0)
        rc = set_double("--alpha", a->alpha, 1e-3, 1e5, &spec.alpha, err);
    if (rc == 0 && d != SL_DTYPE_F32 && d != SL_DTYPE_F16 && d != SL_DTYPE_BF16)
        rc = sl_fail(err, SL_EINVAL, "--dtype of an adapter is f32, f16 or bf16");
    if (rc == 0 && a->seed != NULL && !sl_parse_u64(a->seed, strlen(a->seed), &spec.seed))
        rc = sl_fail(err, SL_EINVAL, "--seed is \"%.40s\", must be a whole number", a->seed);
    if (rc == 0 && a->out == NULL)
        rc = sl_fail(err, SL_EINVAL, "--out PATH says where to write (mkmodel --help)");
    spec.dtype = (enum sl_dtype)d;
    if (rc == 0)
        rc = sl_ckpt_open(a->adapter_of, &ckpt, err);
    if (rc == 0)
        rc = sl_model_open(ckpt, &m, err);
    if (rc == 0)
        rc = sl_synth_lora_write(m, &spec, a->out, err);
    sl_model_close(m);
    if (ckpt != NULL)
        sl_ckpt_close(ckpt);
    return rc;
}

struct meter {
    uint64_t shown_ns;
};

static void show(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct meter *m = arg;
    uint64_t now = sl_now_ns();
    if (done < total && now - m->shown_ns < 1000000000u)
        return;
    m->shown_ns = now;
    fprintf(stderr, "\r%s %.1f of %.1f MB (%.0f %%)%s", what, (double)done / 1e6,
            (double)total / 1e6, 100.0 * (double)done / (double)total, done == total ? "\n" : "");
}

int main(int argc, char **argv)
{
    struct args a = {0};
    struct sl_synth s = {0};
    struct sl_error err = {0};
    struct meter meter = {sl_now_ns()};

    if (argc < 2) {
        fputs(help, stderr);
        return 2;
    }
    if (parse(argc, argv, &a, &err) != 0)
        goto usage;
    if (a.help) {
        fputs(help, stdout);
        return 0;
    }
    if (a.adapter_of != NULL || a.eagle3_of != NULL || a.dflash_of != NULL) {
        if ((a.adapter_of == NULL ? write_drafter(&a, &err) : write_adapter(&a, &err)) == 0)
            return 0;
        fprintf(stderr, "mkmodel: %s\n", err.msg);
        return 1;
    }
    if (set_shape(&a, &s, &err) != 0 || set_format(&a, &s, &err) != 0)
        goto usage;
    s.mtp = a.mtp;
    if (!a.quiet) {
        s.progress = show;
        s.progress_arg = &meter;
    }
    if (sl_synth_write(&s, a.out, &err) != 0 ||
        (a.tokenizer != NULL && copy_tokenizer(a.tokenizer, a.out, &err) != 0)) {
        fprintf(stderr, "mkmodel: %s\n", err.msg);
        return 1;
    }
    return 0;
usage:
    fprintf(stderr, "mkmodel: %s\n", err.msg);
    return 2;
}
