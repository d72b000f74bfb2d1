/* SPDX-License-Identifier: MIT
 * peer_rig.h - two stores for tests, one of which offers the pages of a prompt, and the other asks
 * for them.
 */
#ifndef SL_TESTS_TIER_PEER_RIG_H
#define SL_TESTS_TIER_PEER_RIG_H

#include "tier_rig.h"

#include "tier/peer.h"
#include "tier/serve.h"

#define BLOCK    16
#define N_BLOCKS 24
#define TAIL     (sizeof(struct sl_hash128) + BLOCK * sizeof(int32_t))
#define WINDOW   40 /* positions: the last blocks only */
#define MS       UINT64_C(1000000)

enum { FULL, STATE, SLIDING, N_GROUPS };

/* Names of the same block on both sides have nothing in common. */
enum { NAMES_P = 1000, NAMES_D = 5000 };

struct pair {
    struct rig p, d;
    struct sl_page_layout layout;
    struct sl_serve *serve; /* NULL: another process has the first store */
    struct sl_peer *peer;
    struct sl_nixl *nixl_p, *nixl_d;
    int port; /* of the service */
    struct sl_hash128 names_p[N_BLOCKS], names_d[N_BLOCKS];
    int32_t tokens[N_BLOCKS * BLOCK];
    struct sl_lease_id id;
    struct sl_lease *lease;
    const char *peers_p, *peers_d;
    uint32_t lease_ms;
    uint64_t pages_p;
};

static int n_threads; /* of both sides; 0: as many as the machine is for */

static inline void put_tail(uint8_t *tail, const struct sl_hash128 *before, const int32_t *tokens,
                            int32_t block_size)
{
    memcpy(tail, before, sizeof *before);
    memcpy(tail + sizeof *before, tokens, (size_t)block_size * sizeof *tokens);
}

static inline void open_serve(struct pair *t, int port)
{
    struct sl_error err = {0};
    struct sl_serve_config cfg = {.store = t->p.store,
                                  .nixl = t->nixl_p,
                                  .layout = t->layout,
                                  .host = "127.0.0.1",
                                  .port = port,
                                  .host_bytes = t->p.cfg.host_bytes,
                                  .n_threads = n_threads,
                                  .lease_ms = t->lease_ms != 0 ? t->lease_ms : 30000};
    assert_int_equal(sl_netlist_read(t->peers_p, "peers", &cfg.peers, &err), 0);
    if (sl_serve_open(&cfg, &t->serve, &err) != 0)
        fail_msg("%s", err.msg);
    t->port = sl_serve_port(t->serve);
}

static inline void open_peer(struct pair *t)
{
    struct sl_error err = {0};
    struct sl_peer_config cfg = {.store = t->d.store,
                                 .nixl = t->nixl_d,
                                 .layout = t->layout,
                                 .put_tail = put_tail,
                                 .n_threads = n_threads,
                                 .conn_bytes = 60000,
                                 .wake = rig_wake,
                                 .wake_arg = &t->d};
    assert_int_equal(sl_netlist_read(t->peers_d, "peers", &cfg.peers, &err), 0);
    assert_int_equal(sl_peer_open(&cfg, &t->peer, &err), 0);
}

/* The stores, and what both sides know of a prompt. */
static inline void pair_init(struct pair *t)
{
    static const size_t bytes[N_GROUPS] = {3 * RIG_PAGE + 5, 100000, RIG_PAGE};
    t->p = rig_plain(t->pages_p != 0 ? t->pages_p : 1024);
    t->p.cfg.n_groups = N_GROUPS;
    t->layout = (struct sl_page_layout){.root = {3, 4}, .block_size = BLOCK, .n_groups = N_GROUPS};
    for (int g = 0; g < N_GROUPS; g++) {
        t->layout.page_bytes[g] = bytes[g];
        t->p.cfg.page_bytes[g] = bytes[g] + TAIL;
    }
    t->layout.window[SLIDING] = WINDOW;
    t->layout.state[STATE] = true;
    t->d = t->p;
    rig_open(&t->p);
    rig_open(&t->d);
    for (int i = 0; i < N_BLOCKS; i++) {
        t->names_p[i] = rig_key((uint64_t)(NAMES_P + i), 0).name;
        t->names_d[i] = rig_key((uint64_t)(NAMES_D + i), 0).name;
    }
    for (int i = 0; i < N_BLOCKS * BLOCK; i++)
        t->tokens[i] = (int32_t)(sl_mix64((uint64_t)i) & 0xFFFF);
    t->id = (struct sl_lease_id){.lo = 77, .hi = 78};
}

static inline void pair_open(struct pair *t)
{
    pair_init(t);
    open_serve(t, 0);
    open_peer(t);
}

static inline void pair_close(struct pair *t)
{
    sl_serve_close(t->serve);
    sl_peer_close(t->peer);
    sl_lease_unref(t->lease);
    rig_close(&t->p);
    rig_close(&t->d);
}

/* What the first server stores of a block. */
static inline bool put(struct pair *t, int32_t block, int32_t group)
{
    return rig_put(&t->p, (uint64_t)(NAMES_P + block), group);
}

/* States only of the third and the third last block. */
static inline bool has_state(int32_t block)
{
    return block == 3 || block == N_BLOCKS - 3;
}

static inline void put_all(struct pair *t)
{
    for (int32_t i = 0; i < N_BLOCKS; i++)
        for (int32_t g = 0; g < N_GROUPS; g++)
            if (g != STATE || has_state(i))
                assert_true(put(t, i, g));
}

static inline void offer(struct pair *t)
{
    t->lease = sl_serve_lease(t->serve, &t->id, N_BLOCKS, t->names_p, t->tokens);
    assert_non_null(t->lease);
}

static inline struct sl_peer_want want_of(struct pair *t)
{
    return (struct sl_peer_want){.host = "127.0.0.1",
                                 .port = t->port,
                                 .id = t->id,
                                 .n_blocks = N_BLOCKS,
                                 .names = t->names_d,
                                 .tokens = t->tokens,
                                 .wait_ms = 20000};
}

static inline void await(struct sl_peer_job *j)
{
    uint64_t end = sl_now_ns() + 30000 * MS;
    while (!sl_peer_over(j) && sl_now_ns() < end)
        usleep(100);
    assert_true(sl_peer_over(j));
}

/* Begins, waits, returns how many ms it took. */
static inline uint64_t ask(struct pair *t, const struct sl_peer_want *want)
{
    uint64_t at = sl_now_ns();
    struct sl_peer_job *j = sl_peer_begin(t->peer, want);
    assert_non_null(j);
    await(j);
    sl_peer_unref(j);
    return (sl_now_ns() - at) / MS;
}

/* Does the second store have the page, byte for byte what the first had, with its own tail? */
static inline bool came(struct pair *t, int32_t block, int32_t group)
{
    uint8_t tail[TAIL], *right = malloc(t->p.cfg.page_bytes[group]);
    struct sl_store_get get;
    rig_begin(&t->d, (uint64_t)(NAMES_D + block), group, &get);
    bool here = rig_await(&get) == SL_STORE_HERE;
    if (here) {
        struct sl_store_key key = rig_key((uint64_t)(NAMES_P + block), group);
        const size_t n = t->layout.page_bytes[group];
        rig_fill(&t->p, &key, right);
        const struct sl_hash128 before =
            sl_tail_before(block > 0 ? &t->names_d[block - 1] : NULL, &t->names_d[block]);
        put_tail(tail, &before, t->tokens + block * BLOCK, BLOCK);
        assert_memory_equal(get.page, right, n);
        assert_memory_equal(get.page + n, tail, TAIL);
    }
    sl_store_end(t->d.store, &get);
    free(right);
    return here;
}

/* All that a row behind `depth` blocks sees, and nothing that it does not. */
static inline void check_depth(struct pair *t, int32_t depth)
{
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        assert_int_equal(came(t, i, STATE), i == depth - 1);
        assert_int_equal(came(t, i, SLIDING),
                         i < depth && i >= sl_layout_first(&t->layout, SLIDING, depth));
    }
    for (int32_t i = 0; i < depth; i++)
        assert_true(came(t, i, FULL));
}

static inline struct sl_peer_stats peer_stats(struct pair *t)
{
    struct sl_peer_stats st;
    sl_peer_stats(t->peer, &st);
    return st;
}

static inline struct sl_serve_stats serve_stats(struct pair *t)
{
    struct sl_serve_stats st;
    sl_serve_stats(t->serve, &st);
    return st;
}

#endif
