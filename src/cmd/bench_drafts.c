/* SPDX-License-Identifier: MIT */
#include "cmd/bench_drafts.h"

#include "base/check.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static struct sl_bench_drafts drafts_made(const struct sl_bench_draft_report *r)
{
    struct sl_bench_drafts d = {.n_drafts = r->after.n_drafts - r->before.n_drafts,
                                .n_tokens = r->after.n_tokens - r->before.n_tokens,
                                .n_accepted = r->after.n_accepted - r->before.n_accepted};
    for (int32_t i = 0; i < SL_BENCH_DRAFTED; i++)
        d.n_at[i] = r->after.n_at[i] - r->before.n_at[i];
    return d;
}

/* Places after the last one with a right draft are not listed. */
static int32_t drafts_places(const struct sl_bench_drafts *d)
{
    int32_t n = SL_BENCH_DRAFTED;
    while (n > 0 && d->n_at[n - 1] <= 0)
        n--;
    return n;
}

/* Each step gives a token besides the drafts that it accepts. */
static double tokens_a_step(const struct sl_bench_kind *k)
{
    const int64_t n_steps = k->n_output - k->n_accepted;
    return n_steps > 0 ? (double)k->n_output / (double)n_steps : 0;
}

static double accepted_share(const struct sl_bench_kind *k)
{
    const int64_t n = k->n_accepted + k->n_rejected;
    return n > 0 ? (double)k->n_accepted / (double)n : 0;
}

void sl_bench_drafts_table(const struct sl_bench_draft_report *r, const struct sl_bench_dataset *d)
{
    const struct sl_bench_drafts made = drafts_made(r);
    if (made.n_drafts > 0) {
        printf("---------------Speculative Decoding---------------\n");
        printf("%-40s %-10.2f\n",
               "Acceptance rate (%):", 100 * made.n_accepted / SL_MAX(made.n_tokens, 1.0));
        printf("%-40s %-10.2f\n", "Acceptance length:", 1 + made.n_accepted / made.n_drafts);
        printf("%-40s %-10.0f\n", "Drafts:", made.n_drafts);
        printf("%-40s %-10.0f\n", "Draft tokens:", made.n_tokens);
        printf("%-40s %-10.0f\n", "Accepted tokens:", made.n_accepted);
        printf("Per-position acceptance (%%):\n");
        for (int32_t i = 0; i < drafts_places(&made); i++)
            printf("  Position %-29d %-10.2f\n", i, 100 * made.n_at[i] / made.n_drafts);
    }
    for (int32_t i = 0; i < d->n_kinds; i++) {
        const struct sl_bench_kind *k = &r->kinds[i];
        if (i == 0)
            printf("%-24s %8s %8s %10s %6s\n", "Category", "requests", "tokens", "acceptance",
                   "a step");
        printf("%-24.24s %8lld %8lld %9.2f%% %6.2f\n", d->kinds[i], (long long)k->n,
               (long long)k->n_output, 100 * accepted_share(k), tokens_a_step(k));
    }
}

void sl_bench_drafts_json(const struct sl_bench_draft_report *r, const struct sl_bench_dataset *d)
{
    const struct sl_bench_drafts made = drafts_made(r);
    struct sl_buf b = {0};
    if (made.n_drafts > 0) {
        sl_buf_printf(&b,
                      ", \"spec_decode_acceptance_rate\": %.4f, "
                      "\"spec_decode_acceptance_length\": %.4f, \"spec_decode_num_drafts\": %.0f, "
                      "\"spec_decode_draft_tokens\": %.0f, \"spec_decode_accepted_tokens\": %.0f, "
                      "\"spec_decode_per_position_acceptance_rates\": [",
                      100 * made.n_accepted / SL_MAX(made.n_tokens, 1.0),
                      1 + made.n_accepted / made.n_drafts, made.n_drafts, made.n_tokens,
                      made.n_accepted);
        for (int32_t i = 0; i < drafts_places(&made); i++)
            sl_buf_printf(&b, "%s%.4f", i > 0 ? ", " : "", made.n_at[i] / made.n_drafts);
        sl_buf_puts(&b, "]");
    }
    for (int32_t i = 0; i < d->n_kinds; i++) {
        const struct sl_bench_kind *k = &r->kinds[i];
        sl_buf_puts(&b, i == 0 ? ", \"categories\": {" : ", ");
        sl_buf_json_string(&b, d->kinds[i], strlen(d->kinds[i]));
        sl_buf_printf(&b,
                      ": {\"completed\": %lld, \"total_output_tokens\": %lld, "
                      "\"acceptance_rate\": %.4f, \"tokens_per_step\": %.4f}",
                      (long long)k->n, (long long)k->n_output, 100 * accepted_share(k),
                      tokens_a_step(k));
    }
    if (sl_buf_ok(&b) && b.n_bytes > 0)
        printf("%s%s", b.data, d->n_kinds > 0 ? "}" : "");
    sl_buf_deinit(&b);
}
