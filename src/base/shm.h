/* SPDX-License-Identifier: MIT
 * shm.h - memory that processes of one host share, and words in it that they wait on.
 *
 * The memory has no name: it is gone with the last process that has it. Another process of the same
 * user opens it through /proc by the number of a process and that process's descriptor.
 */
#ifndef SL_BASE_SHM_H
#define SL_BASE_SHM_H

#include "base/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed; *fd is the caller's to close. */
SL_MUST_CHECK int sl_shm_create(size_t n_bytes, int *fd, struct sl_error *err);
/* What process pid has at its descriptor peer_fd, if that is such memory of exactly n_bytes. */
SL_MUST_CHECK int sl_shm_open_peer(int64_t pid, int32_t peer_fd, size_t n_bytes, int *fd,
                                   struct sl_error *err);
/* at: an earlier mapping of as many bytes, in whose place this one comes; NULL: anywhere. */
SL_MUST_CHECK int sl_shm_map(int fd, size_t n_bytes, void *at, void **out, struct sl_error *err);
void sl_shm_unmap(void *p, size_t n_bytes); /* NULL is fine */

/* Sleeps while *word is `value`, at most ms milliseconds, and may return earlier. */
void sl_shm_wait(const _Atomic uint32_t *word, uint32_t value, int ms);
void sl_shm_wake(const _Atomic uint32_t *word); /* all that sleep on it, in any process */

#endif
