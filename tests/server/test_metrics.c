/* SPDX-License-Identifier: MIT
 * The Prometheus text: names and labels that consumers read, and the rules of the format (one TYPE
 * per family, buckets that never fall, +Inf = count).
 */
#include "base/check.h"
#include "base/str.h"
#include "server/page/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct sl_http_stats http_stats[2];

static void render(struct sl_buf *b, const char *model_name)
{
    static const char *handlers[SL_HTTP_MAX_ROUTES] = {"/v1/chat/completions", "/health"};
    struct sl_stats st = {.n_running = 3,
                          .n_waiting = 2,
                          .n_pages = 100,
                          .n_pages_free = 50,
                          .n_pages_cached = 25,
                          .prompt_tokens = 1000,
                          .prompt_tokens_cached = 400,
                          .generation_tokens = 77,
                          .prefix_queries = 1000,
                          .prefix_hits = 400,
                          .preemptions = 1,
                          .n_drafts = 20,
                          .n_draft_tokens = 40,
                          .n_accepted_tokens = 31,
                          .n_accepted_at = {18, 13},
                          .cpu_expert_calls = 90,
                          .cpu_expert_rows = 120,
                          .cpu_expert_s = 0.5,
                          .top_pages_read = 300,
                          .top_pages_dense = 1200,
                          .eplb = {.on = true,
                                   .balancedness = 0.75,
                                   .rows = 900,
                                   .busiest_rows = 600,
                                   .placings = 2,
                                   .loaded = 31},
                          .finished = {0, 5, 6, 7, 8}};
    struct sl_model_info info = {.block_size = 16,
                                 .n_pages = 100,
                                 .kv_dtype = "f16",
                                 .num_speculative_tokens = 2,
                                 .n_expert_layers = 48,
                                 .n_cpu_expert_layers = 45,
                                 .cpu_expert_bytes = 4096};
    const struct sl_http_stats *http[] = {&http_stats[0], &http_stats[1]};
    int n_bounds;
    const double *bounds = sl_hist_bounds(offsetof(struct sl_stats, ttft_s), &n_bounds);
    assert_true(n_bounds > 3 && bounds[0] > 0);
    st.ttft_s.counts[0] = 4;
    st.ttft_s.counts[2] = 1;
    st.ttft_s.counts[SL_HIST_MAX] = 2;
    st.ttft_s.sum = 12.5;
    struct sl_metrics_model model = {.name = model_name, .info = &info, .stats = &st};
    struct sl_metrics_in in = {.models = &model,
                               .n_models = 1,
                               .http = http,
                               .n_http = 2,
                               .handlers = handlers,
                               .n_connections = 9,
                               .n_refused_connections = 1,
                               .t_start_s = 1000};
    memset(http_stats, 0, sizeof http_stats);
    sl_http_stats_request(&http_stats[0], 0, SL_HTTP_POST, 200, 50000000, 100, 1000);
    sl_http_stats_request(&http_stats[1], 0, SL_HTTP_POST, 429, 700000000, 10, 20);
    sl_http_stats_request(&http_stats[1], SL_HTTP_MAX_ROUTES - 1, SL_HTTP_GET, 404, 1000, 1, 2);
    sl_count_hist_add(&http_stats[0].params_n, 1);
    sl_count_hist_add(&http_stats[1].params_n, 7);
    sl_metrics_render(b, &in);
    assert_true(sl_buf_ok(b));
}

static void expect_line(const char *text, const char *line)
{
    char with_ends[400];
    snprintf(with_ends, sizeof with_ends, "\n%s\n", line);
    if (strstr(text, with_ends) == NULL)
        fail_msg("no line %s", line);
}

#define M "engine=\"0\",model_name=\"m\""

static void test_names_and_values(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    render(&b, "m");
    static const char *const lines[] = {
        "# TYPE vllm:num_requests_running gauge",
        "vllm:num_requests_running{" M "} 3.0",
        "vllm:num_requests_waiting{" M "} 2.0",
        "vllm:num_requests_waiting_by_reason{" M ",reason=\"capacity\"} 2.0",
        "vllm:kv_cache_usage_perc{" M "} 0.25",
        "sluice:expert_layers{" M ",device=\"cpu\"} 45.0",
        "sluice:expert_layers{" M ",device=\"gpu\"} 3.0",
        "sluice:cpu_expert_bytes{" M "} 4096.0",
        "# TYPE sluice:cpu_expert_seconds_total counter",
        "sluice:cpu_expert_calls_total{" M "} 90.0",
        "sluice:cpu_expert_rows_total{" M "} 120.0",
        "sluice:attention_pages_read_total{" M "} 300.0",
        "sluice:attention_pages_dense_total{" M "} 1200.0",
        "sluice:eplb_balancedness{" M "} 0.75",
        "sluice:eplb_rows_total{" M "} 900.0",
        "sluice:eplb_busiest_rows_total{" M "} 600.0",
        "sluice:eplb_placings_total{" M "} 2.0",
        "sluice:eplb_failed_total{" M "} 0.0",
        "sluice:eplb_loaded_experts_total{" M "} 31.0",
        "sluice:cpu_expert_seconds_total{" M "} 0.5",
        "vllm:cache_config_info{" M
        ",block_size=\"16\",num_gpu_blocks=\"100\",cache_dtype=\"f16\"} 1.0",
        "vllm:prompt_tokens_total{" M "} 1000.0",
        "vllm:generation_tokens_total{" M "} 77.0",
        "vllm:prompt_tokens_by_source_total{" M ",source=\"local_compute\"} 600.0",
        "vllm:prompt_tokens_by_source_total{" M ",source=\"local_cache_hit\"} 400.0",
        "vllm:prefix_cache_queries_total{" M "} 1000.0",
        "vllm:prefix_cache_hits_total{" M "} 400.0",
        "vllm:num_preemptions_total{" M "} 1.0",
        "vllm:spec_decode_num_drafts_total{" M "} 20.0",
        "vllm:spec_decode_num_draft_tokens_total{" M "} 40.0",
        "vllm:spec_decode_num_accepted_tokens_total{" M "} 31.0",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{" M ",position=\"0\"} 18.0",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{" M ",position=\"1\"} 13.0",
        "vllm:request_success_total{" M ",finished_reason=\"stop\"} 5.0",
        "vllm:request_success_total{" M ",finished_reason=\"length\"} 6.0",
        "vllm:request_success_total{" M ",finished_reason=\"abort\"} 7.0",
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "vllm:time_to_first_token_seconds_bucket{" M ",le=\"0.001\"} 4.0",
        "vllm:time_to_first_token_seconds_bucket{" M ",le=\"0.01\"} 5.0",
        "vllm:time_to_first_token_seconds_bucket{" M ",le=\"2560.0\"} 5.0",
        "vllm:time_to_first_token_seconds_bucket{" M ",le=\"+Inf\"} 7.0",
        "vllm:time_to_first_token_seconds_count{" M "} 7.0",
        "vllm:time_to_first_token_seconds_sum{" M "} 12.5",
        "# TYPE vllm:iteration_tokens_total histogram",
        "vllm:request_params_n_bucket{" M ",le=\"1.0\"} 1.0",
        "vllm:request_params_n_bucket{" M ",le=\"10.0\"} 2.0",
        "vllm:request_params_n_sum{" M "} 8.0",
        "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"2xx\"} 1.0",
        "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"4xx\"} 1.0",
        "http_requests_total{handler=\"none\",method=\"GET\",status=\"4xx\"} 1.0",
        "http_request_duration_seconds_bucket{handler=\"/v1/chat/completions\",le=\"0.1\"} 1.0",
        "http_request_duration_seconds_bucket{handler=\"/v1/chat/completions\",le=\"1.0\"} 2.0",
        "http_request_duration_highr_seconds_count 3.0",
        "http_request_size_bytes_sum{handler=\"/v1/chat/completions\"} 110.0",
        "http_response_size_bytes_sum{handler=\"/v1/chat/completions\"} 1020.0",
        "process_start_time_seconds 1000.0",
    };
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        expect_line(b.data, lines[i]);
    sl_buf_deinit(&b);
}

/* The value after the last blank of a line. */
static double value_of(const char *line, size_t n)
{
    double x = -1;
    size_t at = n;
    while (at > 0 && line[at - 1] != ' ')
        at--;
    if (!sl_parse_double(line + at, n - at, &x))
        fail_msg("no number in %.*s", (int)n, line);
    return x;
}

static void test_format(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    char family[128] = "", type[16] = "";
    double last_bucket = 0;
    int n_families = 0;
    render(&b, "a \"quoted\\name\"\nin two lines");
    assert_int_equal(b.data[b.n_bytes - 1], '\n');
    for (const char *at = b.data; *at != '\0';) {
        size_t n = strcspn(at, "\n");
        assert_true(n > 0);
        if (sl_starts_with(at, "# TYPE ")) {
            size_t n_name = strcspn(at + 7, " ");
            char again[160];
            snprintf(family, sizeof family, "%.*s", (int)n_name, at + 7);
            snprintf(type, sizeof type, "%.*s", (int)(n - 8 - n_name), at + 8 + n_name);
            snprintf(again, sizeof again, "\n# TYPE %s ", family);
            assert_null(strstr(at + 1, again)); /* once per family */
            n_families++;
        } else if (!sl_starts_with(at, "# HELP ")) {
            if (strncmp(at, family, strlen(family)) != 0)
                fail_msg("%.*s is outside its family %s", (int)n, at, family);
            double x = value_of(at, n);
            bool bucket = memmem(at, n, "_bucket{", 8) != NULL;
            assert_true(x >= 0);
            if (bucket && strstr(type, "histogram") != NULL) {
                if (x < last_bucket)
                    fail_msg("buckets fall: %.*s", (int)n, at);
                last_bucket = memmem(at, n, "+Inf", 4) != NULL ? 0 : x;
            }
        }
        at += n + 1;
    }
    assert_true(n_families > 40);
    assert_non_null(strstr(b.data, "model_name=\"a \\\"quoted\\\\name\\\"\\nin two lines\""));
    sl_buf_deinit(&b);
}

/* A family's samples stand together, one of each model; what only one has is there once. */
static void test_several_models(void **state)
{
    static const char *handlers[SL_HTTP_MAX_ROUTES];
    struct sl_stats st[3] = {{.n_running = 1}, {.n_running = 2, .n_adapters = 4}, {.n_running = 3}};
    struct sl_model_info info = {.block_size = 16, .n_pages = 100, .kv_dtype = "f16"};
    const struct sl_http_stats *http[] = {&http_stats[0]};
    struct sl_metrics_model models[] = {
        {.name = "a", .info = &info, .stats = &st[0]},
        {.name = "b", .info = &info, .stats = &st[1], .adapters = ""},
        {.name = "c", .info = &info, .stats = &st[2]}};
    struct sl_metrics_in in = {
        .models = models, .n_models = 3, .http = http, .n_http = 1, .handlers = handlers};
    struct sl_buf b = {0};
    (void)state;
    st[2].kv_shared_bytes = 50;
    sl_metrics_render(&b, &in);
    sl_buf_putc(&b, '\0');
    assert_true(sl_buf_ok(&b));
    expect_line(b.data, "# TYPE vllm:num_requests_running gauge\n"
                        "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1.0\n"
                        "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 2.0\n"
                        "vllm:num_requests_running{engine=\"0\",model_name=\"c\"} 3.0");
    expect_line(b.data, "# TYPE sluice:adapters gauge\n"
                        "sluice:adapters{engine=\"0\",model_name=\"b\"} 4.0\n"
                        "# HELP sluice:adapters_resident Adapters in memory.");
    expect_line(b.data, "# TYPE sluice:kv_shared_bytes gauge\n"
                        "sluice:kv_shared_bytes{engine=\"0\",model_name=\"c\"} 50.0");
    expect_line(b.data, "sluice:connections{engine=\"0\"} 0.0");
    for (const char *at = b.data; (at = strstr(at, "# TYPE ")) != NULL; at++) {
        char head[160];
        snprintf(head, sizeof head, "%.*s ", (int)strcspn(at + 7, " ") + 7, at);
        assert_null(strstr(at + 1, head)); /* once per family */
    }
    sl_buf_deinit(&b);
}

static void test_bounds(void **state)
{
    (void)state;
    static const uint64_t first[] = {1, 2, 5, 10, 20, 50, 100};
    for (size_t i = 0; i < SL_COUNT(first); i++)
        assert_int_equal(sl_count_hist_bound((int)i), first[i]);
    struct sl_count_hist h = {0};
    sl_count_hist_add(&h, 0);
    sl_count_hist_add(&h, 1);
    sl_count_hist_add(&h, 2);
    sl_count_hist_add(&h, UINT64_MAX / 2);
    assert_int_equal(h.counts[0], 2);
    assert_int_equal(h.counts[1], 1);
    assert_int_equal(h.counts[SL_PARAM_N_BUCKETS], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_values),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_several_models),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
