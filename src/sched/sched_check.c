/* SPDX-License-Identifier: MIT
 * The invariants of the scheduler, and why a sequence waits.
 */
#include "base/check.h"
#include "sched/sched.h"

#include <stdio.h>
#include <string.h>

#define WHO(seq) (unsigned long long)(seq)->arrival, (seq)->idx

static int check_blocks(const struct sl_sched *s, const struct sl_seq *seq, struct sl_error *err)
{
    const struct sl_kv *kv = s->kv;
    const struct sl_kv_blocks *b = &seq->blocks;
    if (seq->n_published > b->n || seq->n_published * kv->block_size > seq->n_computed)
        return sl_fail(err, SL_EINTERNAL,
                       "I8: %d blocks of sequence %llu.%d are published, %d tokens computed",
                       seq->n_published, WHO(seq), seq->n_computed);
    for (int32_t i = 0; i < b->n; i++) {
        int32_t node = b->nodes[i];
        if (node < 0 || node >= kv->nodes.n_ids)
            return sl_fail(err, SL_EINTERNAL, "I1: sequence %llu.%d names node %d of %d", WHO(seq),
                           node, kv->nodes.n_ids);
        const struct sl_kv_node *n = &kv->tree.nodes[node];
        if (n->in_tree != (i < seq->n_published))
            return sl_fail(err, SL_EINTERNAL,
                           "I8: node %d, the %dth of sequence %llu.%d with %d published, in the "
                           "tree: %d",
                           node, i, WHO(seq), seq->n_published, n->in_tree);
        if (i < seq->n_published && n->parent != (i > 0 ? b->nodes[i - 1] : SL_NO_NODE))
            return sl_fail(err, SL_EINTERNAL, "I8: node %d hangs below node %d, not %d", node,
                           n->parent, i > 0 ? b->nodes[i - 1] : SL_NO_NODE);
    }
    return 0;
}

/* K3, as far as rows to be planned are concerned, and the sequence's block table of group g. */
static int check_pages(const struct sl_sched *s, const struct sl_seq *seq, int32_t g,
                       struct sl_error *err)
{
    const struct sl_kv_group *group = &s->kv->groups[g];
    const struct sl_kv_blocks *b = &seq->blocks;
    const int32_t first = b->first[g], end = b->end[g];
    const bool sparse = group->cfg.kind == SL_GROUP_STATE;
    int32_t n_owned = 0;
    if (first < 0 || first > end || end > b->n ||
        first > sl_group_first_seen(group, seq->n_computed) ||
        end < SL_CEIL_DIV(seq->n_computed, s->kv->block_size))
        return sl_fail(err, SL_EINTERNAL,
                       "I1: sequence %llu.%d with %d blocks, %d tokens computed, has pages of "
                       "group %d for blocks %d to %d",
                       WHO(seq), b->n, seq->n_computed, g, first, end);
    for (int32_t i = 0; i < b->n; i++) {
        const int32_t page = sl_group_page(group, b->nodes[i]);
        /* Of states: where the next row begins, at least. */
        const bool may = i >= first && i < end,
                   must = !sparse || (i + 1) * s->kv->block_size ==
                                         SL_ROUND_UP(seq->n_computed, s->kv->block_size);
        const bool held = may && (must || b->pages[g][i] != SL_NO_PAGE);
        n_owned += held;
        if (b->pages[g][i] != (held ? page : SL_NO_PAGE) || (held && page == SL_NO_PAGE))
            return sl_fail(err, SL_EINTERNAL,
                           "I1: the table of sequence %llu.%d names page %d of group %d for block "
                           "%d of %d to %d, its node %d has page %d",
                           WHO(seq), b->pages[g][i], g, i, first, end, b->nodes[i], page);
    }
    if (n_owned != b->n_owned[g])
        return sl_fail(err, SL_EINTERNAL,
                       "I1: sequence %llu.%d counts %d pages of group %d and has %d", WHO(seq),
                       b->n_owned[g], g, n_owned);
    return 0;
}

/* What the tree says a node holds is what the sequence that holds it has there. */
static int sched_check_text(const struct sl_sched *s, const struct sl_seq *seq,
                            struct sl_error *err)
{
    int32_t bs = s->kv->block_size;
    for (int32_t pos = 0; pos < seq->n_published * bs; pos++) {
        int32_t node = seq->blocks.nodes[pos / bs];
        int32_t held = s->kv->tree.tokens[(size_t)node * (size_t)bs + (size_t)(pos % bs)];
        if (held != sl_seq_token(seq, pos))
            return sl_fail(err, SL_EINTERNAL,
                           "I9: node %d holds token %d at position %d, sequence %llu.%d has %d",
                           node, held, pos, WHO(seq), sl_seq_token(seq, pos));
    }
    return 0;
}

static int check_running(const struct sl_sched *s, const struct sl_seq *seq, struct sl_error *err)
{
    int32_t n_tokens = sl_seq_n_tokens(seq), bs = s->kv->block_size;
    if (seq->state != SL_SEQ_RUNNING)
        return sl_fail(err, SL_EINTERNAL, "I6: running sequence %llu.%d is in state %d", WHO(seq),
                       (int)seq->state);
    if (seq->n_computed >= n_tokens)
        return sl_fail(err, SL_EINTERNAL,
                       "I7: sequence %llu.%d computed %d tokens of %d: it has "
                       "nothing to do",
                       WHO(seq), seq->n_computed, n_tokens);
    if (seq->n_computed > seq->blocks.n * bs || seq->blocks.n > SL_CEIL_DIV(n_tokens, bs))
        return sl_fail(err, SL_EINTERNAL,
                       "I1: sequence %llu.%d has %d blocks of %d for %d tokens, %d computed",
                       WHO(seq), seq->blocks.n, bs, n_tokens, seq->n_computed);
    if (seq->n_out + seq->n_pending > seq->max_out || seq->n_pending < 0)
        return sl_fail(err, SL_EINTERNAL, "I5: sequence %llu.%d has %d + %d tokens of at most %d",
                       WHO(seq), seq->n_out, seq->n_pending, seq->max_out);
    int rc = check_blocks(s, seq, err);
    for (int32_t g = 0; g < s->kv->n_groups && rc == 0; g++)
        rc = check_pages(s, seq, g, err);
    return rc != 0 ? rc : sched_check_text(s, seq, err);
}

static int check_waiting(const struct sl_sched *s, struct sl_error *err)
{
    int rc = sl_wait_check(&s->wait, err);
    for (const struct sl_seq *seq = s->wait.root; seq != NULL && rc == 0; seq = sl_wait_next(seq)) {
        if (seq->n_prompt + seq->max_out > sl_sched_limit(s))
            rc = sl_fail(err, SL_EINTERNAL,
                         "I6: sequence %llu.%d may need %d tokens, the empty cache holds %lld",
                         WHO(seq), seq->n_prompt + seq->max_out, (long long)sl_sched_limit(s));
        else if (seq->blocks.n != 0 || seq->blocks.n_drafts != 0 || seq->n_published != 0 ||
                 seq->n_computed != 0)
            rc = sl_fail(err, SL_EINTERNAL,
                         "I1: waiting sequence %llu.%d holds %d blocks (%d published, %d tokens "
                         "computed)",
                         WHO(seq), seq->blocks.n, seq->n_published, seq->n_computed);
    }
    return rc;
}

/* What seq owns, into what the cache is compared with. */
static void count_owned(const struct sl_sched *s, const struct sl_seq *seq)
{
    const struct sl_kv_blocks *b = &seq->blocks;
    for (int32_t i = 0; i < b->n; i++)
        s->expected[b->nodes[i]]++;
    for (int32_t g = 0; g < s->kv->n_groups; g++) {
        int32_t *owners = s->expected + (size_t)(1 + g) * (size_t)s->kv->nodes.n_ids;
        for (int32_t i = b->first[g]; i < b->end[g]; i++)
            owners[b->nodes[i]] += b->pages[g][i] != SL_NO_PAGE;
    }
}

/* The pages for drafts that no running sequence has are left. */
static int check_drafts(const struct sl_sched *s, struct sl_error *err)
{
    const struct sl_kv_group *g = &s->kv->groups[s->kv->n_groups - 1];
    int32_t n = g->n_drafts;
    for (int32_t i = 0; i < s->n_running; i++) {
        const struct sl_kv_blocks *b = &s->running[i]->blocks;
        n += b->n_drafts;
        for (int32_t k = 0; k < b->n_drafts; k++)
            if (g->pool.is_free[b->drafts[k]] || g->pool.refs[b->drafts[k]] != 1)
                return sl_fail(err, SL_EINTERNAL,
                               "I1: sequence %llu.%d has page %d for a draft, which is free or "
                               "shared",
                               WHO(s->running[i]), b->drafts[k]);
    }
    if (n != g->cfg.n_drafts)
        return sl_fail(err, SL_EINTERNAL, "I1: %d pages for drafts are in use or left, of %d", n,
                       g->cfg.n_drafts);
    return 0;
}

int sl_sched_check(struct sl_sched *s, struct sl_error *err)
{
    int32_t n_members[SL_MAX_STAGES] = {0};
    int rc = check_waiting(s, err);
    size_t n_expected = (size_t)(1 + s->kv->n_groups) * (size_t)s->kv->nodes.n_ids;
    memset(s->expected, 0, n_expected * sizeof *s->expected);
    if (rc == 0 && (s->n_running < 0 || s->n_running > s->cfg.max_seqs))
        rc = sl_fail(err, SL_EINTERNAL, "I6: %d sequences run on %d seats", s->n_running,
                     s->cfg.max_seqs);
    for (int32_t i = 0; i < s->n_running && rc == 0; i++) {
        const struct sl_seq *seq = s->running[i];
        rc = check_running(s, seq, err);
        if (rc == 0 && i > 0 && !sl_seq_before(s->running[i - 1], seq))
            rc = sl_fail(err, SL_EINTERNAL, "I6: running sequence %llu.%d is out of order",
                         WHO(seq));
        if (rc == 0)
            count_owned(s, seq);
        if (rc == 0 && (seq->group < 0 || seq->group >= s->cfg.n_groups))
            rc = sl_fail(err, SL_EINTERNAL, "I6: sequence %llu.%d is in group %d of %d", WHO(seq),
                         seq->group, s->cfg.n_groups);
        if (rc == 0)
            n_members[seq->group]++;
    }
    for (int32_t g = 0; g < s->cfg.n_groups && rc == 0; g++)
        if (n_members[g] != s->n_members[g])
            rc = sl_fail(err, SL_EINTERNAL, "I6: %d sequences of group %d run, %d are counted",
                         n_members[g], g, s->n_members[g]);
    if (rc == 0)
        rc = check_drafts(s, err);
    const struct sl_kv_group *g = &s->kv->groups[s->kv->n_groups - 1];
    if (rc == 0 && sl_sched_has_states(s) && g->cfg.n_pages < s->kv->nodes.n_ids &&
        sl_sched_n_counted(s, g) > g->cfg.n_pages)
        rc = sl_fail(err, SL_EINTERNAL,
                     "I6: %d sequences run, which count with %d pages of states, of %d",
                     s->n_running, sl_sched_n_counted(s, g), g->cfg.n_pages);
    return rc != 0 ? rc : sl_kv_check(s->kv, s->expected, err);
}

void sl_sched_why(const struct sl_sched *s, const struct sl_seq *seq, char *out, size_t n_out)
{
    const struct sl_seq *best = sl_wait_best(&s->wait);
    int32_t need = SL_CEIL_DIV(sl_seq_n_tokens(seq), s->kv->block_size);
    int32_t available = sl_kv_n_available(s->kv);
    if (seq != best)
        snprintf(out, n_out, "behind sequence %llu.%d", WHO(best));
    else if (sl_seq_held(seq))
        snprintf(out, n_out, "its last token, or what may follow it, is not known yet");
    else if (s->n_running >= s->cfg.max_seqs)
        snprintf(out, n_out, "all %d seats are taken", s->cfg.max_seqs);
    else if (!sl_sched_adapter_fits(s, seq))
        snprintf(out, n_out, "%d adapters run, as many as may", s->cfg.max_adapters);
    else if (available < need + s->n_running)
        snprintf(out, n_out,
                 "needs %d blocks less what is cached, and %d stay free for those that run; %d can "
                 "be had of %d",
                 need, s->n_running, available, s->kv->nodes.n_ids);
    else if (!sl_sched_pages_fit(s, seq))
        snprintf(out, n_out, "pages of windowed or recurrent layers are short beside %d sequences",
                 s->n_running);
    else if (seq->blocked_at == sl_sched_room(s))
        snprintf(out, n_out, "nothing was given back since it did not fit");
    else if (s->n_plan_tokens >= s->cfg.max_tokens)
        snprintf(out, n_out, "the step's %d tokens are taken", s->cfg.max_tokens);
    else
        snprintf(out, n_out, "nothing: the next plan admits it");
}
