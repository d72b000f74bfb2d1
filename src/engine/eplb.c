/* SPDX-License-Identifier: MIT
 * A placing begins when step_interval steps have been counted. The thread goes from layer to layer:
 * it decides where the experts should be, loads what is missing here, says that the layer is ready,
 * and when that was switched gives up what has no place here any more. A layer that stays as it is
 * is ready at once.
 *
 * What cannot be loaded ends the placing, on all ranks at the same step: experts stay where they
 * are, which is correct at any time, until the next one.
 */
#include "engine/eplb.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/rank_lora.h"
#include "models/eplb.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct layer { /* with experts, of a part that is here */
    int32_t layer, n_experts, n_places;
    size_t tokens; /* where its experts begin in arrays of those of all layers, */
    size_t list;   /* and its places in those of all places */
    const struct sl_expert_counts *counts;
    struct sl_model *model; /* the first that has it */
};

struct mark { /* counts so far */
    uint64_t n_pairs, n_most;
};

struct sl_eplb {
    struct sl_eplb_config cfg;
    struct sl_eplb_parts parts;
    struct sl_backend *beside;
    int32_t n_ranks, n_layers; /* layers: those with experts */
    bool spreads;              /* a rank may be lost: each expert is on two, if there are places */
    struct layer *layers;
    size_t n_tokens, n_lists; /* experts and places of all layers */
    /* The engine's thread: */
    uint32_t absent;    /* ranks that are done without, a bit each: meanwhile experts stay */
    int32_t n_steps;    /* counted since the last placing began */
    bool moving;        /* one is under way, */
    int32_t n_switched; /* and has so many layers behind it */
    uint64_t *base;     /* [n_tokens] what had been counted when the window began */
    struct mark mark;   /* since experts were placed last */
    uint64_t n_placed, n_failed;
    /* Both. ready and switched: in the upper half which placing it is, in the lower one how many
     * layers, or NONE. */
    _Atomic uint64_t ready, switched, n_moved;
    pthread_mutex_t lock;
    pthread_cond_t news; /* of what follows, and of switched */
    uint32_t placing;    /* the last that was begun */
    bool idle, stop;     /* the thread has nothing to do; has to end */
    uint64_t *window;    /* [n_tokens] for the next placing, */
    double before;       /* and how even loads were */
    pthread_t thread;
    bool started;
    /* The thread: */
    uint64_t *loads; /* [n_tokens] of this placing */
    int32_t *lists;  /* [n_lists] where to; the engine's from when a layer is ready */
    struct sl_eplb_room *room;
};

#define NONE UINT32_MAX

static uint64_t pack_state(uint32_t placing, uint32_t n)
{
    return (uint64_t)placing << 32 | n;
}

static struct mark count_all(const struct sl_eplb *e)
{
    struct mark m = {0};
    SL_ASSERT(e->n_layers > 0 && e->layers != NULL);
    for (int32_t i = 0; i < e->n_layers; i++) {
        m.n_pairs += e->layers[i].counts->n_pairs;
        m.n_most += e->layers[i].counts->n_most;
    }
    return m;
}

/* What a mean rank had, over what the busiest one of every step and layer had. */
static double balancedness(const struct sl_eplb *e, struct mark from)
{
    const struct mark now = count_all(e);
    const uint64_t most = now.n_most - from.n_most;
    SL_ASSERT(now.n_most >= from.n_most && now.n_pairs >= from.n_pairs);
    return most == 0 ? 1 : (double)(now.n_pairs - from.n_pairs) / e->n_ranks / (double)most;
}

/* ---------------------------------------------------------------- the thread */

/* Loads what the ranks here lack of a layer's list. */
static int load_layer(struct sl_eplb *e, const struct layer *l, struct sl_error *err)
{
    int32_t n_experts, n = 0;
    int rc = 0;
    SL_ASSERT(l->list + (size_t)l->n_places <= e->n_lists);
    for (int i = 0; i < e->parts.n && rc == 0; i++)
        if (sl_model_places(e->parts.models[i], l->layer, &n_experts) > 0) {
            rc = sl_model_places_load(e->parts.models[i], e->beside, l->layer, e->lists + l->list,
                                      &n, err);
            atomic_fetch_add(&e->n_moved, (uint64_t)n);
        }
    return rc;
}

static void drop_layer(struct sl_eplb *e, const struct layer *l)
{
    int32_t n_experts;
    SL_ASSERT(l->n_places >= l->n_experts && l->n_places % e->n_ranks == 0);
    for (int i = 0; i < e->parts.n; i++)
        if (sl_model_places(e->parts.models[i], l->layer, &n_experts) > 0)
            sl_model_places_drop(e->parts.models[i], l->layer);
}

/* Until n layers of the placing are switched; false: it is over. */
static bool await_switch(struct sl_eplb *e, uint32_t placing, uint32_t n)
{
    bool over = false, done = false;
    SL_ASSERT(n > 0 && n <= (uint32_t)e->n_layers && placing > 0);
    pthread_mutex_lock(&e->lock);
    while (!over && !done) {
        const uint64_t s = atomic_load(&e->switched);
        over = e->stop || e->placing != placing || s == pack_state(placing, NONE);
        done = s >> 32 == placing && (uint32_t)s >= n;
        if (!over && !done)
            pthread_cond_wait(&e->news, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return !over;
}

static void place_layers(struct sl_eplb *e, uint32_t placing, double before)
{
    const uint64_t n_before = atomic_load(&e->n_moved);
    struct sl_error err;
    bool goes_on = true;
    for (int32_t i = 0; i < e->n_layers && goes_on; i++) {
        const struct layer *l = &e->layers[i];
        const bool changes =
            sl_eplb_replace(e->loads + l->tokens, l->n_experts, l->n_places, e->n_ranks,
                            e->spreads && l->n_places >= 2 * l->n_experts,
                            sl_model_place_list(l->model, l->layer), e->room, e->lists + l->list);
        const int rc = changes ? load_layer(e, l, &err) : 0;
        if (rc != 0)
            sl_log(SL_LOG_WARN, "eplb: experts of layer %d stay where they are: %s", l->layer,
                   err.msg);
        atomic_store(&e->ready, pack_state(placing, rc == 0 ? (uint32_t)i + 1 : NONE));
        if (changes) {
            goes_on = await_switch(e, placing, (uint32_t)i + 1) && rc == 0;
            drop_layer(e, l);
        }
    }
    if (e->cfg.log_balancedness && goes_on)
        sl_log(SL_LOG_INFO, "eplb: balancedness was %.3f; %llu experts have been loaded elsewhere",
               before, (unsigned long long)(atomic_load(&e->n_moved) - n_before));
}

static void *eplb_main(void *arg)
{
    struct sl_eplb *e = arg;
    uint32_t done = 0;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        const uint32_t placing = e->placing;
        if (placing == done) {
            e->idle = true;
            pthread_cond_broadcast(&e->news);
            pthread_cond_wait(&e->news, &e->lock);
            continue;
        }
        e->idle = false;
        const double before = e->before;
        memcpy(e->loads, e->window, e->n_tokens * sizeof *e->loads);
        pthread_mutex_unlock(&e->lock);
        place_layers(e, placing, before);
        done = placing;
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---------------------------------------------------------------- steps */

/* The window begins here. */
static void begin_window(struct sl_eplb *e)
{
    for (int32_t i = 0; i < e->n_layers; i++) {
        const struct layer *l = &e->layers[i];
        memcpy(e->base + l->tokens, l->counts->tokens, (size_t)l->n_experts * sizeof *e->base);
    }
}

static void begin_placing(struct sl_eplb *e)
{
    SL_ASSERT(!e->moving && e->n_steps >= e->cfg.step_interval);
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n_layers; i++) {
        const struct layer *l = &e->layers[i];
        for (int32_t k = 0; k < l->n_experts; k++)
            e->window[l->tokens + (size_t)k] =
                l->counts->tokens[k] - e->base[l->tokens + (size_t)k];
    }
    e->before = balancedness(e, e->mark);
    e->placing++;
    atomic_store(&e->switched, pack_state(e->placing, 0));
    e->idle = false; /* before the thread has seen it */
    pthread_cond_broadcast(&e->news);
    pthread_mutex_unlock(&e->lock);
    e->moving = true;
    e->n_switched = 0;
    e->n_steps = 0;
}

static void tell_switched(struct sl_eplb *e, uint32_t n)
{
    SL_ASSERT(e->moving && (n == NONE || n <= (uint32_t)e->n_layers));
    pthread_mutex_lock(&e->lock);
    atomic_store(&e->switched, pack_state(e->placing, n));
    pthread_cond_broadcast(&e->news);
    pthread_mutex_unlock(&e->lock);
}

static void end_placing(struct sl_eplb *e, bool placed)
{
    SL_ASSERT(e->moving && (!placed || e->n_switched == e->n_layers));
    e->moving = false;
    e->n_placed += placed;
    e->n_failed += !placed;
    e->mark = count_all(e);
    if (e->cfg.step_interval <= e->cfg.window_size)
        begin_window(e);
}

/* Layers that all ranks have ready. */
static int32_t find_ready(struct sl_eplb *e)
{
    const uint64_t s = atomic_load(&e->ready);
    const int32_t own = s >> 32 == e->placing ? (int32_t)(uint32_t)s : 0; /* NONE: -1 */
    return e->parts.apart ? sl_run_least(e->parts.runs[0], own) : own;
}

static void go_on(struct sl_eplb *e)
{
    const int32_t ready = find_ready(e), before = e->n_switched;
    int32_t n_experts;
    SL_ASSERT(ready <= e->n_layers);
    if (ready < 0) {
        tell_switched(e, NONE);
        end_placing(e, false);
        return;
    }
    for (; e->n_switched < ready; e->n_switched++) {
        const struct layer *l = &e->layers[e->n_switched];
        for (int i = 0; i < e->parts.n; i++)
            if (sl_model_places(e->parts.models[i], l->layer, &n_experts) > 0)
                sl_model_places_switch(e->parts.models[i], l->layer, e->lists + l->list);
    }
    if (e->n_switched > before)
        tell_switched(e, (uint32_t)e->n_switched);
    if (e->n_switched == e->n_layers)
        end_placing(e, true);
}

void sl_eplb_step(struct sl_eplb *e)
{
    if (e->absent != 0)
        return;
    if (e->moving)
        go_on(e);
    if (!e->moving && e->n_steps >= e->cfg.step_interval)
        begin_placing(e);
    if (e->n_steps == e->cfg.step_interval - e->cfg.window_size)
        begin_window(e);
    e->n_steps++;
}

void sl_eplb_stats(const struct sl_eplb *e, struct sl_eplb_stats *out)
{
    const struct mark all = count_all(e);
    SL_ASSERT(all.n_most <= all.n_pairs && all.n_pairs <= all.n_most * (uint64_t)e->n_ranks);
    *out = (struct sl_eplb_stats){.on = true,
                                  .balancedness = balancedness(e, e->mark),
                                  .rows = all.n_pairs,
                                  .busiest_rows = all.n_most,
                                  .placings = e->n_placed,
                                  .failed = e->n_failed,
                                  .loaded = atomic_load(&e->n_moved)};
}

uint64_t sl_eplb_progress(const struct sl_eplb *e)
{
    return atomic_load(&e->n_moved);
}

/* ---------------------------------------------------------------- meetings */

struct head {
    int32_t kind, n; /* enum sl_rank_message; places of all layers, which follow */
    uint32_t absent, unused;
};

size_t sl_eplb_message_bytes(const struct sl_model *m)
{
    size_t n = sizeof(struct head);
    int32_t n_experts;
    for (int32_t l = 0; l < sl_model_facts(m)->n_layers; l++)
        n += (size_t)sl_model_places(m, l, &n_experts) * sizeof(int32_t);
    return n;
}

/* A placing that is under way is over, and counting begins. */
static void start_over(struct sl_eplb *e)
{
    if (e->moving) {
        tell_switched(e, NONE);
        e->moving = false;
    }
    e->n_steps = 0;
    e->mark = count_all(e);
    begin_window(e);
}

/* Of a rank in a process. */
static void leave(struct sl_eplb *e, uint32_t absent)
{
    SL_ASSERT(e->parts.apart && e->parts.n == 1 && !e->moving);
    sl_model_places_leave(e->parts.models[0], absent); /* which knows of an earlier meeting */
    e->absent = absent;
}

size_t sl_eplb_put(struct sl_eplb *e, uint32_t absent, uint8_t *out)
{
    const struct head h = {SL_RANK_PLACES, (int32_t)e->n_lists, absent, 0};
    uint8_t *at = out + sizeof h;
    start_over(e);
    leave(e, absent);
    memcpy(out, &h, sizeof h);
    for (int32_t i = 0; i < e->n_layers; i++) {
        const struct layer *l = &e->layers[i];
        const size_t n = (size_t)l->n_places * sizeof(int32_t);
        memcpy(at, sl_model_place_list(l->model, l->layer), n);
        at += n;
    }
    SL_ASSERT(at == out + sl_eplb_message_bytes(e->parts.models[0]));
    return (size_t)(at - out);
}

/* Every expert has a place on a rank that is there. */
static bool is_whole(const int32_t *list, const struct layer *l, uint32_t absent)
{
    for (int32_t i = 0; i < l->n_places; i++)
        if (list[i] < 0 || list[i] >= l->n_experts)
            return false;
    return sl_model_places_cover(l->model, l->layer, list, absent);
}

/* With the thread idle what is its own is anyone's. */
static void await_idle(struct sl_eplb *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->idle)
        pthread_cond_wait(&e->news, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

int sl_eplb_get(struct sl_eplb *e, const uint8_t *data, size_t n, uint32_t absent,
                struct sl_error *err)
{
    struct head h;
    int rc = 0;
    SL_ASSERT(e->parts.apart && e->parts.n == 1);
    if (n != sizeof h + e->n_lists * sizeof(int32_t))
        return sl_fail(err, SL_EFORMAT, "rank 0 sent places of experts in %zu bytes", n);
    memcpy(&h, data, sizeof h);
    if (h.n != (int32_t)e->n_lists)
        return sl_fail(err, SL_EFORMAT, "rank 0 has %d places of experts, here are %zu", h.n,
                       e->n_lists);
    if (h.absent != absent)
        return sl_fail(err, SL_EFORMAT, "rank 0 places experts without %x, and meets without %x",
                       h.absent, absent);
    start_over(e);
    await_idle(e);
    memcpy(e->lists, data + sizeof h, e->n_lists * sizeof(int32_t));
    for (int32_t i = 0; i < e->n_layers; i++)
        if (!is_whole(e->lists + e->layers[i].list, &e->layers[i], absent))
            return sl_fail(err, SL_EFORMAT, "rank 0 has no place for an expert of layer %d",
                           e->layers[i].layer);
    leave(e, 0); /* the old list may not do without them */
    for (int32_t i = 0; i < e->n_layers && rc == 0; i++) {
        const struct layer *l = &e->layers[i];
        rc = load_layer(e, l, err);
        for (int k = 0; k < e->parts.n && rc == 0; k++)
            sl_model_places_switch(e->parts.models[k], l->layer, e->lists + l->list);
        drop_layer(e, l);
    }
    if (rc == 0)
        leave(e, absent);
    return rc;
}

/* ---------------------------------------------------------------- the object */

/* Layers with experts, each of the first part that has it: there all rows are counted. */
static int list_layers(struct sl_eplb *e, struct sl_error *err)
{
    const struct sl_model_facts *f = sl_model_facts(e->parts.models[0]);
    e->n_ranks = f->n_ranks;
    e->spreads = f->only_experts;
    e->layers = sl_calloc((size_t)f->n_layers, sizeof *e->layers);
    if (e->layers == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for places of experts");
    for (int32_t l = 0; l < f->n_layers; l++)
        for (int i = 0; i < e->parts.n; i++) {
            int32_t n_experts;
            const int32_t n = sl_model_places(e->parts.models[i], l, &n_experts);
            if (n == 0)
                continue;
            e->layers[e->n_layers++] =
                (struct layer){.layer = l,
                               .n_experts = n_experts,
                               .n_places = n,
                               .tokens = e->n_tokens,
                               .list = e->n_lists,
                               .counts = &sl_run_expert_counts(e->parts.runs[i])[l],
                               .model = e->parts.models[i]};
            e->n_tokens += (size_t)n_experts;
            e->n_lists += (size_t)n;
            break;
        }
    SL_ASSERT(e->n_layers > 0); /* who balances has experts: sl_model_set_rank */
    return 0;
}

static int take_memory(struct sl_eplb *e, struct sl_error *err)
{
    e->base = sl_calloc(e->n_tokens, sizeof *e->base);
    e->window = sl_calloc(e->n_tokens, sizeof *e->window);
    e->loads = sl_calloc(e->n_tokens, sizeof *e->loads);
    e->lists = sl_calloc(e->n_lists, sizeof *e->lists);
    e->room = sl_calloc(1, sizeof *e->room);
    return e->base == NULL || e->window == NULL || e->loads == NULL || e->lists == NULL ||
                   e->room == NULL
               ? sl_fail(err, SL_ENOMEM, "out of memory for loads of experts")
               : 0;
}

int sl_eplb_create(const struct sl_eplb_config *cfg, const struct sl_eplb_parts *parts,
                   struct sl_backend *beside, struct sl_eplb **out, struct sl_error *err)
{
    *out = NULL;
    SL_ASSERT(parts->n >= 1 && parts->n <= SL_MAX_RANKS && (!parts->apart || parts->n == 1));
    struct sl_eplb *e = sl_calloc(1, sizeof *e);
    if (e == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for loads of experts");
    e->cfg = *cfg;
    e->parts = *parts;
    e->beside = beside;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->news, NULL);
    int rc = list_layers(e, err);
    if (rc == 0)
        rc = take_memory(e, err);
    if (rc == 0)
        begin_window(e);
    if (rc == 0)
        rc = sl_thread_create(&e->thread, eplb_main, e, "eplb", err);
    e->started = rc == 0;
    if (rc != 0)
        sl_eplb_destroy(e);
    else
        *out = e;
    return rc;
}

void sl_eplb_destroy(struct sl_eplb *e)
{
    if (e == NULL)
        return;
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_broadcast(&e->news);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    pthread_cond_destroy(&e->news);
    pthread_mutex_destroy(&e->lock);
    sl_free(e->layers);
    sl_free(e->base);
    sl_free(e->window);
    sl_free(e->loads);
    sl_free(e->lists);
    sl_free(e->room);
    sl_free(e);
}
