/* SPDX-License-Identifier: MIT
 *
 * sluice_stats.h - the part of the public API that watches an engine: counters and histograms, the
 * blocks of its KV cache, and events of the prefix cache. Programs include sluice.h.
 *
 * Threads: any, unless a function says otherwise. All of it may be called while requests run.
 */
#ifndef SLUICE_STATS_H
#define SLUICE_STATS_H

#include "sluice_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sl_engine;

/* ---------------------------------------------------------------- histograms */

#define SL_HIST_MAX 24

struct sl_hist {                      /* cumulative counts are made by the reader */
    uint64_t counts[SL_HIST_MAX + 1]; /* per bucket, the last is +Inf */
    double sum;
};

#define SL_FINE_MAX 192

/* Of durations, with eight buckets for each doubling: quantiles are exact to about 6 %. Counts only
 * grow, so the difference of two copies is the distribution of the time between them. */
struct sl_fine_hist {
    uint64_t counts[SL_FINE_MAX]; /* the last has no upper bound */
};

/* The *n upper bounds of the buckets of a histogram in struct sl_stats, named by its offset there.
 */
const double *sl_hist_bounds(size_t offset_in_stats, int *n);
/* Upper bound in seconds of bucket i of a struct sl_fine_hist; INFINITY of the last. */
double sl_fine_bound(int i);
/* Quantile q (0 to 1) of what was counted between two copies, interpolated linearly inside a
 * bucket; NAN: nothing was counted. before NULL: since the start. */
double sl_fine_quantile(const struct sl_fine_hist *before, const struct sl_fine_hist *now,
                        double q);

/* ---------------------------------------------------------------- counters */

/* Where the engine thread spends its time. The rest of the time it sleeps. */
enum sl_time_part {
    SL_PART_HOST,   /* planning and preparing steps */
    SL_PART_DEVICE, /* in a step, or waiting for one */
    SL_PART_SAMPLE, /* choosing tokens, where the device does not */
    SL_PART_OUTPUT, /* ends of sequences, delivery */
    SL_PART_MASKS,  /* waiting for token masks */
    SL_N_PARTS
};

/* Why a cached page was evicted. */
enum sl_evict_cause {
    SL_EVICT_PROMPT, /* for the prompt of a request that is admitted */
    SL_EVICT_OUTPUT, /* for a token that a running request generates */
    SL_EVICT_RESET,  /* a step failed, or bookkeeping was repaired: its contents are in doubt */
    SL_EVICT_SHARED, /* for another model of this process */
    SL_N_EVICT_CAUSES
};

struct sl_kv_group_stats { /* pages of a group of layers */
    int32_t n_free, n_cached;
    uint64_t n_evicted; /* cached ones, given up while the block stayed; none of a full group */
};

enum sl_kv_tier { SL_KV_TIER_HOST, SL_KV_TIER_DISK, SL_KV_TIER_REMOTE, SL_N_KV_TIERS };

struct sl_kv_tier_stats {                      /* copies of pages outside the pool, of one tier */
    uint64_t there, up;                        /* 1: there is such a tier; it serves */
    uint64_t n_pages, n_bytes, capacity_bytes; /* there are; capacity 0: not known here */
    uint64_t hits, misses;                     /* of pages that were asked for */
    uint64_t stored, stored_bytes, loaded_bytes;
    uint64_t dropped; /* not stored: there was no room or no time */
    uint64_t evicted, corrupt, io_errors;
    uint64_t coded, coded_bytes; /* pages stored on a disk that were coded; bytes written of them */
    uint64_t probes, unanswered; /* questions to a remote tier; of those, not answered in time */
};

#define SL_STATS_STAGES 8

/* Pages of prompts between servers, since the start. */
struct sl_kv_transfer_stats {
    double read_s;                       /* that prompts waited for pages of others, in all */
    bool on;                             /* it is one of two servers */
    uint64_t n_offers, n_expired;        /* prompts on offer; that nobody read in time */
    uint64_t n_sent_pages, n_sent_bytes; /* to others */
    uint64_t n_asked, n_whole;           /* prompts asked for; of which all came */
    uint64_t n_read_pages, n_read_bytes; /* from others */
    uint64_t n_refused, n_lost, n_late;  /* peers that refused, connections lost, deadlines */
    uint64_t n_corrupt;                  /* pages that came with other bytes */
    bool nixl;                           /* pages are to be carried by NIXL: */
    uint64_t nixl_bytes;                 /* memory registered; 0: not yet, or it could not start */
    uint64_t n_nixl_pages, n_nixl_bytes; /* read from others by it */
    uint64_t n_nixl_failed, n_nixl_late; /* reads that failed, or took too long: TCP was used */
    uint64_t n_nixl_kept;                /* pages out of use now, as such a read may still write */
};

/* Load of ranks that have experts each, with enable_eplb. rows: of all experts, layers and steps;
 * busiest_rows: of the busiest rank of each layer of a step. Even loads have busiest_rows of rows /
 * ranks. */
struct sl_eplb_stats {
    bool on;
    double balancedness; /* rows / ranks / busiest_rows, since experts were placed last; up to 1 */
    uint64_t rows, busiest_rows;
    uint64_t placings, failed; /* times that experts were placed anew; that it was given up */
    uint64_t loaded;           /* experts that this process loaded for it */
};

/* Ranks or stages in processes of their own (nnodes); as they are now, not with the last step. */
struct sl_rank_stats {
    int32_t n;        /* 0: there are none */
    int32_t n_there;  /* that have loaded and speak, this one among them */
    int32_t n_absent; /* lost ones that steps do without (divide_only_experts) */
};

struct sl_stats { /* a consistent copy */
    int32_t n_running, n_waiting;
    int32_t n_pages, n_pages_free, n_pages_cached; /* blocks; cached: unowned, kept for reuse */
    struct sl_kv_group_stats kv_groups[SL_KV_GROUPS];
    int32_t n_kv_groups;
    uint64_t prompt_tokens, generation_tokens, prompt_tokens_cached;
    uint64_t prefix_queries, prefix_hits; /* tokens */
    /* Prefixes that programs wait to go on from: kept now, blocks that nothing else holds; that
     * were kept to the end of their time, that went for their memory; requests that went on from a
     * tool call, whether it was kept or not. */
    int32_t n_leases, n_pages_leased;
    uint64_t lease_ends, lease_falls, tool_returns;
    uint64_t preemptions, steps;
    uint64_t evicted[SL_N_EVICT_CAUSES]; /* cached blocks */
    uint64_t part_ns[SL_N_PARTS];
    uint64_t finished[SL_N_FINISHES];
    uint64_t step_mallocs;         /* heap calls on the engine thread after it started: must be 0 */
    uint64_t watchdog_stalls;      /* times that there was no progress for watchdog_s */
    uint64_t invariant_violations; /* found while idle, and repaired: must be 0 */
    double device_busy_s, device_gap_s; /* of steps enqueued while the one before ran; 0: no GPU */
    /* Of each stage of a pipeline of GPUs: those times, which above are sums. A stage waits for the
     * one before it, for the first tokens of its next step, or for the host. */
    int32_t n_stages; /* 0: there are none */
    double stage_busy_s[SL_STATS_STAGES], stage_wait_s[SL_STATS_STAGES];
    /* Of experts that the CPU computes for a GPU: layers of steps, rows of those, time it took. */
    uint64_t cpu_expert_calls, cpu_expert_rows;
    double cpu_expert_s;
    /* Of sparse_topk_pages, of rows, layers and key heads: pages read, and those of all positions.
     */
    uint64_t top_pages_read, top_pages_dense;
    struct sl_eplb_stats eplb;
    struct sl_rank_stats ranks;
    struct sl_hist ttft_s, itl_s, e2e_s, queue_s, prefill_s, decode_s, inference_s;
    struct sl_hist step_tokens, prompt_len, output_len;
    struct sl_hist tpot_s, preempted, prefill_computed; /* of requests, when they end */
    uint64_t corrupted;                                 /* requests whose logits were NaN */
    uint64_t grammar_hits, grammar_misses;              /* in the cache of constraints */
    uint64_t grammar_failed;                            /* refused when compiled */
    uint64_t grammar_masks, grammar_late; /* masks made; of those not ready for a step */
    uint64_t grammar_forced;              /* tokens that took no step of their own */
    uint64_t n_drafts, n_draft_tokens;    /* steps of a sequence with drafts; tokens of them */
    uint64_t n_accepted_tokens, n_accepted_at[SL_MAX_DRAFTED]; /* chosen too; by place */
    int32_t n_grammars, n_matchers;                            /* in the cache; of sequences */
    uint64_t grammar_bytes;                                    /* of the cache */
    struct sl_hist grammar_compile_s, grammar_mask_s;
    int32_t n_adapters, n_adapters_resident;   /* known; of those, or of requests, in memory */
    int32_t max_adapters_active;               /* 0: not enabled */
    uint64_t adapter_loads, adapter_evictions; /* weights read into memory; dropped for others */
    /* Where engines share memory, else 0: bytes of all their pages, kept for this one, held by it,
     * by nobody; and pages it gave to others. */
    uint64_t kv_shared_bytes, kv_floor_bytes, kv_held_bytes, kv_left_bytes, kv_given_pages;
    struct sl_kv_tier_stats kv_tiers[SL_N_KV_TIERS];
    struct sl_kv_transfer_stats kv_transfer;
    /* Prompt tokens beyond those in the prefix cache that were looked for in the tiers, and those
     * that came from there. */
    uint64_t tier_queries, tier_hits;
    int32_t n_loading;                       /* requests that wait for pages of a tier */
    struct sl_fine_hist ttft_fine, itl_fine; /* the same values as ttft_s and itl_s */
};

void sl_engine_stats(const struct sl_engine *eng, struct sl_stats *out);

/* Tiles of attention that skip-softmax saw since the engine was created, in decode (steps of one
 * token of a sequence) and in prefill: tiles of one row (a query's head, 64 keys), and units, the
 * smallest thing a kernel can skip. To be called while no request runs. */
struct sl_skipped {
    uint64_t tiles, skipped, units, units_skipped;
};
SL_MUST_CHECK int sl_engine_skipped(struct sl_engine *eng, struct sl_skipped *prefill,
                                    struct sl_skipped *decode, struct sl_error *err);

/* ---------------------------------------------------------------- the KV cache */

enum sl_page_use { SL_PAGE_FREE, SL_PAGE_CACHED, SL_PAGE_OWNED };

struct sl_page {    /* one block of the KV cache, by its number */
    int32_t parent; /* the block before it in the prefix tree, -1: none */
    uint8_t use;    /* enum sl_page_use */
    bool in_tree;   /* a prompt with the same beginning finds it */
    bool has_state; /* in_tree: the state of recurrent layers behind it is there, to go on from */
};

/* Copies the state of all n_pages blocks of sl_engine_info, some thousand at a time, so that the
 * engine hardly waits: blocks may change between two parts. Blocks. SL_ETIMEOUT: the engine thread
 * did not give up its lock. */
SL_MUST_CHECK int sl_engine_pages(struct sl_engine *eng, struct sl_page *out, struct sl_error *err);

enum sl_kv_event_kind { SL_KV_STORED, SL_KV_REMOVED, SL_KV_CLEARED };

enum sl_kv_medium { SL_KV_ON_DEVICE, SL_KV_IN_HOST, SL_KV_ON_DISK }; /* the pool; its tiers */

struct sl_kv_event { /* news of the prefix cache; its pointers live until the next call */
    enum sl_kv_event_kind kind;
    enum sl_kv_medium medium; /* of a tier, what is stored has no parent and no tokens */
    int32_t group;            /* of layers whose page it is: kv_groups of sl_engine_info */
    uint64_t hash;            /* of the page's tokens and all before them; 1 .. 2^63 - 1 */
    uint64_t parent;          /* stored: of the page before it, 0: it begins a prompt */
    const int32_t *tokens;    /* stored: block_size of them; NULL in a tier */
    const char *adapter;      /* stored: NULL: none */
    const char *salt;         /* stored: of its prompt, NULL: none */
};

/* Only with kv_events, by one thread at a time. sl_engine_kv_events gives what changed in the
 * prefix cache since the last call, at most max events (up to 256): of each group of layers the
 * pages that came and went, parents before their children. Pages that came and went in between are
 * left out. Of the tiers too, host memory and disk, whose pages are named by the hashes of the
 * pool's; SL_KV_CLEARED voids all of them, and those of the tiers follow again. 0: there is nothing
 * more; the descriptor, an eventfd, becomes readable when there is. sl_engine_kv_events_again
 * starts over: SL_KV_CLEARED and all pages follow. */
int sl_engine_kv_events_fd(const struct sl_engine *eng); /* -1: not enabled */
int32_t sl_engine_kv_events(struct sl_engine *eng, struct sl_kv_event *out, int32_t max);
void sl_engine_kv_events_again(struct sl_engine *eng);

#ifdef __cplusplus
}
#endif

#endif
