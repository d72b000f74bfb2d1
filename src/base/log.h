/* SPDX-License-Identifier: MIT
 * log.h - one line to stderr per call, any thread. Never log prompts, outputs or keys.
 */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG };

void sl_log_set_level(enum sl_log_level level); /* at start-up, default SL_LOG_INFO */
void sl_log(enum sl_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
