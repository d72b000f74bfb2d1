/* SPDX-License-Identifier: MIT
 * internal.h - what the files of models/ share: the loaded model, a run's buffers, and the steps of
 * opening a model in their order.
 */
#ifndef SL_MODELS_INTERNAL_H
#define SL_MODELS_INTERNAL_H

#include "base/sys.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/desc.h"
#include "models/model.h"
#include "models/pooling.h"

#include <stdatomic.h>

/* The tensors of a matrix of four-bit whole numbers; zeros, order and shape may be absent. */
struct sl_int4_parts {
    const struct sl_ckpt_tensor *codes, *scales, *zeros, *order, *shape;
    struct sl_ckpt_tensor made; /* what they become; without data, named after the codes */
};

struct sl_param {                      /* one matrix or vector of a layer, or of the model */
    const struct sl_weight_desc *desc; /* NULL: this layer has no such slot */
    const struct sl_layer_desc *layer; /* of a tensor of the model: its first */
    int64_t n_rows, n_cols;            /* the desc's symbols in this layer */
    const struct sl_ckpt_tensor *src;  /* NULL: this model has none; a tied head is loaded from the
                                          embedding's */
    struct sl_ckpt_tensor slice;       /* what src points to, of a tensor that is a whole stack, or
                                          of a fused one */
    int64_t file_first, file_rows;     /* the first row in the file's matrix, and how many rows
                                          that has: more than n_rows if it is fused */
    bool fused : 1;                    /* the file has it as a part of a fused tensor */
    bool scales_by_turn : 1;           /* each round of parts begins a new block of scales */
    bool loaded : 1;
    bool scale_exponents : 1; /* scales are bytes: exponents of powers of two, plus 127 */
    bool mx_alone : 1;  /* mx_codes and mx_scales are of this matrix alone, not of its stack */
    uint8_t file_dtype; /* enum sl_dtype of a part that is transposed in the file (turned.c) */
    int16_t n_turns;    /* whose parts take turns in so many rounds; else 1 */
    int16_t stack_idx;  /* which matrix or vector of its stack, or piece */
    float first_value;  /* of a vector, after loading */
    int32_t scale_rows, scale_cols;     /* of a block of scales, as kernels read them; */
    int32_t file_scale_rows;            /* rows of one in the file */
    struct sl_weight mat;               /* after loading, for matrices */
    float *vec;                         /* after loading, for vectors, or for the first of a stack
                                           for all of them; backend memory */
    uint8_t *copy;                      /* rows put into order or repacked, if mat borrows them */
    const struct sl_ckpt_tensor *scale; /* of a matrix of FP8; with scale_exponents the heap's, as
                                           it may be a part of that of a stack */
    float *scale_values;                /* as loaded, if mat borrows them */
    struct sl_int4_parts *int4;         /* then src is its `made`; NULL: src is in the file */
    size_t own_bytes;              /* of vec, or of copy: a matrix has no vec, a vector no copy */
    const struct sl_param *shared; /* of a drafter: its target's, whose mat and vec these are */
    /* The tensors of a stack of MXFP4 in a folder, or of a matrix of MXFP8; then slice is what one
     * matrix becomes. */
    const struct sl_ckpt_tensor *mx_codes, *mx_scales;
};

_Static_assert(SL_MAX_EXPERTS <= INT16_MAX && SL_MAX_HEADS <= INT16_MAX, "n_turns, stack_idx");

struct sl_head_stacks {         /* of a layer with latent attention */
    struct sl_weight *mats;     /* [2, n_heads]; NULL: it is none */
    struct sl_stack k_up, v_up; /* MIX_ROWS: k_up is that of the output's groups */
};

struct sl_hashed { /* of a layer: the experts of each token */
    const struct sl_ckpt_tensor *src;
    int32_t *of_token; /* [n_vocab, top_experts] in the backend's memory, after loading */
    size_t n_bytes;
};

struct sl_layer_places {        /* of a layer with experts, else n is 0 */
    int32_t n;                  /* replicas, of all experts and ranks */
    int32_t *slots;             /* [n] the expert of each, rank by rank */
    struct sl_expert_places of; /* the same by experts; its arrays are */
    int32_t *first;
    uint8_t *rank;
};

struct sl_expert_stacks {   /* of a layer */
    struct sl_weight *mats; /* [3, n_experts]; NULL: the layer has none */
    struct sl_stack gate, up, down;
};

/* How tensors of the model of text are called in a larger one: "model.x" is .. */
enum sl_wrap {
    SL_WRAP_NONE,
    SL_WRAP_BEFORE, /* "language_model.model.x", as the hub has it */
    SL_WRAP_INSIDE, /* "model.language_model.x", as transformers 5 has it; "lm_head" stays */
};

struct sl_model {
    const struct sl_ckpt *ckpt;
    const struct sl_model_desc *desc;
    const struct sl_model_name *name;
    enum sl_wrap wrap;
    struct sl_hparams hp;
    struct sl_layer_desc *layers; /* [n_layers] */
    struct sl_param *params;      /* [n_params] layer by layer, slot by slot; those of a stack
                                     follow one another; the model's own come last */
    size_t n_params;
    uint32_t *first; /* of each slot: [n_layers, SL_SLOT_FIRST_GLOBAL], then [SL_SLOT_COUNT] of the
                        model */
    struct sl_weight *columns; /* [n_params] this rank's columns of matrices (columns.c), data NULL
                                  where it has none; NULL: it has none at all */
    struct sl_expert_stacks *experts; /* [n_layers] after loading; NULL: no layer has any */
    struct sl_head_stacks *heads;     /* the same of matrices of heads */
    struct sl_hashed *hashed; /* [n_layers] of layers whose tokens choose; NULL: none does */
    struct sl_model_facts facts;
    int32_t rank, n_ranks;           /* of so many models that are one; 0 of 1 unless set */
    int32_t kv_ranks;                /* of them so many have the same key heads, and divide the
                                        positions; 1 unless set */
    int32_t top_pages;               /* that rows attend to (top_pages.c); 0: all */
    int32_t row_ranks;               /* of them so many divide rows and heads: all, or 1: each has
                                        the whole of everything but experts */
    bool only_experts;               /* so it is to be; */
    bool own_experts;                /* each of these has some of a layer's experts, whole, */
    bool balanced;                   /* placed by their load, */
    int32_t n_redundant;             /* with so many replicas more than experts */
    struct sl_layer_places *places;  /* [n_layers] of one of several ranks then; else NULL */
    uint32_t absent;                 /* ranks whose places stand empty, a bit each */
    int32_t stage, n_stages;         /* likewise, of models that have some of the layers each: */
    int32_t cuts[SL_MAX_STAGES + 1]; /* stage s has those from cuts[s] to before cuts[s + 1] */
    /* Of a drafter that reads hidden rows, else NULL or 0. */
    const struct sl_model *target;
    struct sl_model_desc *own_desc;     /* desc, made of its family's; */
    struct sl_weight_desc *own_weights; /* its table; */
    const char *hf_layers;              /* what "model.layers.*." is called there, or NULL; */
    int32_t first_layer;                /* the number that a file gives layer 0; */
    int32_t *draft_ids;                 /* [hp.draft.n_vocab] the target's tokens; NULL: the same */
    int32_t *cluster_order;             /* backend memory: draft_clusters.c */
    struct sl_pooling pool;
    struct sl_st *dense_files[SL_MAX_DENSE]; /* of its modules, or NULL */
    bool yes_no; /* scores: token 1's share of the next token among these two */
    int32_t yes_no_ids[2];
    struct sl_backend *be; /* NULL until loaded */
    /* Of the first layers, which has their experts and computes them; NULL: there is none. */
    struct sl_backend *host;
    int32_t n_host_layers;
    float embed_scale, layer_embed_scale, logit_scale;
    struct sl_rope ropes[SL_MAX_ROPES]; /* as many as the family has */
    float *inv_freq;                    /* backend memory behind theirs */
};

static inline struct sl_param *sl_param(const struct sl_model *m, int32_t layer, enum sl_slot slot)
{
    int32_t row = slot >= SL_SLOT_FIRST_GLOBAL ? m->hp.n_layers : layer;
    return &m->params[m->first[(size_t)row * SL_SLOT_FIRST_GLOBAL + (size_t)slot]];
}

/* The layers that are computed here. */
static inline int32_t sl_stage_first(const struct sl_model *m)
{
    return m->cuts[m->stage];
}
static inline int32_t sl_stage_end(const struct sl_model *m)
{
    return m->cuts[m->stage + 1];
}
static inline bool sl_stage_is_last(const struct sl_model *m)
{
    return m->stage == m->n_stages - 1;
}
/* stages.c: does a stage load the tensor? */
bool sl_stage_has(const struct sl_model *m, const struct sl_param *p, int32_t stage);

/* host.c: are the experts of the layer the host's? */
static inline bool sl_experts_on_host(const struct sl_model *m, int32_t layer)
{
    return layer < m->n_host_layers && m->layers[layer].ffn == SL_FFN_EXPERTS;
}
/* Whose memory a tensor goes to; be: that of the rest of the model. */
struct sl_backend *sl_param_backend(const struct sl_model *m, struct sl_backend *be,
                                    const struct sl_param *p);
/* The same, of a loaded model. */
static inline struct sl_backend *sl_param_be(const struct sl_model *m, const struct sl_param *p)
{
    return sl_param_backend(m, m->be, p);
}

/* params.c: makes room for what the planned layers have. */
SL_MUST_CHECK int sl_params_create(struct sl_model *m, struct sl_error *err);
void sl_params_destroy(struct sl_model *m);
/* Matrices of a weight in a layer: 1, as many as its stack has, or one for each piece. */
int32_t sl_params_n(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer);
/* Whether it is another layer's. */
bool sl_param_is_tied(const struct sl_model *m, const struct sl_weight_desc *w, int32_t layer);

/* hparams.c: the member of config.json at "a", "a.b" or, of a list, "a.0". *out NULL: there is
 * none. A value on the way that can have no such member is refused. */
SL_MUST_CHECK int sl_config_get(const json_t *config, const char *path, const json_t **out,
                                struct sl_error *err);

/* hparams.c: fills *hp from the checkpoint's config and checks it. */
SL_MUST_CHECK int sl_hparams_read(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                                  const struct sl_model_name *name, struct sl_hparams *hp,
                                  struct sl_error *err);
/* Checks that follow from several values together; also for what tools/mkmodel is told. */
SL_MUST_CHECK int sl_hparams_check(const struct sl_hparams *hp, struct sl_error *err);

/* ranks.c: the rows of a matrix, or values of a vector, that a rank has. */
struct sl_rows {
    int64_t first, n;
};
struct sl_rows sl_rank_rows(const struct sl_model *m, enum sl_shard shard, int64_t n_rows,
                            int32_t rank);
/* A view of those rows of a tensor. */
struct sl_ckpt_tensor sl_rank_part(const struct sl_ckpt_tensor *t, struct sl_rows rows);
/* The rows of a tensor that a rank has, and whether it has any. */
struct sl_rows sl_rank_param_rows(const struct sl_model *m, const struct sl_param *p, int32_t rank);
bool sl_rank_has(const struct sl_model *m, const struct sl_param *p, int32_t rank);
static inline struct sl_rows sl_param_rows(const struct sl_model *m, const struct sl_param *p)
{
    return sl_rank_param_rows(m, p, m->rank);
}
/* Groups of ranks that have the same key heads. */
static inline int32_t sl_rank_groups(const struct sl_model *m)
{
    return m->row_ranks / m->kv_ranks;
}
/* Key heads of a layer on each rank; the one of latent attention is on all. */
static inline int32_t sl_rank_kv_heads(const struct sl_model *m, const struct sl_layer_desc *l)
{
    const bool latent = l->mixer == SL_MIX_MLA || l->mixer == SL_MIX_ROWS;
    return latent ? l->n_kv_heads : l->n_kv_heads / sl_rank_groups(m);
}
/* Queries [n, n_heads / row_ranks, head_dim] of this rank's heads, in a room if ranks divide
 * positions; before attention sl_run_share_queries. */
float *sl_run_own_queries(struct sl_run *r);
/* a: an attention of this rank's heads. Where ranks divide positions it becomes one of the heads of
 * all that have the same key heads, to the positions of each. Its output goes to no room. */
void sl_run_share_queries(struct sl_run *r, struct sl_op_attention *a);
/* The heads of a layer's queries that a rank has. */
struct sl_rows sl_rank_heads(const struct sl_model *m, int32_t layer, int32_t rank);
/* The experts of a layer that a rank has, where they have fixed places; all, unless ranks divide
 * them. */
bool sl_rank_has_expert(const struct sl_model *m, int32_t layer, int32_t expert, int32_t rank);
struct sl_rows sl_rank_experts(const struct sl_model *m, int32_t layer, int32_t rank);
/* Whether ranks add up what each one's experts give. */
static inline bool sl_sums_experts(const struct sl_model *m)
{
    return m->own_experts && m->n_ranks > 1;
}
/* places.c: where experts are at first; checks that they can be placed. */
SL_MUST_CHECK int sl_places_create(struct sl_model *m, struct sl_error *err);
void sl_places_destroy(struct sl_model *m);
bool sl_places_have(const struct sl_model *m, int32_t layer, int32_t expert, int32_t rank);
/* Most that a rank has of what is exchanged; what one works in; 0: experts have fixed places. */
size_t sl_places_room_bytes(const struct sl_model *m, int32_t max_tokens);
size_t sl_places_exchange_bytes(const struct sl_model *m, const struct sl_backend *be,
                                int32_t max_tokens);
/* Counts of all layers, in one piece; NULL: as above. */
SL_MUST_CHECK int sl_places_counts(const struct sl_model *m, struct sl_expert_counts **out,
                                   struct sl_error *err);
/* Weights beside those of a rank's own, while others come in their place. */
uint64_t sl_places_spare_bytes(const struct sl_model *m, struct sl_backend *be);
/* Rows whose parts are added up at a time, where that goes through memory. */
#define SL_SUM_ROWS 512

/* plan.c: fills layers[hp->n_layers]. */
SL_MUST_CHECK int sl_plan(const struct sl_model_desc *desc, const struct sl_model_name *name,
                          const struct sl_hparams *hp, struct sl_layer_desc *layers,
                          struct sl_error *err);
/* l: any layer for a dimension of the model. */
int64_t sl_layer_dim(const struct sl_hparams *hp, const struct sl_layer_desc *l, enum sl_dim dim);
/* Has the layer no such tensor, as its shape says? */
bool sl_weight_is_absent(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                         const struct sl_weight_desc *w);
/* Of the layer where it is largest. */
int64_t sl_layers_max(const struct sl_hparams *hp, const struct sl_layer_desc *layers,
                      enum sl_dim dim);

/* Factors of LongRoPE are from MIN to MAX. */
#define SL_ROPE_FACTOR_MIN 1e-3
#define SL_ROPE_FACTOR_MAX 1e6

/* plan.c: dimensions of a head that table idx rotates. */
int32_t sl_rope_dims(const struct sl_hparams *hp, const struct sl_layer_desc *layers, int32_t idx);

/* Does a layer use the table? */
static inline bool sl_rope_used(const struct sl_model *m, int32_t idx)
{
    bool used = false;
    for (int32_t i = 0; i < m->hp.n_layers; i++)
        used = used || m->layers[i].rope == idx;
    return used;
}

/* rope.c: one table. hp: what is read before, its context and head_dim among it. */
SL_MUST_CHECK int sl_rope_read_hf(const json_t *config, const struct sl_rope_desc *desc,
                                  const struct sl_hparams *hp, struct sl_rope_params *p,
                                  struct sl_error *err);
SL_MUST_CHECK int sl_rope_read_gguf(const struct sl_gguf *g, const char *arch,
                                    const struct sl_rope_desc *desc, const struct sl_hparams *hp,
                                    struct sl_rope_params *p, struct sl_error *err);
/* inv_freq[n_dims / 2]; divisors[n_dims / 2] from a GGUF or NULL. */
void sl_rope_freqs(const struct sl_rope_params *p, int32_t n_dims, const float *divisors,
                   float *inv_freq, float *attn_factor);
/* What a GGUF of a llama3-scaled or proportional table carries as rope_freqs.weight. */
void sl_rope_divisors(const struct sl_rope_params *p, int32_t n_dims, float *divisors);

/* bind.c: finds every tensor of the table, checks its shape and format. */
SL_MUST_CHECK int sl_bind_tensors(struct sl_model *m, struct sl_error *err);
/* The name of a weight in a container, or of the fused tensor it is a part of; may be NULL. */
static inline const char *sl_bind_pattern(const struct sl_weight_desc *w, bool gguf, bool fused)
{
    return fused ? (gguf ? w->gguf_fused : w->hf_fused) : (gguf ? w->gguf : w->hf);
}
/* The rows of a fused tensor before those of a part of it; of the part behind the last: all. */
int64_t sl_bind_fused_row(const struct sl_hparams *hp, const struct sl_layer_desc *l,
                          const struct sl_weight_desc *w, int32_t part);
/* The spelling of a tensor in a container, mat: of a stack or of pieces; out holds
 * SL_MAX_TENSOR_NAME bytes. */
void sl_bind_name(const char *pattern, int32_t layer, int32_t mat, char *out);
/* A name in a file whose layers are called otherwise; NULL: they are not. */
const char *sl_bind_layers(const char *hf_layers, const char *pattern,
                           char out[SL_MAX_TENSOR_NAME]);
/* Bytes of a beginning that some checkpoints leave out of every name; 0: none. */
size_t sl_bind_optional_prefix(const char *name);
/* "320, 64" */
void sl_bind_shape(int32_t n_dims, const int64_t *dims, char *out, size_t n_out);
/* The bits of enum sl_has that a GGUF's tensors show, of any layer and of the model; layers:
 * those of each layer. */
unsigned sl_bind_gguf_has(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                          int32_t n_layers, uint32_t *layers);
/* Likewise those of `shown` that a folder's tensors show. */
unsigned sl_bind_hf_has(const struct sl_ckpt *ckpt, const struct sl_model_desc *desc,
                        unsigned shown, int32_t n_layers);

/* apart.c: the same of a matrix of four-bit numbers that has tensors of its own: "X.weight" and
 * "X.scale", as the hub's DeepSeek V4 has experts. */
SL_MUST_CHECK int sl_mxfp4_bind_alone(const struct sl_model *m, const char *name,
                                      struct sl_param *p, struct sl_error *err);
/* quant_config.c: what quantization_config says, to hp->scale_rows, scale_cols, int4, int4_group.
 */
SL_MUST_CHECK int sl_quant_read_config(const struct sl_ckpt *ckpt, struct sl_hparams *hp,
                                       struct sl_error *err);

/* fp8.c: the tensor of scales of a bound matrix; its values, checked. A matrix of another format
 * has none. */
SL_MUST_CHECK int sl_fp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err);
SL_MUST_CHECK int sl_fp8_load(const struct sl_hparams *hp, struct sl_param *p,
                              struct sl_error *err);
void sl_fp8_unload(struct sl_param *p);
uint64_t sl_fp8_scale_bytes(const struct sl_param *p); /* as loaded */
/* As they lie in the file, counted for one part of a fused tensor alone. */
uint64_t sl_fp8_scale_bytes_of_file(const struct sl_param *p);
/* How a matrix of this format is used in products. */
enum sl_weight_use sl_fp8_use(const struct sl_model *m, enum sl_dtype dtype);
/* A tensor of FP8 checkpoints that is not used on purpose. */
bool sl_fp8_is_extra(const char *name);

/* int4.c: finds the tensors that a matrix "name" is packed in: 1 and p->src and p->int4, 0 there
 * are none; makes its blocks in p->copy. */
SL_MUST_CHECK int sl_int4_bind(const struct sl_model *m, const char *name, struct sl_param *p,
                               struct sl_error *err);
SL_MUST_CHECK int sl_int4_load(struct sl_model *m, struct sl_param *p, struct sl_rows rows,
                               struct sl_error *err);
size_t sl_int4_n_tensors(const struct sl_param *p); /* of the file */
void sl_int4_unbind(struct sl_param *p);

/* model.c: facts of the bound tensors. */
void sl_model_count_params(struct sl_model *m);
/* draft.c: the model is a drafter that reads hidden rows. */
static inline bool sl_is_draft(const struct sl_model *m)
{
    return m->hp.draft.n_taps > 0;
}
void sl_draft_close(struct sl_model *m);
/* Takes over what is the target's, when it is loaded; forgets it. */
SL_MUST_CHECK int sl_draft_share(struct sl_model *m, struct sl_error *err);
void sl_draft_unshare(struct sl_model *m);
/* draft_head.c: a copy in 8 bits of the target's matrix of logits, where that is large and the
 * drafter has none of its own; then the head's parameter is loaded. Its bytes, or 0. */
SL_MUST_CHECK int sl_draft_head_load(struct sl_model *m, struct sl_error *err);
uint64_t sl_draft_head_bytes(const struct sl_model *m, struct sl_backend *be);
bool sl_draft_head_copies(const struct sl_model *m); /* whether there is such a copy */
/* eagle3.c: what config.json says of the drafter, to hp->draft, besides the rows of its table. */
SL_MUST_CHECK int sl_eagle3_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                                 struct sl_hparams *hp, struct sl_error *err);
const struct sl_model_name *sl_eagle3_name(const struct sl_ckpt *ckpt);
/* A key of a drafter, beside config.json's others, in eagle_config or in dflash_config. NULL: it is
 * not given. The others leave *out as it is where it is not. */
const json_t *sl_draft_said(const json_t *config, const char *key);
SL_MUST_CHECK int sl_draft_read_bool(const json_t *config, const char *key, bool *out,
                                     struct sl_error *err);
SL_MUST_CHECK int sl_draft_read_int(const json_t *config, const char *key, int32_t max,
                                    int32_t *out, struct sl_error *err);
/* Vocabulary and width are the target's. */
SL_MUST_CHECK int sl_draft_check_target(const struct sl_hparams *hp,
                                        const struct sl_hparams *target, struct sl_error *err);
/* dflash.c: likewise. */
SL_MUST_CHECK int sl_dflash_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                                 struct sl_hparams *hp, struct sl_error *err);
const struct sl_model_name *sl_dflash_name(const struct sl_ckpt *ckpt);
const struct sl_model_name *sl_dspark_name(const struct sl_ckpt *ckpt);
/* gemma4_assistant.c: likewise; then, once the layers are planned, whose keys they read. */
SL_MUST_CHECK int sl_assistant_read(const struct sl_ckpt *ckpt, const struct sl_hparams *target,
                                    struct sl_hparams *hp, struct sl_error *err);
const struct sl_model_name *sl_assistant_name(const struct sl_ckpt *ckpt);
SL_MUST_CHECK int sl_assistant_borrow(const struct sl_model *m, struct sl_error *err);
/* gemma4.c: has the layer a window? */
bool sl_gemma4_windowed(const struct sl_hparams *hp, int32_t layer);
/* draft_clusters.c: the order of tokens by their sets, and logits of n rows x (activations). */
bool sl_clusters_is_tensor(const struct sl_model *m, const char *name);
uint64_t sl_clusters_bytes(const struct sl_model *m);
SL_MUST_CHECK int sl_clusters_load(struct sl_model *m, struct sl_error *err);
void sl_clusters_unload(struct sl_model *m);
void sl_clusters_head(struct sl_run *r, const void *x, int32_t n);
/* The rows of its table that this checkpoint has no tensors for. */
bool sl_eagle3_lacks(const struct sl_ckpt *ckpt, const struct sl_weight_desc *w);
/* d2t: the target's tokens of the drafter's. */
SL_MUST_CHECK int sl_eagle3_read_ids(const struct sl_ckpt *ckpt, const struct sl_hparams *hp,
                                     int32_t **out, struct sl_error *err);
/* draft_run.c: is the stream of every row wanted behind the last layer? Of a tap. */
bool sl_run_keeps_end(const struct sl_run *r);
/* Does a drafter norm the rows of its target before their product? */
bool sl_draft_norms_taps(const struct sl_model *m);
/* Keeps x[n] as it enters a layer, or as it leaves the last one. */
void sl_run_keep(struct sl_run *r, int32_t layer, const float *x, int32_t n);
/* A drafter's r->x and r->norm before the first layer, of its embeddings in r->x. */
void sl_draft_begin(struct sl_run *r, int32_t n);
/* And r->hidden behind the last one, whose stream is x[n]. */
void sl_draft_end(struct sl_run *r, const float *x, int32_t n);

/* dense.c: finds the tensors of the modules behind the pooling, m->pool.dense; those of a file that
 * has them among its own are added there. */
SL_MUST_CHECK int sl_dense_bind(struct sl_model *m, struct sl_error *err);
void sl_dense_unbind(struct sl_model *m);
/* The matrix of one of them, or its bias. */
const struct sl_param *sl_dense_param(const struct sl_model *m, int32_t idx, bool bias);
/* Values of a vector that the model gives. */
int32_t sl_dense_width(const struct sl_model *m);
bool sl_dense_is_tensor(const struct sl_model *m, const char *name);

/* apart.c: whether the rows of a bound matrix do not lie in the file one after another, as kernels
 * read them; makes these of them in p->copy. */
bool sl_apart(const struct sl_param *p);
SL_MUST_CHECK int sl_apart_load(struct sl_model *m, struct sl_param *p, struct sl_rows rows,
                                struct sl_error *err);
/* The row of the file's matrix that is a row of ours; *n: so many follow one another there as here.
 */
int64_t sl_apart_row(const struct sl_hparams *hp, const struct sl_param *p, int64_t row,
                     int64_t *n);
/* Value `row` of a vector. */
float sl_apart_value(const struct sl_hparams *hp, const struct sl_param *p, int64_t row);
/* Finds the two tensors that the stack of matrices "name" is packed in: 1 and p->src, 0 there are
 * none. */
SL_MUST_CHECK int sl_mxfp4_bind(const struct sl_model *m, const char *name, int32_t n,
                                struct sl_param *p, struct sl_error *err);
/* The scales of MXFP8 beside the bound matrix p->src, which then is BF16: 1; 0 there are none. */
SL_MUST_CHECK int sl_mxfp8_bind(const struct sl_model *m, struct sl_param *p, struct sl_error *err);

/* turned.c: a bound part of a fused tensor that is transposed there (SL_W_PART_TRANSPOSED). Takes
 * rows p->file_first .. of t; makes p->copy of them. */
static inline bool sl_turned(const struct sl_param *p)
{
    return p->fused && (p->desc->flags & SL_W_PART_TRANSPOSED) != 0;
}
SL_MUST_CHECK int sl_turned_bind(const struct sl_model *m, struct sl_param *p,
                                 const struct sl_ckpt_tensor *t, struct sl_error *err);
SL_MUST_CHECK int sl_turned_load(struct sl_param *p, struct sl_error *err);

/* load.c: the matrices of an expert, beside steps, on be; and gives them up. */
SL_MUST_CHECK int sl_load_expert(struct sl_model *m, struct sl_backend *be, int32_t layer,
                                 int32_t expert, struct sl_error *err);
void sl_unload_expert(struct sl_model *m, int32_t layer, int32_t expert);
uint64_t sl_load_expert_bytes(const struct sl_model *m, struct sl_backend *be, int32_t layer,
                              int32_t expert);

/* experts.c: what the operation wants of the layers' loaded experts; of a layer again. */
void sl_experts_refresh(struct sl_model *m, int32_t layer);
SL_MUST_CHECK int sl_experts_create(struct sl_model *m, struct sl_error *err);
void sl_experts_destroy(struct sl_model *m);

/* load.c */
void sl_model_unload(struct sl_model *m);
/* Row of the file that holds row `row` of a matrix whose heads were reordered for interleaved
 * RoPE. */
int64_t sl_interleaved_row(int64_t row, int32_t head_dim);

/* The matrices of a layer that adapters may change, in the order of struct sl_lora_weights. */
enum sl_lora_layer_mat {
    SL_LORA_Q,
    SL_LORA_K,
    SL_LORA_V,
    SL_LORA_O,
    SL_LORA_GATE,
    SL_LORA_UP,
    SL_LORA_DOWN,
    SL_LORA_LAYER_MATS
};

struct sl_run {
    const struct sl_model *m;
    struct sl_run_config cfg;
    uint8_t *mem; /* everything below, one block */
    size_t mem_bytes;
    int32_t n_tokens; /* of the step */
    float *x, *y;     /* [T, H] residual stream, a sublayer's result */
    float *rows;      /* [max_logits, H] x of the rows that go through the last layer's end, or
                         what is pooled */
    float *q, *k, *v; /* [T, nq * hd], [T, nkv * hd] twice, of the widest layer */
    float *angles[SL_MAX_ROPES]; /* [T, n_dims / 2, 2] */
    float *logits;               /* [max_logits, n_row] */
    bool parts;                  /* ranks: the step's logits stay where they are made, */
    float *part;                 /* this rank's here */
    float *dense;                /* of Dense modules, of the widest: what one gives, */
    void *dense_in;              /* and what goes into the next, activations */
    float *pooled;               /* where rows of embeddings and scores go: logits, or as told */
    void *norm;                  /* [T, H] activations: a sublayer's input */
    float *norm_low;             /* of gates of norms: [T, rank] values, */
    void *norm_low_act;          /* activated, activations */
    void *att;                   /* [T, nq * v_dim] activations, of the widest layer */
    float *latent_q;             /* of latent attention: [T, q_rank] values, */
    void *latent_q_norm;         /* normed, activations; */
    void *latent_q_both;         /* [T, 2 q_rank] activations: that, and as it was; */
    float *head_q;               /* [T, MLA_Q] queries as heads have them, */
    void *head_q_act;            /* the same as activations; that, if those are float32; */
    void *latent_att;            /* [T, MLA_ATT] activations: what attention gives; */
    float *head_v;               /* [T, ATT] of that values of heads; att, likewise */
    float *index_q, *index_k;    /* of an index: [T, INDEX_Q] queries, [T, INDEX_K] a key, */
    float *index_w;              /* [T, INDEX_HEADS] how much each query counts, */
    float *index_scores;         /* [sl_index_n_scores]; */
    int32_t *index_top;          /* [T, top_k] what rows see, for this layer and those behind it;
                                    of blocks [T, INDEX_HEADS, top_k] */
    void *sparse_room;           /* of sl_index_room bytes */
    void *page_room;             /* of sl_top_pages_room bytes, */
    struct sl_top_page_counts top_page_counts; /* of which any thread may ask */
    float *out_gate;                           /* [T, nq * v_dim or nq] logits that open att */
    float *up;         /* [T, I] before it is activated, may be ffn; with a gate [T, 2 I] */
    void *ffn;         /* [T, I] activations, of the widest layer */
    float *route;      /* [T, E] logits of a router, */
    int32_t *top;      /* [T, top_experts] what it chose, */
    float *top_weight; /* and how much each counts */
    float *passed;     /* [T, H] of experts that give back what they read; of the rows whose logits
                          are wanted: */
    float *late;       /* [T, H] what experts give that is added behind the next layer */
    float *layer_proj; /* [LAYER_ROWS, L * W] on the way to */
    float *layer_inputs; /* [L, T, W] what each layer gets beside x; */
    float *layer_rows;   /* [max_logits, W] that of the last layer's rows that go on */
    float *input_gate;   /* [T, W] of a layer, */
    float *streams;      /* [n_streams - 1, T, H] all but the first; */
    float *stream_keep;  /* [T, H] the first before a layer; */
    float *stream_route, *stream_coefs; /* [T, n_streams], [T, n_streams^2] */
    float *laurel;                      /* [T, laurel_rank] */
    float *hyper, *hyper_w; /* of hyper-connections: [T, n, H] streams, [T, (2 + n) n] weights; */
    float *hyper_rows;      /* [max_logits, n, H] those that go on behind the last layer */
    void *hyper_act, *hyper_rows_act; /* both as activations */
    float *rows_kv, *rows_gate;       /* [T, ROWS_KV] of rows made of several tokens; */
    float *rows_low;                  /* [T, O_LOW] on the way to the output, */
    void *rows_low_act;               /* as activations; */
    int32_t *rows_seen;               /* [T] room of a device; */
    void *rows_room;                  /* of sl_rows_room bytes */
    const int32_t *tokens;            /* of the step's batch, */
    const int32_t *positions;         /* likewise, */
    const int32_t *row_of;            /* of them those that go through the layer now; NULL: all */
    float *state_in, *conv_out;       /* [T, channels] of recurrent layers: before the
                                         convolution and behind it */
    float *conv_kernels;              /* [T, channels, taps] where each token brings its own */
    float *state_gate, *state_out;    /* [T, heads * v_dim] */
    float *state_x;  /* [2, T, dt_rank + 2 k_dim] of Mamba 1: dt, b and c of all rows; dt as
                         activations */
    void *state_low; /* [T, 2, low_rank] activations, where these are no floats */
    void *state_att; /* the same as activations, beside att; */
    float *wkv;      /* of RWKV-7: values, rates, kk, and what mixes values, each [T, C], and the
                        widest product down to a low rank; */
    void *wkv_low;   /* that as activations; */
    float *v_first;  /* [T, C] values of the first layer; */
    void *shifted;   /* [6, T, H] mixtures as activations */
    float *state_y;  /* [T, H] what comes of it */
    float *state_dt, *state_beta; /* [T, heads], DELTA by_row [T, heads, k_dim]; LRU: dt [T,
                                     channels], gates of decays */
    void *delta_room;             /* scratch of the delta rule */
    float *pair;       /* [T, 2 H] of shared blocks: the stream and the embedding side by side, */
    void *pair_norm;   /* activations: normed */
    float *use_down;   /* [3, T, adapter_rank] of what each use adds, */
    void *use_act;     /* them as activations, where those are no floats */
    float *use_up;     /* [T, the widest matrix] */
    void *gated_input; /* [T, W] activations: times its input */
    void *expert_room; /* scratch of the experts */
    struct sl_host_layer *host_layers; /* [n_host_layers] whose experts the host computes; */
    void *host_room;                   /* and its scratch */
    size_t host_room_bytes;
    float *latent_in, *latent_out; /* [T, latent] of experts in a space of their own */
    void *latent_act;              /* one of them as activations, where those are no floats */
    float *shared;                 /* [T, H] of the shared expert, this rank's columns */
    float *shared_logit;           /* [T] */
    float *expert_sum;             /* [T, H'] of this rank's rows; NULL: there is one rank */
    float *expert_parts; /* of all ranks: [SL_SUM_ROWS, n_ranks, H], on devices [n_ranks][T, H] of
                            at most so many rows; NULL: ranks have no experts of their own */
    /* Of experts that are placed by their load, else NULL: room of sl_places_exchange_bytes;
     * [n_layers] counts since the run was created. */
    void *expert_exchange;
    struct sl_expert_counts *expert_counts;
    struct sl_rank rank; /* if there are several */
    /* Of ranks that divide positions: attention of this rank's heads [T, ATT / n_ranks], which is
     * made between gathers that use the rooms; */
    void *own_att;
    void *kv_others;  /* [n_ranks] SL_KV_RANK_ROOM bytes */
    float *taps;      /* [T, n_taps * H] kept for a drafter; of a drafter: */
    void *taps_in;    /* activations [T, n_taps * H'], or [T, 2 H'] of one that borrows, */
    float *taps_wide; /* the same before norms; of one that borrows the model's embeddings, */
    float *hidden;    /* [max_logits, H] for its next step, or [max_logits, H'], */
    const float *draft_rows;      /* and what this step is made of: these rows, */
    const int32_t *draft_sources; /* of them these for its tokens, */
    bool draft_own;               /* its own or the target's */
    float *cluster_scores;        /* [max_logits, sets of tokens], and */
    int32_t *cluster_top;         /* which of them are looked at */
    const void *ends;             /* what the last step's logits were made of */
    /* draft_chain.c: of the tokens before, [n, rank] and as activations, or what is made of them;
     * what is mixed and the mixture, states and one of zeros, logits and what is added to them. */
    float *chain_prev, *chain_mix, *chain_state, *chain_zero, *chain_logits, *chain_base;
    void *chain_act, *chain_in;
    float *lora; /* [T, 3, max_lora_rank] A x of up to three matrices; NULL: no adapters */
    const struct sl_lora_rows *lora_rows; /* of the rows that go through the layer now */
    const int32_t *lora_gathered;
    _Atomic uint64_t n_parts; /* of layers, begun since the start */
};

enum { SL_LAYER_ROWS = 256 }; /* whose embeddings are projected for all layers at a time */
/* run_room.c: gives the buffers of a run their places in r->mem. */
void sl_run_cut(struct sl_run *r, const struct sl_run_config *cfg);

/* run.c: what adapters add to matrix `mat` of a layer and those after it; *room is filled. NULL:
 * nothing. */
const struct sl_op_lora *sl_run_lora(const struct sl_run *r, int32_t layer,
                                     enum sl_lora_layer_mat mat, struct sl_op_lora *room);

/* mixer_gqa.c: r->norm -> r->att, writing the batch's keys and values to the pages; and the output
 * projection of n rows of att -> y. */
void sl_mixer_gqa_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
/* The batch's keys and values alone, of r->norm. */
void sl_mixer_gqa_store(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
/* att, n rows of n_heads heads, times the sigmoid or softplus of a product of r->norm, or of what
 * queries are made of (sl_mla_desc.both_q). */
void sl_mixer_gate_heads(struct sl_run *r, int32_t layer, int32_t n_heads, int32_t n, void *att);
/* The first behind the projections: r->q, r->k and r->v -> r->att. */
void sl_mixer_gqa_heads(struct sl_run *r, int32_t layer, const struct sl_batch *batch, float *q);
/* shared_block.c: the embeddings r->x are kept; the block of a layer, of the stream r->x -> what
 * the recurrence behind it reads, r->norm. */
void sl_shared_block_begin(struct sl_run *r, int32_t n);
void sl_shared_block(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
void sl_mixer_gqa_output(struct sl_run *r, int32_t layer, const void *att, int32_t n, float *y);
/* top_pages.c: does the layer attend to some pages; do its pages have bounds. Puts these into a
 * layout, if so; makes those of pages that a batch fills; attends. Bytes of struct
 * sl_run.page_room.
 */
bool sl_top_pages_layer(const struct sl_model *m, int32_t layer);
bool sl_top_pages_bounds(const struct sl_model *m, int32_t layer);
SL_MUST_CHECK int sl_top_pages_place(const struct sl_model *m, struct sl_kv_layout *l,
                                     int32_t layer, struct sl_error *err);
void sl_top_pages_store(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
void sl_top_pages_attend(struct sl_run *r, int32_t layer, const struct sl_op_attention *all);
size_t sl_top_pages_room(const struct sl_model *m, const struct sl_backend *be,
                         const struct sl_run_config *cfg);
/* mixer_index.c: chooses what rows see, if the layer has an index; attention over that. all: of
 * the layer, as if rows saw everything. */
void sl_index_choose(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
void sl_index_attend(struct sl_run *r, int32_t layer, const struct sl_op_attention *all);
/* Of the layer that wants most: numbers of what a row sees, 0: all, there is no index; room for
 * scores, and for what is seen (struct sl_op_sparse_attention), of steps of n_tokens. */
int32_t sl_index_top(const struct sl_model *m);
int64_t sl_index_n_scores(const struct sl_model *m, const struct sl_backend *be, int32_t n_tokens);
size_t sl_index_room(const struct sl_model *m, const struct sl_backend *be,
                     const struct sl_kv_layout *kv, int32_t n_tokens);
/* mixer_mla.c: the first, of latent attention; the second is that of mixer_gqa.c. What its
 * operations want of the layers' loaded matrices of heads. */
void sl_mixer_mla_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
const void *sl_mixer_mla_q_row(const struct sl_run *r,
                               int32_t layer); /* what queries are made of */
SL_MUST_CHECK int sl_mla_create(struct sl_model *m, struct sl_error *err);
void sl_mla_destroy(struct sl_model *m);
/* mixer_state.c: the same of recurrent layers; the bytes of their state. */
void sl_mixer_state(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
void sl_mixer_state_output(struct sl_run *r, int32_t layer, const void *att, int32_t n, float *y);
size_t sl_mixer_state_bytes(const struct sl_model *m, const struct sl_backend *be,
                            const struct sl_layer_desc *l);
/* mixer_wkv.c: RWKV-7's time mixing, whose output is sl_mixer_state_output; raises what a token has
 * in r->wkv and r->wkv_low to what the layer needs; mixtures for its MLP, of r->norm. */
void sl_mixer_wkv(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
size_t sl_wkv_state_bytes(const struct sl_layer_desc *l, int64_t hidden);
void sl_wkv_room(const struct sl_layer_desc *l, uint64_t *floats, uint64_t *low);
const void *sl_wkv_ffn_input(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
static inline bool sl_has_state(const struct sl_layer_desc *l)
{
    if (l->mixer == SL_MIX_ROWS || l->mixer == SL_MIX_MLA)
        return l->rows.ratio > 0;
    return l->mixer != SL_MIX_GQA && l->mixer != SL_MIX_NONE;
}
static inline bool sl_has_attention(const struct sl_layer_desc *l)
{
    return l->mixer == SL_MIX_GQA || l->mixer == SL_MIX_MLA || l->mixer == SL_MIX_BOTH ||
           l->mixer == SL_MIX_BLOCK || l->mixer == SL_MIX_ROWS;
}
/* Channels of its convolution. */
int64_t sl_conv_channels(const struct sl_layer_desc *l, int64_t hidden);
int64_t sl_conv_tapped(const struct sl_layer_desc *l, int64_t hidden); /* those with taps */
/* ranks.c: where this rank puts its part of what others need whole: `whole` itself if it is alone.
 * Then sl_run_gather makes n rows of n_cols columns whole on all ranks, or on rank 0 alone. */
void *sl_run_part(struct sl_run *r, void *whole);
void sl_run_gather(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes, int32_t n,
                   void *whole);
/* The same of what each rank has whatever is divided by rows. */
void sl_run_exchange(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes,
                     int32_t n, void *whole);
/* A product of this rank's n_cols columns of those of `whole`, which are gathered next, may write
 * them to all ranks (struct sl_spread); NULL: it may not. */
const struct sl_spread *sl_run_spread(const struct sl_run *r, void *whole, int64_t n_cols,
                                      int64_t of_cols, size_t elem_bytes, struct sl_spread *room);
/* As sl_run_gather, of what ranks are done with whenever a meeting is behind its last use: r->att,
 * r->ffn. */
void sl_run_gather_open(struct sl_run *r, const void *part, int64_t n_cols, int64_t of_cols,
                        size_t elem_bytes, int32_t n, void *whole);
/* The same of what goes into the residual stream next, r->y. */
void sl_run_gather_stream(struct sl_run *r, const float *part, int64_t n_cols, int32_t n,
                          float *whole);
void sl_run_gather_first(struct sl_run *r, const void *part, int64_t n_cols, size_t elem_bytes,
                         int32_t n, void *whole);
/* columns.c: whether ranks have columns of a matrix beside their rows; of those that they have the
 * bytes of one rank; after the matrix itself. */
bool sl_columns_fit(const struct sl_model *m, const struct sl_backend *be,
                    const struct sl_param *p);
uint64_t sl_columns_bytes(const struct sl_model *m, struct sl_backend *be,
                          const struct sl_param *p);
SL_MUST_CHECK int sl_columns_load(struct sl_model *m, struct sl_param *p, struct sl_error *err);
void sl_columns_unload(struct sl_model *m);
size_t sl_columns_room_bytes(const struct sl_model *m, const struct sl_backend *be,
                             int32_t max_tokens);
/* Whether this step multiplies o_proj or down so: then its input is this rank's part alone, and
 * sl_run_columns gives n rows of y whole on all ranks. */
bool sl_run_by_columns(const struct sl_run *r, int32_t layer, enum sl_slot slot);
void sl_run_columns(struct sl_run *r, int32_t layer, enum sl_slot slot, const void *x, int32_t n,
                    float *y);
/* Of each of r->rank.room. */
size_t sl_rank_room_bytes(const struct sl_model *m, const struct sl_backend *be, int32_t max_tokens,
                          int32_t max_logits);
/* Before the first gather of a step, and behind the last one. */
void sl_rank_begin(struct sl_run *r);
void sl_rank_end(struct sl_run *r, int32_t n_logits);
/* run.c: what a step of this batch begins with: checks, and angles of its positions. */
void sl_run_begin(struct sl_run *r, const struct sl_batch *batch);
/* run.c: n logits as the model scales and caps them. */
void sl_run_scale_logits(struct sl_run *r, float *logits, int64_t n);
/* run_pool.c: rows x, activations, to what the model gives, in r->pooled. spans NULL: a row for
 * each output. */
void sl_run_pool(struct sl_run *r, const void *x, const struct sl_span *spans, int32_t n);
/* Says that a part of the step is done. */
static inline void sl_run_next_part(struct sl_run *r)
{
    atomic_fetch_add_explicit(&r->n_parts, 1, memory_order_relaxed);
}
/* run.c: out(act(gate r->norm) * input) of a layer, to r->y. */
void sl_run_layer_input(struct sl_run *r, int32_t layer, const float *inputs, int32_t n);
/* hyper.c: of a model with hyper-connections: r->x becomes the streams; what a sublayer reads of
 * them, normed, to r->norm; r->y to the streams; behind all, r->norm becomes the batch's rows of
 * logits, normed. */
void sl_hyper_begin(struct sl_run *r, int32_t n);
void sl_hyper_read(struct sl_run *r, int32_t layer, bool ffn, int32_t n);
/* The same beginning of a drafter's, of r->x and the streams of its target; streams that are kept
 * for a drafter, r->taps; those of the last step's rows of logits, r->hidden. */
void sl_hyper_begin_draft(struct sl_run *r, int32_t n);
void sl_hyper_keep(struct sl_run *r, int32_t n);
void sl_hyper_end_draft(struct sl_run *r, int32_t n);
void sl_hyper_write(struct sl_run *r, int32_t n);
void sl_hyper_end(struct sl_run *r, const struct sl_batch *b);
/* mixer_rows.c: attention to a window and to rows made of several tokens each, to r->att, and its
 * output, r->y. sl_rows_room: bytes of r->rows_room. */
SL_MUST_CHECK int sl_rows_create(struct sl_model *m, int32_t layer, struct sl_error *err);
void sl_mixer_rows_attend(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
void sl_mixer_rows_output(struct sl_run *r, int32_t layer, int32_t n, float *y);
/* Rows of the layer's index, and r->index_top: those that each token chooses of them, where it sees
 * more. */
void sl_rows_choose(struct sl_run *r, int32_t layer, const struct sl_batch *batch);
size_t sl_rows_state_bytes(const struct sl_layer_desc *l);
size_t sl_rows_room(const struct sl_model *m, const struct sl_backend *be, enum sl_dtype kv,
                    int32_t n_tokens);
/* hash_route.c: the tables of layers whose tokens choose their experts. */
#define SL_HASH_TENSOR "layers.*.ffn.gate.tid2eid"
SL_MUST_CHECK int sl_hashed_bind(struct sl_model *m, struct sl_error *err);
SL_MUST_CHECK int sl_hashed_load(struct sl_model *m, struct sl_error *err);
void sl_hashed_unload(struct sl_model *m);
uint64_t sl_hashed_bytes(const struct sl_model *m); /* as loaded */
bool sl_hashed_is_tensor(const struct sl_model *m, const char *name);
/* streams.c: of a model with several residual streams, of which r->x is the first: before all
 * layers; before a layer, and r->norm is what attention reads; beside attention, from r->norm;
 * behind a layer; behind all, where r->norm becomes the batch's rows of logits, normed. */
void sl_streams_begin(struct sl_run *r, int32_t n);
void sl_streams_predict(struct sl_run *r, int32_t layer, int32_t n);
void sl_streams_laurel(struct sl_run *r, int32_t layer, int32_t n);
void sl_streams_correct(struct sl_run *r, int32_t layer, const float *inputs, int32_t n);
void sl_streams_end(struct sl_run *r, const struct sl_batch *b);
/* ffn_gated.c, ffn_plain.c, ffn_experts.c: n rows of x -> y. sl_ffn_shared: the MLP beside a
 * layer's experts, this rank's columns; part NULL: where they are gathered from. Returns where they
 * are. */
void sl_ffn_gated(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y);
float *sl_ffn_shared(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *part);
void sl_ffn_plain(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y);
void sl_ffn_experts(struct sl_run *r, int32_t layer, const void *x, int32_t n, float *y);
/* host.c: the chosen experts of n rows of x on the host, in two halves, between which the device
 * may go on; shared: as in struct sl_op_experts. */
struct sl_host_experts sl_host_experts_of(struct sl_run *r, int32_t layer, const void *x, int32_t n,
                                          const float *shared, float *sum);
int sl_host_create(struct sl_run *r, struct sl_error *err);
void sl_host_destroy(struct sl_run *r);
/* An MLP and experts beside it, of which each has the stream normed in its own way. r->norm is the
 * MLP's. Activations are float32. */
void sl_ffn_branches(struct sl_run *r, int32_t layer, const float *stream, int32_t n, float *y);

/* The activation of a layer's experts as their operation has it: of experts without a gate, which
 * are relu2, the gate is up. */
static inline enum sl_act sl_expert_act(const struct sl_layer_desc *l)
{
    return l->plain_experts ? SL_ACT_RELU : l->act;
}

/* n rows of h floats as activations: x itself, or at out where those are not floats. */
const void *sl_run_activations(const struct sl_run *r, const float *x, int32_t n, int32_t h,
                               void *out);

/* Whether gate and up are one operation. */
static inline bool sl_run_gates(const struct sl_backend *be, const struct sl_layer_desc *l)
{
    return (be->vt->gated_acts >> sl_expert_act(l) & 1) != 0 && (l->has & SL_HAS_MLP_BIAS) == 0 &&
           !l->cuts_gate && l->gate_scale == 0 && l->mlp_swiglu.limit <= 0;
}

/* Weights in the backend's memory; NULL: the layer has none. */
static inline const float *sl_run_vec(const struct sl_run *r, int32_t layer, enum sl_slot slot)
{
    return sl_param(r->m, layer, slot)->vec;
}

static inline const struct sl_weight *sl_run_mat(const struct sl_run *r, int32_t layer,
                                                 enum sl_slot slot)
{
    return &sl_param(r->m, layer, slot)->mat;
}

#endif
