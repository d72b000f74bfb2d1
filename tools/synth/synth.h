/* SPDX-License-Identifier: MIT
 * synth.h - writes random checkpoints from the families' own tables: for tests, benchmarks and
 * tools/mkmodel.
 *
 * A value depends on (seed, name of the tensor, row, column) only, so a Hugging Face folder and a
 * GGUF of the same seed and format hold the same model, with the rows of q and k reordered in the
 * GGUF where converters do so. Rows are made by up to 16 threads; memory stays at some 20 MB.
 */
#ifndef SL_SYNTH_H
#define SL_SYNTH_H

#include "models/desc.h"
#include "sluice.h"

enum sl_synth_scales {                   /* of FP8, and which program's checkpoint it looks like */
                       SL_SYNTH_BLOCK,   /* 128 x 128, bf16: Qwen's */
                       SL_SYNTH_CHANNEL, /* a row: compressed-tensors */
                       SL_SYNTH_TENSOR,  /* the matrix: ModelOpt */
};

struct sl_synth {
    const char *name;     /* a member of a family: "llama", "qwen3" */
    struct sl_hparams hp; /* complete: from sl_synth_shape, then changed at will */
    enum sl_dtype dtype;  /* of matrices; norms and biases take it if it is a float format. FP8:
                             of those in layers, the rest is bf16; INT4_G128 stands for four
                             bits as `int4` says, of those in layers too */
    bool experts_apart;   /* stacks of a GGUF's experts are in a format of their own, */
    enum sl_dtype experts_dtype; /* this one */
    float skew; /* routers with biases: that of expert i is larger by this / (i + 1) */
    enum sl_synth_scales scales;
    enum sl_int4_kind int4;         /* which program's checkpoint it looks like */
    int32_t int4_group;             /* columns, or -1: a row */
    bool int4_symmetric, int4_head; /* without zero points; the output matrix too */
    enum sl_ckpt_kind format;
    uint64_t seed;
    bool mtp;         /* with the module that predicts further tokens, in a folder */
    bool byte_vocab;  /* writes a tokenizer whose tokens are the 256 bytes, then bos and eos */
    int32_t bos, eos; /* ids the metadata names; 0 = none, byte_vocab sets its own */
    bool old_rope;    /* config.json: rope_theta and rope_scaling instead of rope_parameters */
    sl_progress_fn progress;
    void *progress_arg;
};

/* Smallest vocabulary with byte_vocab, and its special ids. */
enum { SL_SYNTH_BOS = 256, SL_SYNTH_EOS = 257, SL_SYNTH_MIN_VOCAB = 258 };

/* Fills hp with a named shape: "tiny", "0.6b", "1b", "4b", "8b". SL_EINVAL lists what there is. */
SL_MUST_CHECK int sl_synth_shape(const char *name, const char *shape, struct sl_hparams *hp,
                                 struct sl_error *err);
/* "gptq", "gptq_v2", "awq", "compressed-tensors"; else SL_INT4_NONE. */
enum sl_int4_kind sl_synth_int4_kind(const char *name);
/* path: a folder, made if absent, for SL_CKPT_HF; a file for SL_CKPT_GGUF. */
SL_MUST_CHECK int sl_synth_write(const struct sl_synth *s, const char *path, struct sl_error *err);

struct sl_synth_lora { /* a random adapter of a model, as PEFT writes it */
    int32_t rank;
    double alpha, size; /* size: what it adds to a matrix' products, as a share of them */
    bool rslora;
    enum sl_dtype dtype; /* F32, F16 or BF16 */
    const char *targets; /* "q_proj,v_proj"; NULL: all linear layers */
    uint64_t seed;
};

struct sl_model;

#define SL_SYNTH_DRAFT_LAYERS 8

/* A random drafter of a model, of layers of its shape: EAGLE-3 as SafeAILab writes it, of one layer
 * and some tokens; or, with a block, DFlash as z-lab does. */
struct sl_synth_draft {
    int32_t n_vocab;         /* of EAGLE-3: tokens of the model, evenly spread */
    int32_t block, n_layers; /* of DFlash: tokens of a block; 1 .. SL_SYNTH_DRAFT_LAYERS layers */
    enum sl_dtype dtype;     /* F32, F16 or BF16 */
    uint64_t seed;
};

/* path: a folder, made if absent. */
SL_MUST_CHECK int sl_synth_draft_write(const struct sl_model *m, const struct sl_synth_draft *spec,
                                       const char *path, struct sl_error *err);
/* path: a folder, made if absent. */
SL_MUST_CHECK int sl_synth_lora_write(const struct sl_model *m, const struct sl_synth_lora *spec,
                                      const char *path, struct sl_error *err);

#endif
