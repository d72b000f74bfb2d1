/* SPDX-License-Identifier: MIT
 * store.h - KV pages outside the device: tiers of host memory, of disk and of a store that several
 * servers share, behind one interface.
 *
 * A page is named by its block, the chain of hashes over model, layout, namespace and tokens with a
 * secret (kv/radix.h), and by its group of layers. The name says what the bytes are, so a page that
 * was stored is never written again, and stores of other processes with the same root may share a
 * folder's pages over restarts.
 *
 * Losing a page is always allowed: it is a miss, and its tokens are computed again. Wrong bytes are
 * not: what comes from a disk or a remote store has a checksum over its name and its bytes, and a
 * page that fails it is a miss and is forgotten. No fault of a tier is an error of a request.
 *
 * Engine thread, if not marked otherwise. Nothing here waits or allocates after sl_store_open:
 * threads of the store read and write files, and speak to the remote store.
 */
#ifndef SL_TIER_STORE_H
#define SL_TIER_STORE_H

#include "base/err.h"
#include "base/hash.h"
#include "base/limits.h"

struct sl_store;

enum sl_tier_kind { SL_TIER_HOST, SL_TIER_DISK, SL_TIER_REMOTE, SL_N_TIERS };

/* Which page goes: the one that was used least recently, or the one that ARC chooses (arc.h). */
enum sl_tier_policy { SL_POLICY_LRU, SL_POLICY_ARC };

/* Pages on disk: as they are; coded where that is expected to be faster (disk_code.h); coded where
 * they shrink. */
enum sl_coding { SL_CODING_NONE, SL_CODING_AUTO, SL_CODING_ALWAYS };

#define SL_TIER_READERS 8 /* threads that read files: enough to keep a disk busy with pages */

struct sl_store_config {
    struct sl_hash128 root; /* names model and layout: only pages of the same root are found */
    int32_t n_groups;
    size_t page_bytes[SL_MAX_KV_GROUPS];
    uint64_t host_bytes; /* of pages in host memory; also what is written and read lies there, so it
                            has room for some pages at least */
    enum sl_tier_policy policy; /* of host memory and of the disk */
    const char *dir;            /* of pages on disk; NULL: no such tier */
    uint64_t disk_bytes;
    enum sl_coding coding; /* of the disk; it may change from start to start */
    /* A store that other servers use too (tier/remote.h); NULL: no such tier. */
    const char *remote_url, *remote_password; /* the password: of a URL that has none, or NULL */
    uint32_t remote_timeout_ms;               /* that a question to it may take */
    uint32_t remote_ttl_s;                    /* pages are forgotten there after it; 0: never */
    uint32_t remote_store_after;              /* times that a page was seen before it is written */
    /* Called by a thread of the store when a page of a request to it has come, or will not. */
    void (*wake)(void *arg);
    void *wake_arg;
    /* Optional: called by any thread, with a lock of the store, when pages came into host memory or
     * onto the disk, or left them, and sl_store_events had nothing more to say of that tier. */
    void (*news)(void *arg);
    void *news_arg;
    /* Optional: makes pieces of the host memory ready for a device that copies pages by itself,
     * before a page lies there; called by threads of the store. If it fails at the start, the
     * memory is used as it is; later: what is not ready is not used. */
    int (*pin)(int device, void *p, size_t n_bytes, struct sl_error *err);
    void (*unpin)(int device, void *p);
    int device;
};

struct sl_store_key {
    struct sl_hash128 name; /* of the block */
    int32_t group;
};

/* What a page says is before its block: the name of that block; of the first one of a prompt its
 * own name, turned over, since the namespace is in it and no block behind it says the same. */
static inline struct sl_hash128 sl_tail_before(const struct sl_hash128 *before,
                                               const struct sl_hash128 *own)
{
    return before != NULL ? *before : (struct sl_hash128){.lo = ~own->lo, .hi = ~own->hi};
}

struct sl_store_stats { /* of one tier, since it was opened */
    uint64_t n_pages, n_bytes, capacity_bytes;
    uint64_t ready_bytes;  /* of the host's memory, that pages may lie in by now */
    uint64_t hits, misses; /* of pages that were asked for */
    uint64_t stored, stored_bytes, loaded_bytes;
    uint64_t dropped; /* not stored: there was no room or no time */
    uint64_t evicted, corrupt, io_errors;
    uint64_t coded;       /* of what is stored: pages that are coded */
    uint64_t coded_bytes; /* and what of them is written */
    uint64_t probes,
        unanswered; /* questions to a remote tier; of those, without an answer in time */
    bool there, up; /* there is such a tier; it serves */
};

/* SL_EINVAL, SL_ENOMEM, SL_EIO: the folder cannot be used; the message names it. What is wrong
 * inside of a folder (truncated, corrupt, of another version) is forgotten, not an error. */
SL_MUST_CHECK int sl_store_open(const struct sl_store_config *cfg, struct sl_store **out,
                                struct sl_error *err);
/* Writes what is still to be written, then ends; NULL is allowed. No page is held. */
void sl_store_close(struct sl_store *s);

/* What names are to be hashed with: a secret of the remote tier, of the folder, or of this process.
 * The store has no whole text to compare, so who asks must not be able to choose two of one name.
 */
uint64_t sl_store_seed(const struct sl_store *s);

/* Is the page in some tier, or about to be? Looks at memory only. */
bool sl_store_has(struct sl_store *s, const struct sl_store_key *key);

/* Room for a page that is not there yet, to be filled and committed, or cancelled. NULL: it is
 * there, or there is no room now. Several may be open at once. */
uint8_t *sl_store_reserve(struct sl_store *s, const struct sl_store_key *key);
void sl_store_commit(struct sl_store *s, uint8_t *page);
void sl_store_cancel(struct sl_store *s, uint8_t *page);
/* The page will not come, but somebody may still write there: its name is forgotten at once, its
 * place stays out of use until it is cancelled. */
void sl_store_disown(struct sl_store *s, const uint8_t *page);

/* The memory that pages lie in, from open to close; not all of it is used yet. */
uint8_t *sl_store_memory(const struct sl_store *s, size_t *n_bytes);
/* It is not freed at close: somebody may still use it. */
void sl_store_leave(struct sl_store *s);

enum sl_store_state { SL_STORE_PENDING, SL_STORE_HERE, SL_STORE_MISS };

/* A page that is asked for. Its memory is the caller's, from begin to end at the same place. */
struct sl_store_get {
    struct sl_store_key key;
    _Atomic int32_t state; /* enum sl_store_state, set by any thread */
    enum sl_tier_kind from;
    bool remote;         /* the remote tier may be asked for it */
    const uint8_t *page; /* SL_STORE_HERE: its bytes, until the end */
    void *inside;        /* the store's */
};

/* Asks for a page. It may be here at once; else wake is called when it is here or missed. */
void sl_store_begin(struct sl_store *s, struct sl_store_get *get);
/* The caller has copied the page, or does not want it any more, in whatever state it is. */
void sl_store_end(struct sl_store *s, struct sl_store_get *get);
/* Before that, of a page that is here: it stays where it is until it is released. */
const uint8_t *sl_store_keep(struct sl_store *s, struct sl_store_get *get);
void sl_store_release(struct sl_store *s, const uint8_t *page);

/* ---- the remote tier: what it has is not known until it was asked ---- */

/* A page that a request came upon, wherever it is, once in each request: a use of it in the tiers
 * that have it, and counts for remote_store_after. */
void sl_store_saw(struct sl_store *s, const struct sl_store_key *key);

struct sl_store_probe;
/* A question which pages the remote tier has. NULL: there is none, or it cannot be asked now. */
struct sl_store_probe *sl_store_probe_take(struct sl_store *s);
/* Pages are added in order; `known` ones count as found. False: it is full. */
bool sl_store_probe_add(struct sl_store_probe *p, const struct sl_store_key *key, bool known);
/* No page behind a missing one of group `ends` is of use; -1: all are. Then wake is called when the
 * answer is there, or will not come. */
void sl_store_probe_send(struct sl_store *s, struct sl_store_probe *p, int32_t ends);
bool sl_store_probe_over(const struct sl_store_probe *p);               /* answered, or too late */
bool sl_store_probe_found(const struct sl_store_probe *p, int32_t i);   /* false: nobody said so */
void sl_store_probe_give(struct sl_store *s, struct sl_store_probe *p); /* in whatever state */
/* Bytes a second that pages came with; 0: not known, or not lately. */
double sl_store_remote_rate(struct sl_store *s);

/* ---- which pages are where, with `news` ---- */

struct sl_store_event {
    struct sl_store_key key;
    enum sl_tier_kind tier; /* SL_TIER_HOST or SL_TIER_DISK */
    bool removed;
};
/* One thread at a time: what changed since the last call. At first everything there is; what came
 * and went in between is left out. Returns how many, 0: nothing more. */
int32_t sl_store_events(struct sl_store *s, struct sl_store_event *out, int32_t max);
void sl_store_events_again(struct sl_store *s); /* everything from the beginning */

/* Any thread. */
void sl_store_stats(struct sl_store *s, enum sl_tier_kind tier, struct sl_store_stats *out);

#endif
