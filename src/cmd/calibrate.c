/* SPDX-License-Identifier: MIT
 * calibrate.c - `sluice calibrate`: what factors of skip-softmax leave out of a model's attention,
 * and what that does to the likelihood of a text. Every factor loads the model anew: the factor is
 * the engine's, and pages computed with one must not be read with another.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/common.h"
#include "cmd/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES  256
#define MAX_TARGETS  16
#define FIRST_ROW    512 /* rows before it are subject to nothing */
#define FACTOR_STEPS 14  /* from the length / 2 down, a quarter each */

struct calibrate_options {
    const char *data, *targets;
    int32_t n_samples, sample_len, output_len;
    bool json;
};

#define OWN(field) offsetof(struct calibrate_options, field)

static const struct sl_flag calibrate_flags[] = {
    {SL_FLAG_STR, 0, "data", NULL, OWN(data), 0, 0, "FILE", "text like what will be served"},
    {SL_FLAG_STR, 0, "target-sparsity", NULL, OWN(targets), 0, 0, "S,...",
     "shares to find factors for (default: 0.5,0.7)"},
    {SL_FLAG_INT, 0, "num-samples", NULL, OWN(n_samples), 1, MAX_SAMPLES, "N",
     "pieces of the text (default: 8)"},
    {SL_FLAG_INT, 0, "input-len", NULL, OWN(sample_len), FIRST_ROW + 1, SL_MAX_CONTEXT, "N",
     "tokens of a piece (default: as the context and the text allow)"},
    {SL_FLAG_INT, 0, "output-len", NULL, OWN(output_len), 1, SL_MAX_CONTEXT, "N",
     "tokens to decode after each (default: 16)"},
    {SL_FLAG_SWITCH, 0, "json", NULL, OWN(json), 0, 0, NULL, "print one JSON object"},
};

struct texts {
    int32_t *ids;
    size_t n_ids;
    int32_t n, len; /* pieces, tokens of one */
};

/* Of one factor. */
struct point {
    double factor, rows, prompt, decode; /* shares left out: of rows' tiles, of units */
    double nll;                          /* mean over the tokens behind FIRST_ROW */
    double worst;                        /* largest change of a token's log probability */
};

/* ---------------------------------------------------------------- one factor */

static int calibrate_read_text(const struct calibrate_options *opt, struct sl_engine *eng,
                               struct texts *t, struct sl_error *err)
{
    char *data = NULL;
    size_t n = 0;
    if (t->ids != NULL)
        return 0;
    int rc = sl_read_file(opt->data, SL_MAX_TEXT, &data, &n, err);
    if (rc == 0)
        rc = sl_tokenizer_encode(sl_engine_tokenizer(eng), data, n, 0, &t->ids, &t->n_ids, err);
    sl_free(data);
    if (rc != 0)
        return rc;
    const int32_t most = sl_engine_info(eng)->max_model_len - opt->output_len;
    t->len = opt->sample_len;
    if (t->len == 0)
        t->len = (int32_t)SL_MIN((size_t)SL_MAX(most, 0), t->n_ids);
    if (t->len > most || (size_t)t->len > t->n_ids || t->len <= FIRST_ROW)
        return sl_fail(
            err, SL_EINVAL,
            "--input-len: pieces of %d tokens and %d decoded after each do not fit: the context "
            "has %d tokens, the text %zu, and the first %d never skip anything",
            t->len, opt->output_len, sl_engine_info(eng)->max_model_len, t->n_ids, FIRST_ROW);
    t->n = (int32_t)SL_MIN((size_t)opt->n_samples, t->n_ids / (size_t)t->len);
    return 0;
}

static int await(struct sl_request *req, struct sl_error *err)
{
    struct sl_chunk chunk;
    while (!sl_request_done(req)) {
        while (sl_request_read(req, &chunk) == 1)
            if (chunk.finish == SL_FINISH_ERROR || chunk.finish == SL_FINISH_ABORT)
                return sl_fail(err, SL_EINTERNAL, "a request ended early: %s",
                               sl_request_error(req)->msg);
        if (!sl_request_done(req))
            sl_request_wait(req, -1);
    }
    return 0;
}

/* Log probabilities [n, len] of all pieces' tokens. */
static int run_texts(const struct calibrate_options *opt, struct sl_engine *eng,
                     const struct texts *t, float *logprobs, struct sl_error *err)
{
    struct sl_request *reqs[MAX_SAMPLES] = {0};
    int rc = 0;
    for (int32_t i = 0; i < t->n && rc == 0; i++) {
        struct sl_request_desc desc = {.prompt = t->ids + (size_t)i * (size_t)t->len,
                                       .n_prompt = t->len};
        sl_sampling_default(&desc.sampling);
        desc.sampling.temperature = 0;
        desc.sampling.max_tokens = opt->output_len;
        desc.sampling.ignore_eos = true;
        desc.sampling.prompt_logprobs = 0;
        rc = sl_request_submit(eng, &desc, &reqs[i], err);
    }
    for (int32_t i = 0; i < t->n && rc == 0; i++) {
        rc = await(reqs[i], err);
        const struct sl_token *tokens = rc == 0 ? sl_request_prompt_logprobs(reqs[i]) : NULL;
        for (int32_t k = 0; tokens != NULL && k < t->len; k++)
            logprobs[(size_t)i * (size_t)t->len + (size_t)k] = tokens[k].logprob;
    }
    for (int32_t i = 0; i < t->n; i++)
        sl_request_release(reqs[i]);
    return rc;
}

static double calibrate_share(uint64_t part, uint64_t all)
{
    return all > 0 ? (double)part / (double)all : 0;
}

/* dense: what factor 0 gave, NULL for that one. */
static void calibrate_measure(const struct texts *t, const float *logprobs, const float *dense,
                              const struct sl_skipped *prefill, const struct sl_skipped *decode,
                              struct point *p)
{
    size_t n = 0;
    p->rows = calibrate_share(prefill->skipped + decode->skipped, prefill->tiles + decode->tiles);
    p->prompt = calibrate_share(prefill->units_skipped, prefill->units);
    p->decode = calibrate_share(decode->units_skipped, decode->units);
    p->nll = p->worst = 0;
    for (size_t i = 0; i < (size_t)t->n * (size_t)t->len; i++) {
        if (i % (size_t)t->len <= FIRST_ROW)
            continue;
        p->nll -= (double)logprobs[i];
        if (dense != NULL)
            p->worst = fmax(p->worst, fabs((double)logprobs[i] - (double)dense[i]));
        n++;
    }
    p->nll /= (double)SL_MAX(n, (size_t)1);
}

static int run_factor(const struct calibrate_options *opt, struct sl_engine_config *cfg,
                      struct texts *t, struct point *p, float **dense, struct sl_error *err)
{
    struct sl_engine *eng = NULL;
    struct sl_skipped prefill, decode;
    float *logprobs = NULL;
    cfg->skip_softmax_threshold_scale_factor = (float)p->factor;
    cfg->skip_softmax_counts = true;
    int rc = sl_cli_open_engine(cfg, &eng, err);
    if (rc != 0)
        return rc;
    rc = calibrate_read_text(opt, eng, t, err);
    if (rc == 0 && (logprobs = sl_calloc((size_t)t->n * (size_t)t->len, sizeof(float))) == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory for log probabilities");
    if (rc == 0)
        rc = run_texts(opt, eng, t, logprobs, err);
    if (rc == 0)
        rc = sl_engine_skipped(eng, &prefill, &decode, err);
    if (rc == 0)
        calibrate_measure(t, logprobs, *dense, &prefill, &decode, p);
    sl_engine_destroy(eng);
    if (rc == 0 && *dense == NULL)
        *dense = logprobs;
    else
        sl_free(logprobs);
    return rc;
}

/* ---------------------------------------------------------------- all of them */

/* Points go from the largest factor down, behind that of factor 0. */
static double factor_for(const struct point *p, int n, double target)
{
    for (int i = 1; i + 1 < n; i++) {
        const double hi = p[i].decode, lo = p[i + 1].decode;
        if (lo <= target && target <= hi && lo < hi)
            return exp(log(p[i + 1].factor) +
                       (target - lo) / (hi - lo) * (log(p[i].factor) - log(p[i + 1].factor)));
    }
    return 0;
}

static void calibrate_report(const struct calibrate_options *opt, const struct texts *t,
                             const struct point *p, int n, const double *targets, int n_targets)
{
    if (!opt->json)
        printf("%d pieces of %d tokens, %d decoded behind each; shares left out\n"
               "%12s %9s %9s %9s %11s %9s\n",
               t->n, t->len, opt->output_len, "factor", "of rows", "prompts", "decodes",
               "perplexity", "worst");
    else
        printf("{\"pieces\": %d, \"tokens\": %d, \"points\": [", t->n, t->len);
    for (int i = 0; i < n && !opt->json; i++)
        printf("%12.4g %8.1f%% %8.1f%% %8.1f%% %11.4f %9.4f\n", p[i].factor, 100 * p[i].rows,
               100 * p[i].prompt, 100 * p[i].decode, exp(p[i].nll), p[i].worst);
    for (int i = 0; i < n && opt->json; i++)
        printf("%s{\"factor\": %.6g, \"rows\": %.6f, \"prompts\": %.6f, \"decodes\": %.6f, "
               "\"perplexity\": %.6f, \"worst\": %.6f}",
               i > 0 ? ", " : "", p[i].factor, p[i].rows, p[i].prompt, p[i].decode, exp(p[i].nll),
               p[i].worst);
    if (opt->json)
        printf("], \"factors\": [");
    for (int i = 0; i < n_targets; i++) {
        const double factor = factor_for(p, n, targets[i]);
        if (opt->json)
            printf("%s{\"target\": %g, \"factor\": %.4g}", i > 0 ? ", " : "", targets[i], factor);
        else if (factor > 0)
            printf("%g of decodes: --skip-softmax-threshold-scale-factor %.4g\n", targets[i],
                   factor);
        else
            printf("%g of decodes: no factor of these leaves out so much, or so little\n",
                   targets[i]);
    }
    if (opt->json)
        printf("]}\n");
}

static int parse_targets(const char *text, double *targets, int *n, struct sl_error *err)
{
    for (*n = 0; *n < MAX_TARGETS; text++) {
        char *end;
        const double x = strtod(text, &end);
        if (end == text || !(x > 0 && x < 1) || (*end != ',' && *end != '\0'))
            break;
        targets[(*n)++] = x;
        if (*end == '\0')
            return 0;
        text = end;
    }
    return sl_fail(err, SL_EINVAL,
                   "--target-sparsity: up to %d numbers between 0 and 1, with commas between them",
                   MAX_TARGETS);
}

static int calibrate(const struct calibrate_options *opt, struct sl_engine_config *cfg,
                     struct sl_error *err)
{
    struct point points[1 + FACTOR_STEPS] = {{0}};
    double targets[MAX_TARGETS];
    struct texts t = {0};
    float *dense = NULL;
    int n = 0, n_targets, rc = parse_targets(opt->targets, targets, &n_targets, err);
    sl_cli_catch_interrupt();
    for (; n < 1 + FACTOR_STEPS && rc == 0 && !sl_cli_interrupted(); n++) {
        points[n].factor = n == 0 ? 0 : 0.5 * t.len * pow(0.25, n - 1);
        rc = run_factor(opt, cfg, &t, &points[n], &dense, err);
        if (rc == 0 && n > 1 && points[n].rows < 0.001 && points[n].decode < 0.001) {
            n++;
            break;
        }
    }
    if (rc == 0 && t.n > 0)
        calibrate_report(opt, &t, points, n, targets, n_targets);
    sl_free(t.ids);
    sl_free(dense);
    return rc;
}

static int calibrate_main(int argc, char **argv)
{
    struct calibrate_options opt = {.n_samples = 8, .output_len = 16, .targets = "0.5,0.7"};
    struct sl_engine_config cfg = {0};
    struct sl_error err = {0};
    struct sl_cli_model model = {0};
    const char *name = NULL;
    int n_positional;
    struct sl_flag_group groups[] = {
        {calibrate_flags, SL_COUNT(calibrate_flags), &opt, 0},
        {sl_flags_engine, sl_n_flags_engine, &cfg, 0},
        {sl_flags_hub, sl_n_flags_hub, &model.hub, 0},
    };
    int rc = sl_flags_parse(&sl_cmd_calibrate, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0 && opt.data == NULL)
        rc = sl_fail(&err, SL_EINVAL, "a text is needed: --data FILE");
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    cfg.model = model.path;
    if (rc == 0)
        rc = sl_cli_find_draft(&model, &cfg, &err);
    if (rc == 0)
        rc = calibrate(&opt, &cfg, &err);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_calibrate, &err);
}

const struct sl_command sl_cmd_calibrate = {
    .name = "calibrate",
    .usage = "[MODEL] --data FILE [FLAGS]",
    .summary = "find skip-softmax factors and their effect on accuracy",
    .examples = "  sluice calibrate ./Qwen3-0.6B --data long.txt --target-sparsity 0.5\n",
    .brief = "data target-sparsity num-samples input-len output-len json threads max-model-len "
             "device revision download-dir offline",
    .details = "For each factor: the share of skipped tiles of 64 keys, of all rows and of what "
               "the device\n"
               "can skip in prompts and in decodes (all heads of a key head), the perplexity, and\n"
               "the largest change of a token's log probability.\n",
    .run = calibrate_main,
};
