/* SPDX-License-Identifier: MIT
 * Lists a row is sampled by (biases, banned ids) travel with the step. How often a sequence's
 * tokens came out lies in a table on the device, which the sampler itself keeps up to date, so that
 * a penalised sequence need not wait for its last token; the table is filled once, when the
 * sequence is first seen. Rows of drafts do not count: of what they chose the runner adds up, when
 * the step is collected, what came out, and sends it along with the sequence's next rows.
 */
#include "engine/device_runner.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cuda/cuda.h"
#include "engine/device_ranks.h"
#include "engine/lora_slots.h"
#include "models/lora.h"
#include "ops/device.h"

#include <math.h>
#include <string.h>

enum { DRAWS = 1, RESULTS = 2, ADAPTERS = 4 }; /* bits of a step's variant */

struct late_rows { /* a step that was not collected */
    uint64_t ticket;
    int32_t n, slot; /* of struct sl_batch */
    bool results;
    int32_t *given; /* [max_logits] -1: a token was chosen */
    int8_t *n_top;  /* [max_logits] -1: no log probability */
    struct held_row {
        const struct sl_counts *counts; /* what they do not have of the row yet; NULL: nothing */
        int32_t draft;                  /* what it must have chosen for the next row to count */
    } * held;                           /* [max_logits] */
};

#define MAX_AHEAD (2 * SL_MAX_DRAFTED)

struct slot {                      /* a table of counts */
    const struct sl_counts *owner; /* NULL: free */
    uint64_t last_step;
    int32_t n_ahead, ahead[MAX_AHEAD]; /* tokens that came out and that the table does not have */
};

enum { LIST_BIAS, LIST_MASK, LIST_BANNED, LIST_ENDS, N_LISTS };

struct put_list { /* rows of a sequence have their lists in common */
    const void *from, *at;
    int32_t n;
};

struct sl_device_runner {
    const struct sl_model *m;
    struct sl_backend *be;
    const struct sl_device_vt *dev;
    struct sl_run *run;
    struct sl_device_runner_config cfg;
    int32_t n_vocab;
    struct sl_sample_row *rows; /* [max_logits] of the step being built */
    uint8_t *lists;             /* of the step being built, where rows point into */
    uint8_t *lists_dev;         /* and where that will lie on the device */
    size_t lists_cap, lists_used;
    struct put_list put[N_LISTS]; /* what was put there last */
    void *scratch;                /* device */
    size_t scratch_bytes;
    int32_t *counts;    /* device: [n_slots, n_vocab] */
    int32_t *counts_in; /* host: [n_vocab] */
    struct slot *slots;
    int32_t n_slots;
    uint64_t n_steps;
    struct late_rows late[SL_MAX_FLIGHTS];
    int32_t first, n_late, max_flights;
    struct sl_lora_slots adapters; /* [max_loras] */
    struct sl_device_lora lora;    /* what is in them */
    int32_t *lora_slot;            /* host: [max_tokens] of rows of the step being built */
    struct sl_lora_rows lora_rows;
    struct sl_top_logprob *tops; /* [max_logits, SL_MAX_LOGPROBS] of the last collect */
    float *pooled; /* [max_logits, n_out] of the last collect, embeddings or scores; NULL: tokens */
    struct sl_device_draft *draft; /* NULL: no model drafts */
    struct sl_device_ranks *ranks; /* NULL: one device has all of the model */
};

static const struct sl_sample_row padding = {
    .n_top = -1, .top_p = 1, .repetition_penalty = 1, .padding = 1};

/* Embeddings and scores are left by the step itself: nothing is sampled. */
static bool pools(const struct sl_model *m)
{
    return sl_model_facts(m)->task != SL_TASK_GENERATE;
}

static size_t mask_words(int32_t n_vocab)
{
    return (size_t)SL_CEIL_DIV(n_vocab, 32);
}

static size_t lists_bytes(const struct sl_model *m, const struct sl_device_runner_config *cfg)
{
    size_t mask =
        SL_ROUND_UP(mask_words(sl_model_facts(m)->n_vocab) * sizeof(uint32_t), (size_t)16);
    size_t bias = SL_MAX_LOGIT_BIAS * sizeof(struct sl_sample_bias);
    size_t banned = (SL_MAX_STOP_IDS + SL_MAX_BAD_WORDS + 8) * sizeof(int32_t);
    size_t ahead = (MAX_AHEAD + SL_MAX_DRAFTED) * sizeof(int32_t);
    return (size_t)cfg->max_seqs * (bias + 16) +
           (size_t)cfg->max_logits *
               (banned + mask + ahead + 3 * 16 + sizeof(struct sl_sample_row));
}

/* Steps in flight. */
static int32_t max_flights(const struct sl_device_runner_config *cfg)
{
    return SL_MAX(cfg->n_stages, 1) + 1;
}

static int32_t n_slots(const struct sl_device_runner_config *cfg)
{
    return max_flights(cfg) * cfg->max_seqs;
}

static size_t counts_bytes(const struct sl_model *m, const struct sl_device_runner_config *cfg)
{
    return (size_t)n_slots(cfg) * (size_t)sl_model_facts(m)->n_vocab * sizeof(int32_t);
}

/* Of an adapter, on the rank that has most of one. */
static uint64_t adapter_bytes(const struct sl_model *m, const struct sl_device_runner_config *cfg)
{
    return sl_model_lora_bytes(m, cfg->max_lora_rank, SL_DTYPE_BF16);
}

static uint64_t all_adapters_bytes(const struct sl_model *m,
                                   const struct sl_device_runner_config *cfg)
{
    return cfg->max_loras == 0 ? 0
                               : sl_device_lora_bytes(cfg->max_loras, sl_model_n_lora_mats(m),
                                                      adapter_bytes(m, cfg));
}

/* Gate and up of rows with adapters are floats, of at most 1,024 rows at a time: beyond, a product
 * is no faster for having more. */
static uint64_t gated_bytes(const struct sl_model *m, const struct sl_device_runner_config *cfg)
{
    int64_t widest = 0, n_rows, n_cols;
    if (cfg->max_loras == 0)
        return 0;
    for (int32_t i = 0; i < sl_model_n_lora_mats(m); i++) {
        sl_model_lora_shape(m, i, &n_rows, &n_cols);
        widest = SL_MAX(widest, n_rows);
    }
    return (uint64_t)SL_MIN(cfg->max_tokens, 1024) * 2 * (uint64_t)widest * sizeof(float);
}

static struct sl_device_draft_config draft_of(const struct sl_model *m, const struct sl_run *run,
                                              const struct sl_device_runner_config *cfg)
{
    return (struct sl_device_draft_config){.model = cfg->draft,
                                           .run = cfg->draft_run,
                                           .target_run = run,
                                           .n_vocab = sl_model_facts(m)->n_vocab,
                                           .max_tokens = cfg->draft_tokens,
                                           .max_rows = cfg->draft_rows,
                                           .max_seqs = cfg->max_seqs,
                                           .max_drafts = cfg->max_drafts,
                                           .block = cfg->draft_block,
                                           .max_model_len = cfg->max_model_len};
}

static struct sl_step_limits limits_of(const struct sl_model *m,
                                       const struct sl_device_runner_config *cfg)
{
    const struct sl_model_facts *f = sl_model_facts(m);
    struct sl_step_limits lim = {
        .max_tokens = cfg->max_tokens,
        .max_spans = cfg->max_seqs,
        .depth = max_flights(cfg),
        .max_logits = cfg->max_logits,
        .max_width = 1 + cfg->max_drafts,
        .max_table = (int32_t)SL_MIN((int64_t)cfg->max_seqs *
                                             SL_CEIL_DIV(cfg->max_model_len, cfg->kv.block_size) +
                                         cfg->max_logits - cfg->max_seqs, /* drafts */
                                     INT32_MAX - 1),
        .block_size = cfg->kv.block_size,
        .n_groups = cfg->kv.n_groups,
        .max_context = cfg->max_model_len,
        .whole = f->both_ways,
        .param_bytes = sizeof(struct sl_sample_row),
        .result_bytes = sizeof(struct sl_sample_result),
        .extra_bytes = lists_bytes(m, cfg),
        .adapter_mats = cfg->max_loras > 0 ? sl_model_n_lora_mats(m) : 0,
        .adapter_bytes = gated_bytes(m, cfg),
    };
    sl_model_host_rows(m, &lim.host_hidden, &lim.host_top_k);
    lim.n_kinds = SL_MIN(sl_model_heads(m, lim.heads, SL_MAX_HEAD_KINDS), SL_MAX_HEAD_KINDS);
    if (pools(m)) { /* no step is like another one: none is recorded */
        lim.max_width = 0;
        lim.param_bytes = 0;
        lim.extra_bytes = 0;
        lim.result_bytes = (uint32_t)f->n_row * (uint32_t)sizeof(float);
        return lim;
    }
    for (int32_t g = 0; g < cfg->kv.n_groups; g++)
        lim.scratch_pages[g] = cfg->kv.groups[g].state ? -1 : cfg->n_pages[g];
    const struct sl_device_draft_config draft = draft_of(m, NULL, cfg);
    sl_device_draft_limits(&draft, &lim);
    return lim;
}

uint64_t sl_device_runner_bytes(const struct sl_model *m, struct sl_backend *be,
                                const struct sl_device_runner_config *cfg)
{
    const struct sl_device_vt *dev = be->vt->device;
    struct sl_step_limits lim = limits_of(m, cfg);
    const struct sl_device_draft_config draft = draft_of(m, NULL, cfg);
    uint64_t sampling = 0;
    if (!pools(m))
        sampling = dev->sample_scratch(be, cfg->max_logits, sl_model_facts(m)->n_vocab) +
                   counts_bytes(m, cfg);
    return dev->steps_bytes(be, &lim) + sampling + sl_device_draft_bytes(&draft, be) +
           all_adapters_bytes(m, cfg);
}

uint64_t sl_device_runner_part_bytes(const struct sl_model *m, struct sl_backend *be,
                                     const struct sl_device_runner_config *cfg)
{
    const struct sl_step_limits all = limits_of(m, cfg), lim = sl_device_ranks_limits(&all);
    return be->vt->device->steps_bytes(be, &lim);
}

uint64_t sl_device_runner_inbox_bytes(const struct sl_model *m,
                                      const struct sl_device_runner_config *cfg)
{
    return sl_cuda_pipe_bytes((size_t)sl_model_facts(m)->hidden * sizeof(float), cfg->max_tokens);
}

/* ------------------------------------------------------------------ what a row is sampled by */

/* Room in what travels. */
static size_t take_room(struct sl_device_runner *d, size_t n_bytes)
{
    size_t at = d->lists_used;
    d->lists_used += SL_ROUND_UP(n_bytes, (size_t)16);
    SL_ASSERT(d->lists_used <= d->lists_cap);
    return at;
}

/* Copies a list into what travels; returns where it will lie on the device. */
static const void *put_list(struct sl_device_runner *d, const void *list, int32_t n, size_t each)
{
    if (n <= 0)
        return NULL;
    SL_ASSERT(list != NULL);
    size_t at = take_room(d, (size_t)n * each);
    memcpy(d->lists + at, list, (size_t)n * each);
    return d->lists_dev + at;
}

/* Likewise, once for rows that follow one another with the same list. */
static const void *put_once(struct sl_device_runner *d, int which, const void *list, int32_t n,
                            size_t each)
{
    struct put_list *last = &d->put[which];
    if (last->from != list || last->n != n)
        *last = (struct put_list){list, put_list(d, list, n, each), n};
    return last->at;
}

/* Biases in ascending order of ids, equal ones in the order they were given. */
static void put_bias(struct sl_device_runner *d, const struct sl_sampling *p,
                     struct sl_sample_row *row)
{
    struct sl_sample_bias sorted[SL_MAX_LOGIT_BIAS];
    struct put_list *last = &d->put[LIST_BIAS];
    int32_t n = 0;
    SL_ASSERT(p->n_logit_bias <= SL_MAX_LOGIT_BIAS);
    row->n_bias = p->n_logit_bias;
    row->bias = last->at;
    if (last->from == p->logit_bias && last->n == p->n_logit_bias)
        return;
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        int32_t at = n++;
        for (; at > 0 && sorted[at - 1].id > p->logit_bias[i].id; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = (struct sl_sample_bias){p->logit_bias[i].id, p->logit_bias[i].bias};
    }
    row->bias = put_list(d, sorted, n, sizeof *sorted);
    *last = (struct put_list){p->logit_bias, row->bias, n};
}

/* A free slot, or one of a sequence that is in no step that was not collected: the host knows all
 * its tokens. Steps in flight together have no more sequences than there are slots. */
static int32_t take_slot(const struct sl_device_runner *d)
{
    for (int32_t i = 0; i < d->n_slots; i++)
        if (d->slots[i].owner == NULL)
            return i;
    for (int32_t i = 0; i < d->n_slots; i++)
        if (d->slots[i].last_step + (uint64_t)d->max_flights - 1 < d->n_steps)
            return i;
    SL_ASSERT(false);
}

static int32_t find_slot(const struct sl_device_runner *d, const struct sl_counts *c)
{
    int32_t i = 0;
    while (i < d->n_slots && d->slots[i].owner != c)
        i++;
    return i;
}

/* The table of a sequence; one that is new is filled with what is known of it. So is one that lacks
 * so many tokens that the next ones might find no room: the host knows all of them. */
static int32_t *counts_of(struct sl_device_runner *d, const struct sl_counts *c, struct slot **slot)
{
    int32_t i = find_slot(d, c);
    bool fresh = i == d->n_slots;
    if (fresh)
        i = take_slot(d);
    SL_ASSERT(i >= 0 && i < d->n_slots);
    int32_t *table = d->counts + (size_t)i * (size_t)d->n_vocab;
    struct slot *s = *slot = &d->slots[i];
    /* the rows of a step have the same list, as none of them changes it but the last */
    fresh = fresh || (s->last_step != d->n_steps && s->n_ahead + SL_MAX_DRAFTED >= MAX_AHEAD);
    s->owner = c;
    s->last_step = d->n_steps;
    if (!fresh)
        return table;
    s->n_ahead = 0;
    size_t n_bytes = (size_t)d->n_vocab * sizeof *d->counts_in;
    memset(d->counts_in, 0, n_bytes);
    for (int32_t k = 0; k < c->n; k++)
        d->counts_in[c->entries[k].id] = sl_sample_count(true, c->entries[k].n_out);
    d->be->vt->upload(d->be, table, d->counts_in, n_bytes);
    return table;
}

static void put_counts(struct sl_device_runner *d, const struct sl_sample_args *how, bool held,
                       struct sl_sample_row *row)
{
    struct slot *s;
    SL_ASSERT(held || how->n_ahead == 0);
    row->counts = counts_of(d, how->counts, &s);
    row->held = held;
    row->n_ahead = s->n_ahead + how->n_ahead;
    if (row->n_ahead > 0) {
        int32_t *to =
            (int32_t *)(void *)(d->lists + take_room(d, (size_t)row->n_ahead * sizeof *to));
        memcpy(to, s->ahead, (size_t)s->n_ahead * sizeof *to);
        for (int32_t i = 0; i < how->n_ahead; i++)
            to[s->n_ahead + i] = how->ahead[i];
        row->ahead = (const int32_t *)(void *)(d->lists_dev + ((uint8_t *)to - d->lists));
    }
    if (!held)
        s->n_ahead = 0;
}

static void build_row(struct sl_device_runner *d, const struct sl_pick *pick, bool held,
                      struct sl_sample_row *row)
{
    const struct sl_sample_args *how = &pick->how;
    const struct sl_sampling *p = how->sampling;
    *row = padding;
    if (pick->skip)
        return;
    SL_ASSERT(pick->n_top <= SL_MAX_LOGPROBS && pick->top_ids == NULL); /* see sl_runner.top_ids */
    row->padding = 0;
    row->n_top = pick->n_top;
    if (pick->given >= 0) { /* greedy, with a bias that nothing outweighs: results are raw */
        struct sl_sample_bias only = {pick->given, 1e30f};
        row->bias = put_list(d, &only, 1, sizeof only);
        row->n_bias = 1;
        return;
    }
    row->seed = how->seed;
    row->pos = how->pos;
    row->temperature = p->temperature;
    row->top_k = p->top_k;
    row->top_p = p->top_p;
    row->min_p = p->min_p;
    row->floor = sl_sample_floor(p->min_p);
    row->repetition_penalty = p->repetition_penalty;
    row->frequency_penalty = p->frequency_penalty;
    row->presence_penalty = p->presence_penalty;
    if (how->counts != NULL)
        put_counts(d, how, held, row);
    if (how->allowed != NULL)
        row->allowed =
            put_once(d, LIST_MASK, how->allowed, (int32_t)mask_words(d->n_vocab), sizeof(uint32_t));
    put_bias(d, p, row);
    for (int i = 0; i < 2; i++) {
        row->banned[i] =
            put_once(d, LIST_BANNED + i, how->banned[i], how->n_banned[i], sizeof(int32_t));
        row->n_banned[i] = how->n_banned[i];
    }
}

/* ------------------------------------------------------------------ adapters */

/* On every rank, each with its own weights. */
static void put_adapter(struct sl_device_runner *d, const struct sl_lora_weights *w, int32_t slot)
{
    SL_ASSERT(slot >= 0 && slot < d->cfg.max_loras);
    sl_device_lora_put(&d->lora, w, slot);
    if (d->ranks != NULL)
        sl_device_ranks_put_adapter(d->ranks, w, slot);
}

/* Where an adapter lies on the device. */
static int32_t slot_of(struct sl_device_runner *d, const struct sl_lora_weights *w)
{
    bool fresh;
    const int32_t slot = sl_lora_slots_of(&d->adapters, w, &fresh);
    if (fresh)
        put_adapter(d, w, slot);
    return slot;
}

/* Whose adapter each row has, by slots. NULL: no row has one. */
static const struct sl_lora_rows *place_adapters(struct sl_device_runner *d,
                                                 const struct sl_batch *batch)
{
    const struct sl_lora_rows *rows = batch->lora;
    if (rows == NULL)
        return NULL;
    sl_lora_slots_step(&d->adapters, rows);
    SL_ASSERT(batch->n_tokens <= d->cfg.max_tokens);
    for (int32_t i = 0; i < batch->n_tokens; i++)
        d->lora_slot[i] = -1;
    for (int32_t i = 0; i < rows->n_segs; i++) {
        const struct sl_lora_seg *seg = &rows->segs[i];
        SL_ASSERT(seg->first >= 0 && seg->first + seg->n <= batch->n_tokens);
        const int32_t slot = slot_of(d, rows->weights[seg->adapter]);
        for (int32_t t = seg->first; t < seg->first + seg->n; t++)
            d->lora_slot[t] = slot;
    }
    d->lora_rows = (struct sl_lora_rows){.adapter = d->lora_slot,
                                         .scale = rows->scale,
                                         .table = d->lora.table,
                                         .n_mats = sl_model_n_lora_mats(d->m)};
    return &d->lora_rows;
}

/* ------------------------------------------------------------------ steps */

static void forward(void *arg, const struct sl_step *step)
{
    struct sl_device_runner *d = arg;
    if (d->pooled != NULL)
        sl_run_set_pooled(d->run, step->results);
    if ((step->variant & SL_STEP_BEST) != 0) {
        sl_device_ranks_best(d->be, d->run, &step->batch);
        return;
    }
    if (step->part != SL_STEP_CHOICE)
        (void)sl_run_enqueue(d->run, &step->batch);
    if (d->pooled != NULL || step->part == SL_STEP_FORWARD || step->batch.n_logits == 0)
        return;
    d->dev->sample(d->be, &(struct sl_op_sample){
                              .logits = sl_run_logits(d->run),
                              .ld = d->n_vocab,
                              .n = step->batch.n_logits,
                              .n_vocab = d->n_vocab,
                              .rows = step->params,
                              .ids = step->ids,
                              .results = (step->variant & RESULTS) != 0 ? step->results : NULL,
                              .scratch = d->scratch,
                              .max_n = d->cfg.max_logits,
                              .draws = (step->variant & DRAWS) != 0,
                          });
    if (d->ranks != NULL)
        sl_device_ranks_share(d->ranks, step->batch.n_logits);
}

static const struct sl_counts *counted_in(const struct sl_pick *pick)
{
    return pick->skip || pick->given >= 0 ? NULL : pick->how.counts;
}

/* Rows of the step, and their lists into what travels with it. */
static void build_rows(struct sl_device_runner *d, const struct sl_pick *picks, int32_t n,
                       struct late_rows *l, struct sl_step *step)
{
    SL_ASSERT(n >= 0 && n <= d->cfg.max_logits);
    const struct sl_counts *before = NULL;
    for (int32_t i = 0; i < n; i++) {
        const struct sl_counts *own = counted_in(&picks[i]);
        const bool more = own != NULL && i + 1 < n && counted_in(&picks[i + 1]) == own;
        const bool held = more || (own != NULL && before == own);
        before = own;
        l->held[i] = (struct held_row){
            held ? own : NULL, more ? picks[i + 1].how.ahead[picks[i + 1].how.n_ahead - 1] : -1};
        build_row(d, &picks[i], held, &d->rows[i]);
        step->variant |= sl_sample_draws(&d->rows[i]) ? DRAWS : 0;
        step->variant |= picks[i].n_top >= 0 ? RESULTS : 0;
        l->given[i] = picks[i].given;
        l->n_top[i] = (int8_t)picks[i].n_top;
    }
    l->n = n;
    l->results = step->want_results = (step->variant & RESULTS) != 0;
}

/* The row takes its best token of the logits as they are, and nobody asks for more. */
static bool takes_best(const struct sl_sample_row *r)
{
    return r->padding == 0 && r->temperature < SL_SAMPLE_GREEDY_BELOW && r->n_top < 0 &&
           r->allowed == NULL && r->counts == NULL && r->n_bias == 0 && r->n_banned[0] == 0 &&
           r->n_banned[1] == 0;
}

/* Of ranks: a step in which all rows do. */
static uint32_t best_of(const struct sl_device_runner *d, int32_t n)
{
    bool all = n > 0 && d->ranks != NULL && sl_device_ranks_may_best(d->ranks);
    for (int32_t i = 0; i < n && all; i++)
        all = takes_best(&d->rows[i]);
    return all ? SL_STEP_BEST : 0;
}

static void open_lists(struct sl_device_runner *d)
{
    d->lists = d->dev->extra_host(d->be);
    d->lists_used = 0;
    memset(d->put, 0, sizeof d->put);
}

static int submit(void *ctx, const struct sl_batch *batch, const struct sl_pick *picks,
                  struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    SL_ASSERT(d->n_late < d->max_flights && batch->slot >= 0);
    struct late_rows *l = &d->late[(d->first + d->n_late) % d->max_flights];
    struct sl_step step = {.batch = *batch, .part = SL_STEP_FORWARD};
    d->n_steps++;
    step.batch.lora = step.batch.logit_lora = place_adapters(d, batch);
    step.variant |= step.batch.lora != NULL ? ADAPTERS : 0;
    l->n = batch->n_logits;
    l->slot = batch->slot;
    if (d->pooled != NULL) {
        step.part = SL_STEP_WHOLE;
        step.want_results = true;
    } else if (picks != NULL) {
        open_lists(d);
        build_rows(d, picks, batch->n_logits, l, &step);
        step.variant |= best_of(d, batch->n_logits);
        step.part = SL_STEP_WHOLE;
        step.params = d->rows;
        step.params_pad = &padding;
        step.extra = d->lists;
        step.extra_bytes = d->lists_used;
    }
    int rc = d->ranks != NULL ? sl_device_ranks_step(d->ranks, &step, forward, d, &l->ticket, err)
                              : d->dev->step(d->be, &step, forward, d, &l->ticket, err);
    d->n_late += rc == 0;
    return rc;
}

/* The rows travel with the lists, before them. */
static int choose(void *ctx, const struct sl_pick *picks, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    SL_ASSERT(d->n_late > 0);
    struct late_rows *l = &d->late[(d->first + d->n_late - 1) % d->max_flights];
    struct sl_step step = {.batch = {.n_logits = l->n, .slot = l->slot}, .part = SL_STEP_CHOICE};
    size_t n_bytes = (size_t)l->n * sizeof *d->rows;
    open_lists(d);
    size_t at = take_room(d, n_bytes);
    build_rows(d, picks, l->n, l, &step);
    memcpy(d->lists + at, d->rows, n_bytes);
    step.extra = d->lists;
    step.extra_bytes = d->lists_used;
    int rc = d->ranks != NULL ? sl_device_ranks_choose(d->ranks, &step, forward, d, err)
                              : d->dev->choose(d->be, &step, forward, d, err);
    d->n_late -= rc != 0;
    return rc;
}

static struct sl_picked read_row(struct sl_device_runner *d, const struct late_rows *l, int32_t i,
                                 int32_t id, const struct sl_sample_result *r)
{
    struct sl_picked out = {.id = id, .top = d->tops + (size_t)i * SL_MAX_LOGPROBS};
    if (l->n_top[i] < 0 || id < 0)
        return out;
    SL_ASSERT(r != NULL && l->n_top[i] <= SL_MAX_LOGPROBS);
    out.lp =
        (struct sl_logprob){.logprob = sl_sample_logprob(r, r->logit), .rank = r->n_before + 1};
    if (l->given[i] >= 0 && l->given[i] != id) /* its logit is -infinity */
        out.lp = (struct sl_logprob){.logprob = -INFINITY, .rank = d->n_vocab};
    for (int32_t k = 0; k < l->n_top[i]; k++)
        d->tops[(size_t)i * SL_MAX_LOGPROBS + (size_t)k] = (struct sl_top_logprob){
            .id = r->top_id[k], .logprob = sl_sample_logprob(r, r->top_logit[k])};
    return out;
}

static void read_pooled(struct sl_device_runner *d, const float *rows, int32_t n,
                        struct sl_picked *out)
{
    const struct sl_model_facts *f = sl_model_facts(d->m);
    for (int32_t i = 0; i < n; i++) {
        float *to = d->pooled + (size_t)i * (size_t)f->n_out;
        sl_model_pooled(d->m, rows + (size_t)i * (size_t)f->n_row, to);
        out[i] = (struct sl_picked){.pooled = to};
    }
}

/* Of rows of drafts, what came out: a row's token, if those before it chose their drafts. */
static void note_ahead(struct sl_device_runner *d, const struct late_rows *l, const int32_t *ids)
{
    bool counts = true;
    for (int32_t i = 0; i < l->n; i++) {
        const struct held_row *h = &l->held[i];
        if (h->counts == NULL)
            continue;
        const int32_t at = find_slot(d, h->counts);
        if (i == 0 || l->held[i - 1].counts != h->counts)
            counts = true;
        if (counts && ids[i] >= 0 && at < d->n_slots) { /* else it has ended */
            struct slot *s = &d->slots[at];
            SL_ASSERT(s->n_ahead < MAX_AHEAD);
            s->ahead[s->n_ahead++] = ids[i];
        }
        counts = counts && ids[i] == h->draft;
    }
}

static int collect(void *ctx, struct sl_picked *out, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    const int32_t *ids;
    const void *results;
    SL_ASSERT(d->n_late > 0);
    const struct late_rows *l = &d->late[d->first];
    d->first = (d->first + 1) % d->max_flights;
    d->n_late--;
    int rc = d->ranks != NULL ? sl_device_ranks_wait(d->ranks, l->ticket, &ids, &results, err)
                              : d->dev->wait(d->be, l->ticket, &ids, &results, err);
    if (rc != 0)
        return rc;
    if (d->pooled != NULL) {
        read_pooled(d, results, l->n, out);
        return 0;
    }
    note_ahead(d, l, ids);
    const struct sl_sample_result *r = results;
    for (int32_t i = 0; i < l->n; i++)
        out[i] = read_row(d, l, i, ids[i], l->results ? &r[i] : NULL);
    return 0;
}

static void times(const void *ctx, struct sl_device_times *out)
{
    const struct sl_device_runner *d = ctx;
    d->dev->times(d->be, out);
    if (d->ranks == NULL || d->cfg.n_stages <= 1)
        return;
    /* A sequence's next token takes a step's time on every stage. */
    out->busy_ms = out->gap_ms = 0;
    for (int s = 0; s < d->cfg.n_stages; s++) {
        struct sl_device_times own;
        sl_device_ranks_times(d->ranks, s, &own);
        out->busy_ms += own.busy_ms;
        out->gap_ms += own.gap_ms;
    }
}

static void stage_times(const void *ctx, int32_t stage, struct sl_device_times *out)
{
    const struct sl_device_runner *d = ctx;
    sl_device_ranks_times(d->ranks, stage, out);
}

static uint64_t progress(const void *ctx)
{
    const struct sl_device_runner *d = ctx;
    return sl_run_progress(d->run) + sl_device_draft_progress(d->draft);
}

static int draft(void *ctx, struct sl_draft_pass *pass, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    SL_ASSERT(d->n_late == 0); /* rows of the step that has landed are still there */
    return sl_device_draft_run(d->draft, pass, err);
}

static int draft_end(void *ctx, struct sl_draft_pass *pass, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return sl_device_draft_end(d->draft, pass, err);
}

/* ------------------------------------------------------------------ pages */

static uint8_t *page_at(const struct sl_device_runner *d, int32_t group, int32_t page)
{
    SL_ASSERT(group >= 0 && group < d->cfg.kv.n_groups && d->cfg.pools[group] != NULL);
    SL_ASSERT(page >= 0);
    return d->cfg.pools[group] + (size_t)page * d->cfg.kv.groups[group].page_bytes;
}

static int page_out(void *ctx, int32_t group, int32_t page, uint8_t *dst, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->page_copy(d->be, SL_PAGES_OUT, dst, page_at(d, group, page),
                             d->cfg.kv.groups[group].page_bytes, err);
}

static int page_in(void *ctx, int32_t group, int32_t page, const uint8_t *src, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->page_copy(d->be, SL_PAGES_IN, page_at(d, group, page), src,
                             d->cfg.kv.groups[group].page_bytes, err);
}

static int pages_follow(void *ctx, enum sl_page_way way, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->pages_follow(d->be, way, err);
}

static int pages_send(void *ctx, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->pages_send(d->be, err);
}

static int pages_over(void *ctx, bool wait, struct sl_page_counts *over, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->pages_over(d->be, wait, over, err);
}

static int pages_await(void *ctx, const struct sl_page_counts *n, struct sl_error *err)
{
    struct sl_device_runner *d = ctx;
    return d->dev->pages_await(d->be, n, err);
}

static void use_pages(struct sl_device_runner *d, struct sl_runner *r)
{
    if (d->cfg.pools[0] == NULL)
        return;
    r->page_out = page_out;
    r->page_in = page_in;
    r->pages_follow = pages_follow;
    r->pages_send = pages_send;
    r->pages_over = pages_over;
    r->pages_await = pages_await;
    r->pin = d->dev->pin;
    r->unpin = d->dev->unpin;
    r->device = d->dev->number(d->be);
}

static void forget(void *ctx, const struct sl_counts *counts)
{
    struct sl_device_runner *d = ctx;
    for (int32_t i = 0; i < d->n_slots; i++)
        if (d->slots[i].owner == counts)
            d->slots[i].owner = NULL;
}

/* ------------------------------------------------------------------ start and end */

static int take_device_memory(struct sl_device_runner *d, struct sl_error *err)
{
    const struct sl_backend_vt *vt = d->be->vt;
    struct sl_step_limits lim = limits_of(d->m, &d->cfg);
    int rc = d->dev->steps_init(d->be, &lim, err);
    if (rc == 0 && d->cfg.max_loras > 0)
        rc = sl_device_lora_init(&d->lora, d->be, d->cfg.max_loras, sl_model_n_lora_mats(d->m),
                                 adapter_bytes(d->m, &d->cfg), err);
    if (rc == 0 && d->cfg.ranks != NULL)
        rc = sl_device_ranks_create(d->cfg.ranks, &lim, &d->lora, &d->ranks, err);
    if (rc != 0)
        return rc;
    if (d->pooled == NULL) {
        d->lists_dev = d->dev->extra(d->be);
        d->scratch_bytes = d->dev->sample_scratch(d->be, d->cfg.max_logits, d->n_vocab);
        d->scratch = vt->alloc(d->be, d->scratch_bytes);
        d->counts = vt->alloc(d->be, counts_bytes(d->m, &d->cfg));
        if (d->scratch == NULL || d->counts == NULL)
            return sl_fail(err, SL_ENOMEM, "out of device memory for sampling %d rows of %d tokens",
                           d->cfg.max_logits, d->n_vocab);
    }
    if (d->cfg.pools[0] != NULL)
        rc = d->dev->pages_init(d->be, err);
    if (rc != 0)
        return rc;
    const struct sl_device_draft_config drafts = draft_of(d->m, d->run, &d->cfg);
    return sl_device_draft_create(&drafts, d->be, &d->draft, err);
}

int sl_device_runner_create(const struct sl_model *m, struct sl_backend *be, struct sl_run *run,
                            const struct sl_device_runner_config *cfg,
                            struct sl_device_runner **out, struct sl_error *err)
{
    size_t n = (size_t)cfg->max_logits;
    SL_ASSERT(be->vt->device != NULL && cfg->max_logits >= cfg->max_seqs);
    *out = NULL;
    struct sl_device_runner *d = sl_calloc(1, sizeof *d);
    if (d == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a runner");
    d->m = m;
    d->be = be;
    d->dev = be->vt->device;
    d->run = run;
    d->cfg = *cfg;
    d->n_vocab = sl_model_facts(m)->n_vocab;
    d->lists_cap = lists_bytes(m, cfg);
    d->rows = sl_calloc(n, sizeof *d->rows);
    d->counts_in = sl_calloc((size_t)d->n_vocab, sizeof *d->counts_in);
    d->max_flights = max_flights(cfg);
    d->n_slots = n_slots(cfg);
    d->slots = sl_calloc((size_t)d->n_slots, sizeof *d->slots);
    d->tops = sl_calloc(n, SL_MAX_LOGPROBS * sizeof *d->tops);
    if (pools(m))
        d->pooled = sl_calloc(n, (size_t)sl_model_facts(m)->n_out * sizeof *d->pooled);
    d->lora_slot = sl_calloc((size_t)cfg->max_tokens, sizeof *d->lora_slot);
    bool ok = d->lora_slot != NULL && (!pools(m) || d->pooled != NULL) && d->rows != NULL &&
              d->counts_in != NULL && d->slots != NULL && d->tops != NULL;
    for (int i = 0; i < d->max_flights; i++) {
        d->late[i].n_top = sl_malloc(n);
        d->late[i].given = sl_malloc(n * sizeof *d->late[i].given);
        d->late[i].held = sl_calloc(n, sizeof *d->late[i].held);
        ok = ok && d->late[i].n_top != NULL && d->late[i].given != NULL && d->late[i].held != NULL;
    }
    int rc = sl_lora_slots_init(&d->adapters, cfg->max_loras, err);
    if (rc == 0)
        rc = ok ? take_device_memory(d, err)
                : sl_fail(err, SL_ENOMEM, "out of memory for a runner of %zu rows", n);
    if (rc != 0) {
        sl_device_runner_destroy(d);
        return rc;
    }
    *out = d;
    return 0;
}

void sl_device_runner_destroy(struct sl_device_runner *d)
{
    if (d == NULL)
        return;
    d->dev->forget(d->be, d);
    sl_device_ranks_destroy(d->ranks);
    sl_device_draft_destroy(d->draft);
    sl_device_lora_deinit(&d->lora);
    if (d->counts != NULL)
        d->be->vt->free(d->be, d->counts, counts_bytes(d->m, &d->cfg));
    if (d->scratch != NULL)
        d->be->vt->free(d->be, d->scratch, d->scratch_bytes);
    for (int i = 0; i < SL_MAX_FLIGHTS; i++) {
        sl_free(d->late[i].held);
        sl_free(d->late[i].given);
        sl_free(d->late[i].n_top);
    }
    sl_free(d->lora_slot);
    sl_lora_slots_deinit(&d->adapters);
    sl_free(d->pooled);
    sl_free(d->tops);
    sl_free(d->slots);
    sl_free(d->counts_in);
    sl_free(d->rows);
    sl_free(d);
}

void sl_device_runner_use(struct sl_device_runner *d, struct sl_runner *r)
{
    const struct sl_model_facts *f = sl_model_facts(d->m);
    *r = (struct sl_runner){.ctx = d,
                            .n_vocab = d->n_vocab,
                            .max_logits = d->cfg.max_logits,
                            .max_flights = d->pooled != NULL ? 1 : d->max_flights,
                            .n_groups = SL_MAX(d->cfg.n_stages, 1),
                            .blind = d->pooled != NULL,
                            .n_pooled = d->pooled != NULL ? f->n_out : 0,
                            .whole = f->whole,
                            .submit = submit,
                            .choose = choose,
                            .collect = collect,
                            .forget = forget,
                            .times = times,
                            .progress = progress};
    if (d->cfg.n_stages > 1)
        r->stage_times = stage_times;
    use_pages(d, r);
    if (d->draft == NULL)
        return;
    const struct sl_model_facts *small = sl_model_facts(d->cfg.draft);
    r->draft = draft;
    r->draft_end = draft_end;
    r->n_draft_vocab = small->n_vocab;
    r->draft_context = small->context;
    r->draft_rows = small->draft_width > 0;
    r->draft_borrows = small->draft_borrows;
    r->draft_at_once = d->cfg.draft_block > 0;
    r->draft_block = small->draft_apart ? d->cfg.draft_block : 0;
}
