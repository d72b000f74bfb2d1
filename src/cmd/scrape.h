/* SPDX-License-Identifier: MIT
 * scrape.h - what `sluice ps` and `top` read of /metrics: the names are vLLM's, so that its servers
 * can be looked at too.
 */
#ifndef SL_CMD_SCRAPE_H
#define SL_CMD_SCRAPE_H

#include <stdbool.h>
#include <stddef.h>

#define SL_SCRAPE_MODELS  16
#define SL_SCRAPE_BUCKETS 128

struct sl_scrape_times { /* a histogram; bounds ascend, counts are cumulative */
    double bounds[SL_SCRAPE_BUCKETS], counts[SL_SCRAPE_BUCKETS];
    int n;
    double count, sum;
};

struct sl_scrape_model {
    char name[96];
    double running, waiting, kv_use; /* kv_use: 0 to 1, the mean of the model's engines */
    double n_kv;                     /* engines */
    double prompt_tokens, output_tokens, cached_tokens, requests;
    struct sl_scrape_times ttft, itl;
};

struct sl_scrape {
    struct sl_scrape_model models[SL_SCRAPE_MODELS];
    int n;
};

/* Reads a text in Prometheus' format; what it does not know it leaves out. text is NUL-terminated.
 */
void sl_scrape_read(struct sl_scrape *s, const char *text);
/* What happened between two looks: mean of the times, and the upper bound of the bucket in which
 * the share q of them ends (infinity: above all). False: there were none. */
bool sl_scrape_between(const struct sl_scrape_times *before, const struct sl_scrape_times *now,
                       double q, double *mean, double *at_most);

#endif
