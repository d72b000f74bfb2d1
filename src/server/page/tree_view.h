/* SPDX-License-Identifier: MIT
 * tree_view.h - what a page shows of the prefix tree and the page pool: a bounded summary of pages
 * that may be a million.
 *
 * Works on a copy that was taken in pieces while the engine ran, so that parents may be missing and
 * may even form a circle: such pages are left out. Any thread.
 */
#ifndef SL_SERVER_TREE_VIEW_H
#define SL_SERVER_TREE_VIEW_H

#include "base/err.h"
#include "sluice.h"

#define SL_TREE_VIEW_MAX 192

struct sl_tree_node {
    int32_t parent;  /* index of a node before this one, -1: a prompt begins here */
    int32_t n_run;   /* pages until the prompts part, or end */
    int32_t n_all;   /* with everything behind it */
    int32_t n_owned; /* of n_all, pages that running requests hold */
    int32_t n_state; /* of n_all, pages with a recurrent state: where a prompt can go on */
};

struct sl_tree_view {
    int32_t n_pages, n_roots, n_leaves, depth; /* of the whole tree; depth in pages */
    int32_t n_state;                           /* of n_pages, with a recurrent state */
    int32_t n_nodes;
    struct sl_tree_node nodes[SL_TREE_VIEW_MAX]; /* largest first, parents before children */
};

SL_MUST_CHECK int sl_tree_view_make(struct sl_tree_view *v, const struct sl_page *pages,
                                    int32_t n_pages, struct sl_error *err);

/* The pool in n_cells equal pieces: out[2 * i] and [2 * i + 1] are 0..15, the share of owned pages
 * of piece i and that of cached ones; what is there at all is at least 1. */
void sl_page_map(const struct sl_page *pages, int32_t n_pages, int32_t n_cells, uint8_t *out);

#endif
