/* SPDX-License-Identifier: MIT */
#include "server/page/metrics.h"

#include "base/check.h"
#include "base/sys.h"
#include "server/events/kv_publisher.h"
#include "server/http/keys.h"
#include "server/http/reply.h"
#include "server/http/route.h"
#include "server/http/sse.h"
#include "server/loop.h"
#include "server/page/process.h"
#include "trace/exporter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct family { /* where one begins in a buffer */
    const char *name;
    size_t head, samples;
};

struct out {
    struct sl_buf *b;
    struct sl_buf labels;    /* engine="0",model_name="..." */
    struct sl_buf *families; /* struct family; NULL: nobody wants to know */
};

/* Routers scrape every 50 ms, so lines are put together without formatting functions. */
static void head(struct out *o, const char *name, const char *type, const char *help)
{
    struct family f = {.name = name, .head = o->b->n_bytes};
    SL_PUT(o->b, "# HELP ");
    sl_buf_puts(o->b, name);
    sl_buf_putc(o->b, ' ');
    sl_buf_puts(o->b, help);
    SL_PUT(o->b, "\n# TYPE ");
    sl_buf_puts(o->b, name);
    sl_buf_putc(o->b, ' ');
    sl_buf_puts(o->b, type);
    sl_buf_putc(o->b, '\n');
    f.samples = o->b->n_bytes;
    if (o->families != NULL)
        sl_buf_put(o->families, &f, sizeof f);
}

/* Label values escape backslash, quote and line end. */
static void put_label_value(struct sl_buf *b, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '\n') {
            SL_PUT(b, "\\n");
            continue;
        }
        if (*s == '"' || *s == '\\')
            sl_buf_putc(b, '\\');
        sl_buf_putc(b, *s);
    }
}

/* Floats as Go and Python write them: "1.0", "0.001". */
static void metrics_put_float(struct sl_buf *b, double x)
{
    char text[40];
    if (x >= 0 && x < 0x1p53 && x == (double)(uint64_t)x) { /* most of them */
        sl_put_u64(b, (uint64_t)x);
        SL_PUT(b, ".0");
        return;
    }
    snprintf(text, sizeof text, "%.15g", x);
    sl_buf_puts(b, text);
    if (strpbrk(text, ".eni") == NULL) /* neither a fraction, an exponent, nor nan or inf */
        SL_PUT(b, ".0");
}

/* name{<model labels>[,extra]} value */
static void sample(struct out *o, const char *name, const char *extra, double value)
{
    sl_buf_puts(o->b, name);
    sl_buf_putc(o->b, '{');
    sl_buf_put(o->b, o->labels.data, o->labels.n_bytes);
    if (extra != NULL) {
        sl_buf_putc(o->b, ',');
        sl_buf_puts(o->b, extra);
    }
    SL_PUT(o->b, "} ");
    metrics_put_float(o->b, value);
    sl_buf_putc(o->b, '\n');
}

static void gauge(struct out *o, const char *name, const char *help, double value)
{
    head(o, name, "gauge", help);
    sample(o, name, NULL, value);
}

static void counter(struct out *o, const char *name, const char *help, uint64_t value)
{
    head(o, name, "counter", help);
    sample(o, name, NULL, (double)value);
}

/* counts[n] is the bucket above the last bound; labels may be empty. */
static void histogram_body(struct sl_buf *b, const char *name, const char *labels,
                           const double *bounds, int n, const uint64_t *counts, uint64_t above,
                           double sum)
{
    uint64_t total = 0;
    size_t n_name = strlen(name), n_labels = strlen(labels);
    for (int i = 0; i <= n; i++) {
        total += i < n ? counts[i] : above;
        sl_buf_put(b, name, n_name);
        SL_PUT(b, "_bucket{");
        sl_buf_put(b, labels, n_labels);
        if (n_labels > 0)
            sl_buf_putc(b, ',');
        SL_PUT(b, "le=\"");
        if (i < n)
            metrics_put_float(b, bounds[i]);
        else
            SL_PUT(b, "+Inf");
        SL_PUT(b, "\"} ");
        metrics_put_float(b, (double)total);
        sl_buf_putc(b, '\n');
    }
    const char *open = labels[0] != '\0' ? "{" : "", *close = labels[0] != '\0' ? "}" : "";
    sl_buf_printf(b, "%s_count%s%s%s ", name, open, labels, close);
    metrics_put_float(b, (double)total);
    sl_buf_printf(b, "\n%s_sum%s%s%s ", name, open, labels, close);
    metrics_put_float(b, sum);
    sl_buf_putc(b, '\n');
}

static void engine_histograms(struct out *o, const struct sl_stats *st)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {"vllm:time_to_first_token_seconds", "Time to first token.",
         offsetof(struct sl_stats, ttft_s)},
        {"vllm:inter_token_latency_seconds", "Time between two tokens.",
         offsetof(struct sl_stats, itl_s)},
        {"vllm:e2e_request_latency_seconds", "Time from arrival to the last token.",
         offsetof(struct sl_stats, e2e_s)},
        {"vllm:request_queue_time_seconds", "Time waiting to be scheduled.",
         offsetof(struct sl_stats, queue_s)},
        {"vllm:request_inference_time_seconds", "Time from scheduling to the last token.",
         offsetof(struct sl_stats, inference_s)},
        {"vllm:request_prefill_time_seconds", "Time from scheduling to the first token.",
         offsetof(struct sl_stats, prefill_s)},
        {"vllm:request_decode_time_seconds", "Time from the first token to the last.",
         offsetof(struct sl_stats, decode_s)},
        {"vllm:request_time_per_output_token_seconds", "Mean time between a request's tokens.",
         offsetof(struct sl_stats, tpot_s)},
        {"vllm:request_num_preemptions", "How often a request was put back to wait.",
         offsetof(struct sl_stats, preempted)},
        {"vllm:request_prefill_kv_computed_tokens",
         "Prompt tokens of a request that were computed.",
         offsetof(struct sl_stats, prefill_computed)},
        {"vllm:iteration_tokens_total", "Tokens in one engine step.",
         offsetof(struct sl_stats, step_tokens)},
        {"vllm:request_prompt_tokens", "Prompt tokens of a request.",
         offsetof(struct sl_stats, prompt_len)},
        {"vllm:request_generation_tokens", "Generated tokens of a request.",
         offsetof(struct sl_stats, output_len)},
        {"sluice:grammar_compile_seconds", "Time to compile a grammar.",
         offsetof(struct sl_stats, grammar_compile_s)},
        {"sluice:grammar_mask_seconds", "Time to take a token and make the next mask.",
         offsetof(struct sl_stats, grammar_mask_s)},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_hist *h = (const void *)((const char *)st + rows[i].offset);
        int n = 0;
        const double *bounds = sl_hist_bounds(rows[i].offset, &n);
        head(o, rows[i].name, "histogram", rows[i].help);
        histogram_body(o->b, rows[i].name, o->labels.data, bounds, n, h->counts,
                       h->counts[SL_HIST_MAX], h->sum);
    }
}

static double metrics_share_of(int32_t n, int32_t n_free, int32_t n_cached)
{
    return n > 0 ? (double)(n - n_free - n_cached) / n : 0;
}

/* The group of recurrent layers, the last; NULL: there is none. */
static const struct sl_kv_group_info *state_group(const struct sl_metrics_model *in)
{
    const int32_t n = in->stats->n_kv_groups;
    const struct sl_kv_group_info *g = n > 0 ? &in->info->kv_groups[n - 1] : NULL;
    return g != NULL && g->state ? g : NULL;
}

/* Of blocks, or of pages of the group of layers that has the fewest left. States are counted apart:
 * they fill up with requests, not with tokens. */
static double kv_usage(const struct sl_metrics_model *in)
{
    const struct sl_stats *st = in->stats;
    double usage = metrics_share_of(st->n_pages, st->n_pages_free, st->n_pages_cached);
    for (int32_t g = 0; g < st->n_kv_groups - (state_group(in) != NULL); g++) {
        const double of_group = metrics_share_of(
            in->info->kv_groups[g].n_pages, st->kv_groups[g].n_free, st->kv_groups[g].n_cached);
        usage = of_group > usage ? of_group : usage;
    }
    return usage;
}

static void page_counts(struct out *o, const struct sl_metrics_model *in, int32_t g,
                        const char *name, const char *label)
{
    static const char *const states[] = {"free", "cached", "owned"};
    const struct sl_kv_group_stats *st = &in->stats->kv_groups[g];
    const int32_t n_owned = in->info->kv_groups[g].n_pages - st->n_free - st->n_cached;
    const int32_t counts[] = {st->n_free, st->n_cached, n_owned};
    char extra[64];
    for (size_t i = 0; i < SL_COUNT(counts); i++) {
        snprintf(extra, sizeof extra, "%sstate=\"%s\"", label, states[i]);
        sample(o, name, extra, counts[i]);
    }
}

static void state_gauges(struct out *o, const struct sl_metrics_model *in)
{
    static const char slots[] = "sluice:state_slots";
    const int32_t g = in->stats->n_kv_groups - 1;
    const struct sl_kv_group_stats *st = &in->stats->kv_groups[g];
    const int32_t n = in->info->kv_groups[g].n_pages;
    head(o, slots, "gauge", "Slots for the state of recurrent layers, by state.");
    page_counts(o, in, g, slots, "");
    gauge(o, "sluice:state_usage_perc", "Share of them in use, 0 to 1.",
          metrics_share_of(n, st->n_free, st->n_cached));
    gauge(o, "sluice:state_slot_bytes", "Memory of one.",
          (double)in->info->kv_groups[g].page_bytes);
    counter(o, "sluice:state_evictions_total", "Cached states given up for others.", st->n_evicted);
}

/* window="0": layers that see everything. */
/* Which layers a group has. */
static void group_labels(const struct sl_kv_group_info *g, const char *end, char *out, size_t n)
{
    snprintf(out, n, "window=\"%d\"%s%s", g->window, g->chunks ? ",chunked=\"true\"" : "", end);
}

static void kv_group_gauges(struct out *o, const struct sl_metrics_model *in)
{
    static const char pages[] = "sluice:kv_group_pages",
                      evicted[] = "sluice:kv_group_evictions_total";
    const struct sl_stats *st = in->stats;
    char extra[64];
    const int32_t n = st->n_kv_groups - (state_group(in) != NULL);
    head(o, pages, "gauge", "KV pages of the layers with one window, by state.");
    for (int32_t g = 0; g < n; g++) {
        group_labels(&in->info->kv_groups[g], ",", extra, sizeof extra);
        page_counts(o, in, g, pages, extra);
    }
    head(o, evicted, "counter",
         "Cached pages of windowed layers given up while their block stayed.");
    for (int32_t g = 0; g < n; g++) {
        group_labels(&in->info->kv_groups[g], "", extra, sizeof extra);
        sample(o, evicted, extra, (double)st->kv_groups[g].n_evicted);
    }
}

/* Of experts in host memory beside a GPU. */
static void cpu_expert_gauges(struct out *o, const struct sl_metrics_model *in)
{
    static const char layers[] = "sluice:expert_layers";
    const struct sl_model_info *info = in->info;
    head(o, layers, "gauge", "Layers with experts, by what computes these.");
    sample(o, layers, "device=\"cpu\"", info->n_cpu_expert_layers);
    sample(o, layers, "device=\"gpu\"", info->n_expert_layers - info->n_cpu_expert_layers);
    gauge(o, "sluice:cpu_expert_bytes", "Host memory of the experts on the CPU and their steps.",
          (double)info->cpu_expert_bytes);
    counter(o, "sluice:cpu_expert_calls_total", "Layers of steps whose experts the CPU computed.",
            in->stats->cpu_expert_calls);
    counter(o, "sluice:cpu_expert_rows_total", "Rows of those.", in->stats->cpu_expert_rows);
    head(o, "sluice:cpu_expert_seconds_total", "counter", "Time that the CPU computed them.");
    sample(o, "sluice:cpu_expert_seconds_total", NULL, in->stats->cpu_expert_s);
}

/* Of sparse_topk_pages; where no layer chooses there are none. */
static void top_page_counters(struct out *o, const struct sl_stats *st)
{
    if (st->top_pages_dense == 0)
        return;
    counter(o, "sluice:attention_pages_read_total",
            "KV pages that layers which choose pages read, of all rows and key heads.",
            st->top_pages_read);
    counter(o, "sluice:attention_pages_dense_total", "Those that they would read of all positions.",
            st->top_pages_dense);
}

/* Of enable_eplb. Balancedness over any time is rows / ranks / busiest rows of that time. */
static void eplb_gauges(struct out *o, const struct sl_eplb_stats *e)
{
    if (!e->on)
        return;
    gauge(o, "sluice:eplb_balancedness",
          "Rows of experts on the mean rank over those on the busiest one, since experts were "
          "placed.",
          e->balancedness);
    counter(o, "sluice:eplb_rows_total", "Rows of experts, of all layers.", e->rows);
    counter(o, "sluice:eplb_busiest_rows_total",
            "Of each layer of a step those of the busiest rank.", e->busiest_rows);
    counter(o, "sluice:eplb_placings_total", "Times that experts were placed anew.", e->placings);
    counter(o, "sluice:eplb_failed_total", "Times that this was given up.", e->failed);
    counter(o, "sluice:eplb_loaded_experts_total", "Experts that this process loaded for it.",
            e->loaded);
}

/* Of nnodes. */
static void rank_gauges(struct out *o, const struct sl_rank_stats *r)
{
    if (r->n == 0)
        return;
    gauge(o, "sluice:ranks", "Processes among which the model is divided.", r->n);
    gauge(o, "sluice:ranks_alive", "Of them those that have loaded and speak.", r->n_there);
    gauge(o, "sluice:ranks_done_without", "Lost ones whose experts others compute.", r->n_absent);
}

static void engine_gauges(struct out *o, const struct sl_metrics_model *in)
{
    const struct sl_stats *st = in->stats;
    const struct sl_model_info *info = in->info;
    static const char by_reason[] = "vllm:num_requests_waiting_by_reason";
    char extra[160];
    gauge(o, "vllm:num_requests_running", "Requests in the current step.", st->n_running);
    gauge(o, "vllm:num_requests_waiting", "Requests waiting to run.", st->n_waiting);
    head(o, by_reason, "gauge", "Requests waiting to run, by what they wait for.");
    sample(o, by_reason, "reason=\"capacity\"", st->n_waiting);
    sample(o, by_reason, "reason=\"deferred\"", 0);
    gauge(o, "vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", kv_usage(in));
    head(o, "vllm:cache_config_info", "gauge", "Layout of the KV cache.");
    snprintf(extra, sizeof extra, "block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"%.32s\"",
             info->block_size, info->n_pages, info->kv_dtype != NULL ? info->kv_dtype : "");
    sample(o, "vllm:cache_config_info", extra, 1);
    gauge(o, "sluice:kv_pages_total", "Blocks of tokens that the KV cache has pages for.",
          st->n_pages);
    gauge(o, "sluice:kv_pages_free", "Of them without content.", st->n_pages_free);
    gauge(o, "sluice:kv_pages_cached", "Of them kept for reuse, by no running request.",
          st->n_pages_cached);
    if (st->n_kv_groups > 1 + (state_group(in) != NULL))
        kv_group_gauges(o, in);
    if (state_group(in) != NULL)
        state_gauges(o, in);
    gauge(o, "sluice:weight_bytes", "Memory of the weights.", (double)info->weight_bytes);
    gauge(o, "sluice:kv_cache_bytes", "Memory of the KV pages.", (double)info->kv_cache_bytes);
    if (st->kv_shared_bytes > 0) {
        gauge(o, "sluice:kv_shared_bytes", "Memory of the KV pages of all models together.",
              (double)st->kv_shared_bytes);
        gauge(o, "sluice:kv_floor_bytes", "Of it kept for this model.", (double)st->kv_floor_bytes);
        gauge(o, "sluice:kv_held_bytes", "Of it held by this model.", (double)st->kv_held_bytes);
        gauge(o, "sluice:kv_left_bytes", "Of it held by and kept for no model.",
              (double)st->kv_left_bytes);
        counter(o, "sluice:kv_given_pages_total", "KV pages given back for other models.",
                st->kv_given_pages);
    }
    gauge(o, "sluice:device_memory_total_bytes", "Memory of the GPU; 0: none is used.",
          (double)info->device_total_bytes);
    gauge(o, "sluice:device_memory_used_bytes", "Of it taken by this server after loading.",
          (double)info->device_used_bytes);
    if (info->n_cpu_expert_layers > 0)
        cpu_expert_gauges(o, in);
    top_page_counters(o, st);
    eplb_gauges(o, &st->eplb);
    rank_gauges(o, &st->ranks);
}

/* Names that vLLM gave up and that dashboards and routers still ask for. */
static void engine_aliases(struct out *o, const struct sl_metrics_model *in)
{
    static const char itl[] = "vllm:time_per_output_token_seconds";
    const struct sl_stats *st = in->stats;
    int n = 0;
    const double *bounds = sl_hist_bounds(offsetof(struct sl_stats, itl_s), &n);
    gauge(o, "vllm:gpu_cache_usage_perc", "Old name of kv_cache_usage_perc.", kv_usage(in));
    counter(o, "vllm:gpu_prefix_cache_queries_total", "Old name of prefix_cache_queries_total.",
            st->prefix_queries);
    counter(o, "vllm:gpu_prefix_cache_hits_total", "Old name of prefix_cache_hits_total.",
            st->prefix_hits);
    gauge(o, "vllm:gpu_prefix_cache_hit_rate", "Hits over queries since the start.",
          st->prefix_queries > 0 ? (double)st->prefix_hits / (double)st->prefix_queries : 0);
    head(o, itl, "histogram", "Old name of inter_token_latency_seconds.");
    histogram_body(o->b, itl, o->labels.data, bounds, n, st->itl_s.counts,
                   st->itl_s.counts[SL_HIST_MAX], st->itl_s.sum);
}

/* Of a pipeline: a stage that waits is a bubble. */
static void put_stages(struct out *o, const struct sl_stats *st)
{
    static const char name[] = "sluice:stage_time_seconds_total";
    char labels[48];
    if (st->n_stages == 0)
        return;
    head(o, name, "counter", "Time of each pipeline stage's GPU by state: waiting is its bubble.");
    for (int32_t i = 0; i < st->n_stages; i++) {
        snprintf(labels, sizeof labels, "stage=\"%d\",state=\"busy\"", i);
        sample(o, name, labels, st->stage_busy_s[i]);
        snprintf(labels, sizeof labels, "stage=\"%d\",state=\"waiting\"", i);
        sample(o, name, labels, st->stage_wait_s[i]);
    }
}

static void programs(struct out *o, const struct sl_stats *st)
{
    static const char leases[] = "sluice:kv_leases_total";
    gauge(o, "sluice:kv_leased_pages", "KV pages kept while tools run.", st->n_pages_leased);
    gauge(o, "sluice:kv_leases", "Conversations whose pages are kept.", st->n_leases);
    head(o, leases, "counter", "Ends of those, by cause.");
    sample(o, leases, "end=\"time\"", (double)st->lease_ends);
    sample(o, leases, "end=\"memory\"", (double)st->lease_falls);
    counter(o, "sluice:tool_returns_total", "Requests that went on from a tool call.",
            st->tool_returns);
}

static void engine_counters(struct out *o, const struct sl_stats *st)
{
    static const char by_source[] = "vllm:prompt_tokens_by_source_total";
    static const char success[] = "vllm:request_success_total";
    static const char evicted[] = "sluice:kv_evicted_pages_total";
    static const char step_time[] = "sluice:step_time_seconds_total";
    static const char device_time[] = "sluice:device_time_seconds_total";
    counter(o, "vllm:prompt_tokens_total", "Prompt tokens processed.", st->prompt_tokens);
    counter(o, "vllm:generation_tokens_total", "Tokens generated.", st->generation_tokens);
    counter(o, "vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.",
            st->prompt_tokens_cached);
    head(o, by_source, "counter", "Prompt tokens by where their KV came from.");
    uint64_t cached = SL_MIN(st->prompt_tokens_cached, st->prompt_tokens);
    sample(o, by_source, "source=\"local_compute\"", (double)(st->prompt_tokens - cached));
    sample(o, by_source, "source=\"local_cache_hit\"", (double)cached);
    counter(o, "vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
            st->prefix_queries);
    counter(o, "vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.",
            st->prefix_hits);
    counter(o, "vllm:num_preemptions_total", "Requests put back to wait.", st->preemptions);
    head(o, success, "counter", "Requests that ended, by reason.");
    sample(o, success, "finished_reason=\"stop\"", (double)st->finished[SL_FINISH_STOP]);
    sample(o, success, "finished_reason=\"length\"", (double)st->finished[SL_FINISH_LENGTH]);
    sample(o, success, "finished_reason=\"abort\"", (double)st->finished[SL_FINISH_ABORT]);
    sample(o, success, "finished_reason=\"error\"", (double)st->finished[SL_FINISH_ERROR]);
    sample(o, success, "finished_reason=\"cache_threshold\"",
           (double)st->finished[SL_FINISH_CACHE]);
    counter(o, "vllm:corrupted_requests_total", "Requests whose logits were no numbers.",
            st->corrupted);
    head(o, evicted, "counter", "Cached pages given up, by what for.");
    sample(o, evicted, "cause=\"prompt\"", (double)st->evicted[SL_EVICT_PROMPT]);
    sample(o, evicted, "cause=\"output\"", (double)st->evicted[SL_EVICT_OUTPUT]);
    sample(o, evicted, "cause=\"reset\"", (double)st->evicted[SL_EVICT_RESET]);
    if (st->kv_shared_bytes > 0)
        sample(o, evicted, "cause=\"shared\"", (double)st->evicted[SL_EVICT_SHARED]);
    head(o, step_time, "counter", "Time of the engine thread by what it did; the rest it slept.");
    sample(o, step_time, "part=\"host\"", (double)st->part_ns[SL_PART_HOST] * 1e-9);
    sample(o, step_time, "part=\"device\"", (double)st->part_ns[SL_PART_DEVICE] * 1e-9);
    sample(o, step_time, "part=\"sample\"", (double)st->part_ns[SL_PART_SAMPLE] * 1e-9);
    sample(o, step_time, "part=\"output\"", (double)st->part_ns[SL_PART_OUTPUT] * 1e-9);
    sample(o, step_time, "part=\"masks\"", (double)st->part_ns[SL_PART_MASKS] * 1e-9);
    head(o, device_time, "counter", "GPU time by state, of steps that followed one another.");
    sample(o, device_time, "state=\"busy\"", st->device_busy_s);
    sample(o, device_time, "state=\"idle\"", st->device_gap_s);
    put_stages(o, st);
    counter(o, "sluice:steps_total", "Engine steps.", st->steps);
    counter(o, "sluice:step_mallocs_total", "Heap calls on the engine thread after start; 0.",
            st->step_mallocs);
    counter(o, "sluice:grammar_cache_hits_total", "Grammars found compiled.", st->grammar_hits);
    counter(o, "sluice:grammar_cache_misses_total", "Grammars compiled, or refused.",
            st->grammar_misses);
    counter(o, "sluice:grammar_failures_total", "Grammars refused when compiled.",
            st->grammar_failed);
    counter(o, "sluice:grammar_masks_total", "Token masks made.", st->grammar_masks);
    counter(o, "sluice:grammar_late_masks_total", "Masks that were not ready for a step.",
            st->grammar_late);
    counter(o, "sluice:grammar_forced_tokens_total",
            "Tokens that a grammar left no choice about, computed without a step of their own.",
            st->grammar_forced);
    gauge(o, "sluice:grammars", "Compiled grammars in the cache.", st->n_grammars);
    gauge(o, "sluice:grammar_bytes", "Their memory.", (double)st->grammar_bytes);
    gauge(o, "sluice:grammar_matchers", "Sequences with a grammar.", st->n_matchers);
    counter(o, "sluice:watchdog_stalls_total", "Times that requests were open and nothing moved.",
            st->watchdog_stalls);
    counter(o, "sluice:invariant_violations_total", "Broken bookkeeping, found and repaired; 0.",
            st->invariant_violations);
}

#define TIER(field) offsetof(struct sl_kv_tier_stats, field)

/* A sample for each tier that there is, and of which it is known. */
static void tier_samples(struct out *o, const struct sl_stats *st, const char *name,
                         const char *type, const char *help, size_t offset)
{
    static const char *const labels[SL_N_KV_TIERS] = {"tier=\"host\"", "tier=\"disk\"",
                                                      "tier=\"remote\""};
    const bool of_room = offset <= TIER(capacity_bytes) && offset >= TIER(n_pages);
    const bool of_remote = offset == TIER(probes) || offset == TIER(unanswered);
    const bool of_disk = offset == TIER(coded) || offset == TIER(coded_bytes);
    head(o, name, type, help);
    for (int i = 0; i < SL_N_KV_TIERS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&st->kv_tiers[i] + offset, sizeof value);
        const bool known = of_room     ? st->kv_tiers[i].capacity_bytes > 0
                           : of_remote ? i == SL_KV_TIER_REMOTE
                           : of_disk   ? i == SL_KV_TIER_DISK
                                       : true;
        if (st->kv_tiers[i].there && known)
            sample(o, name, labels[i], (double)value);
    }
}

static void labelled(struct out *o, const char *name, const char *help, const char *const *labels,
                     const uint64_t *values, size_t n)
{
    head(o, name, "counter", help);
    for (size_t i = 0; i < n; i++)
        sample(o, name, labels[i], (double)values[i]);
}

/* Of one that reads pages of others by NIXL, or offers them so. */
static void transfers_by_nixl(struct out *o, const struct sl_kv_transfer_stats *t)
{
    static const char *const faults[] = {"kind=\"failed\"", "kind=\"late\""};
    const uint64_t failed[] = {t->n_nixl_failed, t->n_nixl_late};
    head(o, "sluice:kv_transfer_nixl_registered_bytes", "gauge",
         "Memory that NIXL reads and writes; 0: it has not started, pages go over TCP.");
    sample(o, "sluice:kv_transfer_nixl_registered_bytes", NULL, (double)t->nixl_bytes);
    head(o, "sluice:kv_transfer_nixl_pages_total", "counter", "KV pages read from others by NIXL.");
    sample(o, "sluice:kv_transfer_nixl_pages_total", NULL, (double)t->n_nixl_pages);
    head(o, "sluice:kv_transfer_nixl_bytes_total", "counter", "Their bytes.");
    sample(o, "sluice:kv_transfer_nixl_bytes_total", NULL, (double)t->n_nixl_bytes);
    labelled(o, "sluice:kv_transfer_nixl_faults_total",
             "Reads that failed, or took too long: their pages came over TCP.", faults, failed, 2);
    head(o, "sluice:kv_transfer_nixl_kept_pages", "gauge",
         "Places of pages out of use, as a read that was given up may still write there.");
    sample(o, "sluice:kv_transfer_nixl_kept_pages", NULL, (double)t->n_nixl_kept);
}

/* Of one of two servers, of which the other computes prompts, or goes on. */
static void transfers(struct out *o, const struct sl_kv_transfer_stats *t)
{
    static const char *const ways[] = {"direction=\"sent\"", "direction=\"read\""};
    static const char *const ends[] = {"event=\"offered\"", "event=\"expired\"", "event=\"asked\"",
                                       "event=\"whole\""};
    static const char *const faults[] = {"kind=\"refused\"", "kind=\"lost\"", "kind=\"late\"",
                                         "kind=\"corrupt\""};
    const uint64_t pages[] = {t->n_sent_pages, t->n_read_pages};
    const uint64_t bytes[] = {t->n_sent_bytes, t->n_read_bytes};
    const uint64_t prompts[] = {t->n_offers, t->n_expired, t->n_asked, t->n_whole};
    const uint64_t failed[] = {t->n_refused, t->n_lost, t->n_late, t->n_corrupt};
    if (!t->on)
        return;
    labelled(o, "sluice:kv_transfer_pages_total", "KV pages between servers.", ways, pages, 2);
    labelled(o, "sluice:kv_transfer_bytes_total", "Their bytes.", ways, bytes, 2);
    head(o, "sluice:kv_transfer_wait_seconds_total", "counter",
         "Time that prompts waited for pages of others.");
    sample(o, "sluice:kv_transfer_wait_seconds_total", NULL, t->read_s);
    labelled(o, "sluice:kv_transfer_prompts_total",
             "Prompts offered to others, not read in time, asked for, and read whole.", ends,
             prompts, 4);
    labelled(o, "sluice:kv_transfer_faults_total",
             "Refusals, connections lost, deadlines missed, pages damaged: all were recomputed.",
             faults, failed, 4);
    if (t->nixl)
        transfers_by_nixl(o, t);
}

/* Copies of pages outside the pool; vLLM's names where it has one. */
static void tiers(struct out *o, const struct sl_metrics_model *in)
{
    static const struct {
        const char *name, *type, *help;
        size_t offset;
    } rows[] = {
        {"sluice:kv_tier_up", "gauge", "1: the tier serves, 0: it failed and rests.", TIER(up)},
        {"sluice:kv_tier_pages", "gauge", "Copies of KV pages outside the pool.", TIER(n_pages)},
        {"sluice:kv_tier_bytes", "gauge", "Their bytes.", TIER(n_bytes)},
        {"sluice:kv_tier_capacity_bytes", "gauge", "Room for them.", TIER(capacity_bytes)},
        {"sluice:kv_tier_hits_total", "counter", "Pages asked for and found.", TIER(hits)},
        {"sluice:kv_tier_misses_total", "counter", "Pages asked for and not found.", TIER(misses)},
        {"sluice:kv_tier_stored_total", "counter", "Pages stored.", TIER(stored)},
        {"sluice:kv_tier_stored_bytes_total", "counter", "Their bytes.", TIER(stored_bytes)},
        {"sluice:kv_tier_loaded_bytes_total", "counter", "Bytes found.", TIER(loaded_bytes)},
        {"sluice:kv_tier_dropped_total", "counter", "Not stored for want of room or time.",
         TIER(dropped)},
        {"sluice:kv_tier_evicted_total", "counter", "Given up for others.", TIER(evicted)},
        {"sluice:kv_tier_corrupt_total", "counter", "Found damaged, and forgotten.", TIER(corrupt)},
        {"sluice:kv_tier_io_errors_total", "counter", "Failed reads and writes.", TIER(io_errors)},
        {"sluice:kv_tier_coded_total", "counter", "Pages stored that were coded.", TIER(coded)},
        {"sluice:kv_tier_coded_bytes_total", "counter", "Bytes written of them.",
         TIER(coded_bytes)},
        {"sluice:kv_tier_probes_total", "counter", "Questions which pages it has.", TIER(probes)},
        {"sluice:kv_tier_probes_unanswered_total", "counter", "Of them not answered in time.",
         TIER(unanswered)},
    };
    const struct sl_stats *st = in->stats;
    const struct sl_kv_tier_stats *host = &st->kv_tiers[SL_KV_TIER_HOST];
    transfers(o, &st->kv_transfer);
    if (host->capacity_bytes == 0)
        return;
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        tier_samples(o, st, rows[i].name, rows[i].type, rows[i].help, rows[i].offset);
    counter(o, "vllm:external_prefix_cache_queries_total",
            "Prompt tokens looked for in copies of pages.", st->tier_queries);
    counter(o, "vllm:external_prefix_cache_hits_total", "Of them found.", st->tier_hits);
    gauge(o, "vllm:cpu_kv_cache_usage_perc", "Share of the host memory for copies in use, 0 to 1.",
          (double)host->n_bytes / (double)host->capacity_bytes);
    gauge(o, "sluice:kv_loading_requests", "Requests that wait for copies of pages.",
          st->n_loading);
}

/* As vLLM: a sample whose labels say it, and whose value is when. Whether a request waits or runs
 * is not told apart: who has an adapter counts as running. */
static void adapters(struct out *o, const struct sl_metrics_model *in)
{
    static const char name[] = "vllm:lora_requests_info";
    const struct sl_stats *st = in->stats;
    struct sl_buf labels = {0};
    sl_buf_printf(&labels, "max_lora=\"%d\",waiting_lora_adapters=\"\",running_lora_adapters=\"",
                  st->max_adapters_active);
    put_label_value(&labels, in->adapters);
    sl_buf_putc(&labels, '"');
    if (sl_buf_ok(&labels)) {
        head(o, name, "gauge", "Adapters that requests have.");
        sample(o, name, labels.data, (double)sl_wall_ns() / 1e9);
    }
    sl_buf_deinit(&labels);
    gauge(o, "sluice:adapters", "Adapters known by name.", st->n_adapters);
    gauge(o, "sluice:adapters_resident", "Adapters in memory.", st->n_adapters_resident);
    counter(o, "sluice:adapter_loads_total", "Adapters read into memory.", st->adapter_loads);
    counter(o, "sluice:adapter_evictions_total", "Adapters that gave way to others in memory.",
            st->adapter_evictions);
}

/* ---- what the HTTP threads count */

static uint64_t metrics_get(const _Atomic uint64_t *x)
{
    return atomic_load_explicit(x, memory_order_relaxed);
}

/* Sums one counter, given by its offset, over the threads. */
static uint64_t sum_at(const struct sl_metrics_in *in, size_t offset)
{
    uint64_t sum = 0;
    for (int i = 0; i < in->n_http; i++)
        sum += metrics_get(
            (const _Atomic uint64_t *)(const void *)((const char *)in->http[i] + offset));
    return sum;
}

#define HTTP(field) offsetof(struct sl_http_stats, field)

static void param_histogram(struct out *o, const struct sl_metrics_in *in, const char *name,
                            const char *help, size_t offset)
{
    double bounds[SL_PARAM_N_BUCKETS];
    uint64_t counts[SL_PARAM_N_BUCKETS + 1];
    for (int i = 0; i <= SL_PARAM_N_BUCKETS; i++) {
        if (i < SL_PARAM_N_BUCKETS)
            bounds[i] = (double)sl_count_hist_bound(i);
        counts[i] = sum_at(in, offset + (size_t)i * sizeof(uint64_t));
    }
    uint64_t sum = sum_at(in, offset + offsetof(struct sl_count_hist, sum));
    head(o, name, "histogram", help);
    histogram_body(o->b, name, o->labels.data, bounds, SL_PARAM_N_BUCKETS, counts,
                   counts[SL_PARAM_N_BUCKETS], (double)sum);
}

static const char *handler_of(const struct sl_metrics_in *in, int route)
{
    for (int i = 0; i <= route; i++) {
        if (in->handlers[i] == NULL)
            return "none"; /* the row of unknown paths */
    }
    return in->handlers[route];
}

static void http_counts(struct out *o, const struct sl_metrics_in *in)
{
    head(o, "http_requests_total", "counter", "Requests by path, method and status class.");
    for (int r = 0; r < SL_HTTP_MAX_ROUTES; r++) {
        for (int m = 0; m < SL_HTTP_N_METHODS; m++) {
            for (int k = 0; k < SL_HTTP_N_CLASSES; k++) {
                uint64_t n = sum_at(
                    in, HTTP(routes[0].requests[0][0]) + (size_t)r * sizeof(struct sl_route_stats) +
                            ((size_t)m * SL_HTTP_N_CLASSES + (size_t)k) * sizeof(uint64_t));
                if (n > 0)
                    sl_buf_printf(o->b,
                                  "http_requests_total{handler=\"%s\",method=\"%s\","
                                  "status=\"%dxx\"} %llu.0\n",
                                  handler_of(in, r), sl_http_method_names[m], k + 1,
                                  (unsigned long long)n);
            }
        }
    }
}

static uint64_t route_sum(const struct sl_metrics_in *in, int route, size_t offset)
{
    return sum_at(in, HTTP(routes) + (size_t)route * sizeof(struct sl_route_stats) + offset);
}

static void http_sizes(struct out *o, const struct sl_metrics_in *in, const char *name,
                       const char *help, size_t offset)
{
    head(o, name, "summary", help);
    for (int r = 0; r < SL_HTTP_MAX_ROUTES; r++) {
        uint64_t n = route_sum(in, r, offsetof(struct sl_route_stats, n));
        if (n == 0)
            continue;
        sl_buf_printf(o->b, "%s_count{handler=\"%s\"} %llu.0\n%s_sum{handler=\"%s\"} %llu.0\n",
                      name, handler_of(in, r), (unsigned long long)n, name, handler_of(in, r),
                      (unsigned long long)route_sum(in, r, offset));
    }
}

static void http_durations(struct out *o, const struct sl_metrics_in *in)
{
    static const char name[] = "http_request_duration_seconds";
    static const char highr[] = "http_request_duration_highr_seconds";
    uint64_t counts[SL_HTTP_N_HIGHR + 1];
    char labels[96];
    head(o, highr, "histogram", "Time to the last byte of a reply, fine buckets.");
    for (int i = 0; i <= SL_HTTP_N_HIGHR; i++)
        counts[i] = sum_at(in, HTTP(highr) + (size_t)i * sizeof(uint64_t));
    histogram_body(o->b, highr, "", sl_http_highr_bounds, SL_HTTP_N_HIGHR, counts,
                   counts[SL_HTTP_N_HIGHR], (double)sum_at(in, HTTP(highr_ns)) * 1e-9);
    head(o, name, "histogram", "Time to the last byte of a reply, by path.");
    for (int r = 0; r < SL_HTTP_MAX_ROUTES; r++) {
        if (route_sum(in, r, offsetof(struct sl_route_stats, n)) == 0)
            continue;
        for (int i = 0; i <= SL_HTTP_N_DURATIONS; i++)
            counts[i] = route_sum(
                in, r, offsetof(struct sl_route_stats, durations) + (size_t)i * sizeof(uint64_t));
        snprintf(labels, sizeof labels, "handler=\"%.64s\"", handler_of(in, r));
        histogram_body(o->b, name, labels, sl_http_duration_bounds, SL_HTTP_N_DURATIONS, counts,
                       counts[SL_HTTP_N_DURATIONS],
                       (double)route_sum(in, r, offsetof(struct sl_route_stats, duration_ns)) *
                           1e-9);
    }
}

static void client_sample(struct out *o, const char *name, const char *client, int class,
                          uint64_t n)
{
    struct sl_buf label = {0};
    SL_PUT(&label, "client=\"");
    put_label_value(&label, client);
    sl_buf_printf(&label, "\",status=\"%dxx\"", class + 1);
    if (sl_buf_ok(&label))
        sample(o, name, label.data, (double)n);
    else
        o->b->failed = true;
    sl_buf_deinit(&label);
}

/* Clients are the names of --api-key-file. Several keys may have one name. */
static void clients(struct out *o, const struct sl_metrics_in *in)
{
    static const char name[] = "sluice:client_requests_total";
    head(o, name, "counter", "Requests by the name of their API key and class of status.");
    for (int32_t i = 0; i < in->n_clients; i++) {
        const struct sl_key_rule *first = &in->clients[i];
        bool again = false;
        for (int32_t k = 0; k < i && !again; k++)
            again = strcmp(in->clients[k].name, first->name) == 0;
        for (int class = 0; class < SL_HTTP_N_CLASSES && !again; class ++) {
            uint64_t n = 0;
            for (int32_t k = i; k < in->n_clients; k++)
                if (strcmp(in->clients[k].name, first->name) == 0)
                    n += atomic_load(&in->clients[k].requests[class]);
            if (n > 0)
                client_sample(o, name, first->name, class, n);
        }
    }
}

static void http_metrics(struct out *o, const struct sl_metrics_in *in)
{
    param_histogram(o, in, "vllm:request_params_n", "The n of requests.", HTTP(params_n));
    param_histogram(o, in, "vllm:request_params_max_tokens", "The max_tokens of requests.",
                    HTTP(params_max_tokens));
    param_histogram(o, in, "vllm:request_max_num_generation_tokens",
                    "Tokens of the longest choice of a request.", HTTP(max_generation));
    http_counts(o, in);
    http_sizes(o, in, "http_request_size_bytes", "Bytes of requests.",
               offsetof(struct sl_route_stats, request_bytes));
    http_sizes(o, in, "http_response_size_bytes", "Bytes of replies.",
               offsetof(struct sl_route_stats, response_bytes));
    http_durations(o, in);
    if (in->n_clients > 0)
        clients(o, in);
    counter(o, "sluice:unknown_request_fields_total", "JSON fields that were ignored.",
            sum_at(in, HTTP(unknown_fields)));
    counter(o, "sluice:client_disconnects_total", "Requests whose client went away.",
            sum_at(in, HTTP(disconnects)));
    counter(o, "sluice:connections_total", "Connections accepted.", sum_at(in, HTTP(connections)));
    counter(o, "sluice:connections_refused_total", "Connections beyond --max-connections.",
            in->n_refused_connections);
    gauge(o, "sluice:connections", "Open connections.", (double)in->n_connections);
    gauge(o, "sluice:held_bytes", "Memory of large bodies and replies; see --max-held-bytes.",
          (double)in->held_bytes);
}

static void kv_events(struct out *o, const struct sl_metrics_model *m,
                      const struct sl_metrics_in *in)
{
    const struct sl_kv_publisher_stats *e = m->kv_events;
    (void)in;
    if (e == NULL)
        return;
    counter(o, "sluice:kv_event_batches_total", "Batches of KV events published.", e->n_batches);
    counter(o, "sluice:kv_event_batches_dropped_total",
            "Batches that a subscriber missed because it was too slow.", e->n_dropped);
    counter(o, "sluice:kv_event_replays_total", "Replays of KV events that were asked for.",
            e->n_replays);
    counter(o, "sluice:kv_event_renumberings_total",
            "Times that all KV events began anew, so that a replay can begin at 0.",
            e->n_renumbered);
    gauge(o, "sluice:kv_event_subscribers", "Subscribers of KV events.", e->n_subscribers);
}

static void traces(struct out *o, const struct sl_exporter_stats *t)
{
    static const char spans[] = "sluice:trace_spans_total";
    head(o, spans, "counter", "Spans of traces, by what became of them.");
    sample(o, spans, "result=\"exported\"", (double)t->n_exported);
    sample(o, spans, "result=\"rejected\"", (double)t->n_rejected);
    sample(o, spans, "result=\"dropped\"", (double)t->n_dropped);
    sample(o, spans, "result=\"failed\"", (double)t->n_failed);
    counter(o, "sluice:trace_export_attempts_total", "Times that a batch of spans was sent.",
            t->n_attempts);
    gauge(o, "sluice:trace_queued_spans", "Spans that wait to be sent.", t->n_queued);
}

/* ---- the process */

static void metrics_plain(struct out *o, const char *name, const char *type, const char *help,
                          double value)
{
    head(o, name, type, help);
    sl_buf_puts(o->b, name);
    sl_buf_putc(o->b, ' ');
    metrics_put_float(o->b, value);
    sl_buf_putc(o->b, '\n');
}

static void process_metrics(struct out *o, const struct sl_metrics_in *in)
{
    struct sl_process p;
    uint64_t n_tokens = 0;
    for (int32_t i = 0; i < in->n_models; i++)
        n_tokens += in->models[i].stats->generation_tokens;
    sl_process_read(&p);
    head(o, "sluice:build_info", "gauge", "Version of the program.");
    sample(o, "sluice:build_info", "version=\"" SLUICE_VERSION "\"", 1);
    gauge(o, "sluice:cpu_seconds_per_million_tokens",
          "CPU time of the process over all tokens generated since the start.",
          n_tokens > 0 ? p.cpu_s / (double)n_tokens * 1e6 : 0);
    metrics_plain(o, "process_cpu_seconds_total", "counter", "CPU time of the process.", p.cpu_s);
    metrics_plain(o, "process_start_time_seconds", "gauge", "When the server started.",
                  (double)in->t_start_s);
    metrics_plain(o, "process_open_fds", "gauge", "Open file descriptors.", (double)p.n_fds);
    metrics_plain(o, "process_max_fds", "gauge", "Limit of open file descriptors.",
                  (double)p.max_fds);
    metrics_plain(o, "process_virtual_memory_bytes", "gauge", "Virtual memory.",
                  (double)p.virtual_bytes);
    metrics_plain(o, "process_resident_memory_bytes", "gauge", "Resident memory.",
                  (double)p.resident_bytes);
}

/* ---- what each model has */

typedef void model_fn(struct out *o, const struct sl_metrics_model *m,
                      const struct sl_metrics_in *in);

/* Of --speculative-config. */
static void draft_counters(struct out *o, const struct sl_stats *st, int32_t n_at)
{
    static const char by_place[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    counter(o, "vllm:spec_decode_num_drafts_total", "Steps of a sequence with drafted tokens.",
            st->n_drafts);
    counter(o, "vllm:spec_decode_num_draft_tokens_total", "Tokens drafted.", st->n_draft_tokens);
    counter(o, "vllm:spec_decode_num_accepted_tokens_total", "Of them, those accepted.",
            st->n_accepted_tokens);
    head(o, by_place, "counter", "Accepted tokens by their place in the draft.");
    for (int32_t i = 0; i < n_at; i++) {
        char place[32];
        snprintf(place, sizeof place, "position=\"%d\"", i);
        sample(o, by_place, place, (double)st->n_accepted_at[i]);
    }
}

static void engine_metrics(struct out *o, const struct sl_metrics_model *m,
                           const struct sl_metrics_in *in)
{
    engine_gauges(o, m);
    engine_counters(o, m->stats);
    programs(o, m->stats);
    tiers(o, m);
    if (m->info->num_speculative_tokens > 0)
        draft_counters(o, m->stats, m->info->num_speculative_tokens);
    engine_histograms(o, m->stats);
    if (m->adapters != NULL)
        adapters(o, m);
    if (in->aliases)
        engine_aliases(o, m);
}

static void label(struct out *o, const struct sl_metrics_model *m)
{
    o->labels.n_bytes = 0;
    sl_buf_printf(&o->labels, "engine=\"%d\",model_name=\"", m->info->data_parallel_rank);
    put_label_value(&o->labels, m->name);
    sl_buf_putc(&o->labels, '"');
}

struct model_text {
    struct sl_buf text, families;
};

/* The family of this name; near where it is in another model's text. */
static const struct family *find_family(const struct model_text *t, const char *name, size_t near)
{
    const struct family *all = (const void *)t->families.data;
    size_t n = t->families.n_bytes / sizeof *all;
    for (size_t i = 0; i < n; i++) {
        const struct family *f = &all[(near + i) % n];
        if (strcmp(f->name, name) == 0)
            return f;
    }
    return NULL;
}

static void put_samples(struct sl_buf *b, const struct model_text *t, const struct family *f)
{
    const struct family *all = (const void *)t->families.data, *next = f + 1;
    size_t n = t->families.n_bytes / sizeof *all;
    size_t end = next < all + n ? next->head : t->text.n_bytes;
    sl_buf_put(b, t->text.data + f->samples, end - f->samples);
}

/* A family's samples stand together, whichever model they are of. */
static void put_families(struct sl_buf *b, const struct model_text *texts, int32_t n)
{
    for (int32_t k = 0; k < n; k++) {
        const struct family *all = (const void *)texts[k].families.data;
        for (size_t i = 0; i < texts[k].families.n_bytes / sizeof *all; i++) {
            bool was_put = false;
            for (int32_t j = 0; j < k && !was_put; j++)
                was_put = find_family(&texts[j], all[i].name, i) != NULL;
            if (was_put)
                continue;
            sl_buf_put(b, texts[k].text.data + all[i].head, all[i].samples - all[i].head);
            for (int32_t j = k; j < n; j++) {
                const struct family *f = find_family(&texts[j], all[i].name, i);
                if (f != NULL)
                    put_samples(b, &texts[j], f);
            }
        }
    }
}

static void of_models(struct sl_buf *b, const struct sl_metrics_in *in, model_fn *fn)
{
    struct out o = {.b = b};
    struct model_text *texts = NULL;
    if (in->n_models > 1) {
        texts = sl_calloc((size_t)in->n_models, sizeof *texts);
        b->failed |= texts == NULL;
    }
    for (int32_t i = 0; i < in->n_models && !b->failed; i++) {
        label(&o, &in->models[i]);
        if (texts != NULL) {
            o.b = &texts[i].text;
            o.families = &texts[i].families;
        }
        if (sl_buf_ok(&o.labels))
            fn(&o, &in->models[i], in);
        b->failed |= !sl_buf_ok(&o.labels) || !sl_buf_ok(o.b) ||
                     (o.families != NULL && !sl_buf_ok(o.families));
    }
    if (texts != NULL && !b->failed)
        put_families(b, texts, in->n_models);
    for (int32_t i = 0; texts != NULL && i < in->n_models; i++) {
        sl_buf_deinit(&texts[i].text);
        sl_buf_deinit(&texts[i].families);
    }
    sl_free(texts);
    sl_buf_deinit(&o.labels);
}

void sl_metrics_render(struct sl_buf *b, const struct sl_metrics_in *in)
{
    struct out o = {.b = b};
    label(&o, &in->models[0]);
    if (in->n_models > 1 &&
        in->models[1].info->data_parallel_rank == 0) { /* of the server: no model's */
        o.labels.n_bytes = 0;
        SL_PUT(&o.labels, "engine=\"0\"");
    }
    of_models(b, in, engine_metrics);
    if (sl_buf_ok(&o.labels) && !b->failed) {
        http_metrics(&o, in);
        of_models(b, in, kv_events);
        if (in->traces != NULL)
            traces(&o, in->traces);
        process_metrics(&o, in);
    } else {
        b->failed = true;
    }
    sl_buf_deinit(&o.labels);
}

/* ---- the route */

static void metrics_add_adapter(void *arg, const struct sl_adapter_info *a)
{
    struct sl_buf *b = arg;
    if (a->n_users == 0)
        return;
    if (b->n_bytes > 0)
        sl_buf_putc(b, ',');
    sl_buf_puts(b, a->name);
}

struct model_state { /* what a model's metrics point to */
    struct sl_stats stats;
    struct sl_kv_publisher_stats events;
    struct sl_buf adapters;
};

static void metrics_look_at(const struct sl_served *m, struct model_state *state,
                            struct sl_metrics_model *out)
{
    sl_engine_stats(m->eng, &state->stats);
    sl_adapter_each(m->eng, metrics_add_adapter, &state->adapters);
    if (m->kv_publisher != NULL)
        sl_kv_publisher_stats(m->kv_publisher, &state->events);
    *out = (struct sl_metrics_model){
        .name = m->name,
        .info = sl_engine_info(m->eng),
        .stats = &state->stats,
        .adapters = state->stats.max_adapters_active == 0 ? NULL
                    : state->adapters.data != NULL        ? state->adapters.data
                                                          : "",
        .kv_events = m->kv_publisher != NULL ? &state->events : NULL,
    };
}

void sl_api_metrics(struct sl_conn *c)
{
    const struct sl_server *s = c->loop->server;
    const char *handlers[SL_HTTP_MAX_ROUTES] = {NULL};
    struct sl_exporter_stats spans;
    struct sl_buf b = {0};
    const struct sl_http_stats **http = sl_calloc((size_t)s->n_loops, sizeof *http);
    struct model_state *states = sl_calloc((size_t)s->n_models, sizeof *states);
    struct sl_metrics_model *models = sl_calloc((size_t)s->n_models, sizeof *models);
    bool ok = http != NULL && states != NULL && models != NULL;
    for (int i = 0; i < sl_n_routes; i++)
        handlers[i] = sl_route_label(&sl_routes[i]);
    for (int i = 0; ok && i < s->n_loops; i++)
        http[i] = &s->loops[i].stats;
    for (int32_t i = 0; ok && i < s->n_models; i++)
        metrics_look_at(&s->models[i], &states[i], &models[i]);
    if (s->exporter != NULL)
        sl_exporter_stats(s->exporter, &spans);
    struct sl_metrics_in in = {
        .models = models,
        .n_models = s->n_models,
        .http = http,
        .n_http = s->n_loops,
        .handlers = handlers,
        .n_connections = (uint64_t)atomic_load(&s->n_conns),
        .n_refused_connections = atomic_load(&s->n_refused_conns),
        .held_bytes = atomic_load(&s->held_bytes),
        .clients = s->cfg->key_rules,
        .n_clients = s->cfg->key_rules != NULL ? s->cfg->n_api_keys : 0,
        .t_start_s = s->t_created_s,
        .traces = s->exporter != NULL ? &spans : NULL,
        .aliases = s->cfg->metrics_aliases,
    };
    if (ok)
        sl_metrics_render(&b, &in);
    for (int32_t i = 0; states != NULL && i < s->n_models; i++)
        sl_buf_deinit(&states[i].adapters);
    sl_free(http);
    sl_free(states);
    sl_free(models);
    if (ok && sl_buf_ok(&b)) /* counters that fell to 0 would look like a restart */
        sl_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, b.data, b.n_bytes);
    else
        sl_reply(c, 503, "text/plain; charset=utf-8", NULL, "", 0);
    sl_buf_deinit(&b);
}
