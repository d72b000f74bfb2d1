/* SPDX-License-Identifier: MIT
 * Blocks of drafts (DFlash, DSpark) on the GPU, mostly the simulated one, against the same goldens
 * as on the CPU (tests/models/test_drafts.c): keys and values of the model's rows, which come in
 * chunks, then blocks whose rows see the text and one another; of DSpark also each draft behind the
 * right one before it. However rows come, in steps of one sequence or two, recorded or not, the
 * logits have the same bits.
 */
#include <cuda_runtime.h>

#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
#include "base/sys.h"
#include "cuda/cuda.h"
#include "models/model.h"

#include <cmocka.h>
}

#define DRAFTS "tests/golden/drafts/"

enum { BLOCK = 16, N_PAGES = 16, N_MAX = 64 };

/* Of rows of BF16, weights that are random and not used to it. */
static const double bar = 1e-4;

static void must(int rc, const struct sl_error *err, const char *what)
{
    if (rc != 0)
        fail_msg("%s: %s", what, err->msg);
}

/* ------------------------------------------------------------------ goldens */

struct golden {
    char *data;
    int32_t n, width, n_vocab, block, n_anchors;
    const int32_t *ids, *anchors;
    const float *rows, *logits;
    /* of drafts one behind another, or 0 */
    char *chain;
    int32_t n_chain;
    const int32_t *drafts;
    const float *chain_logits;
};

static void read_chain(golden *g, const char *name)
{
    struct sl_error err = {};
    size_t n = 0;
    const std::string path = std::string(DRAFTS) + name + "/chain.bin";
    must(sl_read_file(path.c_str(), 1 << 20, &g->chain, &n, &err), &err, name);
    const int32_t *head = reinterpret_cast<const int32_t *>(g->chain);
    assert_int_equal(head[0], g->n_anchors);
    g->n_chain = head[1];
    g->drafts = head + 2;
    g->chain_logits = reinterpret_cast<const float *>(g->drafts + g->n_anchors * g->n_chain);
}

static golden read_golden(const char *name)
{
    struct sl_error err = {};
    golden g = {};
    size_t n = 0;
    const std::string path = std::string(DRAFTS) + name + "/block.bin";
    must(sl_read_file(path.c_str(), 1 << 20, &g.data, &n, &err), &err, name);
    const int32_t *head = reinterpret_cast<const int32_t *>(g.data);
    g.n = head[0];
    g.width = head[1] * head[2];
    g.n_vocab = head[3];
    g.block = head[4];
    g.n_anchors = head[5];
    g.ids = head + 6 + head[1];
    g.anchors = g.ids + g.n;
    g.rows = reinterpret_cast<const float *>(g.anchors + g.n_anchors);
    g.logits = g.rows + g.n * g.width;
    assert_ptr_equal(g.logits + g.n_anchors * g.block * g.n_vocab, g.data + n);
    if (strncmp(name, "dspark", 6) == 0)
        read_chain(&g, name);
    return g;
}

/* ------------------------------------------------------------------ a drafter on the device */

struct rig {
    struct sl_backend *be;
    const struct sl_device_vt *dev;
    struct sl_ckpt *ckpt[2];
    struct sl_model *target, *model;
    struct sl_run *run;
    uint8_t *pool;
    size_t pool_bytes;
    float *rows; /* device: the model's, of the text */
    size_t rows_bytes;
    const float *logits;
    int32_t n_chain, n_vocab;
    int32_t *chain;   /* device: the rows of logits of a chain, then the tokens before them */
    float *chain_out; /* device: its logits */
};

enum { CHAIN_BYTES = 2 * N_MAX * sizeof(int32_t), CHAIN_OUT = N_MAX * 128 * sizeof(float) };

static void make_steps(rig *r, const golden &g, bool graphs)
{
    struct sl_error err = {};
    struct sl_step_limits lim = {};
    lim.max_tokens = lim.max_logits = lim.max_context = N_MAX;
    lim.max_block_rows = N_MAX;
    lim.max_spans = 4;
    lim.max_table = N_PAGES;
    lim.max_width = g.block;
    lim.block_size = BLOCK;
    lim.extra_bytes = N_MAX * sizeof(int32_t);
    lim.scratch_pages[0] = graphs ? N_PAGES : 0;
    lim.n_kinds = sl_model_heads(r->model, lim.heads, SL_MAX_HEAD_KINDS);
    must(r->dev->steps_init(r->be, &lim, &err), &err, "steps");
}

static rig open_rig(const char *name, const golden &g, bool graphs)
{
    struct sl_error err = {};
    struct sl_cuda_config gpu = {0, 0, false};
    struct sl_run_config rc = {};
    rig r = {};
    const std::string path = std::string(DRAFTS) + name;
    must(sl_cuda_create(&gpu, &r.be, &err), &err, "backend");
    r.dev = r.be->vt->device;
    must(sl_ckpt_open(DRAFTS "llama", &r.ckpt[0], &err), &err, "model");
    must(sl_ckpt_open(path.c_str(), &r.ckpt[1], &err), &err, name);
    must(sl_model_open(r.ckpt[0], &r.target, &err), &err, "model");
    must(sl_model_open_draft(r.ckpt[1], r.target, sl_ckpt_draft_method(r.ckpt[1]), &r.model, &err),
         &err, name);
    must(sl_model_load(r.target, r.be, nullptr, nullptr, &err), &err, "model");
    must(sl_model_load(r.model, r.be, nullptr, nullptr, &err), &err, name);
    must(r.dev->load_end(r.be, &err), &err, name);
    rc.max_tokens = rc.max_logits = N_MAX;
    rc.max_chains = 1;
    must(sl_model_kv_layout(r.model, r.be, "auto", r.be->vt->kv_dtype, BLOCK, &rc.kv, &err), &err,
         name);
    must(sl_kv_layout_merge(&rc.kv, &err), &err, name);
    r.pool_bytes = (N_PAGES + 1) * sl_kv_block_bytes(&rc.kv);
    r.pool = static_cast<uint8_t *>(r.be->vt->alloc(r.be, r.pool_bytes));
    r.rows_bytes = static_cast<size_t>(g.n * g.width) * sizeof(float);
    r.rows = static_cast<float *>(r.be->vt->alloc(r.be, r.rows_bytes));
    r.n_chain = g.n_chain;
    r.n_vocab = g.n_vocab;
    r.chain = static_cast<int32_t *>(r.be->vt->alloc(r.be, CHAIN_BYTES));
    r.chain_out = static_cast<float *>(r.be->vt->alloc(r.be, CHAIN_OUT));
    assert_true(r.pool != nullptr && r.rows != nullptr);
    assert_true(r.chain != nullptr && r.chain_out != nullptr && g.n_vocab <= 128);
    r.be->vt->upload(r.be, r.rows, g.rows, r.rows_bytes);
    sl_kv_pools(&rc.kv, r.pool, N_PAGES + 1, rc.kv_pool);
    must(sl_run_create(r.model, &rc, &r.run, &err), &err, name);
    make_steps(&r, g, graphs);
    return r;
}

static void close_rig(rig *r)
{
    r->dev->forget(r->be, r);
    sl_run_destroy(r->run);
    r->be->vt->free(r->be, r->chain_out, CHAIN_OUT);
    r->be->vt->free(r->be, r->chain, CHAIN_BYTES);
    r->be->vt->free(r->be, r->rows, r->rows_bytes);
    r->be->vt->free(r->be, r->pool, r->pool_bytes);
    sl_model_close(r->model);
    sl_model_close(r->target);
    r->be->vt->destroy(r->be);
    sl_ckpt_close(r->ckpt[0]);
    sl_ckpt_close(r->ckpt[1]);
}

/* Of the last sequence. */
static void chain(rig *r)
{
    for (int32_t k = 0; k < r->n_chain; k++) {
        struct sl_draft_chain c = {};
        c.n = 1;
        c.rows = r->chain + k;
        c.prev = r->chain + N_MAX + k;
        c.first = k == 0;
        struct sl_op_copy_rows copy = {};
        copy.x = sl_run_draft_chain(r->run, &c);
        copy.ld_x = copy.ld_out = copy.h = r->n_vocab;
        copy.n = 1;
        copy.out = r->chain_out + k * r->n_vocab;
        r->be->vt->copy_rows(r->be, &copy);
    }
}

static void forward(void *arg, const struct sl_step *step)
{
    rig *r = static_cast<rig *>(arg);
    if (step->batch.n_logits > 0)
        r->logits = sl_run_enqueue(r->run, &step->batch), chain(r);
    else
        (void)sl_run_enqueue_draft(r->run, &step->batch, r->rows,
                                   static_cast<const int32_t *>(step->extra), false);
}

/* ------------------------------------------------------------------ steps */

/* tokens [from, from + n) of n_seqs sequences of the same text, each in pages of its own. Of the
 * text (rows alone) or a block; logits of the last one. */
static std::vector<float> run_step(rig *r, const golden &g, const int32_t *tokens, int32_t from,
                                   int32_t n, int32_t n_seqs, bool block)
{
    static const int32_t pages[2][4] = {{5, 2, 9, 3}, {11, 0, 7, 14}};
    struct sl_error err = {};
    std::vector<int32_t> all, positions, sources, wanted, tables;
    std::vector<struct sl_span> spans;
    uint64_t ticket = 0;
    for (int32_t s = 0; s < n_seqs; s++) {
        spans.push_back({s * n, n, from, 4 * s, 0});
        tables.insert(tables.end(), pages[n_seqs - 1 - s], pages[n_seqs - 1 - s] + 4);
        for (int32_t i = 0; i < n; i++) {
            wanted.push_back(static_cast<int32_t>(all.size()));
            all.push_back(tokens[i]);
            positions.push_back(from + i);
            sources.push_back(from + i);
        }
    }
    sources.resize(N_MAX); /* of padding */
    struct sl_step step = {};
    step.drafts = step.blocks = true;
    step.batch.n_tokens = static_cast<int32_t>(all.size());
    step.batch.n_spans = n_seqs;
    step.batch.n_logits = block ? step.batch.n_tokens : 0;
    step.batch.tokens = all.data();
    step.batch.positions = positions.data();
    step.batch.spans = spans.data();
    step.batch.block_tables = tables.data();
    step.batch.n_tables = 1;
    step.batch.logit_rows = wanted.data();
    if (!block) {
        step.extra = sources.data();
        step.extra_bytes = sources.size() * sizeof sources[0];
    }
    must(r->dev->step(r->be, &step, forward, r, &ticket, &err), &err, "step");
    must(r->dev->wait(r->be, ticket, nullptr, nullptr, &err), &err, "wait");
    std::vector<float> out(static_cast<size_t>(block ? n * g.n_vocab : 0));
    if (block)
        must(r->dev->download(r->be, out.data(), r->logits + (n_seqs - 1) * n * g.n_vocab,
                              out.size() * sizeof out[0], &err),
             &err, "download");
    return out;
}

/* What the chain of block i of the last sequence is made of. */
static void put_chain(rig *r, const golden &g, int32_t i, int32_t n_seqs)
{
    std::vector<int32_t> all(2 * N_MAX);
    for (int32_t k = 0; k < g.n_chain; k++) {
        all[static_cast<size_t>(k)] = n_seqs * g.block - g.n_chain + k;
        all[static_cast<size_t>(N_MAX + k)] =
            k == 0 ? g.ids[g.anchors[i]] : g.drafts[i * g.n_chain + k - 1];
    }
    r->be->vt->upload(r->be, r->chain, all.data(), CHAIN_BYTES);
}

/* All blocks, each behind the rows before its anchor; written over by the rows behind that. Then
 * what chains said, in `chains`. */
static std::vector<float> run_blocks(rig *r, const golden &g, int32_t chunk, int32_t n_seqs,
                                     std::vector<float> *chains)
{
    struct sl_error err = {};
    std::vector<float> said(static_cast<size_t>(g.n_chain * g.n_vocab));
    std::vector<float> out;
    int32_t at = 0;
    for (int32_t i = 0; i < g.n_anchors; i++) {
        const int32_t anchor = g.anchors[i];
        std::vector<int32_t> block(static_cast<size_t>(g.block),
                                   sl_model_facts(r->model)->draft_mask);
        block[0] = g.ids[anchor];
        for (int32_t n = 0; at < anchor; at += n) {
            n = anchor - at < chunk ? anchor - at : chunk;
            (void)run_step(r, g, g.ids + at + 1, at, n, n_seqs, false);
        }
        put_chain(r, g, i, n_seqs);
        const std::vector<float> x = run_step(r, g, block.data(), anchor, g.block, n_seqs, true);
        out.insert(out.end(), x.begin(), x.end());
        if (g.n_chain > 0)
            must(r->dev->download(r->be, said.data(), r->chain_out, said.size() * sizeof said[0],
                                  &err),
                 &err, "download");
        chains->insert(chains->end(), said.begin(), said.end());
    }
    return out;
}

static double nmse(const float *have, const float *want, size_t n)
{
    double e = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = static_cast<double>(have[i]) - static_cast<double>(want[i]);
        e += d * d;
        square += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    return e / square;
}

static void test_goldens(void **)
{
    static const struct {
        bool graphs;
        int32_t chunk, n_seqs;
    } ways[] = {{false, 40, 1}, {false, 3, 1}, {true, 3, 1}, {true, 4, 2}};
    for (const char *name : {"dflash", "dflash_windows", "dflash_speculators", "dspark",
                             "dspark_gated", "dspark_rnn"}) {
        const golden g = read_golden(name);
        std::vector<float> first, first_chains;
        for (const auto &way : ways) {
            rig r = open_rig(name, g, way.graphs);
            std::vector<float> chains;
            const std::vector<float> have = run_blocks(&r, g, way.chunk, way.n_seqs, &chains);
            const double e = nmse(have.data(), g.logits, have.size());
            printf("%s, %s, rows by %d, %d at once: NMSE %.2e\n", name,
                   way.graphs ? "recorded" : "enqueued", way.chunk, way.n_seqs, e);
            assert_true(e < bar);
            if (g.n_chain > 0) {
                const double of_chains = nmse(chains.data(), g.chain_logits, chains.size());
                printf("  drafts behind one another: NMSE %.2e\n", of_chains);
                assert_true(of_chains < bar);
                first_chains = first_chains.empty() ? chains : first_chains;
                assert_memory_equal(chains.data(), first_chains.data(),
                                    chains.size() * sizeof chains[0]);
            }
            first = first.empty() ? have : first;
            assert_memory_equal(have.data(), first.data(), have.size() * sizeof have[0]);
            close_rig(&r);
        }
        sl_free(g.chain);
        sl_free(g.data);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
