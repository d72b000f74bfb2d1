/* SPDX-License-Identifier: MIT */
#include "cmd/scrape.h"

#include "base/check.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

struct sample {
    const char *name, *labels; /* labels: behind the '{' */
    size_t n_name, n_labels;
    double value;
};

static bool name_is(const struct sample *s, const char *name)
{
    return strlen(name) == s->n_name && memcmp(s->name, name, s->n_name) == 0;
}

/* The text of a label as it is written, escapes included; n 0: it is not there. */
static const char *scrape_label(const struct sample *s, const char *key, size_t *n)
{
    size_t n_key = strlen(key);
    const char *end = s->labels + s->n_labels;
    for (const char *at = s->labels; at < end;) {
        const char *equals = memchr(at, '=', (size_t)(end - at));
        if (equals == NULL || equals + 1 >= end || equals[1] != '"')
            break;
        const char *close = equals + 2;
        while (close < end && *close != '"')
            close += *close == '\\' && close + 1 < end ? 2 : 1;
        if ((size_t)(equals - at) == n_key && memcmp(at, key, n_key) == 0) {
            *n = (size_t)(close - equals - 2);
            return equals + 2;
        }
        at = close + 1;
        while (at < end && (*at == ',' || *at == ' '))
            at++;
    }
    *n = 0;
    return NULL;
}

static struct sl_scrape_model *model_of(struct sl_scrape *s, const struct sample *x)
{
    size_t n;
    const char *name = scrape_label(x, "model_name", &n);
    if (name == NULL)
        return NULL;
    n = SL_MIN(n, sizeof s->models[0].name - 1);
    for (int i = 0; i < s->n; i++) {
        if (strlen(s->models[i].name) == n && memcmp(s->models[i].name, name, n) == 0)
            return &s->models[i];
    }
    if (s->n == SL_SCRAPE_MODELS)
        return NULL;
    struct sl_scrape_model *m = &s->models[s->n++];
    *m = (struct sl_scrape_model){0};
    memcpy(m->name, name, n);
    sl_scrub(m->name, n); /* it is shown on a terminal */
    return m;
}

static bool scrape_number(const char *text, size_t n, double *out)
{
    if (n == 4 && memcmp(text, "+Inf", 4) == 0) {
        *out = HUGE_VAL;
        return true;
    }
    return sl_parse_double(text, n, out);
}

static void put_bucket(struct sl_scrape_times *t, const struct sample *x)
{
    size_t n;
    double bound;
    const char *le = scrape_label(x, "le", &n);
    int i = 0;
    if (le == NULL || !scrape_number(le, n, &bound))
        return;
    while (i < t->n && t->bounds[i] != bound)
        i++;
    if (i == SL_SCRAPE_BUCKETS)
        return;
    t->n = SL_MAX(t->n, i + 1);
    t->bounds[i] = bound;
    t->counts[i] += x->value;
}

/* Several engines of a model (vLLM's data parallelism) add up; the use of their caches is divided
 * by their number at the end. */
static void scrape_put(struct sl_scrape *s, const struct sample *x)
{
#define FIELD(name) offsetof(struct sl_scrape_model, name)
    static const struct {
        const char *name;
        size_t offset;
    } sums[] = {
        {"vllm:num_requests_running", FIELD(running)},
        {"vllm:num_requests_waiting", FIELD(waiting)},
        {"vllm:kv_cache_usage_perc", FIELD(kv_use)},
        {"vllm:prompt_tokens_total", FIELD(prompt_tokens)},
        {"vllm:generation_tokens_total", FIELD(output_tokens)},
        {"vllm:prefix_cache_hits_total", FIELD(cached_tokens)},
        {"vllm:request_success_total", FIELD(requests)},
        {"vllm:time_to_first_token_seconds_sum", FIELD(ttft.sum)},
        {"vllm:time_to_first_token_seconds_count", FIELD(ttft.count)},
        {"vllm:inter_token_latency_seconds_sum", FIELD(itl.sum)},
        {"vllm:inter_token_latency_seconds_count", FIELD(itl.count)},
    };
#undef FIELD
    bool ttft = name_is(x, "vllm:time_to_first_token_seconds_bucket");
    bool itl = name_is(x, "vllm:inter_token_latency_seconds_bucket");
    for (size_t i = 0; i < SL_COUNT(sums); i++) {
        struct sl_scrape_model *m = name_is(x, sums[i].name) ? model_of(s, x) : NULL;
        if (m != NULL)
            *(double *)(void *)((char *)m + sums[i].offset) += x->value;
        if (m != NULL && sums[i].offset == offsetof(struct sl_scrape_model, kv_use))
            m->n_kv++;
    }
    struct sl_scrape_model *m = ttft || itl ? model_of(s, x) : NULL;
    if (m != NULL)
        put_bucket(ttft ? &m->ttft : &m->itl, x);
}

void sl_scrape_read(struct sl_scrape *s, const char *text)
{
    s->n = 0;
    for (const char *line = text; *line != '\0';
         line += strcspn(line, "\n"), line += *line == '\n') {
        size_t n = strcspn(line, "\n");
        struct sample x = {.name = line, .n_name = strcspn(line, "{ \n"), .labels = ""};
        const char *at = line + x.n_name;
        if (line[0] == '#' || x.n_name == n)
            continue;
        if (*at == '{') {
            const char *close = memrchr(at, '}', (size_t)(line + n - at));
            if (close == NULL)
                continue;
            x.labels = at + 1;
            x.n_labels = (size_t)(close - at - 1);
            at = close + 1;
        }
        at += strspn(at, " ");
        if (scrape_number(at, strcspn(at, " \n"), &x.value))
            scrape_put(s, &x);
    }
    for (int i = 0; i < s->n; i++)
        s->models[i].kv_use /= s->models[i].n_kv > 0 ? s->models[i].n_kv : 1;
}

bool sl_scrape_between(const struct sl_scrape_times *before, const struct sl_scrape_times *now,
                       double q, double *mean, double *at_most)
{
    double n = now->count - before->count;
    if (n <= 0)
        return false;
    *mean = (now->sum - before->sum) / n;
    *at_most = HUGE_VAL;
    for (int i = 0; i < now->n; i++) {
        double old = i < before->n ? before->counts[i] : 0;
        if (now->counts[i] - old >= q * n) {
            *at_most = now->bounds[i];
            break;
        }
    }
    return true;
}
