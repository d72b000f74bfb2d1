/* SPDX-License-Identifier: MIT
 * The waiting room (a pairing heap) against a search of all who wait, and the table of token counts
 * against a count per id.
 */
#include "engine/counts.h"
#include "fuzz.h"
#include "sched/wait.h"

#include <string.h>

#define N_SEQS  32
#define N_IDS   64
#define N_SLOTS 128

/* The walk meets each member once. */
static void check_walk(const struct sl_wait *w, const struct sl_seq *seqs, const bool *there)
{
    bool met[N_SEQS] = {false};
    for (const struct sl_seq *s = sl_wait_best(w); s != NULL; s = sl_wait_next(s)) {
        SL_ASSERT(there[s - seqs] && !met[s - seqs]);
        met[s - seqs] = true;
    }
    SL_ASSERT(memcmp(met, there, sizeof met) == 0);
}

static void wait(struct sl_input *in)
{
    static struct sl_seq seqs[N_SEQS];
    struct sl_wait w = {0};
    bool there[N_SEQS] = {false};
    int32_t n = 0;
    memset(seqs, 0, sizeof seqs);
    while (!sl_input_empty(in)) {
        int32_t op = sl_input_byte(in), i = op % N_SEQS;
        if (op >= 192 && n > 0) /* who is next */
            i = (int32_t)(sl_wait_best(&w) - seqs);
        if (!there[i]) {
            int32_t key = sl_input_byte(in);
            seqs[i] = (struct sl_seq){
                .priority = key % 4 - 1, .arrival = (uint64_t)(key / 4 % 8), .idx = i};
            seqs[i].state = SL_SEQ_WAITING;
            sl_wait_push(&w, &seqs[i]);
        } else {
            sl_wait_remove(&w, &seqs[i]);
        }
        there[i] = !there[i];
        n += there[i] ? 1 : -1;
        const struct sl_seq *best = NULL;
        for (i = 0; i < N_SEQS; i++)
            if (there[i] && (best == NULL || sl_seq_before(&seqs[i], best)))
                best = &seqs[i];
        SL_ASSERT(sl_wait_best(&w) == best && w.n == n && sl_wait_check(&w, NULL) == 0);
        check_walk(&w, seqs, there);
    }
}

static void count(struct sl_input *in)
{
    struct sl_count entries[2][N_SLOTS / 2];
    int32_t slots[2][N_SLOTS], n_out[N_IDS], order[N_IDS], n = 0, n_adds = 0;
    struct sl_counts c, copy;
    uint32_t n_slots = sl_counts_slots(N_IDS, N_IDS);
    SL_ASSERT(n_slots <= N_SLOTS && sl_is_pow2(n_slots));
    memset(slots, 0x5A, sizeof slots); /* nothing needs to be cleared */
    memset(n_out, -1, sizeof n_out);
    sl_counts_init(&c, entries[0], slots[0], n_slots);
    for (; !sl_input_empty(in) && n_adds < 4 * N_IDS; n_adds++) {
        int32_t b = sl_input_byte(in), id = b % N_IDS, add = b / N_IDS % 2;
        sl_counts_add(&c, id * 7919, add);
        if (n_out[id] < 0) {
            order[n++] = id;
            n_out[id] = 0;
        }
        n_out[id] += add;
        SL_ASSERT(c.n == n);
    }
    sl_counts_init(&copy, entries[1], slots[1], n_slots);
    sl_counts_copy(&copy, &c);
    SL_ASSERT(copy.n == n);
    for (int32_t i = 0; i < n; i++) {
        const struct sl_count *e = &c.entries[i];
        SL_ASSERT(e->id == order[i] * 7919 && e->n_out == n_out[order[i]]);
        SL_ASSERT(copy.entries[i].id == e->id && copy.entries[i].n_out == e->n_out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_input in = {data, data + size};
    if (sl_input_flag(&in))
        count(&in);
    else
        wait(&in);
    return 0;
}
