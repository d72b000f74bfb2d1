/* SPDX-License-Identifier: MIT
 * Pool and prefix tree against kv_model.h: sequences come, match, take, publish, give back their
 * last pages or all of them, are forgotten, the cache is cleared. Which pages they get, what is
 * cached and in which order it would go must agree after every operation.
 */
#include "kv_model.h"

#define MAX_BLOCKS 8
#define MAX_BLOCK  4
#define N_SEQS     4

struct seq {
    bool used;
    int32_t ns, n_tokens, n_pages, n_published;
    int32_t tokens[MAX_BLOCKS * MAX_BLOCK], pages[MAX_BLOCKS];
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
    while (s->n_pages * g->m.block < s->n_tokens) {
        int32_t page = model_take(&g->m);
        SL_ASSERT(sl_kv_take(&g->kv, SL_EVICT_PROMPT) == page);
        if (page == SL_NO_PAGE)
            return;
        s->pages[s->n_pages++] = page;
    }
}

static void begin(struct rig *g, struct seq *s)
{
    int32_t want[MAX_BLOCKS];
    *s = (struct seq){.used = true, .ns = sl_input_below(&g->in, 3)};
    for (int32_t n = 1 + sl_input_below(&g->in, 4); n > 0; n--)
        append(g, s);
    struct sl_kv_ns ns = ns_of(s->ns);
    struct sl_kv_text text = text_of(g, s);
    int32_t most = s->n_tokens / g->m.block;
    int32_t n = model_match(&g->m, s->ns, s->tokens, most, want);
    s->n_pages = s->n_published = sl_kv_match(&g->kv, &ns, &text, most, s->pages);
    SL_ASSERT(s->n_pages == n && memcmp(s->pages, want, (size_t)n * sizeof *want) == 0);
    take(g, s);
}

static void publish(struct rig *g, struct seq *s)
{
    int32_t idx = s->n_published, page;
    if (idx >= s->n_pages || (idx + 1) * g->m.block > s->n_tokens)
        return;
    struct sl_kv_ns ns = ns_of(s->ns);
    struct sl_kv_text text = text_of(g, s);
    page = s->pages[idx];
    sl_kv_publish(&g->kv, &ns, &text, s->pages, idx);
    int32_t got = s->pages[idx];
    s->pages[idx] = page;
    model_publish(&g->m, s->ns, s->tokens, s->pages, idx);
    SL_ASSERT(s->pages[idx] == got);
    s->n_published++;
}

static void give(struct rig *g, struct seq *s, int32_t keep, bool forget)
{
    sl_kv_give(&g->kv, s->pages + keep, s->n_pages - keep, forget);
    model_give(&g->m, s->pages + keep, s->n_pages - keep, forget);
    s->n_pages = keep;
    s->n_published = SL_MIN(s->n_published, keep);
    s->n_tokens = SL_MIN(s->n_tokens, keep * g->m.block);
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
        publish(g, s);
    } else if (op % 8 < 6) {
        append(g, s);
        take(g, s);
    } else {
        give(g, s, op % 8 == 6 ? 0 : sl_input_below(&g->in, s->n_pages + 1), op >= 48);
    }
}

/* The model after every operation, the walk through everything after every fourth. */
static void check(struct rig *g)
{
    model_compare(&g->m, &g->kv);
    if (g->n_checks++ % 4 != 0)
        return;
    int32_t refs[MODEL_PAGES] = {0};
    for (int32_t i = 0; i < N_SEQS; i++)
        for (int32_t j = 0; j < g->seqs[i].n_pages; j++)
            refs[g->seqs[i].pages[j]]++;
    SL_ASSERT(sl_kv_check(&g->kv, refs, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rig g = {.in = {data, data + size}};
    int32_t n_pages = 1 + sl_input_below(&g.in, MODEL_PAGES);
    int32_t block = 1 + sl_input_below(&g.in, MAX_BLOCK);
    bool keep = sl_input_below(&g.in, 4) != 0, reset = sl_input_flag(&g.in);
    SL_ASSERT(sl_kv_init(&g.kv, n_pages, block, keep, sl_input_byte(&g.in), NULL) == 0);
    model_init(&g.m, n_pages, block, keep);
    for (check(&g); !sl_input_empty(&g.in); check(&g))
        operate(&g);
    for (int32_t i = 0; i < N_SEQS; i++)
        give(&g, &g.seqs[i], 0, false);
    g.n_checks = 0;
    check(&g);
    SL_ASSERT(sl_kv_n_available(&g.kv) == n_pages);
    for (int32_t i = 0, at = 0; i < n_pages; i += 3)
        SL_ASSERT(sl_kv_check_idle(&g.kv, 3, &at, NULL) == 0);
    if (reset)
        sl_kv_reset(&g.kv);
    else
        sl_kv_clear(&g.kv);
    SL_ASSERT(g.kv.pool.n_free == n_pages && g.kv.tree.n_in_tree == 0);
    SL_ASSERT(sl_kv_check(&g.kv, NULL, NULL) == 0);
    sl_kv_deinit(&g.kv);
    return 0;
}
