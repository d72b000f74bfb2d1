/* SPDX-License-Identifier: MIT
 * bench.c - `sluice bench`: offline throughput and latency of the engine, without a server.
 * Prompts are random token ids from a seed, so that two runs, or two builds, do the same work.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cmd/bench_serve.h"
#include "cmd/common.h"
#include "cmd/constraint.h"
#include "cmd/lora.h"
#include "cmd/model.h"
#include "cmd/series.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct bench_options {
    int32_t n_prompts, n_warmup, input_len, output_len, shared_len, concurrency;
    int32_t late_len, max_itl_ms;
    uint64_t seed;
    struct sl_cli_constraint constraint;
    struct sl_flag_list lora_modules;
    bool json, null_model;
};

#define OWN(field) offsetof(struct bench_options, field)

static const struct sl_flag bench_flags[] = {
    {SL_FLAG_INT, 0, "num-prompts", NULL, OWN(n_prompts), 1, 1000000, "N",
     "requests (default: 16)"},
    {SL_FLAG_INT, 0, "max-concurrency", NULL, OWN(concurrency), 1, 100000, "N",
     "requests at a time (default: all)"},
    {SL_FLAG_INT, 0, "input-len", "random-input-len", OWN(input_len), 1, SL_MAX_CONTEXT, "N",
     "prompt tokens (default: 128)"},
    {SL_FLAG_INT, 0, "output-len", "random-output-len", OWN(output_len), 1, SL_MAX_CONTEXT, "N",
     "tokens to generate (default: 128)"},
    {SL_FLAG_INT, 0, "prefix-len", "random-prefix-len", OWN(shared_len), 0, SL_MAX_CONTEXT, "N",
     "prompt tokens shared by all requests (default: 0)"},
    {SL_FLAG_INT, 0, "warmup", NULL, OWN(n_warmup), 0, 1000000, "N",
     "requests first, not counted; the prefix stays cached"},
    {SL_FLAG_INT, 0, "late-input-len", NULL, OWN(late_len), 1, SL_MAX_CONTEXT, "N",
     "one more request while the others generate: its effect on them"},
    {SL_FLAG_INT, 0, "max-itl", NULL, OWN(max_itl_ms), 0, 1 << 20, "MS",
     "as for serve (default: 0, no limit)"},
    {SL_FLAG_U64, 's', "seed", NULL, OWN(seed), 0, 0x1p53, "S", "of the prompts (default: 0)"},
    {SL_FLAG_PAIR_LIST, 0, "lora-modules", NULL, OWN(lora_modules), 0, 0, "N=DIR",
     "adapters, used by the requests in turn"},
    {SL_FLAG_SWITCH, 0, "null-model", NULL, OWN(null_model), 0, 0, NULL,
     "no model: measures the engine's own cost"},
    {SL_FLAG_SWITCH, 0, "json", NULL, OWN(json), 0, 0, NULL, "print one JSON object"},
};

struct flight {             /* one request; its user pointer */
    struct sl_request *req; /* NULL: not submitted yet, or over */
    uint64_t last_chunk_ns;
};

struct bench {
    const struct bench_options *opt;
    struct sl_engine *eng;
    struct sl_constraint *constraint; /* of every request */
    struct sl_adapter *adapters[SL_FLAG_LIST_MAX];
    struct sl_outbox *box;
    struct flight *flights; /* [n_prompts + n_warmup] */
    int32_t *shared;        /* [shared_len] */
    struct sl_series ttft, itl, e2e;
    struct sl_series stall; /* between tokens of the others while the late request's prompt runs */
    uint64_t late_ns, late_first_ns; /* submitted, and its first token; 0: not yet */
    int n_begun;                     /* requests that have a token */
    int64_t n_output, n_input, n_cached;
    double cpu_seconds;             /* of this process, while the requests ran */
    uint64_t prefill_ns, decode_ns; /* sums over the requests, as each saw them */
    struct sl_stats before;         /* what the warm-up did */
    int n_failed;
};

static int n_requests(const struct bench_options *opt)
{
    return opt->n_prompts + opt->n_warmup + (opt->late_len > 0);
}

static int submit_one(struct bench *b, int idx, int32_t len, int32_t *prompt, struct sl_error *err)
{
    const struct bench_options *opt = b->opt;
    int32_t n_vocab = sl_tokenizer_n_vocab(sl_engine_tokenizer(b->eng));
    struct sl_rng rng = {.seed = opt->seed + 1 + (uint64_t)idx};
    for (int32_t i = 0; i < len; i++)
        prompt[i] =
            i < opt->shared_len ? b->shared[i] : (int32_t)sl_rng_below(&rng, (uint64_t)n_vocab);
    struct sl_request_desc desc = {
        .prompt = prompt, .n_prompt = len, .outbox = b->box, .constraint = b->constraint};
    if (opt->lora_modules.n > 0) {
        desc.adapter = b->adapters[idx % opt->lora_modules.n];
        desc.adapter_scale = 1;
    }
    sl_sampling_default(&desc.sampling);
    desc.sampling.temperature = 0;
    desc.sampling.max_tokens = opt->output_len;
    desc.sampling.ignore_eos = true;
    desc.user = &b->flights[idx];
    return sl_request_submit(b->eng, &desc, &b->flights[idx].req, err);
}

static bool is_late(const struct bench *b, const struct flight *f)
{
    return b->opt->late_len > 0 && f == &b->flights[n_requests(b->opt) - 1];
}

/* Tokens of a request that is not the late one. */
static void note_tokens(struct bench *b, struct flight *f, uint64_t now, size_t n)
{
    const double gap = (double)(now - f->last_chunk_ns) / 1e9 / (double)n;
    b->n_begun += f->last_chunk_ns == 0;
    if (f->last_chunk_ns != 0)
        (void)sl_series_add(&b->itl, gap);
    if (f->last_chunk_ns != 0 && b->late_ns != 0 && b->late_first_ns == 0)
        (void)sl_series_add(&b->stall, gap);
    f->last_chunk_ns = now;
}

/* Reads one request's news; true when it is over and released. */
static bool consume(struct bench *b, struct sl_request *req)
{
    struct sl_chunk chunk;
    struct flight *f = sl_request_user(req);
    while (sl_request_read(req, &chunk) == 1) {
        uint64_t now = sl_now_ns();
        if (chunk.finish == SL_FINISH_ERROR || chunk.finish == SL_FINISH_ABORT)
            b->n_failed++;
        if (chunk.n_tokens == 0)
            continue;
        if (!is_late(b, f))
            note_tokens(b, f, now, chunk.n_tokens);
        else if (b->late_first_ns == 0)
            b->late_first_ns = now;
    }
    if (!sl_request_done(req))
        return false;
    struct sl_usage u;
    sl_request_usage(req, &u);
    if (!is_late(b, f)) {
        (void)sl_series_add(&b->ttft, (double)(u.t_first_ns - u.t_submit_ns) / 1e9);
        (void)sl_series_add(&b->e2e, (double)(u.t_last_ns - u.t_submit_ns) / 1e9);
    }
    b->prefill_ns += u.t_first_ns - u.t_submit_ns;
    b->decode_ns += u.t_last_ns - u.t_first_ns;
    b->n_input += u.n_prompt;
    b->n_cached += u.n_cached;
    b->n_output += u.n_output;
    sl_request_release(req);
    f->req = NULL;
    return true;
}

/* Processor time of all threads so far. */
static double cpu_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0)
        return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Once all that may run at a time have begun. */
static int submit_late(struct bench *b, int n, int32_t *prompt, struct sl_error *err)
{
    const struct bench_options *opt = b->opt;
    if (opt->late_len == 0 || b->late_ns != 0 || b->n_begun < SL_MIN(n, opt->concurrency))
        return 0;
    b->late_ns = sl_now_ns();
    return submit_one(b, n_requests(opt) - 1, opt->late_len, prompt, err);
}

/* Runs n requests, from the first-th on. */
static int run_some(struct bench *b, int first, int n, double *seconds, struct sl_error *err)
{
    const struct bench_options *opt = b->opt;
    int submitted = 0, done = 0, rc = 0;
    const bool late = opt->late_len > 0 && first == 0;
    const int n_all = n + late;
    int32_t *prompt = sl_calloc((size_t)SL_MAX(opt->input_len, opt->late_len), sizeof *prompt);
    if (prompt == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for a prompt");
    uint64_t start = sl_now_ns();
    double cpu_start = cpu_seconds();
    sl_cli_catch_interrupt();
    while (rc == 0 && done < n_all && !sl_cli_interrupted()) {
        while (rc == 0 && submitted < n && submitted - done < opt->concurrency)
            rc = submit_one(b, first + submitted++, opt->input_len, prompt, err);
        if (rc == 0 && late)
            rc = submit_late(b, n, prompt, err);
        struct pollfd p = {.fd = sl_outbox_fd(b->box), .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            continue;
        for (struct sl_request *req; (req = sl_outbox_next(b->box)) != NULL;)
            done += consume(b, req);
    }
    *seconds = (double)(sl_now_ns() - start) / 1e9;
    b->cpu_seconds = cpu_seconds() - cpu_start;
    sl_free(prompt);
    if (rc == 0 && done < n_all)
        rc = sl_fail(err, SL_ECANCELED, "interrupted after %d of %d requests", done, n_all);
    return rc;
}

/* The warm-up's prompts come after the measured ones, which stay the same with and without it. */
static int run_all(struct bench *b, double *seconds, struct sl_error *err)
{
    const struct bench_options *opt = b->opt;
    if (opt->n_warmup > 0) {
        int rc = run_some(b, opt->n_prompts, opt->n_warmup, seconds, err);
        if (rc != 0)
            return rc;
        b->ttft.n = b->itl.n = b->e2e.n = 0;
        b->n_output = b->n_input = b->n_cached = 0;
        b->prefill_ns = b->decode_ns = 0;
        b->n_begun = 0;
        sl_engine_stats(b->eng, &b->before);
    }
    return run_some(b, 0, opt->n_prompts, seconds, err);
}

static void print_series(const char *name, const struct sl_series *s)
{
    printf("  %-28s mean %9.3f   p50 %9.3f   p90 %9.3f   p99 %9.3f\n", name,
           sl_series_mean(s) * 1e3, sl_series_percentile(s, 50) * 1e3,
           sl_series_percentile(s, 90) * 1e3, sl_series_percentile(s, 99) * 1e3);
}

static void json_series(const char *name, const struct sl_series *s)
{
    printf(", \"%s_ms\": {\"mean\": %.4f, \"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f}", name,
           sl_series_mean(s) * 1e3, sl_series_percentile(s, 50) * 1e3,
           sl_series_percentile(s, 90) * 1e3, sl_series_percentile(s, 99) * 1e3);
}

/* What one request at a time makes of the machine; with several they share it, so that the sums of
 * their times mean nothing. */
static void speeds_alone(const struct bench *b, double *prefill, double *decode)
{
    int64_t computed = b->n_input - b->n_cached, steps = b->n_output - (int64_t)b->ttft.n;
    bool alone = b->opt->concurrency == 1;
    *prefill = alone && b->prefill_ns > 0 ? 1e9 * (double)computed / (double)b->prefill_ns : 0;
    *decode = alone && b->decode_ns > 0 ? 1e9 * (double)steps / (double)b->decode_ns : 0;
}

/* What the CPU computed for a GPU. */
static void report_experts(const struct bench *b, const struct sl_stats *now)
{
    const uint64_t calls = now->cpu_expert_calls - b->before.cpu_expert_calls;
    const uint64_t rows = now->cpu_expert_rows - b->before.cpu_expert_rows;
    const double seconds = now->cpu_expert_s - b->before.cpu_expert_s;
    if (now->cpu_expert_calls == 0)
        return;
    if (b->opt->json)
        printf(", \"cpu_expert_calls\": %llu, \"cpu_expert_rows\": %llu, \"cpu_expert_s\": %.4f",
               (unsigned long long)calls, (unsigned long long)rows, seconds);
    else
        printf("  %-28s %llu layers of steps, mean %.1f rows, %.1f us\n", "experts on the CPU",
               (unsigned long long)calls, (double)rows / (double)SL_MAX(calls, 1),
               1e6 * seconds / (double)SL_MAX(calls, 1));
}

/* The late request's time to first token, and what it did to the others. */
static void report_late(struct bench *b)
{
    const struct sl_series *s = &b->stall;
    const double seconds = (double)(b->late_first_ns - b->late_ns) / 1e9;
    sl_series_sort(&b->stall);
    if (b->opt->json) {
        printf(", \"late_input_len\": %d, \"late_ttft_ms\": %.4f", b->opt->late_len, seconds * 1e3);
        json_series("itl_beside_late", s);
        return;
    }
    printf("  %-28s %.3f s to the first token, %.0f tokens/s\n", "late prompt", seconds,
           (double)b->opt->late_len / seconds);
    print_series("between tokens beside it, ms", s);
}

/* Of a pipeline: what share of the time each stage waited. */
static void report_stages(const struct bench *b, const struct sl_stats *st)
{
    for (int32_t i = 0; i < st->n_stages; i++) {
        const double busy = st->stage_busy_s[i] - b->before.stage_busy_s[i];
        const double waits = st->stage_wait_s[i] - b->before.stage_wait_s[i];
        const double share = busy + waits > 0 ? waits / (busy + waits) : 0;
        char name[24];
        if (b->opt->json) {
            printf(", \"stage_%d_busy_s\": %.4f, \"stage_%d_wait_s\": %.4f", i, busy, i, waits);
            continue;
        }
        snprintf(name, sizeof name, "stage %d", i);
        printf("  %-28s %.2f s busy, waited %.2f %% of the time\n", name, busy, 100 * share);
    }
}

static void bench_report(struct bench *b, double seconds)
{
    double prefill, decode;
    speeds_alone(b, &prefill, &decode);
    const struct sl_model_info *info = sl_engine_info(b->eng);
    struct sl_stats st;
    struct sl_series *all[] = {&b->ttft, &b->itl, &b->e2e};
    sl_engine_stats(b->eng, &st);
    st.steps -= b->before.steps;
    st.preemptions -= b->before.preemptions;
    double busy = st.device_busy_s - b->before.device_busy_s;
    double gap = st.device_gap_s - b->before.device_gap_s;
    for (size_t i = 0; i < SL_COUNT(all); i++)
        sl_series_sort(all[i]);
    if (b->opt->json) {
        printf("{\"model\": \"%s\", \"weights\": \"%s\", \"isa\": \"%s\", \"threads\": %d",
               info->architecture, info->weight_dtype, info->isa, info->n_threads);
        printf(", \"requests\": %d, \"failed\": %d, \"seconds\": %.4f", b->opt->n_prompts,
               b->n_failed, seconds);
        printf(", \"input_tokens\": %lld, \"cached_tokens\": %lld, \"output_tokens\": %lld",
               (long long)b->n_input, (long long)b->n_cached, (long long)b->n_output);
        printf(", \"output_tokens_per_s\": %.2f, \"total_tokens_per_s\": %.2f",
               (double)b->n_output / seconds, (double)(b->n_output + b->n_input) / seconds);
        if (b->opt->concurrency == 1)
            printf(", \"prefill_tokens_per_s\": %.3f, \"decode_tokens_per_s\": %.3f", prefill,
                   decode);
        json_series("ttft", &b->ttft);
        json_series("itl", &b->itl);
        json_series("e2e", &b->e2e);
        if (b->opt->late_len > 0)
            report_late(b);
        printf(", \"processors\": %.3f", b->cpu_seconds / seconds);
        printf(", \"device_busy_s\": %.4f, \"device_gap_s\": %.4f", busy, gap);
        report_experts(b, &st);
        report_stages(b, &st);
        printf(", \"drafts\": %llu, \"draft_tokens\": %llu, \"accepted_tokens\": %llu",
               (unsigned long long)(st.n_drafts - b->before.n_drafts),
               (unsigned long long)(st.n_draft_tokens - b->before.n_draft_tokens),
               (unsigned long long)(st.n_accepted_tokens - b->before.n_accepted_tokens));
        printf(", \"steps\": %llu, \"preemptions\": %llu, \"step_mallocs\": %llu}\n",
               (unsigned long long)st.steps, (unsigned long long)st.preemptions,
               (unsigned long long)st.step_mallocs);
        return;
    }
    printf("%s, %s weights, %s, %d threads\n", info->architecture, info->weight_dtype, info->isa,
           info->n_threads);
    printf("  %d requests in %.2f s, %d failed\n", b->opt->n_prompts, seconds, b->n_failed);
    printf("  %-28s %lld in (%lld cached), %lld out\n", "tokens", (long long)b->n_input,
           (long long)b->n_cached, (long long)b->n_output);
    printf("  %-28s %.1f out, %.1f in + out\n", "tokens/s", (double)b->n_output / seconds,
           (double)(b->n_output + b->n_input) / seconds);
    if (b->opt->concurrency == 1)
        printf("  %-28s %.1f prefill, %.1f decode\n", "tokens/s of a request", prefill, decode);
    print_series("time to first token, ms", &b->ttft);
    print_series("between tokens, ms", &b->itl);
    print_series("whole request, ms", &b->e2e);
    if (b->opt->late_len > 0)
        report_late(b);
    report_experts(b, &st);
    if (b->constraint != NULL)
        printf("  %-28s %llu, %llu too late for a step, mean %.1f us, %llu tokens forced\n",
               "masks", (unsigned long long)st.grammar_masks, (unsigned long long)st.grammar_late,
               st.grammar_masks > 0 ? 1e6 * st.grammar_mask_s.sum / (double)st.grammar_masks : 0,
               (unsigned long long)st.grammar_forced);
    if (st.n_draft_tokens > 0)
        printf("  %-28s %llu of %llu tokens accepted, in %llu steps of a sequence\n", "drafts",
               (unsigned long long)(st.n_accepted_tokens - b->before.n_accepted_tokens),
               (unsigned long long)(st.n_draft_tokens - b->before.n_draft_tokens),
               (unsigned long long)(st.n_drafts - b->before.n_drafts));
    printf("  %-28s %llu, %llu preemptions, %llu heap calls\n", "steps",
           (unsigned long long)st.steps, (unsigned long long)st.preemptions,
           (unsigned long long)st.step_mallocs);
    printf("  %-28s %.2f processors\n", "host", b->cpu_seconds / seconds);
    if (busy > 0)
        printf("  %-28s %.2f s busy, idle between steps %.2f %% of the time\n", "device", busy,
               100 * gap / (busy + gap));
    report_stages(b, &st);
}

static int bench_open_adapters(struct bench *b, struct sl_error *err)
{
    const struct sl_flag_list *modules = &b->opt->lora_modules;
    char *names[SL_FLAG_LIST_MAX] = {0};
    const struct sl_cli_base base = {.eng = b->eng};
    int rc = sl_cli_lora_modules(modules, &base, 1, names, err);
    for (int i = 0; i < modules->n && rc == 0; i++)
        rc = sl_adapter_open(b->eng, names[i], true, &b->adapters[i], err);
    for (int i = 0; i < modules->n; i++)
        sl_free(names[i]);
    return rc;
}

static int bench_engine(const struct bench_options *opt, struct sl_engine *eng,
                        struct sl_error *err)
{
    struct bench b = {.opt = opt, .eng = eng};
    double seconds = 0;
    int rc = sl_cli_constraint_open(&opt->constraint, eng, &b.constraint, err);
    if (rc == 0)
        rc = bench_open_adapters(&b, err);
    if (rc == 0)
        rc = sl_outbox_create(&b.box, err);
    if (rc != 0) {
        sl_constraint_release(b.constraint);
        for (size_t i = 0; i < SL_COUNT(b.adapters); i++)
            sl_adapter_release(b.adapters[i]);
        sl_engine_destroy(eng);
        return rc;
    }
    const int n = n_requests(opt);
    b.flights = sl_calloc((size_t)n, sizeof *b.flights);
    b.shared = sl_calloc((size_t)opt->input_len, sizeof *b.shared);
    if (b.flights == NULL || b.shared == NULL) {
        rc = sl_fail(err, SL_ENOMEM, "out of memory for %d requests", n);
    } else {
        struct sl_rng rng = {.seed = opt->seed};
        uint64_t n_vocab = (uint64_t)sl_tokenizer_n_vocab(sl_engine_tokenizer(eng));
        for (int32_t i = 0; i < opt->shared_len; i++)
            b.shared[i] = (int32_t)sl_rng_below(&rng, n_vocab);
        rc = run_all(&b, &seconds, err);
    }
    if (rc == 0)
        bench_report(&b, seconds);
    /* What an interrupt left running goes first: it names the outbox. */
    for (int i = 0; b.flights != NULL && i < n; i++)
        sl_request_release(b.flights[i].req);
    sl_constraint_release(b.constraint);
    for (size_t i = 0; i < SL_COUNT(b.adapters); i++)
        sl_adapter_release(b.adapters[i]);
    sl_engine_destroy(eng);
    sl_outbox_destroy(b.box);
    sl_free(b.flights);
    sl_free(b.shared);
    sl_series_deinit(&b.ttft);
    sl_series_deinit(&b.itl);
    sl_series_deinit(&b.e2e);
    sl_series_deinit(&b.stall);
    return rc;
}

static int bench_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return sl_bench_serve(argc - 1, argv + 1);
    struct bench_options opt = {.n_prompts = 16, .input_len = 128, .output_len = 128};
    struct sl_engine_config cfg = {0};
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    struct sl_cli_model model = {0};
    const char *name = NULL;
    int n_positional;
    struct sl_flag_group groups[] = {
        {bench_flags, SL_COUNT(bench_flags), &opt, 0},
        {sl_flags_constraint, sl_n_flags_constraint, &opt.constraint, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
        {sl_flags_adapters, sl_n_flags_adapters, &cfg, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_bench, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (opt.concurrency == 0)
        opt.concurrency = SL_MAX(opt.n_prompts, opt.n_warmup);
    if (rc == 0 && opt.shared_len > opt.input_len)
        rc = sl_fail(&err, SL_EINVAL, "--prefix-len %d is longer than --input-len %d",
                     opt.shared_len, opt.input_len);
    if (rc == 0 && opt.late_len > 0 && opt.lora_modules.n > 0)
        rc = sl_fail(&err, SL_EINVAL, "--late-input-len cannot be combined with --lora-modules");
    cfg.max_itl_ms = opt.max_itl_ms > 0 ? opt.max_itl_ms : -1;
    cfg.null_model = opt.null_model;
    if (opt.lora_modules.n > 0) {
        cfg.enable_lora = true;
        cfg.max_loras = cfg.max_loras != 0 ? cfg.max_loras : opt.lora_modules.n;
    }
    cfg.max_queued = SL_MAX(SL_MAX(opt.n_prompts, opt.n_warmup), 1024);
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &cfg, &err);
    if (rc == 0)
        rc = sl_cli_open_engine(&cfg, &eng, &err);
    if (rc == 0)
        rc = bench_engine(&opt, eng, &err);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_bench, &err);
}

const struct sl_command sl_cmd_bench = {
    .name = "bench",
    .usage = "[MODEL] [FLAGS]   or   sluice bench serve --url URL [FLAGS]",
    .summary = "measure throughput and latency, offline or of a server",
    .examples =
        "  sluice bench ./Qwen3-0.6B                             offline throughput\n"
        "  sluice bench ./Qwen3-0.6B --input-len 2000 --output-len 200 --num-prompts 64\n"
        "  sluice bench serve --url http://127.0.0.1:8000        load on a running server\n",
    .brief = "num-prompts max-concurrency input-len output-len prefix-len warmup late-input-len "
             "max-itl seed json json-schema threads max-model-len max-num-seqs "
             "max-num-batched-tokens kv-cache-memory-bytes kv-cache-dtype device",
    .details = "`sluice bench serve --help` shows the flags of the load generator.\n",
    .run = bench_main,
};
