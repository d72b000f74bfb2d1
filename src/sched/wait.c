/* SPDX-License-Identifier: MIT */
#include "sched/wait.h"

/* heap_child: first child; heap_next: next sibling; heap_prev: previous sibling, or the parent of a
 * first child; all NULL for a lone root. */
static struct sl_seq *meld(struct sl_seq *a, struct sl_seq *b)
{
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    if (sl_seq_before(b, a)) {
        struct sl_seq *t = a;
        a = b;
        b = t;
    }
    b->heap_prev = a;
    b->heap_next = a->heap_child;
    if (a->heap_child != NULL)
        a->heap_child->heap_prev = b;
    a->heap_child = b;
    return a;
}

/* Melds a list of siblings into one heap: in pairs left to right, then the pairs right to left. */
static struct sl_seq *meld_siblings(struct sl_seq *first)
{
    struct sl_seq *pairs = NULL;
    while (first != NULL) {
        struct sl_seq *a = first, *b = a->heap_next;
        first = b != NULL ? b->heap_next : NULL;
        a->heap_next = a->heap_prev = NULL;
        if (b != NULL)
            b->heap_next = b->heap_prev = NULL;
        a = meld(a, b);
        a->heap_next = pairs;
        pairs = a;
    }
    struct sl_seq *root = NULL;
    while (pairs != NULL) {
        struct sl_seq *next = pairs->heap_next;
        pairs->heap_next = NULL;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}

void sl_wait_push(struct sl_wait *w, struct sl_seq *seq)
{
    SL_ASSERT(seq->heap_child == NULL && seq->heap_next == NULL && seq->heap_prev == NULL);
    w->root = meld(w->root, seq);
    w->n++;
}

void sl_wait_remove(struct sl_wait *w, struct sl_seq *seq)
{
    SL_ASSERT(w->n > 0 && (seq->heap_prev != NULL || seq == w->root));
    struct sl_seq *rest = meld_siblings(seq->heap_child);
    if (seq == w->root) {
        w->root = rest;
    } else {
        if (seq->heap_prev->heap_child == seq)
            seq->heap_prev->heap_child = seq->heap_next;
        else
            seq->heap_prev->heap_next = seq->heap_next;
        if (seq->heap_next != NULL)
            seq->heap_next->heap_prev = seq->heap_prev;
        w->root = meld(w->root, rest);
    }
    seq->heap_child = seq->heap_next = seq->heap_prev = NULL;
    w->n--;
}

/* Down first, else right, else up until there is a right. */
struct sl_seq *sl_wait_next(const struct sl_seq *seq)
{
    if (seq->heap_child != NULL)
        return seq->heap_child;
    while (seq != NULL && seq->heap_next == NULL) {
        while (seq->heap_prev != NULL && seq->heap_prev->heap_child != seq)
            seq = seq->heap_prev; /* to the first of its siblings */
        seq = seq->heap_prev;
    }
    return seq != NULL ? seq->heap_next : NULL;
}

int sl_wait_check(const struct sl_wait *w, struct sl_error *err)
{
    int32_t n = 0;
    for (const struct sl_seq *seq = w->root; seq != NULL; seq = sl_wait_next(seq)) {
        const struct sl_seq *child = seq->heap_child, *next = seq->heap_next;
        if (++n > w->n || seq->state != SL_SEQ_WAITING)
            return sl_fail(err, SL_EINTERNAL,
                           "I6: member %d of a queue of %d is in state %d (arrival %llu)", n, w->n,
                           (int)seq->state, (unsigned long long)seq->arrival);
        if ((child != NULL && (child->heap_prev != seq || !sl_seq_before(seq, child))) ||
            (next != NULL && next->heap_prev != seq))
            return sl_fail(err, SL_EINTERNAL,
                           "I6: the queue is out of order at member %d of %d (arrival %llu)", n,
                           w->n, (unsigned long long)seq->arrival);
    }
    if (n != w->n)
        return sl_fail(err, SL_EINTERNAL, "I6: %d members in a queue of %d", n, w->n);
    return 0;
}
