/* SPDX-License-Identifier: MIT
 * Headers of W3C Trace Context, and a collector's replies. The first byte says which.
 *
 * A traceparent that is taken is, written again, what was read up to the flags and what a later
 * version may add. A tracestate that is taken says the same when read again, and when it comes in
 * two headers cut at a comma.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "trace/context.h"
#include "trace/post.h"

#include <stdio.h>
#include <string.h>

static void check_parent(const char *s, size_t n)
{
    struct sl_trace_context c;
    char text[64];
    int at = 3;
    if (!sl_traceparent_parse(s, n, &c))
        return;
    SL_ASSERT(n >= 55 && s[0] != '\0' && memcmp(s, "ff", 2) != 0);
    SL_ASSERT(n == 55 || (s[55] == '-' && memcmp(s, "00", 2) != 0));
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, 3, "%02x", c.trace_id[i]);
    text[at++] = '-';
    for (int i = 0; i < 8; i++)
        at += snprintf(text + at, 3, "%02x", c.span_id[i]);
    SL_ASSERT(at == 52 && memcmp(text + 3, s + 3, 49) == 0);
}

static bool read_state(struct sl_buf *b, const char *s, size_t n, size_t cut)
{
    int n_members = 0;
    if (cut >= n)
        return sl_tracestate_add(b, &n_members, s, n);
    return sl_tracestate_add(b, &n_members, s, cut) &&
           sl_tracestate_add(b, &n_members, s + cut + 1, n - cut - 1);
}

static void check_state(const char *s, size_t n)
{
    struct sl_buf once = {0}, again = {0}, two = {0};
    bool good = read_state(&once, s, n, n);
    const char *comma = n > 0 ? memchr(s + n / 2, ',', n - n / 2) : NULL;
    if (comma != NULL) {
        bool same = read_state(&two, s, n, (size_t)(comma - s));
        SL_ASSERT(same == good);
        if (good)
            SL_ASSERT(two.n_bytes == once.n_bytes &&
                      (two.n_bytes == 0 || memcmp(two.data, once.data, two.n_bytes) == 0));
    }
    if (good && once.n_bytes > 0) {
        bool same = read_state(&again, once.data, once.n_bytes, once.n_bytes);
        SL_ASSERT(same && again.n_bytes == once.n_bytes &&
                  memcmp(again.data, once.data, once.n_bytes) == 0);
    }
    sl_buf_deinit(&once);
    sl_buf_deinit(&again);
    sl_buf_deinit(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    size_t n = size - 1;
    char *s = sl_malloc(n > 0 ? n : 1); /* of exactly this size: a byte behind it is seen */
    struct sl_post_reply reply = {0};
    SL_ASSERT(s != NULL);
    memcpy(s, data + 1, n);
    switch (data[0] % 3) {
    case 0:
        check_parent(s, n);
        break;
    case 1:
        check_state(s, n);
        break;
    default:
        sl_post_read_reply(s, n, &reply);
        SL_ASSERT(reply.n_rejected >= 0 && strlen(reply.why) < sizeof reply.why);
    }
    sl_free(s);
    return 0;
}
