/* SPDX-License-Identifier: MIT
 * All logits of whole models on the GPU, mostly the simulated one: how far they are from the CPU's
 * in float32, and that every way to compute them, steps recorded or not, gives the same bits.
 *
 * On a device: the bundled model, stories260K (folder $STORIES, or where test_stories leaves it)
 * and a random model of the shape of a layer of 1B parameters. The tokens are those float32
 * chooses.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <vector>

#include "cuda/device.h"

extern "C" {
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "models/model.h"
#include "synth/synth.h"

#include <cmocka.h>
}

enum {
    BLOCK = 16,
    N_SEQS = 8,
    N_MAX = 256,
    SEQ_PAGES = N_MAX / BLOCK,
    N_PAGES = N_SEQS * SEQ_PAGES
};

/* Square error over square, of all logits. Random weights, whose layers are not used to each other,
 * make more of every rounding than trained ones (tools/round_survey on the same files: 4e-5, 5e-5).
 */
[[maybe_unused]] static const double trained = 1e-5, random_weights = 1e-4;

/* ------------------------------------------------------------------ a model on a backend */

struct side {
    struct sl_ckpt *ckpt;
    struct sl_backend *be;
    struct sl_model *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes, n_vocab;
    const float *logits; /* of the last step */
};

static void must(int rc, const struct sl_error *err, const char *what)
{
    if (rc != 0)
        fail_msg("%s: %s", what, err->msg);
}

static struct sl_backend *make_backend(bool cuda)
{
    struct sl_error err = {};
    struct sl_backend *be = nullptr;
    struct sl_cuda_config gpu = {0, 0, false};
    struct sl_cpu_config cpu = {};
    cpu.exact = true;
    must(cuda ? sl_cuda_create(&gpu, &be, &err) : sl_cpu_create(&cpu, &be, &err), &err, "backend");
    return be;
}

/* graphs: decode steps are padded, recorded and replayed. */
static void open_side(side *s, const char *path, bool cuda, bool graphs)
{
    struct sl_error err = {};
    const char *name = path != nullptr ? path : "bundled model";
    *s = {};
    must(sl_ckpt_open(path, &s->ckpt, &err), &err, name);
    must(sl_model_open(s->ckpt, &s->model, &err), &err, name);
    s->be = make_backend(cuda);
    must(sl_model_load(s->model, s->be, nullptr, nullptr, &err), &err, name);
    if (cuda)
        must(s->be->vt->device->load_end(s->be, &err), &err, name);
    struct sl_run_config rc = {};
    rc.max_tokens = rc.max_logits = N_MAX;
    must(sl_model_kv_layout(s->model, s->be, cuda ? "auto" : "f32", s->be->vt->kv_dtype, BLOCK,
                            &rc.kv, &err),
         &err, name);
    s->pool_bytes = (N_PAGES + 1) * sl_kv_block_bytes(&rc.kv);
    s->pool = static_cast<uint8_t *>(s->be->vt->alloc(s->be, s->pool_bytes));
    assert_non_null(s->pool);
    sl_kv_pools(&rc.kv, s->pool, N_PAGES + 1, rc.kv_pool); /* a page has one number in all groups */
    must(sl_run_create(s->model, &rc, &s->run, &err), &err, name);
    const struct sl_model_facts *f = sl_model_facts(s->model);
    s->n_vocab = static_cast<size_t>(f->n_vocab);
    if (!cuda)
        return;
    struct sl_step_limits lim = {};
    lim.max_tokens = lim.max_logits = lim.max_context = N_MAX;
    lim.max_spans = N_SEQS;
    lim.max_table = N_PAGES;
    lim.block_size = BLOCK;
    lim.scratch_pages[0] = graphs ? N_PAGES : 0;
    lim.n_kinds = sl_model_heads(s->model, lim.heads, SL_MAX_HEAD_KINDS);
    must(s->be->vt->device->steps_init(s->be, &lim, &err), &err, name);
}

static void close_side(side *s)
{
    if (s->be->vt->device != nullptr)
        s->be->vt->device->forget(s->be, s);
    sl_run_destroy(s->run);
    s->be->vt->free(s->be, s->pool, s->pool_bytes);
    sl_model_close(s->model);
    s->be->vt->destroy(s->be);
    sl_ckpt_close(s->ckpt);
}

/* ------------------------------------------------------------------ steps */

typedef std::vector<int32_t> ids;
typedef std::vector<float> rows; /* logits of positions one after the other */

struct piece { /* tokens [from, from + n) of sequence seq, whose pages are its own */
    const ids *tokens;
    int32_t seq, from, n;
};

static void forward(void *arg, const struct sl_step *step)
{
    side *s = static_cast<side *>(arg);
    s->logits = sl_run_enqueue(s->run, &step->batch);
}

/* Logits of all tokens of the step. */
static rows run_step(side *s, const std::vector<piece> &pieces)
{
    ids tokens, positions, wanted, tables;
    std::vector<struct sl_span> spans;
    for (const piece &p : pieces) {
        int32_t n_pages = (p.from + p.n + BLOCK - 1) / BLOCK;
        spans.push_back({static_cast<int32_t>(tokens.size()), p.n, p.from,
                         static_cast<int32_t>(tables.size()), 0});
        for (int32_t i = 0; i < n_pages; i++) /* anywhere but in order */
            tables.push_back((p.seq * SEQ_PAGES + i) * 5 % N_PAGES);
        for (int32_t i = p.from; i < p.from + p.n; i++) {
            wanted.push_back(static_cast<int32_t>(tokens.size()));
            tokens.push_back((*p.tokens)[static_cast<size_t>(i)]);
            positions.push_back(i);
        }
    }
    int32_t n = static_cast<int32_t>(tokens.size());
    struct sl_step step = {};
    step.batch.n_tokens = step.batch.n_logits = n;
    step.batch.n_spans = static_cast<int32_t>(pieces.size());
    step.batch.tokens = tokens.data();
    step.batch.positions = positions.data();
    step.batch.spans = spans.data();
    step.batch.block_tables = tables.data();
    step.batch.n_tables = 1;
    step.batch.logit_rows = wanted.data();
    rows out(static_cast<size_t>(n) * s->n_vocab);
    if (s->be->vt->device == nullptr) {
        forward(s, &step);
        memcpy(out.data(), s->logits, out.size() * sizeof out[0]);
        return out;
    }
    struct sl_error err = {};
    uint64_t ticket;
    const struct sl_device_vt *dev = s->be->vt->device;
    must(dev->step(s->be, &step, forward, s, &ticket, &err), &err, "step");
    must(dev->wait(s->be, ticket, nullptr, nullptr, &err), &err, "wait");
    must(dev->download(s->be, out.data(), s->logits, out.size() * sizeof out[0], &err), &err,
         "download");
    return out;
}

static void append(rows *to, const rows &from, size_t at, size_t n)
{
    to->insert(to->end(), from.begin() + static_cast<long>(at),
               from.begin() + static_cast<long>(at + n));
}

/* The sequence in chunks, beside mates that are as long. */
static rows run_chunks(side *s, const ids &tokens, int32_t chunk, int32_t n_mates)
{
    rows out;
    ids mate(tokens.rbegin(), tokens.rend());
    int32_t n = static_cast<int32_t>(tokens.size());
    for (int32_t at = 0; at < n; at += chunk) {
        int32_t m = std::min(chunk, n - at);
        std::vector<piece> step;
        for (int32_t i = 0; i < n_mates; i++)
            step.push_back({&mate, 1 + i, at, m});
        step.insert(step.begin() + n_mates / 2, {&tokens, 0, at, m});
        append(&out, run_step(s, step),
               static_cast<size_t>(n_mates / 2) * static_cast<size_t>(m) * s->n_vocab,
               static_cast<size_t>(m) * s->n_vocab);
    }
    return out;
}

static int32_t likeliest(const float *x, size_t n)
{
    return static_cast<int32_t>(std::max_element(x, x + n) - x);
}

/* Extends tokens to n by what the side finds likeliest; gives the logits of all. */
static rows run_greedy(side *s, ids *tokens, size_t n)
{
    rows out;
    for (size_t i = 0; i < n; i++) {
        rows row = run_step(s, {{tokens, 0, static_cast<int32_t>(i), 1}});
        if (i + 1 >= tokens->size() && tokens->size() < n)
            tokens->push_back(likeliest(row.data(), s->n_vocab));
        append(&out, row, 0, row.size());
    }
    return out;
}

/* ------------------------------------------------------------------ comparisons */

static bool near_float(const char *name, double bar, const rows &want, const rows &have,
                       size_t n_vocab)
{
    double wrong = 0, all = 0, sum = 0, worst = 0, gap = 0;
    size_t n = want.size() / n_vocab, n_others = 0;
    for (size_t i = 0; i < n; i++) {
        const float *w = &want[i * n_vocab], *h = &have[i * n_vocab];
        double e = 0, square = 0;
        for (size_t k = 0; k < n_vocab; k++) {
            double d = static_cast<double>(h[k]) - static_cast<double>(w[k]);
            e += d * d;
            square += static_cast<double>(w[k]) * static_cast<double>(w[k]);
        }
        wrong += e;
        all += square;
        sum += e / square;
        worst = std::max(worst, e / square);
        int32_t a = likeliest(w, n_vocab), b = likeliest(h, n_vocab);
        n_others += a != b;
        gap = std::max(gap, static_cast<double>(w[a]) - static_cast<double>(w[b]));
    }
    printf("%s: NMSE of all logits %.2e, of a position mean %.2e, worst %.2e; "
           "%zu of %zu likeliest tokens differ, logits at most %.4f apart%s\n",
           name, wrong / all, sum / static_cast<double>(n), worst, n_others, n, gap,
           wrong / all < bar ? "" : ": too far");
    return wrong / all < bar;
}

static size_t n_compared, n_differing;

static void same_rows(const char *what, const rows &a, const rows &b)
{
    assert_int_equal(a.size(), b.size());
    size_t before = n_differing;
    for (size_t i = 0; i < a.size(); i++)
        n_differing += memcmp(&a[i], &b[i], sizeof a[i]) != 0;
    n_compared += a.size();
    if (n_differing != before)
        printf("%s: %zu of %zu logits differ\n", what, n_differing - before, a.size());
}

/* ------------------------------------------------------------------ tests */

struct subject {
    const char *name;
    std::string path; /* "": bundled */
    ids start;        /* then greedy; of a random model all tokens */
    size_t n;
    double bar;
};

static ids random_tokens(size_t n, int32_t n_vocab)
{
    ids out;
    for (size_t i = 0; i < n; i++)
        out.push_back(
            static_cast<int32_t>((i * 7919 + i * i * 31 + 5) % static_cast<size_t>(n_vocab)));
    return out;
}

static std::string write_random(const char *family, const char *shape, int32_t layers,
                                int32_t n_vocab)
{
    struct sl_error err = {};
    struct sl_synth s = {};
    const bool gguf = strcmp(family, "llama") == 0;
    std::string path =
        std::string("build/testdata/models/parity_") + family + "_" + shape + (gguf ? ".gguf" : "");
    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir("build/testdata/models", 0777);
    s.name = family;
    must(sl_synth_shape(s.name, shape, &s.hp, &err), &err, shape);
    s.hp.n_layers = layers;
    s.hp.n_dense = s.hp.n_experts > 0 ? layers : 0; /* a router may choose another expert */
    s.hp.n_vocab = n_vocab;
    s.hp.context = 1024;
    s.dtype = SL_DTYPE_BF16;
    s.format = gguf ? SL_CKPT_GGUF : SL_CKPT_HF;
    s.seed = 11;
    s.byte_vocab = true;
    must(sl_synth_write(&s, path.c_str(), &err), &err, shape);
    return path;
}

static std::vector<subject> subjects()
{
#ifdef SL_CUDA_SIM
    return {{"random, tiny", write_random("llama", "tiny", 2, 272), random_tokens(40, 272), 40,
             random_weights},
            {"random, latent attention", write_random("deepseek_v3", "tiny", 2, 272),
             random_tokens(40, 272), 40, random_weights}};
#else
    std::vector<subject> list = {
        {"bundled", "", {51, 1533, 557, 263, 591}, 205, trained}, /* Once upon a time */
        {"random, 2 layers of 1b", write_random("llama", "1b", 2, 4096), random_tokens(200, 4096),
         200, random_weights},
        {"random, latent attention", write_random("deepseek_v3", "tiny", 2, 272),
         random_tokens(200, 272), 200, random_weights},
    };
    const char *stories = getenv("STORIES");
    std::string path = stories != nullptr ? stories : "build/testdata/models/stories260K";
    struct stat st;
    if (stat(path.c_str(), &st) == 0)
        list.push_back({"stories260K", path, {1}, 200, trained});
    else
        printf("no %s (test_stories makes it)\n", path.c_str());
    return list;
#endif
}

static std::vector<subject> cases;

static const char *path_of(const subject &s)
{
    return s.path.empty() ? nullptr : s.path.c_str();
}

/* Every way to compute the logits of a sequence gives the bits of the first. */
static void same_bits(void **)
{
    for (const subject &s : cases) {
        side eager, recorded;
        open_side(&eager, path_of(s), true, false);
        open_side(&recorded, path_of(s), true, true);
        ids tokens = s.start;
        tokens.resize(s.n, 3);
        int32_t n = static_cast<int32_t>(s.n);
        rows want = run_chunks(&eager, tokens, n, 0);
        same_rows("the same again", want, run_chunks(&eager, tokens, n, 0));
        same_rows("in chunks of 9", want, run_chunks(&eager, tokens, 9, 0));
        same_rows("in chunks of 17, beside 3", want, run_chunks(&recorded, tokens, 17, 3));
        same_rows("token by token", want, run_chunks(&eager, tokens, 1, 0));
        same_rows("token by token, recorded", want, run_chunks(&recorded, tokens, 1, 0));
        same_rows("token by token, beside 6, recorded", want, run_chunks(&recorded, tokens, 1, 6));
        same_rows("token by token, beside 7", want, run_chunks(&eager, tokens, 1, 7));
        assert_true(sl_cuda(recorded.be)->counts.replayed >= 2 * (s.n - 1));
        assert_int_equal(sl_cuda(eager.be)->counts.replayed, 0);
        close_side(&recorded);
        close_side(&eager);
    }
    printf("%zu logits compared, %zu differ\n", n_compared, n_differing);
    assert_int_equal(n_differing, 0);
}

static void near_the_cpu(void **)
{
    int n_failed = 0;
    for (const subject &s : cases) {
        side cpu, gpu;
        ids tokens = s.start;
        open_side(&cpu, path_of(s), false, false);
        open_side(&gpu, path_of(s), true, true);
        rows want = run_greedy(&cpu, &tokens, s.n);
        rows have = run_chunks(&gpu, tokens, static_cast<int32_t>(s.n), 0);
        n_failed += !near_float(s.name, s.bar, want, have, cpu.n_vocab);
        close_side(&gpu);
        close_side(&cpu);
    }
    assert_int_equal(n_failed, 0);
}

int main()
{
    cases = subjects();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(near_the_cpu),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
