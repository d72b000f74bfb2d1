/* SPDX-License-Identifier: MIT
 * state_trace.c - which part of the prompts of a trace a prefix cache finds, for a model with a
 * recurrent state: with the evictions of kv/group.c, with the least recently used one, and with
 * knowledge of the future.
 *
 *   state_trace FILE [--kv-blocks N] [--requests N] SLOTS...
 *
 * FILE has Mooncake's format: a line for each request with input_length, output_length and the
 * hash_ids of the prompt's blocks of 512 tokens, equal for equal prefixes. Requests come one after
 * the other. Tokens of a block are made from its id. A prompt that goes on where an earlier one
 * ended (it has all of that one's whole blocks and is longer than it with its answer, which is told
 * by the hash of the last, partial block alone) is taken for the next turn: then the end of that
 * one's prompt and its answer are what stands there in the later prompt.
 *
 * ideal: the same states, evicted by somebody who knows when each is asked for next: the better one
 * of Belady's order (the latest goes) and of the least saved per time of waiting. all: every state
 * is kept. keys: a model without states. Keys and values have --kv-blocks blocks, for ideal as many
 * as it takes.
 */
#include "base/check.h"
#include "base/sys.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 512, BLOCK = 16, CHUNK = 4096, MAX_IDS = 1024, MAX_TRACE = 1 << 14 };

struct request {
    int32_t n_in, n_out, n_ids, next; /* next: the request that is its next turn, -1: none */
    int32_t ids[MAX_IDS];
    int32_t depth, from; /* blocks known when it comes, and the request that had them */
};

static struct request *trace[MAX_TRACE];
static int32_t n_trace;
static int32_t *tokens; /* of one request with its answer */

static int32_t field(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    return at != NULL ? (int32_t)strtol(at + strlen(name), NULL, 10) : -1;
}

static bool read_trace(const char *path, int32_t max)
{
    static char line[1 << 16];
    FILE *f = fopen(path, "r");
    while (f != NULL && n_trace < max && fgets(line, sizeof line, f) != NULL) {
        struct request *r = sl_calloc(1, sizeof *r);
        char *at = strstr(line, "\"hash_ids\": [");
        if (r == NULL || at == NULL)
            return false;
        r->n_in = field(line, "\"input_length\": ");
        r->n_out = field(line, "\"output_length\": ");
        r->next = r->from = -1;
        for (at += 13; *at != ']' && *at != '\0' && r->n_ids < MAX_IDS; at += strspn(at, ", "))
            r->ids[r->n_ids++] = (int32_t)strtol(at, &at, 10);
        if (r->n_in < 1 || r->n_out < 1 || r->n_ids < SL_CEIL_DIV(r->n_in, PIECE))
            sl_free(r);
        else
            trace[n_trace++] = r;
    }
    if (f != NULL)
        fclose(f);
    return n_trace > 0;
}

static uint16_t *shared_of; /* [n_trace, n_trace] */

/* Whole pieces that two prompts share from the beginning. */
static int32_t count_shared(const struct request *a, const struct request *b)
{
    int32_t n = 0, most = SL_MIN(a->n_in, b->n_in) / PIECE;
    while (n < most && a->ids[n] == b->ids[n])
        n++;
    return n;
}

static int32_t shared_pieces(int32_t a, int32_t b)
{
    return shared_of[(size_t)a * (size_t)n_trace + (size_t)b];
}

/* Which turn follows which, and how much of each prompt was seen before. */
static void find_turns(void)
{
    for (int32_t i = 0; i < n_trace; i++) {
        struct request *r = trace[i];
        for (int32_t k = 0; k < i; k++) {
            struct request *before = trace[k];
            const int32_t n = count_shared(before, r), whole = before->n_in / PIECE;
            int32_t depth = n * PIECE / BLOCK;
            shared_of[(size_t)i * (size_t)n_trace + (size_t)k] = (uint16_t)n;
            shared_of[(size_t)k * (size_t)n_trace + (size_t)i] = (uint16_t)n;
            if (whole > 0 && n == whole && r->n_in > before->n_in + before->n_out &&
                (before->next < 0 || before->next == i)) {
                before->next = i;
                depth = (before->n_in + before->n_out - 1) / BLOCK;
            }
            depth = SL_MIN(depth, (r->n_in - 1) / BLOCK);
            if (depth >= r->depth && depth > 0) {
                r->depth = depth;
                r->from = k;
            }
        }
    }
}

/* Later turns stand for what their beginnings leave open. */
static int32_t token_at(const struct request *r, int32_t pos)
{
    while (pos / PIECE >= r->n_in / PIECE && r->next >= 0)
        r = trace[r->next];
    if (pos < r->n_in)
        return (r->ids[pos / PIECE] * PIECE + pos % PIECE) & INT32_MAX;
    return (int32_t)((uint32_t)(r->ids[r->n_ids - 1] * 7919 + pos) | 0x40000000u);
}

/* ---- the cache */

struct sums {
    int64_t hit, all;
};

static struct sl_kv_blocks blocks;

static void step(struct sl_kv *kv, const struct sl_kv_text *text, int32_t *n_done, int32_t to)
{
    static const struct sl_kv_ns ns;
    const int32_t from = *n_done, last = SL_CEIL_DIV(to, BLOCK);
    while (blocks.n < last && sl_kv_take(kv, &blocks, SL_EVICT_PROMPT)) {
    }
    if (blocks.n < last || !sl_kv_cover(kv, &blocks, from, last))
        abort();
    if (kv->n_groups > 1)
        sl_kv_checkpoint(kv, &blocks, from, to, sl_group_n_room(&kv->groups[1]));
    for (int32_t i = from / BLOCK; (i + 1) * BLOCK <= to; i++)
        sl_kv_publish(kv, &ns, text, &blocks, i);
    sl_kv_pass(kv, &blocks, to);
    *n_done = to;
}

static void serve(struct sl_kv *kv, const struct request *r, struct sums *sums)
{
    static const struct sl_kv_ns ns;
    const int32_t n = r->n_in + r->n_out - 1; /* the last token is not computed */
    for (int32_t i = 0; i < n; i++)
        tokens[i] = token_at(r, i);
    const struct sl_kv_text text = {tokens, n, NULL, 0};
    const int32_t max = (r->n_in - 1) / BLOCK;
    const int32_t deep = sl_kv_match(kv, &ns, &text, max, &blocks);
    sl_kv_want(kv, &blocks, max, deep);
    int32_t n_done = blocks.n * BLOCK;
    sums->hit += n_done;
    sums->all += r->n_in;
    while (n_done < r->n_in)
        step(kv, &text, &n_done, SL_MIN(n_done + CHUNK, r->n_in));
    while (n_done < n)
        step(kv, &text, &n_done, SL_MIN((n_done / BLOCK + 1) * BLOCK, n));
    sl_kv_give(kv, &blocks, 0, false);
}

/* No slots: a model without states. */
static struct sums replay(int32_t slots, int32_t n_nodes, int32_t n_looked_at)
{
    struct sl_kv kv;
    struct sums sums = {0, 0};
    struct sl_kv_config cfg = sl_kv_full(n_nodes, BLOCK, true, 1);
    if (slots > 0)
        cfg.groups[cfg.n_groups++] = (struct sl_kv_group_config){
            .kind = SL_GROUP_STATE, .window = SL_STATE_WINDOW, .n_pages = SL_MIN(slots, n_nodes)};
    if (sl_kv_init(&kv, &cfg, NULL) != 0)
        abort();
    if (n_looked_at > 0)
        kv.groups[1].n_looked_at = n_looked_at;
    for (int32_t i = 0; i < n_trace; i++)
        serve(&kv, trace[i], &sums);
    sl_kv_deinit(&kv);
    return sums;
}

/* ---- with knowledge of the future */

struct point { /* a cached state: depth blocks of the text of request `of` */
    int32_t of, depth, next, saves;
};

/* Blocks that a later request shares with an earlier one. */
static int32_t common(int32_t a, int32_t b)
{
    const struct request *r = trace[a];
    if (r->next == b)
        return (r->n_in + r->n_out - 1) / BLOCK;
    return shared_pieces(a, b) * PIECE / BLOCK;
}

/* Where a request leaves states: as sl_kv_want, and the end of its turn. */
static int32_t points_of(const struct request *r, int32_t *at)
{
    const int32_t last = (r->n_in - 1) / BLOCK;
    int32_t n = 0;
    at[n++] = r->depth;
    at[n++] = last - 128;
    at[n++] = last;
    at[n++] = (r->n_in + r->n_out - 1) / BLOCK;
    return n;
}

/* When a request comes next that would begin at this state. */
static int32_t next_use(const struct point *p, int32_t after)
{
    int32_t at[8], n = points_of(trace[p->of], at);
    for (int32_t j = after + 1; j < n_trace; j++) {
        const int32_t n_common = SL_MIN(common(p->of, j), (trace[j]->n_in - 1) / BLOCK);
        bool best = n_common >= p->depth;
        for (int32_t k = 0; k < n && best; k++)
            best = at[k] <= p->depth || at[k] > n_common;
        if (best)
            return j;
    }
    return n_trace;
}

static bool worse(const struct point *a, const struct point *b, int32_t now, bool by_value)
{
    if (!by_value || a->next == n_trace || b->next == n_trace)
        return a->next > b->next;
    return (double)a->saves / (a->next - now) < (double)b->saves / (b->next - now);
}

static void hold_point(struct point *held, int32_t *n, int32_t slots, const struct point *p,
                       int32_t now, bool by_value)
{
    int32_t worst = 0;
    if (*n < slots) {
        held[(*n)++] = *p;
        return;
    }
    for (int32_t i = 1; i < *n; i++)
        worst = worse(&held[i], &held[worst], now, by_value) ? i : worst;
    if (slots > 0 && worse(&held[worst], p, now, by_value))
        held[worst] = *p;
}

/* Blocks of request i that held states save. */
static int32_t deepest(struct point *held, int32_t n, int32_t i)
{
    const int32_t last = (trace[i]->n_in - 1) / BLOCK;
    int32_t best = 0;
    for (int32_t k = 0; k < n; k++) {
        if (held[k].depth <= last && held[k].depth <= common(held[k].of, i))
            best = SL_MAX(best, held[k].depth);
        if (held[k].next <= i)
            held[k].next = next_use(&held[k], i);
    }
    return best;
}

/* The states that the cache leaves, evicted by somebody who knows what comes. Slots: without the
 * two of the request that runs. */
static double ideal(int32_t slots, bool by_value)
{
    struct point *held = sl_calloc((size_t)slots + 1, sizeof *held);
    int64_t hit = 0, all = 0;
    int32_t n = 0, at[8];
    for (int32_t i = 0; i < n_trace && held != NULL; i++) {
        int32_t begin = deepest(held, n, i), above = begin;
        hit += (int64_t)begin * BLOCK;
        all += trace[i]->n_in;
        const int32_t n_at = points_of(trace[i], at);
        for (int32_t k = 0; k < n_at; k++) {
            struct point p = {i, at[k], 0, SL_MAX(at[k] - above, 1)};
            if (at[k] <= begin)
                continue;
            p.next = next_use(&p, i);
            above = SL_MAX(above, at[k]);
            hold_point(held, &n, slots, &p, i, by_value);
        }
    }
    sl_free(held);
    return (double)hit / (double)all;
}

static double rate(struct sums s)
{
    return (double)s.hit / (double)s.all;
}

int main(int argc, char **argv)
{
    int32_t n_nodes = 1 << 19, max = MAX_TRACE, at = 2, n_longest = 0;
    int64_t known = 0, all = 0;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        int32_t *to = strcmp(argv[at], "--kv-blocks") == 0 ? &n_nodes : &max;
        *to = atoi(argv[at + 1]);
    }
    if (argc < 3 || n_nodes < 1 || max < 1 || max > MAX_TRACE || !read_trace(argv[1], max)) {
        fprintf(stderr, "usage: state_trace FILE [--kv-blocks N] [--requests N] SLOTS...\n");
        return 2;
    }
    shared_of = sl_calloc((size_t)n_trace * (size_t)n_trace, sizeof *shared_of);
    find_turns();
    for (int32_t i = 0; i < n_trace; i++) {
        n_longest = SL_MAX(n_longest, trace[i]->n_in + trace[i]->n_out);
        known += (int64_t)trace[i]->depth * BLOCK;
        all += trace[i]->n_in;
    }
    tokens = sl_calloc((size_t)n_longest, sizeof *tokens);
    blocks.nodes = sl_calloc((size_t)n_longest, sizeof *blocks.nodes);
    for (int g = 0; g < 2; g++)
        blocks.pages[g] = sl_calloc((size_t)n_longest, sizeof *blocks.pages[g]);
    printf("%d requests, %.1f %% of the prompts' tokens were seen before\n", n_trace,
           100.0 * (double)known / (double)all);
    printf("%8s %8s %8s %8s %8s %8s\n", "slots", "lru", "ours", "ideal", "all", "keys");
    const double every = rate(replay(n_nodes, n_nodes, 0)), keys = rate(replay(0, n_nodes, 0));
    for (; at < argc; at++) {
        const int32_t slots = atoi(argv[at]);
        const double lru = rate(replay(slots, n_nodes, 1)), ours = rate(replay(slots, n_nodes, 0));
        const double best = SL_MAX(ideal(slots - 2, false), ideal(slots - 2, true));
        printf("%8d %8.4f %8.4f %8.4f %8.4f %8.4f\n", slots, lru, ours, best, every, keys);
        fflush(stdout);
    }
    return 0;
}
