/* SPDX-License-Identifier: MIT
 * digest.h - the check of what arrives: a blob's name is the SHA-256 of its bytes (large files) or
 * their git object id, the SHA-1 of "blob N\0" and the bytes (small ones).
 */
#ifndef SL_HUB_DIGEST_H
#define SL_HUB_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The assembly behind these two uses the processor's SHA instructions where it has them. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

enum sl_digest_kind { SL_DIGEST_NONE, SL_DIGEST_GIT, SL_DIGEST_SHA256 };

struct sl_digest {
    enum sl_digest_kind kind;
    SHA256_CTX sha256;
    SHA_CTX sha1;
};

/* What an entity tag is the digest of, by its form. */
enum sl_digest_kind sl_digest_kind_of(const char *id);
void sl_digest_begin(struct sl_digest *d, enum sl_digest_kind kind, uint64_t n_bytes_in_all);
void sl_digest_put(struct sl_digest *d, const void *data, size_t n);
/* Lower-case hex digits, "" for SL_DIGEST_NONE. */
void sl_digest_end(struct sl_digest *d, char out[65]);

#endif
