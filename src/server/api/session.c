/* SPDX-License-Identifier: MIT */
#include "server/api/session.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"

#include <string.h>

/* The first one that is there counts. */
static const char *const headers[] = {
    "x-session-id",             /* llm-d's router */
    "x-dynamo-session-id",      /* Dynamo */
    "x-claude-code-session-id", /* Claude Code */
    "x-session-affinity",       /* OpenCode */
    "session-id",               /* Codex */
    "session_id",
};

static uint64_t session_hash(const char *id, size_t n, int32_t key)
{
    if (n == 0 || n > SL_MAX_SESSION_ID)
        return 0;
    return SL_MAX(sl_hash64(id, n, (uint64_t)(uint32_t)key), 1);
}

static uint64_t named_by(const json_t *v, int32_t key)
{
    return json_is_string(v) ? session_hash(json_string_value(v), json_string_length(v), key) : 0;
}

uint64_t sl_session_of(const struct sl_http_parser *http, const struct sl_params *p, int32_t key)
{
    for (size_t i = 0; i < SL_COUNT(headers); i++) {
        const struct sl_str *h = sl_http_header(http, headers[i]);
        if (h != NULL && h->n > 0)
            return session_hash(h->p, h->n, key);
    }
    if (p->session_id != NULL)
        return named_by(p->session_id, key);
    /* Of what is no object there are no members. */
    return named_by(json_object_get(json_object_get(p->nvext, "agent_context"), "session_id"), key);
}

int32_t sl_session_priority(const struct sl_params *p)
{
    const json_t *v = json_object_get(json_object_get(p->nvext, "agent_hints"), "priority");
    const json_int_t x = json_is_integer(v) ? json_integer_value(v) : 0;
    return (int32_t)-SL_MIN(SL_MAX(x, -INT32_MAX), INT32_MAX); /* there higher ones go first */
}
