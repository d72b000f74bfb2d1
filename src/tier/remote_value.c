/* SPDX-License-Identifier: MIT
 * What a value of the remote tier is.
 */
#include "base/check.h"
#include "tier/remote.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VERSION 1

struct head {
    char magic[8];
    uint32_t version;
    int32_t group;
    struct sl_hash128 root;
    uint64_t page_bytes;
    struct sl_hash128 digest;
    uint64_t zero;
};
_Static_assert(sizeof(struct head) == SL_REMOTE_HEAD, "no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are written as memory is");

void sl_remote_put_head(uint8_t out[SL_REMOTE_HEAD], const struct sl_slab_kind *kind,
                        const struct sl_hash128 *name, const void *page)
{
    struct head h = {.magic = "SLUICEKV",
                     .version = VERSION,
                     .group = kind->group,
                     .root = kind->root,
                     .page_bytes = kind->page_bytes,
                     .digest = sl_slab_digest(kind, name, page)};
    SL_ASSERT(kind->page_bytes > 0 && kind->group >= 0);
    memcpy(out, &h, sizeof h);
}

bool sl_remote_head_right(const uint8_t in[SL_REMOTE_HEAD], const struct sl_slab_kind *kind,
                          const struct sl_hash128 *name, const void *page)
{
    uint8_t right[SL_REMOTE_HEAD];
    sl_remote_put_head(right, kind, name, page);
    return memcmp(in, right, sizeof right) == 0;
}

size_t sl_remote_key(char out[SL_REMOTE_KEY], const struct sl_hash128 *root,
                     const struct sl_store_key *key)
{
    int n = snprintf(out, SL_REMOTE_KEY,
                     "sluice:1:%016" PRIx64 "%016" PRIx64 ":%d:%016" PRIx64 "%016" PRIx64, root->hi,
                     root->lo, key->group, key->name.hi, key->name.lo);
    SL_ASSERT(n > 0 && n < SL_REMOTE_KEY);
    return (size_t)n;
}
