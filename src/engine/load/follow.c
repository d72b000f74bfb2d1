/* SPDX-License-Identifier: MIT
 * A rank other than 0, or a stage other than the last, in a process of its own: it loads its part
 * of the model, and computes the steps that rank 0 sends until that one ends. When the connection
 * is lost it goes back to looking for rank 0, with its weights in memory.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "cpu/cpu.h"
#include "dist/member.h"
#include "engine/eplb.h"
#include "engine/load/load.h"
#include "engine/load/nodes.h"
#include "engine/rank_lora.h"
#include "engine/rank_stage.h"
#include "engine/ranks.h"
#include "io/peft.h"

#include <poll.h>
#include <string.h>

#define RETRY_MS   100
#define MOST_PAGES (1ull << 46) /* bytes of a group's: more is nonsense */

struct follower {
    const struct sl_engine_config *cfg;
    struct sl_member_config dial;
    struct sl_nodes_secret secret;
    struct sl_ckpt *ckpt;
    struct sl_model *model;
    struct sl_backend *backend;
    struct sl_comm *comm;
    struct sl_eplb_config eplb_cfg;
    struct sl_backend
        *beside; /* where experts are loaded meanwhile; NULL: they have fixed places */
    bool loaded;
    /* of rank 0's engine, once it is known */
    struct sl_rank_plan plan;
    struct sl_run_config run_cfg;
    uint64_t pool_bytes[SL_MAX_KV_GROUPS]; /* of this rank's part of the pages */
    size_t room_bytes, max_message;
    struct sl_rank_step step;
    struct sl_rank_lora lora;
    struct sl_rank_pages pages;
    uint8_t *message; /* [max_message] */
    /* of a meeting */
    struct sl_member *member;
    struct sl_run *run;
    struct sl_eplb *eplb;
};

static int follower_open(struct follower *f, struct sl_error *err)
{
    int rc = sl_nodes_secret(f->cfg, &f->secret, err);
    if (rc == 0)
        rc = sl_ckpt_open(f->cfg->model, &f->ckpt, err);
    if (rc == 0)
        rc = sl_model_open(f->ckpt, &f->model, err);
    if (rc == 0)
        rc = sl_load_task(f->model, f->ckpt, f->cfg, err);
    if (rc == 0)
        rc = sl_load_backend(f->model, f->cfg, &f->backend, err);
    if (rc == 0)
        rc = sl_cpu_comm_create_linked(sl_model_facts(f->model)->n_ranks, &f->comm, err);
    if (rc == 0)
        rc = sl_ranks_beside(f->model, f->cfg, &f->eplb_cfg, &f->beside, err);
    if (rc != 0)
        return rc;
    const struct sl_model_facts *facts = sl_model_facts(f->model);
    SL_ASSERT(sl_model_part(facts->stage, facts->rank, facts->n_ranks, facts->n_stages) ==
              f->cfg->node_rank);
    f->dial = (struct sl_member_config){.addr = sl_nodes_addr(f->cfg),
                                        .port = sl_nodes_port(f->cfg),
                                        .rank = f->cfg->node_rank,
                                        .secret = f->secret.data,
                                        .n_secret = f->secret.n};
    sl_nodes_identity(f->model, f->ckpt, f->backend, f->cfg, &f->dial.id);
    return 0;
}

static void follower_close(struct follower *f)
{
    SL_ASSERT(f->member == NULL && f->run == NULL);
    sl_rank_step_deinit(&f->step);
    sl_rank_lora_deinit(&f->lora);
    sl_free(f->message);
    for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++)
        if (f->run_cfg.kv_pool[g] != NULL)
            f->backend->vt->free(f->backend, f->run_cfg.kv_pool[g], f->pool_bytes[g]);
    if (f->model != NULL)
        sl_model_close(f->model);
    if (f->backend != NULL)
        f->backend->vt->destroy(f->backend);
    if (f->beside != NULL)
        f->beside->vt->destroy(f->beside);
    sl_cpu_comm_destroy(f->comm);
    if (f->ckpt != NULL)
        sl_ckpt_close(f->ckpt);
    sl_free(f->secret.data);
}

/* ---------------------------------------------------------------- rank 0's plan */

static int check_bounds(const struct sl_rank_plan *p, int32_t n_layers, struct sl_error *err)
{
    const struct sl_rank_bounds *b = &p->bounds;
    bool good =
        b->max_tokens >= 1 && b->max_tokens <= SL_MAX_STEP_TOKENS && b->max_seqs >= 1 &&
        b->max_seqs <= SL_MAX_SEQS && b->max_logits >= 1 && b->max_logits <= SL_MAX_STEP_TOKENS &&
        b->max_model_len >= 1 && b->max_model_len <= SL_MAX_CONTEXT && b->block_size >= 1 &&
        b->block_size <= SL_MAX_PAGE_TOKENS && b->n_vocab >= 1 && p->served >= 1 &&
        p->served <= SL_MAX_CONTEXT && b->n_groups >= 1 && b->n_groups <= SL_MAX_KV_GROUPS &&
        b->max_loras >= 0 && p->n_taps >= 0 && p->n_taps <= SL_MAX_TAPS &&
        b->max_loras <= SL_MAX_LORAS && b->max_lora_rank >= 0 &&
        b->max_lora_rank <= SL_MAX_LORA_RANK && (b->max_loras == 0) == (b->max_lora_rank == 0);
    for (int32_t g = 0; g < SL_MAX_KV_GROUPS; g++)
        good = good && b->n_pages[g] >= 0;
    for (int32_t i = 0; i < p->n_taps && good; i++)
        good = p->taps[i] == SL_TAP_NORMED || (p->taps[i] >= 0 && p->taps[i] <= n_layers);
    return good ? 0 : sl_fail(err, SL_EFORMAT, "rank 0 has sizes that no engine has");
}

/* Pages as rank 0 has them, or the error names both sides' sizes. */
static int plan_pages(struct follower *f, struct sl_error *err)
{
    struct sl_rank_plan *p = &f->plan;
    struct sl_kv_layout *kv = &f->run_cfg.kv;
    p->kv_dtype[sizeof p->kv_dtype - 1] = p->kv_skip[sizeof p->kv_skip - 1] = '\0';
    int rc = sl_model_set_top_pages(f->model, p->top_pages, err);
    if (rc == 0)
        rc = sl_model_kv_layout_but(f->model, f->backend, p->kv_dtype,
                                    p->kv_skips ? p->kv_skip : NULL, f->backend->vt->kv_dtype,
                                    p->bounds.block_size, kv, err);
    if (rc != 0)
        return rc;
    const struct sl_hash128 own = sl_nodes_layout(kv);
    if (kv->n_groups != p->bounds.n_groups || own.lo != p->layout.lo || own.hi != p->layout.hi ||
        p->bounds.n_vocab != sl_model_facts(f->model)->n_vocab)
        return sl_fail(err, SL_EINVAL,
                       "pages of %s: rank 0 has %d kinds (%016llx), rank %d has %d (%016llx)",
                       p->kv_dtype, p->bounds.n_groups, (unsigned long long)p->layout.hi,
                       f->dial.rank, kv->n_groups, (unsigned long long)own.hi);
    sl_rank_pages_init(&f->pages, f->model, kv);
    for (int32_t g = 0; g < kv->n_groups && rc == 0; g++) {
        p->bounds.window[g] = kv->groups[g].window; /* as this rank computes with them */
        p->bounds.chunks[g] = kv->groups[g].chunks;
        p->bounds.states[g] = kv->groups[g].state;
        f->pages.n_pages[g] = p->bounds.n_pages[g];
        f->pool_bytes[g] = (uint64_t)p->bounds.n_pages[g] * f->pages.bytes[f->dial.rank][g];
        if (f->pool_bytes[g] > MOST_PAGES)
            rc = sl_fail(err, SL_EFORMAT, "rank 0 has %d pages, here of %zu bytes",
                         p->bounds.n_pages[g], f->pages.bytes[f->dial.rank][g]);
    }
    return rc;
}

static int allocate(struct follower *f, struct sl_error *err)
{
    SL_ASSERT(f->message == NULL && f->plan.bounds.n_groups > 0);
    const struct sl_rank_bounds *b = &f->plan.bounds;
    f->max_message = sl_nodes_message_bytes(f->model, b, f->plan.moves_pages ? &f->pages : NULL);
    f->message = sl_malloc(f->max_message);
    if (f->message == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for steps");
    for (int32_t g = 0; g < f->plan.bounds.n_groups; g++) {
        f->run_cfg.kv_pool[g] = f->backend->vt->alloc(f->backend, f->pool_bytes[g]);
        if (f->run_cfg.kv_pool[g] == NULL)
            return sl_fail(err, SL_ENOMEM, "no memory for %.2f GB of KV pages of a rank",
                           (double)f->pool_bytes[g] / 1e9);
    }
    int rc =
        sl_rank_lora_init(&f->lora, f->model, f->dial.rank, b->max_loras, b->max_lora_rank, err);
    return rc != 0 ? rc : sl_rank_step_init(&f->step, b, err);
}

/* With the first meeting: sizes, then weights. */
static int follower_load(struct follower *f, struct sl_error *err)
{
    struct sl_rank_plan plan;
    memcpy(&plan, sl_member_plan(f->member), sizeof plan);
    if (f->loaded)
        return memcmp(&plan, &f->plan, offsetof(struct sl_rank_plan, kv_dtype)) == 0
                   ? 0
                   : sl_fail(err, SL_EINVAL,
                             "rank 0 has other sizes than before: start this rank anew");
    int rc = check_bounds(&plan, sl_model_facts(f->model)->n_layers, err);
    f->plan = plan;
    if (rc == 0)
        rc = plan_pages(f, err);
    if (rc != 0)
        return rc;
    sl_model_set_context(f->model, f->plan.served);
    rc = sl_model_load(f->model, f->backend, f->cfg->progress, f->cfg->progress_arg, err);
    if (rc == 0)
        rc = allocate(f, err);
    if (rc != 0)
        return rc;
    f->run_cfg.max_tokens = f->plan.bounds.max_tokens;
    f->run_cfg.max_logits = f->plan.bounds.max_logits;
    f->run_cfg.n_taps = f->plan.n_taps;
    memcpy(f->run_cfg.taps, f->plan.taps, sizeof f->run_cfg.taps);
    f->run_cfg.skip_softmax = f->plan.skip_softmax;
    f->run_cfg.max_lora_rank = f->plan.bounds.max_lora_rank;
    f->run_cfg.comm = f->comm;
    f->room_bytes = sl_nodes_room_bytes(f->model, f->backend, &f->run_cfg,
                                        f->plan.moves_pages ? &f->pages : NULL);
    f->loaded = true;
    return 0;
}

/* ---------------------------------------------------------------- steps */

static uint64_t follower_progress(const void *arg)
{
    const struct follower *f = arg;
    return sl_run_progress(f->run) + (f->eplb != NULL ? sl_eplb_progress(f->eplb) : 0);
}

/* A step is computed, part of an adapter kept, a page copied, experts are placed. */
static int serve_message(struct follower *f, struct sl_link *link, size_t n, struct sl_error *err)
{
    int32_t kind = SL_RANK_STEP;
    const float *rows;
    if (n >= sizeof kind)
        memcpy(&kind, f->message, sizeof kind);
    if (f->plan.moves_pages && (kind == SL_RANK_PAGE_OUT || kind == SL_RANK_PAGE_IN))
        return sl_rank_pages_get(&f->pages, link, f->run_cfg.kv_pool, f->message, n, err);
    if (f->eplb != NULL && kind == SL_RANK_PLACES)
        return sl_eplb_get(f->eplb, f->message, n, link->cfg.absent, err);
    if (kind != SL_RANK_STEP)
        return sl_rank_lora_get(&f->lora, f->message, n, err);
    int rc = sl_rank_step_get(&f->step, f->message, n, f->lora.weights, err);
    if (rc == 0 && sl_model_facts(f->model)->n_stages > 1)
        return sl_rank_stage_step(link, f->model, f->run, &f->step.batch, &rows);
    if (rc == 0 && f->eplb != NULL)
        sl_eplb_step(f->eplb);
    if (rc == 0)
        (void)sl_run_enqueue(f->run, &f->step.batch);
    return rc == 0 && sl_run_lost(f->run) ? SL_ERANK : rc;
}

/* Until the link is lost. Another error than SL_ERANK: rank 0 sends what no rank 0 should. */
static int serve_steps(struct follower *f, struct sl_link *link, struct sl_error *err)
{
    size_t n = 0;
    int rc = 0;
    SL_ASSERT(f->run != NULL && link != NULL);
    sl_cpu_comm_link(f->comm, link);
    sl_rank_lora_clear(&f->lora); /* of an earlier meeting */
    while (rc == 0) {
        rc = sl_link_recv(link, f->message, f->max_message, &n);
        if (rc == 0)
            rc = serve_message(f, link, n, err);
    }
    sl_cpu_comm_link(f->comm, NULL);
    if (rc == SL_ERANK)
        (void)sl_fail(err, SL_ERANK, "%s",
                      link->error.code != SL_OK ? link->error.msg : "rank 0 is gone");
    return rc;
}

static int start_eplb(struct follower *f, struct sl_error *err)
{
    const struct sl_eplb_parts parts = {
        .n = 1, .models = {f->model}, .runs = {f->run}, .apart = true};
    return f->beside == NULL ? 0 : sl_eplb_create(&f->eplb_cfg, &parts, f->beside, &f->eplb, err);
}

static int meet(struct follower *f, struct sl_error *err)
{
    struct sl_link *link = NULL;
    SL_ASSERT(f->member != NULL && f->run == NULL);
    int rc = follower_load(f, err);
    SL_ASSERT(rc != 0 || f->loaded);
    if (rc == 0)
        rc = sl_member_await(f->member, f->room_bytes, f->max_message, f->run_cfg.rank_room, err);
    if (rc == 0)
        rc = sl_run_create(f->model, &f->run_cfg, &f->run, err);
    if (rc == 0)
        rc = start_eplb(f, err);
    if (rc != 0) {
        sl_run_destroy(f->run);
        f->run = NULL;
        return rc;
    }
    sl_member_watch(f->member, follower_progress, f);
    rc = sl_member_ready(f->member, &link, err);
    if (rc == 0 && link->cfg.absent != 0 &&
        (f->eplb == NULL || !sl_model_facts(f->model)->only_experts))
        rc = sl_fail(err, SL_EFORMAT,
                     "rank 0 does without ranks (%x), which have more than experts here",
                     link->cfg.absent);
    if (rc == 0) {
        sl_log(SL_LOG_INFO, "ranks: rank %d of %d serves steps%s", f->dial.rank, f->dial.id.n_ranks,
               f->run_cfg.rank_room[0] != NULL ? " in shared memory" : "");
        rc = serve_steps(f, link, err);
    }
    sl_member_watch(f->member, NULL, NULL);
    sl_eplb_destroy(f->eplb);
    f->eplb = NULL;
    sl_run_destroy(f->run);
    f->run = NULL;
    return rc;
}

/* Rank 0 may start later, or be started again. */
static int find_first(struct follower *f, struct sl_error *err)
{
    const uint64_t end_ns = sl_now_ns() + (uint64_t)sl_nodes_start_ms(f->cfg) * 1000000u;
    int rc, told = 0;
    for (;;) {
        rc = sl_member_connect(&f->dial, &f->member, err);
        if (rc == 0 || (rc != SL_ERANK && rc != SL_EBUSY) || sl_now_ns() >= end_ns)
            return rc;
        if (rc != told)
            sl_log(SL_LOG_INFO, "ranks: %s; trying again", err->msg);
        told = rc;
        (void)poll(NULL, 0, RETRY_MS);
    }
}

int sl_rank_follow(const struct sl_engine_config *cfg, struct sl_error *err)
{
    struct follower f = {.cfg = cfg};
    int rc = sl_nodes_check(cfg, err);
    if (rc == 0 && cfg->node_rank == 0)
        rc = sl_fail(err, SL_EINVAL, "node_rank: 0 is that of the engine");
    if (rc == 0)
        rc = follower_open(&f, err);
    while (rc == 0) {
        rc = find_first(&f, err);
        if (rc != 0)
            break;
        rc = meet(&f, err);
        const bool ended = sl_member_ended(f.member);
        sl_member_close(f.member);
        f.member = NULL;
        if (ended) {
            rc = 0;
            break;
        }
        if (rc == SL_ERANK) {
            sl_log(SL_LOG_WARN, "ranks: %s; looking for rank 0 again", err->msg);
            rc = 0;
        }
    }
    follower_close(&f);
    return rc;
}
