/* SPDX-License-Identifier: MIT */
#include "engine/load/memory_plan.h"

#include "base/check.h"
#include "base/sys.h"
#include "cpu/weight_stream.h"
#include "engine/draft.h"
#include "engine/load/load.h"
#include "engine/load/shared.h"
#include "engine/load/tier_plan.h"
#include "engine/suffix.h"
#include "io/peft.h"
#include "ops/device.h"

#include <string.h>

#define DEFAULT_BLOCK_SIZE     16
#define DEFAULT_MAX_SEQS       64
#define DEFAULT_BATCHED_TOKENS 512
#define DEFAULT_MAX_QUEUED     4096
#define DEFAULT_MAX_LORAS      8
#define DEFAULT_LORA_RANK      16
#define WHOLE_BATCHED_TOKENS   2048 /* of models that take whole texts; short ones share a step */
#define DEVICE_MAX_SEQS        256
#define DEVICE_BATCHED_TOKENS  4096
#define DEVICE_UTILIZATION     0.9f
#define MAX_DRAFT_ROWS         128
#define CACHED_WINDOWS         8 /* one of so many blocks keeps pages of windowed layers */
#define CACHED_STATES          4 /* bytes of keys and values to one of cached states */
#define STATES_OF_SEQ          2 /* where a step begins and where it ends */
#define DRAFT_STATES           8 /* bytes of pages to one of states behind drafts */
#define TIER_PAGES             8 /* blocks that host memory holds at least, on their way */
#define SLOTS_OF_SEAT          8 /* of a model without pages of keys: cached ones included */
#define MAX_STATE_NODES        (1 << 18) /* blocks of such a model, if one sequence needs no more */

static int check_flag(const char *name, int32_t value, int32_t max, struct sl_error *err)
{
    if (value < 0 || value > max)
        return sl_fail(err, SL_EINVAL, "%s: %d is not between 1 and %d", name, value, max);
    return 0;
}

/* The longest sequence, unless the pool is too small for it. */
static int32_t context_of(const struct sl_model_facts *f, const struct sl_engine_config *cfg)
{
    if (cfg->max_model_len != 0)
        return cfg->max_model_len;
    return f->max_input != 0 ? SL_MIN(f->max_input, f->context) : f->context;
}

static int32_t default_tokens(const struct sl_model_facts *f, const struct sl_engine_config *cfg,
                              bool on_device)
{
    if (f->whole)
        return SL_MIN(SL_MAX(WHOLE_BATCHED_TOKENS, context_of(f, cfg)), SL_MAX_STEP_TOKENS);
    /* The stages behind the first wait for its first chunk. */
    return on_device ? DEVICE_BATCHED_TOKENS / f->n_stages : DEFAULT_BATCHED_TOKENS;
}

static int plan_steps(const struct sl_model_facts *facts, const struct sl_engine_config *cfg,
                      struct sl_memory_plan *p, struct sl_error *err)
{
    int rc = check_flag("max_num_seqs", cfg->max_num_seqs, SL_MAX_SEQS, err);
    if (rc == 0)
        rc = check_flag("max_num_batched_tokens", cfg->max_num_batched_tokens, SL_MAX_STEP_TOKENS,
                        err);
    if (rc == 0)
        rc = check_flag("block_size", cfg->block_size, SL_MAX_BLOCK_SIZE, err);
    if (rc == 0)
        rc = check_flag("max_model_len", cfg->max_model_len, SL_MAX_CONTEXT, err);
    if (rc != 0)
        return rc;
    int32_t seqs = p->on_device ? DEVICE_MAX_SEQS : DEFAULT_MAX_SEQS;
    int32_t tokens = default_tokens(facts, cfg, p->on_device);
    p->max_num_seqs = cfg->max_num_seqs != 0 ? cfg->max_num_seqs : seqs;
    if (cfg->max_num_batched_tokens != 0 && cfg->max_num_batched_tokens < p->max_num_seqs) {
        /* Every running sequence has a token in every step. */
        if (cfg->max_num_seqs != 0)
            return sl_fail(err, SL_EINVAL,
                           "max_num_batched_tokens: %d is less than max_num_seqs %d",
                           cfg->max_num_batched_tokens, cfg->max_num_seqs);
        p->max_num_seqs = cfg->max_num_batched_tokens;
    }
    p->max_num_batched_tokens = cfg->max_num_batched_tokens != 0 ? cfg->max_num_batched_tokens
                                                                 : SL_MAX(tokens, p->max_num_seqs);
    p->block_size = cfg->block_size != 0 ? cfg->block_size : DEFAULT_BLOCK_SIZE;
    if (facts->kv_ranks > 1)
        p->block_size = SL_KV_STRETCH * facts->kv_ranks;
    SL_ASSERT(p->max_num_seqs >= 1 && p->max_num_batched_tokens >= p->max_num_seqs);
    p->max_queued = cfg->max_queued != 0 ? cfg->max_queued : DEFAULT_MAX_QUEUED;
    return 0;
}

static int plan_adapters(const struct sl_model_facts *facts, const struct sl_engine_config *cfg,
                         struct sl_memory_plan *p, struct sl_error *err)
{
    if (!cfg->enable_lora)
        return 0;
    if (facts->task != SL_TASK_GENERATE && cfg->shared != NULL)
        return 0; /* the models beside it may */
    if (facts->task != SL_TASK_GENERATE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "enable_lora: a model of embeddings or scores takes no adapters");
    int rc = check_flag("max_loras", cfg->max_loras, SL_MAX_LORAS, err);
    if (rc == 0)
        rc = check_flag("max_lora_rank", cfg->max_lora_rank, SL_MAX_LORA_RANK, err);
    if (rc == 0)
        rc = check_flag("max_cpu_loras", cfg->max_cpu_loras, SL_MAX_ADAPTERS, err);
    if (rc != 0)
        return rc;
    p->max_loras = cfg->max_loras != 0 ? cfg->max_loras : DEFAULT_MAX_LORAS;
    p->max_lora_rank = cfg->max_lora_rank != 0 ? cfg->max_lora_rank : DEFAULT_LORA_RANK;
    p->max_cpu_loras = cfg->max_cpu_loras != 0 ? cfg->max_cpu_loras : p->max_loras;
    SL_ASSERT(p->max_loras >= 1 && p->max_lora_rank >= 1 && p->max_cpu_loras >= 1);
    if (p->max_cpu_loras < p->max_loras)
        return sl_fail(err, SL_EINVAL, "max_cpu_loras: %d is less than max_loras %d",
                       p->max_cpu_loras, p->max_loras);
    return 0;
}

/* Pages one sequence of n tokens needs. */
static uint64_t pages_for(int32_t n_tokens, int32_t block_size)
{
    SL_ASSERT(n_tokens > 0 && block_size > 0);
    return SL_CEIL_DIV((uint64_t)n_tokens, (uint64_t)block_size);
}

/* Memory for the pool where nobody said how much. On the CPU a quarter of it all, or half of what
 * the weights leave if that is less; a device is there for nothing else. */
static uint64_t default_pool(const struct sl_memory_plan *p)
{
    if (p->on_device && p->n_stages > 1)
        return sl_stage_plan_room(p);
    uint64_t taken = p->packed_bytes + p->activation_bytes + p->runner_bytes;
    taken += p->on_device ? 0 : p->corpus_bytes + p->tier_bytes;
    uint64_t room = p->ram_bytes > taken ? p->ram_bytes - taken : 0;
    return p->on_device ? room : SL_MIN(p->ram_bytes / 4, room / 2);
}

/* The group of recurrent layers, the last; NULL: there is none. */
static const struct sl_kv_layer_group *states_of(const struct sl_memory_plan *p)
{
    const struct sl_kv_layer_group *g = &p->kv.groups[p->kv.n_groups - 1];
    return g->state ? g : NULL;
}

static uint64_t group_pages(const struct sl_memory_plan *p, int32_t group, uint64_t n_blocks);

/* Slots for recurrent states: those of the sequences, and cached ones as a share of the bytes of
 * keys and values. */
static uint64_t state_pages(const struct sl_memory_plan *p, uint64_t n_blocks)
{
    uint64_t n_bytes = 0;
    SL_ASSERT(states_of(p) != NULL && p->max_state_slots >= 0);
    if (p->max_state_slots != 0)
        return SL_MIN(n_blocks, (uint64_t)p->max_state_slots);
    for (int32_t i = 0; i < p->kv.n_groups - 1; i++)
        n_bytes += group_pages(p, i, n_blocks) * p->kv.groups[i].page_bytes;
    return SL_MIN(n_blocks, STATES_OF_SEQ * (uint64_t)p->max_num_seqs +
                                n_bytes / CACHED_STATES / states_of(p)->page_bytes);
}

/* Pages of a group beside so many blocks. A windowed group needs those that all sequences see while
 * two steps are computed, so that none ever waits for one, and an eighth of the blocks keep theirs
 * cached for prompts that match; but never more than one for each block. */
static uint64_t group_pages(const struct sl_memory_plan *p, int32_t group, uint64_t n_blocks)
{
    const int32_t window = p->kv.groups[group].window;
    if (p->kv.groups[group].state)
        return state_pages(p, n_blocks);
    if (window == 0)
        return n_blocks;
    uint64_t seen = (uint64_t)p->max_num_seqs * (pages_for(window, p->block_size) + 2) +
                    2 * pages_for(p->max_num_batched_tokens, p->block_size);
    return SL_MIN(n_blocks, seen + n_blocks / CACHED_WINDOWS);
}

uint64_t sl_memory_plan_page_bytes(const struct sl_memory_plan *p, int32_t group)
{
    return p->kv.groups[group].page_bytes + (group == 0 ? p->draft_kv.groups[0].page_bytes : 0);
}

static uint64_t plan_pool_bytes(const struct sl_memory_plan *p, uint64_t n_blocks)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < p->kv.n_groups; i++)
        n += (group_pages(p, i, n_blocks) + (uint64_t)sl_memory_plan_draft_pages(p, i)) *
             sl_memory_plan_page_bytes(p, i);
    return n;
}

/* The most blocks whose pages take at most so many bytes. Where all is state, blocks are nodes of
 * the prefix tree alone: as many as max_num_seqs sequences of the longest context need. */
static uint64_t blocks_in(const struct sl_memory_plan *p, uint64_t n_bytes)
{
    uint64_t lo = 0, hi = INT32_MAX / 2;
    if (p->kv.groups[0].state)
        return n_bytes < plan_pool_bytes(p, hi)
                   ? 0
                   : SL_MIN(p->one_context * (uint64_t)p->max_num_seqs,
                            SL_MAX(p->one_context, (uint64_t)MAX_STATE_NODES));
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (plan_pool_bytes(p, mid) <= n_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* Pages of a group that are a device's own, for padding; states of padding are not stored. */
static uint64_t padding_pages(const struct sl_memory_plan *p, int32_t group)
{
    return p->on_device && !p->kv.groups[group].state;
}

static uint64_t draft_pages(const struct sl_memory_plan *p, int32_t n_pages)
{
    return (uint64_t)sl_drafter_n_pages(n_pages, p->max_num_seqs,
                                        p->speculative.num_speculative_tokens, p->block_size);
}

uint64_t sl_memory_plan_draft_bytes(const struct sl_memory_plan *p)
{
    return draft_pages(p, p->group_pages[0]) * p->draft_kv.groups[0].page_bytes;
}

/* And spare pages of a model that drafts. */
static uint64_t padding_bytes(const struct sl_memory_plan *p)
{
    uint64_t n = draft_pages(p, 0) * p->draft_kv.groups[0].page_bytes;
    for (int32_t i = 0; i < p->kv.n_groups; i++)
        n += padding_pages(p, i) * p->kv.groups[i].page_bytes;
    return n;
}

/* Bytes for pages, padding apart. */
static uint64_t pool_of(const struct sl_engine_config *cfg, const struct sl_memory_plan *p)
{
    const uint64_t pad = padding_bytes(p);
    if (cfg->shared == NULL && cfg->kv_cache_bytes != 0)
        return cfg->kv_cache_bytes;
    const uint64_t pool = cfg->shared != NULL
                              ? cfg->shared->budget.total / (uint64_t)cfg->shared->n_engines
                              : default_pool(p);
    return pool > pad ? pool - pad : 0;
}

/* Pages for the states behind drafts, which all sequences share: an eighth of the pool, but for the
 * drafts of one sequence at least, and for what a step can have at most. */
static int plan_draft_states(struct sl_memory_plan *p, uint64_t pool, uint64_t page_bytes,
                             struct sl_error *err)
{
    const uint64_t one = (uint64_t)p->speculative.num_speculative_tokens;
    const uint64_t most = SL_MIN(one * (uint64_t)p->max_num_seqs, MAX_DRAFT_ROWS);
    const uint64_t share = SL_MAX(pool / DRAFT_STATES / page_bytes, one);
    p->n_draft_states = (int32_t)SL_MIN(SL_MIN(share, most), pool / 2 / page_bytes);
    if (one == 0 || p->n_draft_states > 0)
        return 0;
    return sl_fail(err, SL_EINVAL,
                   "speculative-config: the recurrent state behind a draft takes %llu bytes, which "
                   "the %llu of kv_cache_memory_bytes have no room for beside those of a sequence",
                   (unsigned long long)page_bytes, (unsigned long long)pool);
}

/* As many sequences as have slots for their states: fewer than by default, if those were given or
 * would take more than half of the pool. */
static int plan_states(const struct sl_engine_config *cfg, struct sl_memory_plan *p,
                       struct sl_error *err)
{
    const struct sl_kv_layer_group *g = states_of(p);
    int rc = check_flag("max_state_slots", cfg->max_state_slots, SL_MAX_STATE_SLOTS, err);
    if (g == NULL || rc != 0)
        return rc;
    const uint64_t each = SL_MIN(p->one_context, STATES_OF_SEQ), pool = pool_of(cfg, p);
    rc = plan_draft_states(p, pool, g->page_bytes, err);
    if (rc != 0)
        return rc;
    const uint64_t most = pool / g->page_bytes - (uint64_t)p->n_draft_states;
    const uint64_t given = (uint64_t)cfg->max_state_slots;
    const uint64_t room = given != 0 ? given : p->kv.n_groups > 1 ? most / 2 : most;
    if (most < each || given > most || (given != 0 && given < each))
        return sl_fail(err, SL_EINVAL,
                       "max_state_slots: a slot for recurrent state takes %llu bytes, a sequence "
                       "needs %llu; %llu slots do not work with the %llu bytes of "
                       "kv_cache_memory_bytes",
                       (unsigned long long)g->page_bytes, (unsigned long long)each,
                       (unsigned long long)(given != 0 ? given : most), (unsigned long long)pool);
    const uint64_t n_seqs = SL_MAX(room / each, 1);
    SL_ASSERT(each >= 1 && g->page_bytes > 0 && p->max_num_seqs >= 1);
    if (cfg->max_num_seqs != 0 && (uint64_t)p->max_num_seqs * each > (given != 0 ? given : most))
        return sl_fail(err, SL_EINVAL,
                       "max_num_seqs: %d sequences need %llu slots for recurrent state of %llu "
                       "bytes, there are %llu: lower it, or raise %s",
                       p->max_num_seqs, (unsigned long long)((uint64_t)p->max_num_seqs * each),
                       (unsigned long long)g->page_bytes,
                       (unsigned long long)(given != 0 ? given : most),
                       given != 0 ? "max_state_slots" : "kv_cache_memory_bytes");
    p->seqs_lowered = cfg->max_num_seqs == 0 && n_seqs < (uint64_t)p->max_num_seqs;
    if (p->seqs_lowered)
        p->max_num_seqs = (int32_t)n_seqs;
    const uint64_t slots = SL_MIN(most, SLOTS_OF_SEAT * (uint64_t)p->max_num_seqs);
    p->max_state_slots = cfg->max_state_slots;
    if (given == 0 && p->kv.n_groups == 1) /* all of a pool that was given */
        p->max_state_slots =
            (int32_t)SL_MIN(cfg->kv_cache_bytes != 0 ? most : slots, SL_MAX_STATE_SLOTS);
    return 0;
}

int32_t sl_memory_plan_draft_pages(const struct sl_memory_plan *p, int32_t group)
{
    return p->kv.groups[group].state ? p->n_draft_states : 0;
}

uint64_t sl_memory_plan_group_bytes(const struct sl_memory_plan *p, int32_t group)
{
    return ((uint64_t)p->group_pages[group] + (uint64_t)sl_memory_plan_draft_pages(p, group) +
            padding_pages(p, group)) *
           p->kv.groups[group].page_bytes;
}

uint64_t sl_memory_plan_part_bytes(const struct sl_memory_plan *p, int32_t part, int32_t group)
{
    SL_ASSERT(part >= 0 && part < p->n_ranks * p->n_stages);
    const int32_t stage = sl_model_stage_of(part, p->n_ranks, p->n_stages);
    const uint64_t n_bytes = p->n_stages > 1 ? sl_stage_plan_group_bytes(p, stage, group)
                                             : sl_memory_plan_group_bytes(p, group);
    return n_bytes / (uint64_t)p->n_ranks;
}

size_t sl_memory_plan_part_page(const struct sl_memory_plan *p, int32_t part, int32_t group)
{
    const int32_t stage = sl_model_stage_of(part, p->n_ranks, p->n_stages);
    const size_t n_bytes =
        p->n_stages > 1 ? p->stages[stage].page_bytes[group] : p->kv.groups[group].page_bytes;
    return n_bytes / (size_t)p->n_ranks;
}

bool sl_memory_plan_shares(const struct sl_memory_plan *p)
{
    return sl_kv_layers_full(&p->kv.groups[0]);
}

/* Of all groups for n_blocks blocks; of windowed ones for n_windowed. */
static void set_pages(struct sl_memory_plan *p, uint64_t n_blocks, uint64_t n_windowed)
{
    p->n_pages = (int32_t)n_blocks;
    p->kv_bytes = 0;
    SL_ASSERT(n_blocks <= INT32_MAX / 2);
    for (int32_t i = 0; i < p->kv.n_groups; i++) {
        const bool full = sl_kv_layers_full(&p->kv.groups[i]);
        p->group_pages[i] = (int32_t)group_pages(p, i, full ? n_blocks : n_windowed);
        p->kv_bytes += sl_memory_plan_group_bytes(p, i);
    }
    p->kv_bytes += sl_memory_plan_draft_bytes(p);
}

uint64_t sl_memory_plan_pool_bytes(const struct sl_memory_plan *p)
{
    return p->kv_bytes - padding_bytes(p);
}

/* A pool that shares memory may grow to all of it; pages of windowed layers are this engine's, as
 * many as go with an even part. What is kept for it holds one sequence of any length that is
 * served; a context that the model merely declares is lowered to half of an even part, so that the
 * other half can go to whoever needs it. A device's pool does not grow: it has its even part. */
static int plan_shared_pool(const struct sl_engine_config *cfg, struct sl_memory_plan *p,
                            int32_t context, struct sl_error *err)
{
    const uint64_t total = cfg->shared->budget.total;
    const uint64_t one = pages_for(context, p->block_size);
    const uint64_t n_even = blocks_in(p, pool_of(cfg, p));
    const bool full = sl_memory_plan_shares(p), grows = full && !p->on_device;
    const uint64_t page_bytes = sl_memory_plan_page_bytes(p, 0);
    const uint64_t own = grows ? plan_pool_bytes(p, n_even) - n_even * page_bytes : 0;
    uint64_t most = grows ? SL_MIN((total - own) / page_bytes, (uint64_t)INT32_MAX / 2) : n_even;
    uint64_t floor = SL_MIN(one, n_even / (grows ? 2 : 1));
    if (cfg->max_model_len != 0)
        floor = one;
    if (p->on_device && !cfg->shared->given)
        return sl_fail(
            err, SL_EINVAL,
            "kv_cache_memory_bytes: several models on a GPU have even parts of it, so it "
            "must be given");
    if (floor == 0 || floor > most)
        return sl_fail(err, SL_EINVAL,
                       "kv_cache_memory_bytes: %llu bytes for %d models are too few for %d tokens "
                       "of this one (%llu bytes)",
                       (unsigned long long)total, cfg->shared->n_engines, context,
                       (unsigned long long)plan_pool_bytes(p, SL_MAX(floor, 1)));
    p->context_lowered = floor < one;
    p->max_model_len = p->context_lowered ? (int32_t)floor * p->block_size : context;
    const uint64_t n_blocks = SL_MIN(most, floor * (uint64_t)p->max_num_seqs);
    set_pages(p, n_blocks, SL_MIN(n_blocks, n_even));
    p->own_bytes = p->kv_bytes - (full ? (uint64_t)p->group_pages[0] * page_bytes +
                                             padding_pages(p, 0) * p->kv.groups[0].page_bytes
                                       : 0);
    p->n_floor_pages = grows ? (int32_t)floor : full ? p->n_pages + 1 : 0;
    p->shared_bytes = p->on_device ? 0 : total;
    return 0;
}

/* Without a flag the pool holds every sequence at full length, within default_pool(); a context the
 * user asked for must fit, one the model merely declares is lowered to the pool. */
static int plan_pool(const struct sl_model_facts *facts, const struct sl_engine_config *cfg,
                     struct sl_memory_plan *p, struct sl_error *err)
{
    int32_t context = context_of(facts, cfg);
    if (cfg->shared != NULL) /* a limit for several models, of which some have less */
        context = SL_MIN(context, facts->context);
    if (context > facts->context)
        return sl_fail(err, SL_EINVAL, "max_model_len: %d is more than the model's context of %d",
                       context, facts->context);
    uint64_t one = pages_for(context, p->block_size);
    uint64_t n_pages;
    if (cfg->shared != NULL)
        return plan_shared_pool(cfg, p, context, err);
    if (cfg->kv_cache_bytes != 0) {
        n_pages = blocks_in(p, cfg->kv_cache_bytes);
    } else {
        uint64_t most = SL_MAX(blocks_in(p, pool_of(cfg, p)), 1);
        n_pages = SL_MIN(one * (uint64_t)p->max_num_seqs, most);
        if (facts->whole) /* a step's, and as many as admission keeps free */
            n_pages = SL_MIN(n_pages, pages_for(p->max_num_batched_tokens, p->block_size) +
                                          2 * (uint64_t)p->max_num_seqs);
        if (cfg->max_model_len != 0)
            n_pages = SL_MAX(n_pages, one);
    }
    if (n_pages < one && cfg->max_model_len != 0)
        return sl_fail(err, SL_EINVAL,
                       "kv_cache_memory_bytes: %llu bytes hold %llu tokens, fewer than "
                       "max_model_len %d needs (%llu bytes)",
                       (unsigned long long)cfg->kv_cache_bytes,
                       (unsigned long long)(n_pages * (uint64_t)p->block_size), context,
                       (unsigned long long)plan_pool_bytes(p, one));
    if (n_pages == 0)
        return sl_fail(err, SL_EINVAL, "kv_cache_memory_bytes: %llu is less than one page (%llu)",
                       (unsigned long long)cfg->kv_cache_bytes,
                       (unsigned long long)plan_pool_bytes(p, 1));
    n_pages = SL_MIN(n_pages, (uint64_t)INT32_MAX / 2);
    if (n_pages < one) {
        context = (int32_t)n_pages * p->block_size;
        p->context_lowered = true;
    }
    p->max_model_len = context;
    set_pages(p, n_pages, n_pages);
    return 0;
}

int32_t sl_memory_plan_max_logits(const struct sl_memory_plan *plan)
{
    /* 32 rows more let a prompt's logprobs go at 32 tokens a step beside a full decode batch. With
     * very many sequences drafts are not worth their rows. */
    SL_ASSERT(plan->max_num_seqs >= 1 && plan->speculative.num_speculative_tokens >= 0);
    int32_t n_drafts = plan->max_num_seqs * plan->speculative.num_speculative_tokens;
    return plan->max_num_seqs + SL_MAX(32, SL_MIN(n_drafts, MAX_DRAFT_ROWS));
}

/* Experts in host memory, which is not what p->ram_bytes says. */
static int plan_check_host(const struct sl_memory_plan *p, struct sl_error *err)
{
    const uint64_t ram = p->host_ram_bytes;
    if (p->on_device && ram != 0 && p->tier_bytes > 0 &&
        p->tier_bytes + p->host_packed_bytes + p->host_room_bytes > ram)
        return sl_fail(err, SL_ENOMEM,
                       "%.1f GB for copies of KV pages do not fit in %.1f GB of host memory: lower "
                       "--kv-offloading-size",
                       (double)p->tier_bytes / 1e9, (double)ram / 1e9);
    if (ram == 0 || p->host_packed_bytes + p->host_room_bytes <= ram)
        return 0;
    return sl_fail(err, SL_ENOMEM,
                   "%.1f GB of experts of %d layers, repacked, and %.1f GB for their steps do not "
                   "fit in %.1f GB of host memory: choose fewer layers (--cpu-offload-experts), a "
                   "smaller format of the model, or lower --max-num-batched-tokens",
                   (double)p->host_packed_bytes / 1e9, p->n_host_layers,
                   (double)p->host_room_bytes / 1e9, (double)ram / 1e9);
}

/* What is allocated must fit; mapped weights need not, the system reads them again when it must. */
static int plan_check_total(const struct sl_memory_plan *p, struct sl_error *err)
{
    uint64_t kv_bytes = p->shared_bytes != 0 ? p->shared_bytes : p->kv_bytes;
    uint64_t rest = kv_bytes + p->activation_bytes + p->runner_bytes, ram = p->ram_bytes;
    rest += p->on_device ? 0 : p->corpus_bytes + p->tier_bytes;
    if (!p->on_device && ram != 0 && p->tier_bytes > ram / 8 && p->packed_bytes + rest > ram)
        return sl_fail(err, SL_ENOMEM,
                       "%.1f GB for copies of KV pages do not fit in %.1f GB of memory beside %.1f "
                       "GB of everything else: lower --kv-offloading-size",
                       (double)p->tier_bytes / 1e9, (double)ram / 1e9,
                       (double)(p->packed_bytes + rest - p->tier_bytes) / 1e9);
    if (ram == 0 || p->packed_bytes + rest <= ram)
        return 0;
    if (p->on_device && p->n_host_layers < p->n_expert_layers)
        return sl_fail(err, SL_ENOMEM,
                       "%.1f GB of weights, %.1f GB of KV pages and %.1f GB of activations do not "
                       "fit in %.1f GB of the GPU's memory: keep the experts of more layers on the "
                       "CPU (--cpu-offload-experts auto), or choose a smaller format of the model, "
                       "or lower --max-model-len or --kv-cache-memory-bytes",
                       (double)p->packed_bytes / 1e9, (double)kv_bytes / 1e9,
                       (double)(p->activation_bytes + p->runner_bytes) / 1e9, (double)ram / 1e9);
    if (p->packed_bytes > ram || rest <= ram / 8)
        return sl_fail(
            err, SL_ENOMEM,
            "%.1f GB of repacked weights, %.1f GB of KV pages and %.1f GB of activations "
            "do not fit in %.1f GB of memory: choose a smaller model or a smaller format "
            "of it, or keep some weights on a disk (--offload-folder)",
            (double)p->packed_bytes / 1e9, (double)kv_bytes / 1e9,
            (double)p->activation_bytes / 1e9, (double)ram / 1e9);
    return sl_fail(err, SL_ENOMEM,
                   "%.1f GB of repacked weights, %.1f GB of KV pages and %.1f GB of activations do "
                   "not fit in %.1f GB of memory: lower --max-model-len, --kv-cache-memory-bytes, "
                   "--max-num-seqs or --max-num-batched-tokens",
                   (double)p->packed_bytes / 1e9, (double)kv_bytes / 1e9,
                   (double)p->activation_bytes / 1e9, (double)ram / 1e9);
}

void sl_memory_plan_runner(const struct sl_memory_plan *p, struct sl_device_runner_config *out)
{
    SL_ASSERT(p->on_device && p->max_num_batched_tokens >= p->max_num_seqs);
    *out = (struct sl_device_runner_config){.max_tokens = p->max_num_batched_tokens,
                                            .max_seqs = p->max_num_seqs,
                                            .max_logits = sl_memory_plan_max_logits(p),
                                            .max_drafts = p->speculative.num_speculative_tokens,
                                            .max_model_len = p->max_model_len,
                                            .kv = p->kv,
                                            .max_loras = p->max_loras,
                                            .max_lora_rank = p->max_lora_rank};
    out->n_stages = p->n_stages;
    memcpy(out->n_pages, p->group_pages, sizeof out->n_pages);
}

void sl_memory_plan_runner_draft(const struct sl_memory_plan *p, const struct sl_model *draft,
                                 struct sl_device_runner_config *out)
{
    struct sl_run_config run;
    if (draft == NULL)
        return;
    sl_memory_plan_draft_run(p, draft, &run);
    out->draft = draft;
    out->draft_tokens = run.max_tokens;
    out->draft_rows = run.max_logits;
    out->draft_block = sl_memory_plan_draft_block(p, draft);
}

int32_t sl_memory_plan_draft_block(const struct sl_memory_plan *p, const struct sl_model *draft)
{
    const struct sl_model_facts *f = sl_model_facts(draft);
    return f->draft_block > 0
               ? p->speculative.num_speculative_tokens + (f->draft_from_anchor ? 0 : 1)
               : 0;
}

void sl_memory_plan_draft_run(const struct sl_memory_plan *p, const struct sl_model *draft,
                              struct sl_run_config *out)
{
    const int32_t block = sl_memory_plan_draft_block(p, draft);
    *out = (struct sl_run_config){
        .max_tokens = p->max_num_batched_tokens, .max_logits = p->max_num_seqs, .kv = p->draft_kv};
    if (sl_model_facts(draft)->draft_borrows) {
        out->max_tokens = p->max_num_seqs;
        out->kv = p->kv;
    }
    if (block == 0)
        return;
    /* as many drafts as a step of the model has room for, of as many sequences at most */
    const struct sl_model_facts *f = sl_model_facts(draft);
    const int32_t n_rows = sl_memory_plan_max_logits(p) - p->max_num_seqs,
                  n_seqs = SL_MIN(p->max_num_seqs, n_rows), n_blocks = block * n_seqs;
    out->max_logits = n_rows;
    if (p->on_device) /* a step is recorded if all rows of its blocks are wanted */
        out->max_logits = f->draft_chain ? n_blocks : SL_MIN(SL_ROUND_UP(n_rows, block), n_blocks);
    out->max_chains = f->draft_chain ? n_seqs : 0;
    out->max_tokens =
        f->draft_apart ? SL_MAX(out->max_tokens, n_blocks) : out->max_tokens + n_blocks;
}

/* What a model that drafts takes besides pages, on top of what is planned. */
static void plan_draft_memory(const struct sl_model *draft, struct sl_backend *be,
                              struct sl_memory_plan *p)
{
    struct sl_run_config run;
    sl_memory_plan_draft_run(p, draft, &run);
    p->draft_activation_bytes = sl_run_bytes(draft, be, &run);
    p->activation_bytes += p->draft_activation_bytes;
}

/* What steps take besides weights and pages. */
static void plan_step_memory(const struct sl_model *model, const struct sl_model *draft,
                             struct sl_backend *be, struct sl_memory_plan *p)
{
    struct sl_run_config run = {.max_tokens = p->max_num_batched_tokens,
                                .max_logits = sl_memory_plan_max_logits(p),
                                .kv = p->kv,
                                .max_lora_rank = p->max_lora_rank};
    if (draft != NULL)
        run.n_taps = sl_model_draft_taps(draft, run.taps);
    if (p->n_stages > 1 && !p->on_device)
        sl_stage_plan_steps(model, be, &run, NULL, p);
    else
        p->activation_bytes = sl_run_bytes(model, be, &run) * (uint64_t)p->n_ranks;
    if (draft != NULL)
        plan_draft_memory(draft, be, p);
    if (!p->on_device)
        return;
    struct sl_device_runner_config runner;
    sl_memory_plan_runner(p, &runner);
    sl_memory_plan_runner_draft(p, draft, &runner);
    p->runner_bytes = sl_device_runner_bytes(model, be, &runner) * (uint64_t)p->n_ranks;
    if (p->n_stages > 1)
        sl_stage_plan_steps(model, be, &run, &runner, p);
    struct sl_step_limits rows = {.max_tokens = p->max_num_batched_tokens};
    sl_model_host_rows(model, &rows.host_hidden, &rows.host_top_k);
    p->host_room_bytes =
        sl_host_room_bytes(&rows) + sl_model_host_room(model, p->max_num_batched_tokens);
}

/* The share of a device that may be used, less what others hold of it. */
static int device_budget(const struct sl_device_memory *mem, float share, uint64_t *out,
                         struct sl_error *err)
{
    const uint64_t others = mem->total_bytes - mem->free_bytes - mem->own_bytes;
    const uint64_t budget = (uint64_t)((double)mem->total_bytes * (double)share);
    SL_ASSERT(mem->total_bytes >= mem->free_bytes);
    if (others >= budget)
        return sl_fail(err, SL_ENOMEM,
                       "gpu_memory_utilization: %.2f of the GPU's %.1f GB is less than the %.1f GB "
                       "already in use",
                       (double)share, (double)mem->total_bytes / 1e9, (double)others / 1e9);
    *out = budget - others;
    return 0;
}

/* Of all parts' devices together; each rank of a stage has as much as the one with the least. */
static int plan_devices(const struct sl_model_facts *f, struct sl_backend *be,
                        const struct sl_engine_config *cfg, float share, struct sl_memory_plan *p,
                        struct sl_error *err)
{
    struct sl_device_memory mem;
    const int32_t n = sl_model_n_parts(f);
    for (int32_t s = 0; s < f->n_stages; s++)
        p->stages[s].ram_bytes = UINT64_MAX;
    for (int32_t i = 0; i < n; i++) {
        const int32_t stage = sl_model_stage_of(i, f->n_ranks, f->n_stages);
        uint64_t budget = 0;
        int rc = i == 0 ? be->vt->device->memory(be, &mem, err)
                        : sl_load_rank_memory(f, i, cfg, &mem, err);
        if (rc == 0)
            rc = device_budget(&mem, share, &budget, err);
        if (rc != 0 && f->n_stages > 1)
            return sl_error_prefix(err, rc, "the GPU of stage %d, rank %d", stage,
                                   sl_model_rank_of(i, f->n_ranks));
        if (rc != 0)
            return n > 1 ? sl_error_prefix(err, rc, "the GPU of rank %d", i) : rc;
        p->stages[stage].ram_bytes = SL_MIN(p->stages[stage].ram_bytes, budget);
    }
    p->ram_bytes = 0;
    for (int32_t s = 0; s < f->n_stages; s++) {
        p->stages[s].ram_bytes *= (uint64_t)f->n_ranks;
        p->ram_bytes += p->stages[s].ram_bytes;
    }
    return 0;
}

/* What there is: the machine's memory, or of devices. */
static int plan_memory(const struct sl_model_facts *f, struct sl_backend *be,
                       const struct sl_engine_config *cfg, struct sl_memory_plan *p,
                       struct sl_error *err)
{
    float share =
        cfg->gpu_memory_utilization != 0 ? cfg->gpu_memory_utilization : DEVICE_UTILIZATION;
    p->on_device = be->vt->device != NULL;
    p->ram_bytes = sl_ram_bytes() / (uint64_t)SL_MAX(cfg->data_parallel_size, 1);
    uint64_t taken = cfg->shared != NULL ? sl_shared_taken(cfg->shared) : 0;
    p->ram_bytes -= p->ram_bytes > 0 ? SL_MIN(taken, p->ram_bytes - 1) : 0;
    if (!p->on_device)
        return 0;
    p->host_ram_bytes = p->ram_bytes;
    if (!(share > 0 && share <= 1))
        return sl_fail(err, SL_EINVAL, "gpu_memory_utilization: %g is not above 0 and at most 1",
                       (double)share);
    return plan_devices(f, be, cfg, share, p, err);
}

/* Vectors and scores of a float model are exact ones, and their pages are few or short-lived. */
static enum sl_dtype auto_kv_dtype(const struct sl_model_facts *f, const struct sl_backend *be)
{
    bool exact = f->task != SL_TASK_GENERATE && strcmp(f->weight_dtype, "f32") == 0;
    return exact ? SL_DTYPE_F32 : be->vt->kv_dtype;
}

/* Of a drafter that borrows pages and has none. Rows of windowed layers stay as long as it sees
 * them: two more than the model does, which is one step further (sl_model_facts.draft_borrows). */
static void plan_borrowed(struct sl_memory_plan *p)
{
    p->draft_kv = p->kv;
    p->draft_kv.n_groups = 1;
    p->draft_kv.groups[0].page_bytes = 0;
    for (int32_t g = 0; g < p->kv.n_groups; g++)
        if (p->kv.groups[g].window > 0)
            p->kv.groups[g].window += 2;
}

/* Pages of its own. */
static int plan_draft_pages(const struct sl_model *draft, const struct sl_engine_config *cfg,
                            struct sl_backend *be, struct sl_memory_plan *p, struct sl_error *err)
{
    int rc = sl_model_kv_layout(draft, be, cfg->kv_cache_dtype, be->vt->kv_dtype, p->block_size,
                                &p->draft_kv, err);
    if (rc == 0 && p->draft_kv.groups[p->draft_kv.n_groups - 1].state)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: a model with recurrent layers cannot draft: what it "
                       "computed for wrong drafts cannot be taken back");
    return rc == 0 ? sl_kv_layout_merge(&p->draft_kv, err) : rc;
}

/* Its layers use the pages' numbers of the target's first group, which must see everything. */
static int plan_draft_model(const struct sl_model *draft, const struct sl_engine_config *cfg,
                            struct sl_backend *be, struct sl_memory_plan *p, struct sl_error *err)
{
    if (p->n_ranks > 1 && p->on_device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: a model that drafts does not run beside ranks on GPUs "
                       "(tensor_parallel_size) yet: choose method ngram or suffix");
    SL_ASSERT(p->n_stages == 1 || !p->on_device); /* sl_memory_plan_make says so */
    const struct sl_model_facts *f = sl_model_facts(draft);
    if (be->vt->device != NULL && f->draft_block > 0 && !f->draft_apart)
        return sl_fail(
            err, SL_EUNSUPPORTED,
            "speculative-config: P-EAGLE does not run on a GPU yet: choose device cpu, or "
            "another method");
    if (!sl_kv_layers_full(&p->kv.groups[0]))
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: a model drafts only for one with layers that see all "
                       "positions: this one has none (method ngram works)");
    int rc = 0;
    if (f->draft_borrows)
        plan_borrowed(p);
    else
        rc = plan_draft_pages(draft, cfg, be, p, err);
    if (rc != 0)
        return rc;
    sl_model_weight_memory(draft, be, &p->draft_packed_bytes, &p->draft_mapped_bytes);
    p->packed_bytes += p->draft_packed_bytes;
    p->mapped_bytes += p->draft_mapped_bytes;
    return 0;
}

/* Repacked weights that go into a file. What is read ahead of products takes memory. */
static int plan_stored(const struct sl_engine_config *cfg, struct sl_memory_plan *p,
                       struct sl_error *err)
{
    if (cfg->offload_folder == NULL && cfg->weights_memory_bytes != 0)
        return sl_fail(err, SL_EINVAL,
                       "weights_memory_bytes: the other weights need an offload_folder");
    if (cfg->offload_folder == NULL)
        return 0;
    if (p->on_device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "offload_folder: weights of a GPU stay in its memory; choose device cpu");
    const uint64_t most = sl_load_weights_memory(cfg);
    if (p->packed_bytes <= most)
        return 0;
    SL_ASSERT(most > 0 && p->stored_bytes == 0);
    p->stored_bytes = p->packed_bytes - most;
    p->packed_bytes = most + SL_MIN(p->stored_bytes, 2 * SL_WEIGHT_STREAM_AHEAD);
    return 0;
}

/* Copies of pages outside the pool. */
static int plan_tiers(const struct sl_model_facts *facts, const struct sl_engine_config *cfg,
                      struct sl_memory_plan *p, struct sl_error *err)
{
    struct sl_tier_plan tiers;
    int rc = sl_tier_plan_read(cfg, &tiers, err);
    if (rc != 0 || tiers.host_bytes == 0)
        return rc;
    p->tier_bytes = tiers.host_bytes;
    const bool ranks = sl_model_n_parts(facts) > 1;
    const char *what = ranks && p->on_device                   ? "with ranks or stages on GPUs"
                       : ranks && (tiers.serves || tiers.asks) ? "between servers with ranks"
                       : cfg->shared != NULL                   ? "with several models"
                       : facts->whole                          ? "for a model of whole texts"
                       : sl_speculative_loads(&p->speculative) ? "beside a model that drafts"
                       : cfg->no_prefix_caching                ? "without prefix caching"
                                                               : NULL;
    if (what != NULL)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "kv-offloading-size, kv-cache-dir, kv-remote-url: not supported %s", what);
    const uint64_t least = TIER_PAGES * sl_kv_block_bytes(&p->kv);
    if (tiers.host_bytes < least)
        return sl_fail(err, SL_EINVAL,
                       "kv-offloading-size: %llu bytes have no room for %d blocks of %llu bytes, "
                       "which are on their way at times",
                       (unsigned long long)tiers.host_bytes, TIER_PAGES,
                       (unsigned long long)sl_kv_block_bytes(&p->kv));
    return 0;
}

int sl_memory_plan_make(const struct sl_model *model, const struct sl_model *draft,
                        struct sl_backend *be, const struct sl_engine_config *cfg,
                        struct sl_memory_plan *out, struct sl_error *err)
{
    const struct sl_model_facts *facts = sl_model_facts(model);
    *out = (struct sl_memory_plan){0};
    int rc = plan_memory(facts, be, cfg, out, err);
    if (rc == 0)
        rc = sl_speculative_parse(cfg->speculative_config, cfg->speculative_model,
                                  &out->speculative, err);
    if (rc != 0)
        return rc;
    if (out->speculative.num_speculative_tokens > 0 && facts->task != SL_TASK_GENERATE)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: a model of embeddings or scores generates nothing");
    if (out->speculative.num_speculative_tokens > 0 && facts->n_stages > 1 && out->on_device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "speculative-config: drafts do not run beside stages on GPUs "
                       "(pipeline_parallel_size) yet");
    if (facts->kv_ranks > 1 && out->on_device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "decode_context_parallel_size: GPUs do not divide positions yet: choose "
                       "device cpu");
    if (facts->only_experts && out->on_device)
        return sl_fail(err, SL_EUNSUPPORTED,
                       "divide_only_experts: GPUs divide the other weights as well: choose device "
                       "cpu");
    out->n_stages = facts->n_stages;
    sl_model_weight_memory(model, be, &out->packed_bytes, &out->mapped_bytes);
    if (out->n_stages > 1)
        sl_stage_plan_weights(model, be, out);
    sl_model_host_memory(model, &out->host_packed_bytes, &out->host_mapped_bytes);
    out->n_expert_layers = sl_model_n_expert_layers(model);
    out->n_host_layers = sl_model_n_host_layers(model);
    rc = plan_steps(facts, cfg, out, err);
    if (rc == 0)
        rc = plan_adapters(facts, cfg, out, err);
    if (rc == 0)
        rc = sl_model_kv_layout_but(model, be, cfg->kv_cache_dtype, cfg->kv_cache_dtype_skip_layers,
                                    auto_kv_dtype(facts, be), out->block_size, &out->kv, err);
    out->n_ranks = facts->n_ranks;
    out->kv_ranks = facts->kv_ranks;
    if (rc == 0 && cfg->nnodes > 1 && out->speculative.num_speculative_tokens > 0 &&
        out->kv.groups[out->kv.n_groups - 1].state)
        rc = sl_fail(err, SL_EUNSUPPORTED,
                     "speculative-config: states behind drafts do not go to stages in processes "
                     "(nnodes) yet");
    if (rc == 0 && out->n_stages > 1)
        sl_stage_plan_pages(out);
    if (!sl_speculative_loads(&out->speculative))
        draft = NULL;
    if (rc == 0 && draft != NULL)
        rc = plan_draft_model(draft, cfg, be, out, err);
    if (rc == 0)
        rc = plan_stored(cfg, out, err);
    out->corpus_bytes = sl_suffix_corpus_bytes(&out->speculative);
    if (rc == 0)
        rc = plan_tiers(facts, cfg, out, err);
    if (rc == 0)
        out->one_context =
            pages_for(SL_MIN(context_of(facts, cfg), facts->context), out->block_size);
    if (rc == 0 && out->on_device) {
        /* Before the pool, which gets the rest: with as many pages as memory could hold, since a
         * step's lists grow with them. */
        out->n_pages = (int32_t)SL_MAX(blocks_in(out, out->ram_bytes), 1);
        out->max_model_len = cfg->max_model_len != 0 ? cfg->max_model_len : facts->context;
        plan_step_memory(model, draft, be, out);
    }
    if (rc == 0)
        rc = plan_states(cfg, out, err);
    if (rc == 0)
        rc = plan_pool(facts, cfg, out, err);
    if (rc != 0)
        return rc;
    /* A step never holds more tokens than all sequences together can have. */
    uint64_t most = (uint64_t)out->max_num_seqs * (uint64_t)out->max_model_len;
    if ((uint64_t)out->max_num_batched_tokens > most)
        out->max_num_batched_tokens = (int32_t)most;
    SL_ASSERT(out->max_num_batched_tokens >= out->max_num_seqs);
    SL_ASSERT((int64_t)out->n_pages * out->block_size >= out->max_model_len);
    plan_step_memory(model, draft, be, out);
    rc = plan_check_total(out, err);
    if (rc == 0 && out->n_stages > 1)
        rc = sl_stage_plan_check(out, err);
    return rc != 0 ? rc : plan_check_host(out, err);
}
