/* SPDX-License-Identifier: MIT
 * desc.h - what a model family is: tables, not code paths.
 *
 * A family file (llama.c, qwen.c) gives one struct sl_model_desc: how its hyper-parameters are
 * spelled and bounded, which tensors it has under which names and shapes, and plan(), which fills
 * one struct sl_layer_desc per layer. Reader, loader, description and the writer of random models
 * walk the same tables; registry.def lists the families. All of it is constant data.
 */
#ifndef SL_MODELS_DESC_H
#define SL_MODELS_DESC_H

#include "base/limits.h"
#include "io/checkpoint.h"
#include "ops/ops.h"

/* ---------------------------------------------------------------- rotary embedding */

enum {
    SL_MAX_ROPES = 4,         /* tables of one model */
    SL_MAX_ROPE_FACTORS = 128 /* frequencies of a table of LongRoPE */
};

enum sl_rope_scaling {
    SL_ROPE_PLAIN,
    SL_ROPE_LINEAR,
    SL_ROPE_LLAMA3,
    SL_ROPE_YARN,
    SL_ROPE_LONG,         /* LongRoPE: a factor for each frequency, of two lists */
    SL_ROPE_PROPORTIONAL, /* only a share of the pairs turn, the others have frequency 0 */
};

struct sl_rope_params {
    enum sl_rope_scaling scaling;
    int32_t n_dims; /* rotated dimensions of a head; 0: all */
    double theta;
    double factor;                            /* linear, llama3, yarn, proportional */
    double turning;                           /* proportional: share of the pairs */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_context;                  /* llama3, yarn, long */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn, long; 0 = from factor */
    double mscale, mscale_all_dim;            /* yarn; 0 = not given */
    double short_mscale, long_mscale; /* long: in place of attention_factor; 0 = not given */
    bool truncate;                    /* yarn: round the ramp's ends to whole dimensions */
    bool use_long;                    /* long: the served context is beyond the original */
    double q_beta;                    /* temperature of queries (llama_4_scaling_beta) */
    float short_factors[SL_MAX_ROPE_FACTORS], long_factors[SL_MAX_ROPE_FACTORS]; /* long */
};

/* ---------------------------------------------------------------- hyper-parameters */

/* Groups of tensors that a model or a layer has or has not. A config says so by a key, a GGUF by
 * the tensors it holds; plan() may decide it for each layer. */
#define SL_HAS_USE_ADAPTERS (1u << 31) /* of q, k and v of a shared block, for each use of it */
enum sl_has {
    SL_HAS_QKV_BIAS = 1 << 0,
    SL_HAS_O_BIAS = 1 << 1,
    SL_HAS_QK_NORM = 1 << 2,
    SL_HAS_HEAD = 1 << 3,         /* an output matrix of its own; else the embedding's serves */
    SL_HAS_ROPE_FREQS = 1 << 4,   /* GGUF: divisors of the rotation frequencies */
    SL_HAS_CLASSIFIER = 1 << 5,   /* a head of labels in place of tokens */
    SL_HAS_DENSE = 1 << 6,        /* in a model with experts: a layer with one MLP, */
    SL_HAS_EXPERTS = 1 << 7,      /* a layer with a router and experts, */
    SL_HAS_CHOICE_BIAS = 1 << 8,  /* added to the scores that choose, */
    SL_HAS_SHARED = 1 << 9,       /* with an MLP that every row goes through, */
    SL_HAS_SHARED_GATE = 1 << 10, /* times the sigmoid of a logit */
    SL_HAS_OUT_NORMS = 1 << 11,   /* norms of what attention and MLP give */
    SL_HAS_MLP_BIAS = 1 << 12,
    SL_HAS_ROPE_FACTORS = 1 << 13, /* GGUF: the lists of LongRoPE */
    SL_HAS_FFN_NORM = 1 << 14,     /* where some have one norm for attention and MLP */
    SL_HAS_HEAD_BIAS = 1 << 15,
    SL_HAS_OUT_GATE = 1 << 16,     /* of what attention gives, before its output matrix */
    SL_HAS_SINKS = 1 << 17,        /* of layers, where some have none */
    SL_HAS_ROOT_EMBED = 1 << 18,   /* embeddings are multiplied by the root of the width */
    SL_HAS_K = 1 << 20,            /* keys of a layer, unless it reads another's (kv_source); where
                                      there are indexes, keys of its own index */
    SL_HAS_V = 1 << 21,            /* values of their own beside those keys */
    SL_HAS_LAYER_INPUTS = 1 << 22, /* embeddings for each layer, and what adds them there */
    SL_HAS_LAYER_SCALE = 1 << 23,  /* a factor of the residual stream behind each layer */
    SL_HAS_BRANCHES = 1 << 24,     /* experts beside an MLP, each between norms of its own */
    SL_HAS_ATTN_NORM = 1 << 25,    /* of an encoder whose first layer has none */
    SL_HAS_ATTN = 1 << 26,         /* in a model with recurrent layers: one with attention, */
    SL_HAS_STATE = 1 << 27,        /* a recurrent one, */
    SL_HAS_CONV_BIAS = 1 << 28,    /* whose convolution has a bias, */
    SL_HAS_STATE_BIAS = 1 << 29,   /* or its projections, */
    SL_HAS_STATE_NORM = 1 << 30,   /* or a norm of what comes out */
    SL_HAS_FFN = 1 << 19,          /* an MLP, where some layers have none */
};

/* What a list with an entry for each layer says; BY_INDEX: there is no list. */
enum sl_layer_choice { SL_LAYER_BY_INDEX, SL_LAYER_OFF, SL_LAYER_ON };

/* What a layer attends to beside its window (DeepSeek V4). */
enum sl_rows_kind {
    SL_ROWS_BY_INDEX,
    SL_ROWS_NONE,
    SL_ROWS_SPARSE, /* rows of a few tokens, of which an index chooses */
    SL_ROWS_HEAVY   /* rows of many, all of them */
};

/* Of layers that are a mixer or an MLP alone. */
enum sl_layer_kind { SL_LAYER_STATE, SL_LAYER_ATTN, SL_LAYER_EXPERTS, SL_LAYER_MLP };

enum { SL_GGUF_SIGMOID = 2 }; /* expert_gating_func */

/* Checkpoints of four-bit whole numbers. */
enum sl_int4_kind {
    SL_INT4_NONE,
    SL_INT4_GPTQ_V1,
    SL_INT4_GPTQ_V2,
    SL_INT4_AWQ_GEMM,
    SL_INT4_PACKED /* compressed-tensors */
};

/* What a draft of a block owes to the one before it: draft_chain.c. */
enum sl_chain { SL_CHAIN_NONE, SL_CHAIN_VANILLA, SL_CHAIN_GATED, SL_CHAIN_RNN };

/* How a drafter that reads hidden rows of its target works; taps: as in struct sl_run_config. */
struct sl_draft_hparams {
    int32_t n_taps, taps[SL_MAX_TAPS]; /* 0: it is no such drafter */
    int32_t target_hidden, n_vocab;    /* values of the target's rows; drafts it can say */
    bool hidden_first;                 /* of the two halves of what it reads */
    bool normed_residual; /* the residual stream begins with the normed hidden row, else with the
                             row itself */
    bool normed_output;   /* the next draft is made from the row behind the final norm, else from
                             the one before it */
    /* Of one that makes a block of drafts in a step (facts.draft_block), else 0. */
    int32_t block, mask_token;
    bool from_anchor;
    bool context;   /* the target's rows are no input of the layers, but all that their keys and
                       values of the text are made of */
    bool causal;    /* rows of a block do not see those behind them, whatever their layer is; */
    bool both_ways; /* they do. Neither: those of windowed layers do not, others do */
    enum sl_chain chain;
    int32_t chain_rank;   /* values of a row of its tables */
    bool odds, odds_prev; /* it says how likely a draft is right; from the token before it, too */
    bool borrows;         /* facts.draft_borrows */
};

struct sl_hparams {
    int32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, n_vocab, context;
    double norm_eps;
    double rms_norm_eps; /* where that decides the kind of norms; 0: not given */
    unsigned has;        /* enum sl_has */
    struct sl_rope_params ropes[SL_MAX_ROPES]; /* as many as the family has */
    int32_t window;                            /* keys a row sees; 0 = all */
    bool use_window;
    int32_t max_window_layers; /* layers from this one on are windowed */
    uint8_t
        layer_types[SL_MAX_LAYERS]; /* enum sl_layer_choice: windowed, by config's layer_types */
    uint8_t rope_layers[SL_MAX_LAYERS]; /* enum sl_layer_choice: rotated */
    int32_t no_rope_interval;           /* else the last of so many layers is not */
    int32_t n_experts, top_experts, expert_intermediate; /* in a layer, of a token; of an expert */
    int32_t expert_step;                 /* every so many layers have experts; 0: all of them */
    int32_t n_dense;                     /* so many layers in front have none */
    int32_t dense_intermediate;          /* of layers without experts; 0: intermediate */
    int32_t dense_window_pattern;        /* window_pattern of those in front */
    int32_t n_nextn;                     /* layers behind the last that are not loaded */
    uint8_t dense_layers[SL_MAX_LAYERS]; /* 1: this one has none */
    uint8_t mlp_types[SL_MAX_LAYERS];    /* enum sl_layer_choice: with experts; before all others */
    bool norm_top_experts;               /* a token's experts weigh 1 together, */
    bool sigmoid_experts;                /* weighed by sigmoid, not softmax */
    bool average_shared;                 /* of experts and shared expert counts the mean */
    double expert_scale;                 /* times this; 0: 1 */
    double expert_sum_min;               /* what they weigh together counts as at least this */
    int32_t last_experts;                /* layers behind this one have none; -1: all may */
    int32_t expert_gating;               /* GGUF: 1 softmax, SL_GGUF_SIGMOID; 0: not given */
    int32_t n_expert_groups, top_expert_groups;    /* 0: there are none */
    int32_t n_shared_experts, shared_intermediate; /* of one expert's size each; of all together */
    int32_t n_pass_experts; /* beside these, of a layer: they give back what they read */
    int32_t latent;         /* width of what goes into experts; 0: hidden */
    int32_t rope_dims;      /* rotated dimensions of a head; 0: not said */
    int32_t v_dim;          /* read only to refuse what is not built */
    int32_t window_pattern; /* else the last of so many layers is not windowed */
    int32_t query_scalar;   /* scores are divided by its root; 0: by head_dim's */
    double attn_softcap, logit_softcap;
    /* What is multiplied, 0: by 1; attn_scale 0: the root of head_dim decides. */
    double embed_scale, residual_scale, attn_scale;
    double logit_scale, logit_divisor;
    double clip_qkv;         /* 0: none */
    double router_softcap;   /* of logits of experts; 0: none */
    double expert_noise;     /* of SparseMixer: how near logits are */
    double expert_norm;      /* the norm that a token's weights are divided by; 0: none */
    double value_scale;      /* of values; 0: 1 */
    int32_t value_dim;       /* of heads of values; 0: head_dim */
    int32_t q_rank, kv_rank; /* of latent attention; kv_rank 0: there is none */
    int32_t nope_dim;        /* of a head, what is not rotated */
    int32_t mla_dim;         /* GGUF: of a head's keys, as they would be */
    double mla_norm_eps;     /* of norms of latent rows */
    int32_t norm_rank;       /* of gates of norms (sl_layer_desc.attn_norm_rank) */
    /* Of the index of sparse attention; by layer SL_LAYER_ON: it has one of its own, OFF: it takes
     * an earlier one's choice. BY_INDEX: every index_step-th layer has one, counted from
     * index_offset on. */
    int32_t index_top, index_heads, index_dim, index_step, index_offset;
    uint8_t index_layers[SL_MAX_LAYERS];
    bool index_neighbours;            /* its dimensions are rotated in pairs of neighbours */
    int32_t index_block, index_local; /* what it chooses: struct sl_op_index_select */
    int32_t index_first;   /* blocks in front that all rows see; read only to refuse it */
    bool limits_groups;    /* of experts: only some groups are chosen from (DeepSeek V2) */
    int32_t window_before; /* keys before a row's own */
    int32_t window_heads, window_kv_heads; /* of windowed layers; 0: as others */
    int32_t chunk;                         /* keys of a chunk of attention; 0: there are none */
    bool q_temperature;                    /* queries of layers without positions grow */
    double q_temperature_scale;
    int32_t q_temperature_span;
    double layer_theta; /* of the layers that are rotated, as a list says it; 0: it does not */
    /* Of layers without a window, where they differ from others; 0: they do not. */
    int32_t full_head_dim, full_kv_heads;
    bool k_is_v;                        /* these have no values but what their keys are made of */
    int32_t n_shared_layers;            /* the last ones, which read keys of layers before them */
    bool wide_shared;                   /* and whose MLP is twice as wide */
    int32_t layer_width, n_layer_vocab; /* of embeddings for each layer; 0: there are none */
    int32_t n_streams, active_stream;   /* residual streams; 0: one */
    int32_t laurel_rank;
    /* Streams of hyper-connections, 0: there are none; how often what mixes them is balanced. */
    int32_t n_hyper, hyper_iters;
    double hyper_eps;
    double hyper_post; /* without iterations, where streams are not mixed: post_scale of
                          struct sl_op_hyper_read */
    /* Of attention to rows that stand for several tokens each: enum sl_rows_kind by layer, or how
     * many tokens make one, -1: no list says so; of the kinds SPARSE (and of an index of latent
     * attention) and HEAVY; groups of heads and rank of the output's first product; layers in front
     * whose experts tokens choose. */
    uint8_t rows_kinds[SL_MAX_LAYERS];
    int32_t layer_ratios[SL_MAX_LAYERS];
    int32_t sparse_ratio, heavy_ratio;
    int32_t o_groups, o_rank;
    int32_t n_hashed;
    uint8_t hashed_layers[SL_MAX_LAYERS]; /* enum sl_layer_choice */
    /* Where a file says it for each layer; 0: it does not. */
    double layer_sparsity[SL_MAX_LAYERS];   /* share of a gate that is cut off; GGUF: */
    double layer_deviations[SL_MAX_LAYERS]; /* what is below the mean and so many deviations */
    int32_t layer_heads[SL_MAX_LAYERS];
    int32_t layer_head_dims[SL_MAX_LAYERS], layer_kv_heads[SL_MAX_LAYERS];
    int32_t layer_intermediate[SL_MAX_LAYERS];
    uint32_t layer_has[SL_MAX_LAYERS]; /* GGUF: bits of `has` that the layer's tensors show */
    bool parallel;                     /* attention and MLP read the same, */
    int32_t n_norms;                   /* by so many norms; 0: as the family does */
    bool grouped_heads, one_key_head;  /* of Falcon: its heads are as others', or have one key */
    bool bidirectional;
    /* Of a model with recurrent layers: those that have attention, enum sl_layer_choice, and the
     * shape of the others. */
    uint8_t attn_layers[SL_MAX_LAYERS];
    int32_t attn_interval;              /* without a list: the last of so many has it */
    uint8_t layer_kinds[SL_MAX_LAYERS]; /* where more than two differ, enum sl_layer_kind */
    int32_t state_taps, state_heads, state_groups, state_k_dim, state_v_dim;
    int32_t state_inner; /* GGUF: heads times values of a head; */
    int32_t dt_rank;     /* Mamba 1; 0: a sixteenth of the width */
    bool norm_x;         /* of it: dt, b and c are normed */
    double norm_x_eps;
    int32_t wkv_ranks[4];               /* RWKV-7: as sl_state_desc.ranks; 0: the width decides */
    int32_t attn_offset, expert_offset; /* the first layer of an interval that has it */
    int32_t n_shared_blocks, adapter_rank; /* of attention and an MLP; of what each use adds */
    int32_t state_width;                   /* the same in config.json; 0: */
    int32_t state_expand;                  /* so many times the width of the model */
    bool use_rope;                         /* where attention may have no positions */
    bool wide_beta;                        /* of the delta rule: to 2, not to 1 */
    double value_expand, state_norm_eps;   /* Jet: v_dim to k_dim; of the norm of what comes out, */
    int32_t conv_reduction;                /* and width of v to conv_rank */
    double dt_min, dt_max;                 /* limits of the time step; dt_max 0: none */
    bool bounds_decay;                     /* of the delta rule; its logarithm is at least this */
    double decay_bound;
    bool norm_before_gate; /* of what a recurrence gives */
    /* Multipliers of Falcon-H1: of an MLP's gate and what it gives; of keys; of what goes into
     * attention and comes out, into a recurrence and out; of its gate, x, b, c and dt. */
    double gate_scale, down_scale, key_scale, attn_in_scale, attn_out_scale, state_in_scale,
        state_out_scale, state_scales[5];
    bool fit_intermediate;     /* two thirds of it, times a factor, rounded up to a multiple of */
    double intermediate_scale; /* 0: 1 */
    int32_t intermediate_step; /* 0: it is not rounded */
    int32_t scale_rows, scale_cols; /* blocks of FP8 scales, where their shape says blocks */
    enum sl_int4_kind int4;
    int32_t int4_group;        /* columns that share a scale; -1: all of a row */
    int32_t n_types, n_labels; /* token types of an encoder, outputs of a classifier */
    int32_t pad_id;            /* where places begin behind it (behind_pad) */
    enum sl_act act;
    double swiglu_limit, swiglu_alpha; /* of sl_swiglu */
    double xielu[4][SL_MAX_LAYERS]; /* GGUF: alpha_p and alpha_n before the softplus, beta, eps */
    double layer_limits[SL_MAX_LAYERS];     /* the same, of experts; 0: none; */
    double layer_mlp_limits[SL_MAX_LAYERS]; /* of one MLP or the shared expert */
    bool mlp_bias, is_decoder;              /* the former is read only to refuse it, */
    bool oai_act;                           /* and this to refuse what is neither */
    bool fp8_activations;                   /* of matrices of FP8, as config.json says */
    struct sl_draft_hparams draft;          /* of a drafter that reads hidden rows */
    bool from_gguf;
    /* Of a drafter that looks for a token in the top_clusters likeliest of so many sets of tokens
     * alone; 0: in all. */
    int32_t n_clusters, top_clusters;
};

enum sl_hparam_type {
    SL_HP_INT,
    SL_HP_FLOAT,
    SL_HP_BOOL,
    SL_HP_SWITCH,       /* a bool, or an integer: is it not 0? */
    SL_HP_ONLY,         /* a bool that must be the one given (def) */
    SL_HP_HAS,          /* a bool that sets bits of `has` when true */
    SL_HP_HAS_NOT,      /* a bool that sets bits of `has` when false */
    SL_HP_CHOICE,       /* a string that must be the one given */
    SL_HP_EITHER,       /* one of two strings (`words`): is it the second? */
    SL_HP_ACT,          /* an activation by the name transformers has for it */
    SL_HP_LABELS,       /* an object with a member for each label, counted */
    SL_HP_COUNT,        /* an INT, or a list or a string with an entry for each */
    SL_HP_SAME,         /* an INT, or a list that says the same number for each layer */
    SL_HP_LAYER_TYPES,  /* a list of `words` (GGUF: of booleans), one per layer; or every how many
                           layers one is full; or "LLLG" */
    SL_HP_LAYER_KINDS,  /* a list of `words`, or a string of `letters`, one per layer */
    SL_HP_LAYER_FLAGS,  /* a list of 0 and 1, one per layer */
    SL_HP_LAYER_INTS,   /* numbers of [SL_MAX_LAYERS] int32_t: a list, one for all, or config.json's
                           objects by layer, of which `value` names the member */
    SL_HP_LAYER_FLOATS, /* as LAYER_INTS, [SL_MAX_LAYERS] double; a default for all where absent */
    SL_HP_LAYERS, /* a list of layers, or a string "3,4": theirs of [SL_MAX_LAYERS] uint8_t become
                     1; with a def they become that, and all others SL_LAYER_OFF */
    SL_HP_LAYER_THETAS, /* a number for each layer, 0 or the same: which are rotated, and theta */
};

struct sl_hparam_desc {
    const char *gguf;  /* behind "<architecture>.", or with a "." in front by itself; NULL: not in
                          GGUF files */
    const char *hf[4]; /* spellings in config.json, the first names it in messages; "a.b": the
                          member b of the object a, "a.0": the first of the list a */
    enum sl_hparam_type type;
    uint32_t offset; /* in struct sl_hparams */
    bool required;
    double def;           /* when absent or null; ONLY: 0 or 1, what it must be */
    double hf_def;        /* when config.json does not even say null; 0 = as def */
    double min, max;      /* inclusive, INT and FLOAT */
    int32_t times;        /* INT of config.json: what is read counts so many times; 0: once */
    unsigned has;         /* HAS, HAS_NOT */
    const char *value;    /* CHOICE, LAYER_INTS */
    const char *words[4]; /* EITHER; LAYER_TYPES: of a layer that is OFF, of one that is ON; NULL:
                             those of attention, full and sliding; LAYER_KINDS: of each kind, */
    const char *letters;  /* or these */
    bool spelled;         /* FLOAT: a string will do, as what YAML makes of 1e-5 */
    bool repeats;         /* LAYER_TYPES: a list shorter than the model begins again */
    bool longer;          /* LAYER_INTS: a list may have more entries than there are layers */
    bool from_one;        /* LAYERS: the first layer's number is 1 */
    bool or_true;         /* CHOICE: true says the same */
};

/* What config.json says in a list of LAYER_TYPES. */
static inline const char *sl_layer_word(const struct sl_hparam_desc *row, bool on)
{
    return row->words[on] != NULL ? row->words[on] : on ? "sliding_attention" : "full_attention";
}

/* ---------------------------------------------------------------- weights */

enum sl_slot { /* the places a forward step reads weights from */
               SL_SLOT_ATTN_NORM,
               SL_SLOT_Q,
               SL_SLOT_K,
               SL_SLOT_V,
               SL_SLOT_O,
               SL_SLOT_Q_BIAS,
               SL_SLOT_K_BIAS,
               SL_SLOT_V_BIAS,
               SL_SLOT_O_BIAS,
               SL_SLOT_Q_NORM,
               SL_SLOT_K_NORM,
               SL_SLOT_FFN_NORM,
               SL_SLOT_GATE,
               SL_SLOT_UP,
               SL_SLOT_DOWN,
               SL_SLOT_ATTN_NORM_BIAS,
               SL_SLOT_FFN_NORM_BIAS,
               SL_SLOT_GATE_BIAS,
               SL_SLOT_UP_BIAS,
               SL_SLOT_DOWN_BIAS,
               SL_SLOT_ATTN_OUT_NORM, /* of what attention adds */
               SL_SLOT_FFN_OUT_NORM,
               SL_SLOT_ROUTER,
               SL_SLOT_EXPERTS_GATE, /* a matrix for each expert */
               SL_SLOT_EXPERTS_UP,
               SL_SLOT_EXPERTS_DOWN,
               SL_SLOT_SINKS,    /* of attention, a logit for each head */
               SL_SLOT_OUT_GATE, /* of what it gives: rows for each value, or one for each head */
               SL_SLOT_ROUTER_BIAS,
               SL_SLOT_EXPERTS_GATE_BIAS, /* a vector for each expert */
               SL_SLOT_EXPERTS_UP_BIAS,
               SL_SLOT_EXPERTS_DOWN_BIAS,
               SL_SLOT_CHOICE_BIAS,
               SL_SLOT_SHARED_GATE, /* of the MLP */
               SL_SLOT_SHARED_UP,
               SL_SLOT_SHARED_DOWN,
               SL_SLOT_SHARED_LOGIT,     /* one row */
               SL_SLOT_SHARED_OUT_NORM,  /* of branches: of what the MLP gives, */
               SL_SLOT_EXPERTS_NORM,     /* of what goes into experts, */
               SL_SLOT_EXPERTS_OUT_NORM, /* of what comes out, */
               SL_SLOT_ROUTER_NORM,      /* of what goes into the router */
               SL_SLOT_EXPERT_SCALE,     /* of the weight of each expert */
               SL_SLOT_LATENT_DOWN,      /* to the space of experts, and back */
               SL_SLOT_LATENT_UP,
               SL_SLOT_LAYER_SCALE,
               SL_SLOT_XIELU_ALPHA_P, /* parameters of the activation, a value each */
               SL_SLOT_XIELU_ALPHA_N,
               SL_SLOT_XIELU_BETA,
               SL_SLOT_XIELU_EPS,
               SL_SLOT_INPUT_GATE, /* of the layer's own input, its way back, and the norm of that
                                    */
               SL_SLOT_INPUT_OUT,
               SL_SLOT_INPUT_OUT_NORM,
               SL_SLOT_STREAM_NORM, /* of what a router of streams reads, and the router; */
               SL_SLOT_STREAM_ROUTER,
               SL_SLOT_STREAM_PREDICT, /* weights of streams before a layer and behind it */
               SL_SLOT_STREAM_CORRECT,
               SL_SLOT_STREAM_SCALE, /* of what the layer's own input is gated by */
               SL_SLOT_LAUREL_LEFT,  /* beside attention */
               SL_SLOT_LAUREL_RIGHT,
               SL_SLOT_LAUREL_NORM,
               SL_SLOT_MLA_Q_DOWN, /* of latent attention: queries by way of a row of q_rank
                                      values, normed (then Q reads that); */
               SL_SLOT_MLA_Q_NORM,
               SL_SLOT_MLA_C, /* what is kept of a token, normed, */
               SL_SLOT_MLA_C_NORM,
               SL_SLOT_MLA_K_ROPE,     /* and of its keys what is rotated; */
               SL_SLOT_MLA_K_UP,       /* for each head: queries to the space of what is kept, */
               SL_SLOT_MLA_V_UP,       /* and values out of it */
               SL_SLOT_ATTN_NORM_DOWN, /* of gates of norms */
               SL_SLOT_ATTN_NORM_UP,
               SL_SLOT_FFN_NORM_DOWN,
               SL_SLOT_FFN_NORM_UP,
               SL_SLOT_INDEX_Q, /* of the index of sparse attention: its queries, of the row
                                   queries are made of, */
               SL_SLOT_INDEX_K, /* its key, */
               SL_SLOT_INDEX_K_NORM,
               SL_SLOT_INDEX_K_NORM_BIAS,
               SL_SLOT_INDEX_W,      /* how much each of its queries counts, */
               SL_SLOT_INDEX_Q_NORM, /* and, where blocks are chosen, their norm */
               SL_SLOT_O_DOWN,  /* a matrix for each group of heads; then O reads what these give */
               SL_SLOT_ROWS_KV, /* of rows made of several tokens: what a token has for them, */
               SL_SLOT_ROWS_GATE, /* how much that counts, */
               SL_SLOT_ROWS_BIAS, /* and with its place among the tokens */
               SL_SLOT_ROWS_NORM,
               SL_SLOT_INDEX_ROWS_KV, /* the same of the index' rows */
               SL_SLOT_INDEX_ROWS_GATE,
               SL_SLOT_INDEX_ROWS_BIAS,
               SL_SLOT_INDEX_ROWS_NORM,
               SL_SLOT_HYPER_ATTN, /* of hyper-connections: what weights are made by; */
               SL_SLOT_HYPER_ATTN_BASE,
               SL_SLOT_HYPER_ATTN_SCALE,
               SL_SLOT_HYPER_FFN,
               SL_SLOT_HYPER_FFN_BASE,
               SL_SLOT_HYPER_FFN_SCALE,
               /* of layers with a recurrent state: */
               SL_SLOT_STATE_IN,   /* what goes through the convolution, channel by channel, */
               SL_SLOT_STATE_GATE, /* what gates that which comes out, */
               SL_SLOT_STATE_DT,   /* how long a step is for each head, or how much it decays, */
               SL_SLOT_STATE_BETA, /* how much of it is new; */
               SL_SLOT_STATE_GATE_DOWN, /* of low_rank: what the gate and the decay are made of */
               SL_SLOT_STATE_DT_DOWN,
               SL_SLOT_STATE_IN_BIAS,
               SL_SLOT_STATE_GATE_BIAS,
               SL_SLOT_STATE_DT_IN_BIAS,
               SL_SLOT_STATE_DT_BIAS, /* inside the softplus */
               SL_SLOT_CONV,          /* [channels, taps] values */
               SL_SLOT_CONV_BIAS,
               SL_SLOT_CONV_DOWN, /* of conv_rank: what a token's own taps are made of, */
               SL_SLOT_CONV_UP,   /* by channel, then by tap, */
               SL_SLOT_CONV_UP_BIAS,
               SL_SLOT_STATE_A, /* of the decay, below 0 */
               SL_SLOT_STATE_D, /* of what goes in, added to what comes out */
               SL_SLOT_STATE_NORM,
               SL_SLOT_STATE_OUT,
               SL_SLOT_STATE_OUT_BIAS,
               SL_SLOT_STATE_X, /* Mamba 1: of what left the convolution, the rank of dt, */
               SL_SLOT_STATE_B, /* b and c */
               SL_SLOT_STATE_C,
               SL_SLOT_STATE_DT_UP,     /* from that rank to dt of each channel; */
               SL_SLOT_STATE_RANK_NORM, /* norms of these three */
               SL_SLOT_STATE_B_NORM,
               SL_SLOT_STATE_C_NORM,
               SL_SLOT_LRU_IN, /* of linear recurrent units: gates of what left the convolution, of
                                  what goes in and of the decay, a matrix for each head */
               SL_SLOT_LRU_DECAY,
               SL_SLOT_LRU_IN_BIAS,
               SL_SLOT_LRU_DECAY_BIAS,
               SL_SLOT_STATE_SHIFT, /* RWKV-7: how far tokens are mixed with the one before, for
                                       each input; the same of its MLP; */
               SL_SLOT_FFN_SHIFT,
               SL_SLOT_WKV_R, /* products of these, some of low rank, */
               SL_SLOT_WKV_K,
               SL_SLOT_WKV_V,
               SL_SLOT_WKV_DECAY_DOWN,
               SL_SLOT_WKV_DECAY_UP,
               SL_SLOT_WKV_DECAY_BIAS,
               SL_SLOT_WKV_RATE_DOWN,
               SL_SLOT_WKV_RATE_UP,
               SL_SLOT_WKV_RATE_BIAS,
               SL_SLOT_WKV_VALUE_DOWN,
               SL_SLOT_WKV_VALUE_UP,
               SL_SLOT_WKV_VALUE_BIAS,
               SL_SLOT_WKV_GATE_DOWN,
               SL_SLOT_WKV_GATE_UP,
               SL_SLOT_WKV_K_K, /* and factors of keys, and of what they add to the output */
               SL_SLOT_WKV_K_A,
               SL_SLOT_WKV_R_K,
               SL_SLOT_STATE_NORM_BIAS,
               SL_SLOT_BLOCK_NORM, /* of a block of attention and an MLP that layers share: of what
                                      it reads, its matrices, the way to the layer, */
               SL_SLOT_BLOCK_Q,
               SL_SLOT_BLOCK_K,
               SL_SLOT_BLOCK_V,
               SL_SLOT_BLOCK_O,
               SL_SLOT_BLOCK_GATE,
               SL_SLOT_BLOCK_UP,
               SL_SLOT_BLOCK_DOWN,
               SL_SLOT_BLOCK_END,
               SL_SLOT_USE_Q_DOWN, /* and thin matrices beside these, of each use */
               SL_SLOT_USE_K_DOWN,
               SL_SLOT_USE_V_DOWN,
               SL_SLOT_USE_Q_UP,
               SL_SLOT_USE_K_UP,
               SL_SLOT_USE_V_UP,
               SL_SLOT_USE_MLP_DOWN,
               SL_SLOT_USE_GATE_UP,
               SL_SLOT_USE_UP_UP,
               /* once per model */
               SL_SLOT_EMBED,
               SL_SLOT_FINAL_NORM,
               SL_SLOT_FINAL_NORM_BIAS,
               SL_SLOT_HEAD,
               SL_SLOT_HEAD_BIAS,
               SL_SLOT_ROPE_FREQS,
               SL_SLOT_ROPE_SHORT, /* factors of LongRoPE */
               SL_SLOT_ROPE_LONG,
               SL_SLOT_POSITIONS, /* learned, of an encoder */
               SL_SLOT_TYPES,
               SL_SLOT_EMBED_NORM,
               SL_SLOT_EMBED_NORM_BIAS,
               SL_SLOT_LAYER_EMBED, /* for each layer; the projection of embeddings, its norm */
               SL_SLOT_LAYER_PROJ,
               SL_SLOT_LAYER_PROJ_NORM,
               SL_SLOT_STREAMS_IN, /* a matrix for each stream but the first */
               SL_SLOT_STREAMS_OUT,
               SL_SLOT_HYPER_HEAD, /* of hyper-connections, behind the last layer; without it the
                                      head reads the mean of the streams */
               SL_SLOT_HYPER_HEAD_BASE,
               SL_SLOT_HYPER_HEAD_SCALE,
               SL_SLOT_POOLER, /* of a classifier */
               SL_SLOT_POOLER_BIAS,
               SL_SLOT_CLASSIFIER,
               SL_SLOT_CLASSIFIER_BIAS,
               /* of a drafter that reads hidden rows of the model it drafts for (struct
                  sl_draft_desc): norms of such rows, of each tap or of all together, and the
                  product that makes one row of them; norms of embedding and hidden row, and the
                  product that makes the input of the layers of both */
               SL_SLOT_TAP_NORMS,
               SL_SLOT_TAPS_NORM,
               SL_SLOT_TAPS_IN,
               SL_SLOT_DRAFT_EMBED_NORM,
               SL_SLOT_DRAFT_HIDDEN_NORM,
               SL_SLOT_DRAFT_JOIN,
               SL_SLOT_DRAFT_EMBED_IN, /* of hyper-connections: the product of the embedding alone,
                                          beside that of each stream */
               SL_SLOT_DRAFT_MASK_ROW, /* what stands for a hidden row of the model that is not
                                          there yet */
               /* of a block's drafts that depend on those before them (draft_chain.c): two tables
                  of tokens, what mixes a row of the first with the hidden row, how likely a draft
                  is */
               SL_SLOT_CHAIN_PREV,
               SL_SLOT_CHAIN_NEXT,
               SL_SLOT_CHAIN_MIX,
               SL_SLOT_CHAIN_MIX_BIAS,
               SL_SLOT_CHAIN_ODDS,
               SL_SLOT_CHAIN_ODDS_BIAS,
               SL_SLOT_DENSE_1, /* behind the pooling, in no family's table: dense.c */
               SL_SLOT_DENSE_1_BIAS,
               SL_SLOT_DENSE_2,
               SL_SLOT_DENSE_2_BIAS,
               /* of a drafter that borrows keys: the product that makes a row as the model's of its
                  own; of sets of tokens, and of tokens in place of the head (draft_clusters.c) */
               SL_SLOT_DRAFT_OUT,
               SL_SLOT_CLUSTERS,
               SL_SLOT_CLUSTER_ROWS,
               SL_SLOT_COUNT
};
#define SL_SLOT_FIRST_GLOBAL SL_SLOT_EMBED

/* A matrix whose rows are looked up. */
static inline bool sl_slot_is_rows(enum sl_slot slot)
{
    return slot == SL_SLOT_EMBED || slot == SL_SLOT_POSITIONS || slot == SL_SLOT_TYPES ||
           slot == SL_SLOT_LAYER_EMBED || slot == SL_SLOT_CHAIN_PREV ||
           slot == SL_SLOT_CLUSTER_ROWS;
}

enum sl_dim { /* a dimension by its symbol; those of a layer are as its sl_layer_desc says */
              SL_DIM_NONE,
              SL_DIM_H,        /* hidden */
              SL_DIM_ADAPTER,  /* of the thin matrices beside a shared block's */
              SL_DIM_I,        /* intermediate, of a layer: of each expert where it has some */
              SL_DIM_E,        /* experts, of a layer */
              SL_DIM_ROUTED,   /* these and those that give back what they read */
              SL_DIM_S,        /* intermediate of its shared expert */
              SL_DIM_EXPERT_H, /* width of what goes into an expert and comes out */
              SL_DIM_LATENT,   /* the same, where it is not hidden; else there is no tensor */
              SL_DIM_ATTN_NORM_RANK, /* of gates of norms; 0: there are none */
              SL_DIM_FFN_NORM_RANK,
              SL_DIM_V,              /* vocabulary */
              SL_DIM_Q,              /* n_heads * head_dim, of a layer */
              SL_DIM_K,              /* n_kv_heads * head_dim, of a layer */
              SL_DIM_VALUES,         /* n_kv_heads * v_dim, of a layer */
              SL_DIM_ATT,            /* what a layer's mixer gives; attention: n_heads * v_dim */
              SL_DIM_HD,             /* head_dim, of a layer */
              SL_DIM_HEADS,          /* n_heads, of a layer */
              SL_DIM_KV_HEADS,       /* n_kv_heads, of a layer, */
              SL_DIM_MODEL_KV_HEADS, /* of the model, where those of some layers differ */
              SL_DIM_ROPE,           /* frequencies of the model's first table of rotations */
              SL_DIM_FULL_HD_HALF,   /* half head_dim of layers without a window */
              SL_DIM_W,              /* width of a layer's own input */
              SL_DIM_LAYERS_W,       /* of those of all layers */
              SL_DIM_STREAMS,        /* residual streams, */
              SL_DIM_STREAMS_2,      /* its square, */
              SL_DIM_MORE_STREAMS,   /* those behind the first */
              SL_DIM_LAUREL,         /* of the thin matrices beside attention */
              SL_DIM_V_LAYERS,       /* vocabulary of embeddings for each layer */
              SL_DIM_CONV,           /* channels of a layer's convolution, */
              SL_DIM_CONV_IN,        /* rows of what goes into it: with its gates */
              SL_DIM_TAPS,           /* its taps */
              SL_DIM_STATE_HEADS,    /* heads with a state, of a layer, */
              SL_DIM_STATE_GROUPS,   /* groups of them, */
              SL_DIM_STATE_DT,       /* values of a token that its decay is made of, */
              SL_DIM_STATE_ROWS,     /* heads * values of a head: what a recurrence gives, */
              SL_DIM_STATE_KEYS,     /* groups * k_dim: of keys, or of b and c, */
              SL_DIM_STATE_K,        /* k_dim */
              SL_DIM_STATE_V,        /* values of a head */
              SL_DIM_STATE_LOW,      /* low_rank */
              SL_DIM_CONV_RANK,      /* conv_rank, */
              SL_DIM_CONV_KERNEL,    /* and the taps of all channels that have them */
              SL_DIM_STATE_RANK,     /* of dt, Mamba 1; */
              SL_DIM_STATE_X,        /* that and twice k_dim */
              SL_DIM_SHIFTS,         /* hidden, for each mixture of time mixing (RWKV-7), */
              SL_DIM_WKV_DECAY,      /* ranks of its products; */
              SL_DIM_WKV_RATE,
              SL_DIM_WKV_VALUE, /* 0 in the first layer, */
              SL_DIM_WKV_GATE,
              SL_DIM_WKV_VALUE_BIAS, /* and so is this; else heads * values of a head */
              SL_DIM_MLA_Q_RANK, /* of latent attention: of the row queries are made of, 0: none; */
              SL_DIM_MLA_Q_IN,   /* what these read: that row, or both forms of it; */
              SL_DIM_MLA_RANK,   /* of what is kept of a token for all heads, */
              SL_DIM_MLA_NOPE,   /* of a head's queries and keys: what is not rotated */
              SL_DIM_MLA_ROPE,   /* and what is, */
              SL_DIM_MLA_V,      /* values of a head; */
              SL_DIM_MLA_Q,      /* queries of all heads, */
              SL_DIM_MLA_Q_ALONE, /* where they are made at once, without such a row; else 0 */
              SL_DIM_MLA_ATT,     /* heads times what is kept; */
              SL_DIM_INDEX_Q, /* of the index of sparse attention: its queries, 0: there is none,
                               */
              SL_DIM_INDEX_K, /* values of one and of its key, */
              SL_DIM_INDEX_HEADS, /* and how many queries it has */
              SL_DIM_O_GROUPS, /* groups of heads, 0: there are none; what a product of one reads */
              SL_DIM_O_IN,     /* and gives; */
              SL_DIM_O_RANK,
              SL_DIM_O_LOW,   /* all that they give */
              SL_DIM_ROWS_KV, /* of rows made of several tokens, 0: there are none: what a token has
                                 for them, */
              SL_DIM_ROWS_BIAS,     /* that of each of its places, */
              SL_DIM_ROWS,          /* and a row; */
              SL_DIM_INDEX_ROWS_KV, /* the same of the index */
              SL_DIM_INDEX_ROWS_BIAS,
              SL_DIM_INDEX_ROWS,
              SL_DIM_HYPER,   /* streams of hyper-connections, */
              SL_DIM_HYPER_H, /* all of them side by side, */
              SL_DIM_HYPER_W, /* weights of a row, and how many scales these have */
              SL_DIM_HYPER_SCALES,
              SL_DIM_2H,        /* of an embedding and a hidden row, or the stream, side by side, */
              SL_DIM_MIX_IN,    /* what a layer's attention reads: that, or hidden; */
              SL_DIM_TARGET_H,  /* of a hidden row of the model drafted for, */
              SL_DIM_TAP_COUNT, /* taps of it, */
              SL_DIM_TAPS_H,    /* all of them side by side */
              SL_DIM_DRAFT_V,   /* vocabulary of drafts */
              SL_DIM_CHAIN,     /* of a row of the tables of a chain, */
              SL_DIM_CHAIN_IN,  /* what is mixed with it, */
              SL_DIM_CHAIN_MIX, /* and comes of that; */
              SL_DIM_CHAIN_ODDS, /* what odds are made of */
              SL_DIM_CONTEXT,    /* positions */
              SL_DIM_TYPES,      /* token types */
              SL_DIM_LABELS,     /* of a classifier */
              SL_DIM_ONE,
              SL_DIM_TARGET_2H, /* an embedding and a hidden row of the model drafted for, side by
                                   side, */
              SL_DIM_CLUSTERS,  /* sets of tokens */
};

/* How ranks divide it. Never by columns: a product whose sum is split between ranks has other bits
 * than the same product on one. So O and DOWN are divided by rows too, and ranks gather the
 * activations that go into them (ranks.c). */
enum sl_shard {
    SL_SHARD_NONE, /* every rank has all of it */
    SL_SHARD_ROWS,
    SL_SHARD_HEADS,    /* rows, in whole query heads */
    SL_SHARD_KV_HEADS, /* rows, in whole KV heads */
};

enum sl_weight_flags {
    SL_W_ROPE_ROWS = 1 << 0, /* rows are head dimensions that RoPE pairs up */
    SL_W_PLUS_ONE =
        1 << 1,          /* the norm's weights are 1 + w: safetensors hold w, GGUF files the sum */
    SL_W_TURNS = 1 << 2, /* in the fused tensor the rows of its parts, equally many, take turns */
    SL_W_TRANSPOSED = 1 << 3,   /* the fused tensor is [cols, rows]; not where it is MXFP4 */
    SL_W_OVER_ROOT = 1 << 4,    /* a vector that is divided by the root of the width */
    SL_W_OVER_WIDTH = 1 << 7,   /* likewise, by the width */
    SL_W_TO_WIDTH = 1 << 15,    /* a vector that is multiplied by the root of the width divided by
                                   its own length */
    SL_W_FOLDER_TURNS = 1 << 6, /* `turns` are those of folders; GGUF files have the parts one after
                                   another */
    SL_W_VALUES = 1 << 8,       /* a matrix kept as float32, column by column (kernels read a value
                                   of many rows at once); a file may have it with a dimension of 1
                                   between rows and columns */
    SL_W_MINUS_EXP = 1 << 9,    /* a vector, or values: safetensors hold the logarithm of what GGUF
                                   files hold negated, as kernels want it */
    SL_W_FLAT = 1 << 5,         /* a vector that a file may hold as a matrix */
    SL_W_TIED = 1 << 11,        /* that of the layer `tied_to` */
    SL_W_OF_USE = 1 << 12,      /* in its name '*' is the layer `tied_to` and '#' the use of it */
    SL_W_OF_TARGET = 1 << 13,   /* of a drafter: where the file has none, or `hf` and `gguf` are
                                   NULL, the model's that it drafts for */
    SL_W_PART_TRANSPOSED = 1 << 14, /* in the fused tensor this part is [cols, rows]; what is not
                                       f32, f16 or bf16 becomes bf16 (turned.c) */
    SL_W_LRU_RATE = 1 << 10, /* a vector: kernels want -8 ln(1 + exp(x)) of what a file holds */
};

enum { SL_MAX_FUSED = 6 };  /* parts of a tensor */
enum { SL_MAX_PIECES = 6 }; /* tensors of a weight */

struct sl_weight_desc {
    enum sl_slot slot;
    const char *hf;   /* '*' stands for the layer, '#' for the matrix of a stack, "{q,k,v}" for
                         the word of a piece, '%' and '@' for half the layer and the rest of that
                         (hf_layers); a leading "model." may be absent in a file */
    const char *gguf; /* NULL: not in that container */
    /* A fused tensor, which a file may have in place of one for each part. NULL: there is none. */
    const char *hf_fused, *gguf_fused;
    enum sl_dim fused[SL_MAX_FUSED]; /* the rows of its parts, in their order */
    int32_t part;                    /* which of them this weight is, or begins with */
    enum sl_dim turns;               /* the parts take turns, in each of so many rounds an equal
                                        share of the rows of each; NONE: one after another */
    enum sl_dim mats; /* a stack of so many matrices: a tensor each, or without a '#' one tensor
                         [mats, rows, cols]; NONE: one matrix */
    enum sl_dim rows, cols; /* cols NONE: a vector, kept as float32 */
    /* The rows lie in several tensors, one below the other, of so many rows each; what is kept as
     * float32 becomes one array, matrices stay one each, in their own formats. Read from a fused
     * tensor, pieces are its parts from `part` on. NONE first: one tensor. */
    enum sl_dim pieces[SL_MAX_PIECES];
    enum sl_shard shard;
    unsigned when; /* enum sl_has: present iff the layer, or the model, has these bits; 0: always */
    unsigned flags;
};

/* Tensors of a weight; 0: it is not in pieces. */
static inline int32_t sl_weight_n_pieces(const struct sl_weight_desc *w)
{
    int32_t n = 0;
    while (n < SL_MAX_PIECES && w->pieces[n] != SL_DIM_NONE)
        n++;
    return n;
}

/* Kept as float32; else it is a matrix of products, or of rows. */
static inline bool sl_weight_is_values(const struct sl_weight_desc *w)
{
    return w->cols == SL_DIM_NONE || (w->flags & SL_W_VALUES) != 0;
}

/* ---------------------------------------------------------------- layers */

enum sl_mixer {
    SL_MIX_GQA,
    SL_MIX_MLA,   /* latent attention: of a token one row is kept for the keys and values of all
                     heads */
    SL_MIX_ROWS,  /* attention to a window and to rows made of several tokens each (DeepSeek V4) */
    SL_MIX_NONE,  /* the layer is its MLP alone */
    SL_MIX_CONV,  /* a gated short convolution (LFM2) */
    SL_MIX_DELTA, /* the gated delta rule behind a convolution */
    SL_MIX_SSM,   /* a state space model behind a convolution (Mamba) */
    SL_MIX_LRU,   /* a linear recurrent unit behind a convolution (Griffin) */
    SL_MIX_BOTH,  /* attention and a state space model side by side, whose outputs are added */
    SL_MIX_WKV,   /* RWKV-7's time mixing */
    SL_MIX_BLOCK, /* a block of attention and an MLP of the stream and the embedding, which adds to
                     what a state space model reads (Zamba 2) */
};
enum sl_ffn {
    SL_FFN_GATED,
    SL_FFN_PLAIN,
    SL_FFN_EXPERTS,
    SL_FFN_NONE /* the layer is its mixer alone */
};
enum { SL_WKV_RANKS = 4 };
enum sl_norm_kind { SL_NORM_RMS, SL_NORM_LAYER /* with a mean, maybe with a bias */ };
/* What q and k are normed by, before they are rotated. */
enum sl_qk_norm {
    SL_QK_NORM_NONE,
    SL_QK_NORM_HEADS /* each head */,
    SL_QK_NORM_ROWS /* all heads */,
    SL_QK_NORM_BARE /* each head, without weights */
};

/* Where the norms of a sublayer f (attention, MLP) stand; x is the residual stream. */
enum sl_norm_place {
    SL_NORM_IN = 1 << 0,  /* x + f(norm(x)) */
    SL_NORM_OUT = 1 << 1, /* x + norm(f(x)); with IN: x + norm(f(norm(x))) */
    SL_NORM_SUM = 1 << 2, /* norm(x + f(x)), alone */
};

/* The shape of a recurrent layer. Channels of its convolution, in their order: CONV the hidden
 * width; DELTA queries and keys of all groups, values; SSM x, b and c of all groups (Mamba 1: x);
 * LRU x, of which each channel has a state of one value (k_dim 1), and each head its gates. WKV has
 * no convolution, but the token before as such a tail would have it. */
struct sl_state_desc {
    int32_t n_taps;
    int32_t n_heads, n_groups;   /* of values; of keys, or of b and c */
    int32_t k_dim, v_dim;        /* of a head: its state is [k_dim, v_dim] */
    int32_t ranks[SL_WKV_RANKS]; /* WKV: of decay, rate, values (0: they are not mixed), gate */
    int32_t dt_rank;             /* Mamba 1; 0: dt comes of the layer's input */
    int32_t low_rank;            /* DELTA: of a row that the gate is made of, and of one that the
                                    decay is; 0: they come of the layer's input */
    int32_t conv_rank;    /* DELTA: of a row that the taps of v are made of, token by token; q
                             and k have none then. 0: taps are weights */
    bool norm_x;          /* Mamba 1: dt, b and c are normed */
    bool by_row;          /* DELTA: a decay for each row of the state, */
    bool tiled;           /* and head h belongs to group h % n_groups: heads of a group are not
                             neighbours */
    float beta_scale;     /* DELTA, */
    float bound;          /* and by_row what the logarithm of a decay is not below; 0: nothing */
    float dt_min, dt_max; /* SSM */
    float norm_eps;
    bool norm;         /* what comes out is normed, by group of heads, */
    bool norm_heads;   /* by head and with the same weights for each, */
    bool gate_first;   /* behind the gate, not before it; */
    bool sigmoid_gate; /* the gate's activation, else silu */
    /* What is multiplied, 0: by 1: the gate before its activation, dt before its bias, channels of
     * x, b and c before the convolution; BOTH: what is added to attention's output. */
    float gate_scale, dt_scale, in_scale[3], out_scale;
};

/* The shape of latent attention (MLA). In the pages a layer has one key head of rank + rope_dim
 * dimensions, whose first `rank` are the values too: that is what head_dim and v_dim of its
 * sl_layer_desc say. The matrices that keys and values of a head would be made with are applied to
 * its query, and to what attention gives. */
struct sl_mla_desc {
    int32_t q_rank;                    /* 0: queries are one product */
    int32_t rank;                      /* of what is kept of a token */
    int32_t nope_dim, rope_dim, v_dim; /* of a head */
    float norm_eps;                    /* of the norms of both rows */
    bool both_q; /* queries, and what gates the output, are made of the row of q_rank values as it
                    is normed and, behind that, as it was */
};

/* The shape of attention to a window and to rows made of several tokens (MIX_ROWS), of which mla
 * has q_rank, rope_dim and norm_eps. Of latent attention `ratio` alone: its index has such rows, of
 * the keys of so many tokens each, which are normed before and not rotated. */
struct sl_rows_desc {
    int32_t ratio;            /* tokens that make a row; 0: there are none */
    bool overlap;             /* and those before them */
    int32_t o_groups, o_rank; /* of the output's first product */
};

/* The index that chooses what a row of latent attention sees (DSA), or, in blocks, one of grouped
 * heads: there each key head has a query of its own, made of what attention reads. */
struct sl_index_desc {
    int32_t top_k;          /* positions, blocks, or rows of the layer's rows.ratio tokens; 0: there
                               is no index, a row sees all */
    int32_t block, n_local; /* of struct sl_op_index_select; 0: positions are chosen */
    int32_t n_heads, dim;   /* its queries; n_heads 0: the layer has none of its own, but sees what
                               the nearest one before it with an index has chosen */
    enum sl_rope_pairing pairing; /* of values of queries and keys, as many as the layer rotates of
                                     its own, */
    int32_t rope_from;            /* from this one on */
    float norm_eps;
};

/* One layer of the walk in run.c: all that is known of its shape. */
struct sl_layer_desc {
    unsigned has; /* enum sl_has: which optional tensors it has */
    bool joined;  /* attention reads an embedding and a hidden row side by side, 2 H values */
    enum sl_mixer mixer;
    struct sl_state_desc state; /* of mixers that have one */
    struct sl_mla_desc mla;     /* of SL_MIX_MLA; else all 0 */
    struct sl_index_desc index; /* likewise */
    struct sl_rows_desc rows;   /* of SL_MIX_ROWS */
    bool hashed;                /* tokens choose their experts (hash_route.c) */
    enum sl_ffn ffn;
    bool shifts_ffn; /* it reads tokens mixed with the one before (PLAIN) */
    enum sl_act act;
    enum sl_norm_kind norm;
    unsigned norms; /* enum sl_norm_place */
    /* What such a norm gives is multiplied by a gate that comes of it: y sigmoid(up silu(down y)),
     * by way of so many values; 0: it is not. */
    int32_t attn_norm_rank, ffn_norm_rank;
    bool parallel; /* x + attention(norm(x)) + mlp(norm(x)), by one norm or one for each */
    enum sl_qk_norm qk_norm;
    bool qk_norm_after; /* they are rotated; of heads only */
    float clip; /* q, k and v are kept within it, before they are rotated; 0: they are not */
    struct sl_q_temperature temperature;
    int32_t n_heads, n_kv_heads;
    int32_t head_dim, v_dim;        /* of q and k, of v */
    int32_t intermediate;           /* of one MLP, of each expert */
    int32_t n_experts, top_experts; /* 0: it has none; of a token */
    int32_t n_pass;                 /* experts behind these, without matrices: they give back what
                                       they read */
    bool late_experts; /* what experts give is added to the stream behind the next layer, and only
                          what the shared one gives behind this */
    float router_softcap;        /* of the logits that score them; 0: none */
    struct sl_route_rule route;  /* by which they are chosen */
    bool weigh_input;            /* weights multiply what goes into an expert */
    bool plain_experts;          /* down(relu2(up x)), without a gate; the shared one as well */
    int32_t latent;              /* width of what goes into them, a projection; 0: hidden */
    int32_t shared_intermediate; /* of the shared expert; 0: there is none */
    struct sl_swiglu swiglu;     /* of experts; with a limit: in place of act */
    struct sl_swiglu mlp_swiglu; /* likewise, of one MLP or the shared expert */
    struct sl_xielu xielu;       /* of act SL_ACT_XIELU, after loading */
    int32_t rope;                /* which of the model's tables; -1: positions are not rotated in */
    bool whole;                  /* a token sees all of its text, else itself and those before it */
    int32_t window;              /* how many of them, with itself; 0: all */
    bool chunks;                 /* or those of its own chunk of so many */
    int32_t kv_source; /* the layer in whose part of a page its keys lie: itself, or one that is
                          done with them */
    int32_t tied_to;   /* the layer whose weights with SL_W_TIED it has: itself, or one before it */
    int32_t use;       /* which of all uses of such weights in the model */
    bool shares_kv;    /* it makes no keys and values but reads those of kv_source, whose heads and
                          window are the same */
    bool softplus_gate;   /* of SL_HAS_OUT_GATE: its softplus counts, not its sigmoid */
    bool v_is_k;          /* values are what keys are made of, before their norm and rotation */
    bool norm_v;          /* values are normed by head, without weights */
    float attn_scale;     /* of q . k */
    float softcap;        /* of scores; 0: none */
    float attn_end_scale; /* of the stream behind attention; 0: 1 */
    bool cuts_gate;       /* what is below the mean and so many deviations, by row */
    float gate_deviations;
    float residual_scale; /* of what its sublayers add to the stream */
    float mlp_scale;      /* the same, of the MLP alone */
    float gate_scale;     /* of its gate before the activation; 0: 1 */
    float value_scale;    /* of values; as attention is linear in them, of what it adds */
};

/* ---------------------------------------------------------------- families */

/* Where the files say what a table of rotations is. */
struct sl_rope_desc {
    const char *kind; /* member of rope_parameters; NULL: that object itself */
    /* config.json's older spelling, there maybe a list with an entry for each layer; behind
     * "<architecture>." */
    const char *hf_theta, *gguf_theta;
    const char *hf_partial; /* another spelling of partial_rotary_factor, or NULL; as hf_theta */
    double theta;           /* when absent */
    bool scaled;            /* rope_scaling and the GGUF's keys of scaling are of it */
    enum sl_rope_pairing pairing; /* of dimensions in config.json's order */
    bool tenth_multiplier;        /* a GGUF's yarn_log_multiplier is a tenth of mscale_all_dim */
    bool plain_factor;            /* YaRN's attention_factor is 1 where config.json has none */
    bool unrounded;               /* the ends of YaRN's ramp, which a GGUF does not say */
    double partial;      /* the share of a head that is rotated when absent; 0: it is always all */
    double gguf_partial; /* likewise of a GGUF, which does not say it; 0: all */
    const struct sl_rope_params *hf_absent; /* of a config.json without rope_parameters and
                                               rope_scaling, whatever else it says; NULL: no
                                               scaling */
};
extern const struct sl_rope_desc sl_rope_one[1]; /* the usual: one for all layers */
/* Gemma 4's, and of what drafts for it: of full layers, of windowed ones. */
extern const struct sl_rope_desc sl_rope_gemma4[2];

/* The module of a family's checkpoints that predicts further tokens (MTP): one more layer of the
 * family's own tables, between an input and an end of its own. */
struct sl_draft_desc {
    const struct sl_weight_desc *weights; /* of input and end; '*' stands for the layer */
    int32_t n_weights;
    const char *hf_layers; /* what "model.layers.*." is called; NULL: it is the layer behind the
                              last one */
    bool hidden_first;     /* struct sl_draft_hparams */
    /* What lists of config.json would say of the layer, were it in them. */
    enum sl_layer_choice attends, windowed, experts;
};

struct sl_model_name { /* one member of a family: how files call it */
    const char *id;    /* what we call it */
    const char *hf_architecture, *hf_model_type, *gguf_architecture;
    unsigned has;       /* tensors every checkpoint of it has */
    unsigned gguf_has;  /* bits of every GGUF, which does not say them */
    unsigned hf_shown;  /* bits that tensors say of a folder, as those of a GGUF do */
    int32_t head_dim;   /* default in config.json; 0 = hidden / heads */
    double rope_theta;  /* default in config.json; 0 = the table's */
    bool no_head;       /* gives its last layer's output, not logits */
    bool per_token;     /* gives a vector for each token (ColBERT) */
    bool all_windowed;  /* sliding_window, where given, holds for every layer */
    bool window_absent; /* config.json without that key means no window, not the table's default */
    bool gguf_experts;  /* GGUF files are its if they say how many experts there are; else they
                           are of a later family with the same gguf_architecture */
    const char *hf_text_type; /* several have this hf_architecture: it is this one if the model of
                                 text has this model_type; NULL: if it is none of the others */
    const char *hf_config; /* the member of config.json that describes the model of text in a larger
                              one, whose other parts are not loaded; NULL: all of it does */
    bool other_parts;      /* there may be such parts, although all of it does */
};

struct sl_model_desc {
    const char *id;
    const struct sl_model_name *names;
    const struct sl_hparam_desc *hparams;
    const struct sl_weight_desc *weights;
    const struct sl_rope_desc *ropes;
    int32_t n_names, n_hparams, n_weights, n_ropes;
    const struct sl_draft_desc *mtp; /* NULL: none that can be loaded */
    const char *hf_layers;           /* what "model.layers.*." is called; NULL: that. Where two
                                        layers are one of the file's: "model.layers.%." */
    bool encoder;                    /* whole texts in one step, no tokens come out */
    bool behind_pad;       /* places begin behind the padding token's id; one type of token */
    bool scaled_embedding; /* embeddings are multiplied by the root of the width, */
    bool scaled_as_bf16;   /* which is rounded to BF16, whatever the format of the embedding */
    bool gguf_interleaved; /* GGUF converters reorder q and k rows for interleaved RoPE */
    /* Refuses what the family cannot run and fills layers[hp->n_layers], which hold what hp says of
     * every layer alike (sl_plan_layers). */
    int (*plan)(const struct sl_model_name *name, const struct sl_hparams *hp,
                struct sl_layer_desc *layers, struct sl_error *err);
    /* The smallest legal model of that name, for tests and tools/mkmodel. */
    void (*tiny)(const struct sl_model_name *name, struct sl_hparams *hp);
};

/* Which learned position the first token has. */
static inline int32_t sl_first_place(const struct sl_model_desc *desc, const struct sl_hparams *hp)
{
    return desc->behind_pad ? hp->pad_id + 1 : 0;
}

/* Drafters, which no model is recognised as: eagle3.c, dflash.c. */
extern const struct sl_model_desc sl_model_eagle3, sl_model_dflash, sl_model_gemma4_assistant;

#define SL_FAMILY(name) extern const struct sl_model_desc sl_model_##name;
#include "models/registry.def"
#undef SL_FAMILY

/* The usual name; NULL: there is none of that number. */
const char *sl_act_hf_name(enum sl_act act);

/* The families in the order of registry.def. */
const struct sl_model_desc *sl_registry_at(size_t idx); /* NULL past the end */
/* Finds a member by our id ("llama", "mistral", "qwen2", "qwen3"); NULL if there is none. */
const struct sl_model_name *sl_registry_find(const char *id, const struct sl_model_desc **desc);
/* Recognises a checkpoint's architecture. */
SL_MUST_CHECK int sl_registry_match(const struct sl_ckpt *ckpt, const struct sl_model_desc **desc,
                                    const struct sl_model_name **name, struct sl_error *err);

#endif
