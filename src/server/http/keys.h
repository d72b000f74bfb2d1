/* SPDX-License-Identifier: MIT
 * keys.h - what each API key may do: a file of keys with names, scopes and limits.
 *
 *   {"keys": [{"key": "...", "name": "team-a", "scopes": ["generate"], "max_running": 8,
 *              "requests_per_minute": 600}, ...]}
 *
 * Read once before the server starts, constant but for the counters, which any thread may change.
 */
#ifndef SL_SERVER_KEYS_H
#define SL_SERVER_KEYS_H

#include "base/err.h"
#include "server/http/http_stats.h"

#include <stdatomic.h>

#define SL_MAX_KEYS 1024

struct sl_key_rule {
    const char *name;
    bool generate, admin; /* scopes: may start work; sees and cancels everybody's requests */
    int32_t max_running;  /* calls at a time, 0 = any number */
    int32_t per_minute;   /* requests, 0 = any number */
    atomic_int n_running;
    _Atomic uint64_t full_ns;                     /* when the allowance of a minute is full again */
    _Atomic uint64_t requests[SL_HTTP_N_CLASSES]; /* that were answered, by class of status */
};

struct sl_keys;

SL_MUST_CHECK int sl_keys_open(const char *path, struct sl_keys **out, struct sl_error *err);
void sl_keys_close(struct sl_keys *keys);
int sl_keys_n(const struct sl_keys *keys);
const char *const *sl_keys_texts(const struct sl_keys *keys);
struct sl_key_rule *sl_keys_rules(struct sl_keys *keys); /* in the order of the texts */

/* Counts a request against the allowance: a minute's worth at once, then as it fills again. False:
 * there is none left. */
bool sl_key_take(struct sl_key_rule *rule, uint64_t now_ns);
/* A call begins: false if max_running of the key are under way. */
bool sl_key_enter(struct sl_key_rule *rule);
void sl_key_leave(struct sl_key_rule *rule);

#endif
