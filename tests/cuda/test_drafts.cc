/* SPDX-License-Identifier: MIT
 * Models that draft, on the GPU, mostly the simulated one, through the public API: a small model,
 * modules of the model's own checkpoint (MTP), EAGLE-3, DFlash, DSpark, Gemma 4's
 * assistant. An argument: only pairs whose configuration has it.
 *
 * Who drafts changes no bit of any output. A model that drafts for itself must be right in every
 * draft, whatever was padded, recorded, cached or given back: a single wrong or stale entry of its
 * pages, or a wrong hidden row, shows as a wrong draft.
 */
#include <cuda_runtime.h>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
#include "base/check.h"
#include "base/rng.h"
#include "sluice.h"

#include <cmocka.h>
}

#define DRAFTS "tests/golden/drafts/"

static const int n_reqs = 3, n_prompt = 24;
#ifdef SL_CUDA_SIM
static const int n_out = 9;
#else
static const int n_out = 60;
#endif

struct outcome {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    bool operator==(const outcome &o) const
    {
        return ids == o.ids && logprobs.size() == o.logprobs.size() &&
               memcmp(logprobs.data(), o.logprobs.data(), logprobs.size() * sizeof(float)) == 0;
    }
};

static struct sl_request *submit(struct sl_engine *eng, int i, bool sampled)
{
    struct sl_error err = {};
    struct sl_request *req = nullptr;
    struct sl_rng rng = {};
    std::vector<int32_t> prompt(static_cast<size_t>(2 + (i * 17) % (n_prompt - 2)));
    rng.seed = static_cast<uint64_t>(i) / 2; /* pairs begin with the same text */
    for (int32_t &id : prompt)
        id = 3 + static_cast<int32_t>(sl_rng_below(&rng, 90));
    for (size_t k = prompt.size() - 2; k < prompt.size(); k++)
        prompt[k] = 3 + 7 * i;
    struct sl_request_desc d = {};
    d.prompt = prompt.data();
    d.n_prompt = static_cast<int32_t>(prompt.size());
    sl_sampling_default(&d.sampling);
    d.sampling.max_tokens = n_out - i;
    d.sampling.ignore_eos = true;
    d.sampling.logprobs = 0;
    d.sampling.temperature = sampled && i % 3 != 0 ? 0.8f : 0.0f;
    d.sampling.presence_penalty = sampled && i % 4 == 1 ? 0.5f : 0.0f;
    d.sampling.has_seed = true;
    d.sampling.seed = static_cast<uint64_t>(i);
    if (sl_request_submit(eng, &d, &req, &err) != 0)
        fail_msg("request %d: %s", i, err.msg);
    return req;
}

static outcome collect(struct sl_request *req)
{
    outcome o;
    struct sl_chunk c;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &c) == 1) {
            if (c.finish == SL_FINISH_ERROR)
                fail_msg("%s", sl_request_error(req)->msg);
            for (size_t k = 0; k < c.n_tokens; k++) {
                o.ids.push_back(c.tokens[k].id);
                o.logprobs.push_back(c.tokens[k].logprob);
            }
        }
    }
    sl_request_release(req);
    return o;
}

/* All requests at once, then once more with what the cache has of them. priced: only drafts that
 * can be paid for are made, and steps run ahead between them; else all are. */
static std::vector<outcome> run(const char *model, const char *speculative, bool sampled,
                                bool priced, struct sl_stats *stats)
{
    struct sl_error err = {};
    struct sl_engine *eng = nullptr;
    std::vector<outcome> out;
    struct sl_engine_config cfg = {};
    cfg.model = model;
    cfg.speculative_config = speculative;
    cfg.device = "cuda:0";
    cfg.n_threads = 1;
    cfg.max_num_seqs = 4;
    cfg.max_num_batched_tokens = 32;
    cfg.max_model_len = 96;
    cfg.max_itl_ms = priced ? 1000 : -1;
    cfg.kv_cache_bytes = 1u << 20;
    if (sl_engine_create(&cfg, &eng, &err) != 0)
        fail_msg("%s: %s", model, err.msg);
    for (int round = 0; round < 2; round++) {
        std::vector<struct sl_request *> reqs;
        for (int i = 0; i < n_reqs; i++)
            reqs.push_back(submit(eng, i, sampled));
        for (struct sl_request *req : reqs)
            out.push_back(collect(req));
    }
    sl_engine_stats(eng, stats);
    assert_int_equal(stats->step_mallocs, 0);
    sl_engine_destroy(eng);
    return out;
}

struct pair {
    const char *model, *speculative;
    bool same, sampled; /* drafter and model say the same */
};

#define SMALL(model, n) \
    "{\"method\":\"draft_model\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":" n "}"
#define EAGLE(model, n) \
    "{\"method\":\"eagle3\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":" n "}"

#define SPARK(model, n) \
    "{\"method\":\"dspark\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":" n "}"
#define ASSISTANT(model, n) \
    "{\"method\":\"mtp\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":" n "}"
#define FLASH(model, n) \
    "{\"method\":\"dflash\",\"model\":\"" DRAFTS model "\",\"num_speculative_tokens\":" n "}"

static const struct pair pairs[] = {
    {DRAFTS "llama", SMALL("llama", "3"), true, false},
    {DRAFTS "llama", EAGLE("eagle3_fc_norm", "2"), false, false},
    {DRAFTS "llama", EAGLE("eagle3", "4"), false, true},
    {DRAFTS "llama", SMALL("llama", "2"), false, true},
    {DRAFTS "qwen3_5", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", false, true},
    {DRAFTS "same", "{\"method\":\"mtp\",\"num_speculative_tokens\":3}", true, false},
    {DRAFTS "same", EAGLE("eagle3_same", "5"), true, false},
    {DRAFTS "llama", FLASH("dflash", "5"), false, true},
    {DRAFTS "llama", FLASH("dflash_windows", "3"), false, false},
    {DRAFTS "llama", FLASH("dflash_speculators", "6"), false, true},
    {DRAFTS "copy", FLASH("dflash_copy", "1"), true, false},
    {DRAFTS "llama", SPARK("dspark", "6"), false, true},
    {DRAFTS "llama", SPARK("dspark_gated", "3"), false, false},
    {DRAFTS "llama", SPARK("dspark_rnn", "4"), false, false},
    {DRAFTS "gemma4_copy", ASSISTANT("gemma4_copy_window", "3"), true, false},
    {DRAFTS "gemma4_copy", ASSISTANT("gemma4_copy_full", "2"), true, false},
    {DRAFTS "gemma4", ASSISTANT("gemma4_assistant_ordered", "4"), false, true},
};

static const char *only = ""; /* what a pair's configuration must have */

static void no_bit_changes(void **)
{
    std::vector<outcome> plain;
    const struct pair *before = nullptr;
    for (const pair &p : pairs) {
        struct sl_stats s;
        if (strstr(p.speculative, only) == nullptr)
            continue;
        if (before == nullptr || strcmp(before->model, p.model) != 0 ||
            before->sampled != p.sampled)
            plain = run(p.model, nullptr, p.sampled, false, &s);
        before = &p;
        const std::vector<outcome> priced = run(p.model, p.speculative, p.sampled, true, &s);
        if (!(plain == priced))
            fail_msg("%s: drafts that are paid for change bits", p.model);
        const std::vector<outcome> drafted = run(p.model, p.speculative, p.sampled, false, &s);
        printf("%s, %s, %s: %llu of %llu drafts\n", p.model, p.speculative,
               p.sampled ? "sampled" : "greedy",
               static_cast<unsigned long long>(s.n_accepted_tokens),
               static_cast<unsigned long long>(s.n_draft_tokens));
        fflush(stdout);
        if (!(plain == drafted))
            fail_msg("%s: drafts change bits", p.model);
        assert_true(s.n_draft_tokens > 0);
        if (p.same)
            assert_int_equal(s.n_accepted_tokens, s.n_draft_tokens);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        only = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_changes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
