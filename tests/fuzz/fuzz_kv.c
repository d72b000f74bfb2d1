/* SPDX-License-Identifier: MIT
 * Nodes, pages and prefix tree against kv_model.h: sequences come, match, take, get pages for what
 * they are about to compute, publish, pass by what they see no more, give back their last blocks or
 * all of them, are forgotten, the cache is cleared. Which nodes they get, what is cached and in
 * which order it would go must agree after every operation.
 */
#include "kv_model.h"

#define MAX_BLOCKS 8
#define MAX_BLOCK  4
#define N_SEQS     4

struct seq {
    bool used;
    int32_t ns, n_tokens, n_done, n_published; /* n_done: tokens that are computed */
    int32_t tokens[MAX_BLOCKS * MAX_BLOCK];
    struct model_blocks want;
    struct real_blocks got;
};

struct rig {
    struct sl_kv kv;
    struct model_kv m;
    struct seq seqs[N_SEQS];
    struct sl_input in;
    uint32_t n_checks;
};

static struct sl_kv_ns ns_of(int32_t ns)
{
    static const struct sl_kv_ns spaces[3] = {{0, 0, ""}, {0, 1, "s"}, {1, 1, "s"}};
    return spaces[ns];
}

/* Few different tokens, so that prefixes are shared. */
static void append(struct rig *g, struct seq *s)
{
    int32_t n = 1 + sl_input_below(&g->in, 2 * g->m.block);
    int32_t bits = sl_input_byte(&g->in), most = MAX_BLOCKS * g->m.block;
    for (int32_t i = 0; i < n && s->n_tokens < most; i++)
        s->tokens[s->n_tokens++] = bits >> i & 1;
}

static struct sl_kv_text text_of(struct rig *g, const struct seq *s)
{
    int32_t cut = sl_input_byte(&g->in) % (s->n_tokens + 1);
    return (struct sl_kv_text){s->tokens, cut, s->tokens + cut, s->n_tokens - cut};
}

static void take(struct rig *g, struct seq *s)
{
    while (s->want.n * g->m.block < s->n_tokens) {
        bool taken = model_take(&g->m, &s->want);
        SL_ASSERT(sl_kv_take(&g->kv, &s->got.b, SL_EVICT_PROMPT) == taken);
        if (!taken)
            return;
    }
}

static void begin(struct rig *g, struct seq *s)
{
    *s = (struct seq){.used = true, .ns = sl_input_below(&g->in, 3)};
    for (int32_t n = 1 + sl_input_below(&g->in, 4); n > 0; n--)
        append(g, s);
    struct sl_kv_ns ns = ns_of(s->ns);
    struct sl_kv_text text = text_of(g, s);
    int32_t most = s->n_tokens / g->m.block;
    int32_t n = sl_kv_count(&g->kv, &ns, &text, most);
    model_match(&g->m, s->ns, s->tokens, most, &s->want);
    sl_kv_match(&g->kv, &ns, &text, most, real_begin(&s->got));
    SL_ASSERT(s->want.n == n);
    for (int32_t k = 0; k < SL_KV_CHECKPOINTS && model_states(&g->m) >= 0; k++)
        s->want.wanted[k] = s->got.b.wanted[k] = sl_input_below(&g->in, most + 1);
    s->n_published = n;
    s->n_done = n * g->m.block;
    take(g, s);
}

/* Some tokens more are computed, and what they fill is published. */
static void compute(struct rig *g, struct seq *s)
{
    int32_t most = s->want.n * g->m.block, bs = g->m.block;
    int32_t end = s->n_done + 1 + sl_input_below(&g->in, 2 * bs);
    most = most < s->n_tokens ? most : s->n_tokens;
    end = end < most ? end : most;
    if (end <= s->n_done)
        return;
    int32_t n_blocks = (end + bs - 1) / bs;
    bool room = model_cover(&g->m, &s->want, s->n_done, n_blocks);
    SL_ASSERT(sl_kv_cover(&g->kv, &s->got.b, s->n_done, n_blocks) == room);
    if (!room)
        return;
    if (model_states(&g->m) >= 0) {
        const int32_t g_room = sl_group_n_room(&g->kv.groups[model_states(&g->m)]);
        sl_kv_checkpoint(&g->kv, &s->got.b, s->n_done, end, g_room);
        model_checkpoint(&g->m, &s->want, s->n_done, end, g_room);
    }
    s->n_done = end;
    struct sl_kv_ns ns = ns_of(s->ns);
    for (; (s->n_published + 1) * bs <= s->n_done; s->n_published++) {
        struct sl_kv_text text = text_of(g, s);
        sl_kv_publish(&g->kv, &ns, &text, &s->got.b, s->n_published);
        model_publish(&g->m, s->ns, s->tokens, &s->want, s->n_published);
    }
    if (sl_input_below(&g->in, 4) == 0)
        return; /* a step behind it has not landed */
    sl_kv_pass(&g->kv, &s->got.b, s->n_done);
    model_pass(&g->m, &s->want, s->n_done);
}

static void give(struct rig *g, struct seq *s, int32_t keep, bool forget)
{
    sl_kv_give(&g->kv, &s->got.b, keep, forget);
    model_give(&g->m, &s->want, keep, forget);
    int32_t most = keep * g->m.block;
    s->n_published = s->n_published < keep ? s->n_published : keep;
    s->n_tokens = s->n_tokens < most ? s->n_tokens : most;
    s->n_done = s->n_done < most ? s->n_done : most;
    s->used = keep > 0;
}

static void operate(struct rig *g)
{
    int32_t op = sl_input_byte(&g->in);
    struct seq *s = &g->seqs[op % N_SEQS];
    op /= N_SEQS;
    if (op == 63) {
        sl_kv_clear(&g->kv);
        model_clear(&g->m);
    } else if (!s->used) {
        begin(g, s);
    } else if (op % 8 < 4) {
        compute(g, s);
    } else if (op % 8 < 6) {
        append(g, s);
        take(g, s);
    } else {
        /* Nothing is taken back from a state. */
        const bool all = op % 8 == 6 || model_states(&g->m) >= 0;
        give(g, s, all ? 0 : sl_input_below(&g->in, s->want.n + 1), op >= 48);
    }
}

static void count_owned(const struct rig *g, const struct seq *s, int32_t *owners)
{
    for (int32_t i = 0; i < s->want.n; i++)
        owners[s->want.nodes[i]]++;
    for (int32_t k = 0; k < g->m.n_groups; k++)
        for (int32_t i = s->want.first[k]; i < s->want.end[k]; i++)
            owners[(1 + k) * g->m.n_nodes + s->want.nodes[i]] +=
                !g->m.group[k].state || s->want.has_state[i];
}

/* The model after every operation, the walk through everything after every fourth. */
static void check(struct rig *g)
{
    model_compare(&g->m, &g->kv);
    for (int32_t i = 0; i < N_SEQS; i++)
        if (g->seqs[i].used)
            model_compare_blocks(&g->m, &g->seqs[i].want, &g->seqs[i].got.b);
    if (g->n_checks++ % 4 != 0)
        return;
    int32_t owners[(1 + MODEL_GROUPS) * MODEL_NODES] = {0};
    for (int32_t i = 0; i < N_SEQS; i++)
        count_owned(g, &g->seqs[i], owners);
    SL_ASSERT(sl_kv_check(&g->kv, owners, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig g = {.in = {data, data + size}};
    struct sl_kv_config cfg;
    model_init(&g.m, &g.in, &cfg);
    bool reset = sl_input_flag(&g.in);
    SL_ASSERT(sl_kv_init(&g.kv, &cfg, NULL) == 0);
    for (int32_t i = 0; i < N_SEQS; i++)
        real_begin(&g.seqs[i].got);
    for (check(&g); !sl_input_empty(&g.in); check(&g))
        operate(&g);
    for (int32_t i = 0; i < N_SEQS; i++)
        give(&g, &g.seqs[i], 0, false);
    g.n_checks = 0;
    check(&g);
    SL_ASSERT(sl_kv_n_available(&g.kv) == g.m.n_nodes);
    for (int32_t i = 0, at = 0; i < g.m.n_nodes; i += 3)
        SL_ASSERT(sl_kv_check_idle(&g.kv, 3, &at, NULL) == 0);
    if (reset)
        sl_kv_reset(&g.kv);
    else
        sl_kv_clear(&g.kv);
    SL_ASSERT(g.kv.nodes.n_free == g.m.n_nodes && g.kv.tree.n_in_tree == 0);
    for (int32_t k = 0; k < g.m.n_groups; k++)
        SL_ASSERT(g.kv.groups[k].pool.n_free == g.m.group[k].n_pages);
    SL_ASSERT(sl_kv_check(&g.kv, NULL, NULL) == 0);
    sl_kv_deinit(&g.kv);
    return 0;
}
