/* SPDX-License-Identifier: MIT */
#include "hub/digest.h"

#include "base/err.h"
#include "hub/name.h"

#include <stdio.h>
#include <string.h>

enum sl_digest_kind sl_digest_kind_of(const char *id)
{
    size_t n = strlen(id);
    if (n == 64 && sl_hub_is_hex(id, 64))
        return SL_DIGEST_SHA256;
    return n == 40 && sl_hub_is_hex(id, 40) ? SL_DIGEST_GIT : SL_DIGEST_NONE;
}

void sl_digest_begin(struct sl_digest *d, enum sl_digest_kind kind, uint64_t n_bytes_in_all)
{
    char head[32];
    SL_ASSERT(kind <= SL_DIGEST_SHA256);
    d->kind = kind;
    if (kind == SL_DIGEST_SHA256) {
        SHA256_Init(&d->sha256);
    } else if (kind == SL_DIGEST_GIT) {
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)n_bytes_in_all);
        SL_ASSERT(n > 5 && (size_t)n < sizeof head);
        SHA1_Init(&d->sha1);
        SHA1_Update(&d->sha1, head, (size_t)n + 1); /* the NUL belongs to it */
    }
}

void sl_digest_put(struct sl_digest *d, const void *data, size_t n)
{
    if (d->kind == SL_DIGEST_SHA256)
        SHA256_Update(&d->sha256, data, n);
    else if (d->kind == SL_DIGEST_GIT)
        SHA1_Update(&d->sha1, data, n);
}

void sl_digest_end(struct sl_digest *d, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char sum[SHA256_DIGEST_LENGTH];
    size_t n = 0;
    if (d->kind == SL_DIGEST_SHA256) {
        SHA256_Final(sum, &d->sha256);
        n = SHA256_DIGEST_LENGTH;
    } else if (d->kind == SL_DIGEST_GIT) {
        SHA1_Final(sum, &d->sha1);
        n = SHA_DIGEST_LENGTH;
    }
    SL_ASSERT(2 * n <= 64);
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * n] = '\0';
}
