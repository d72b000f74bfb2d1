/* SPDX-License-Identifier: MIT
 * attention_prefill.cu - versions of attention for chunks of prompts, side by side: causal, pages
 * of 16 positions of F16 or FP8, 32 heads of 64, 128 or 256 dimensions over 8 key heads.
 *
 *   attention_prefill --list                             the versions
 *   attention_prefill --only NAME [--quick] [--dim N]    bits against `wide`, then the table
 *
 * Floor (H200, 132 multiprocessors). 64 rows and 128 keys are 4.2 MFLOP: 512 clk of the tensor
 * cores for the scores and 512 for the values, 989 TFLOP/s at 1.83 GHz. Beside them 8,192
 * exponentials, 512 clk at 16 a clock, and about 450 instructions a warp. Two warpgroups share an
 * SM: 2,048 clk of tensor cores for a tile of each, 64 KB from L2 (32 bytes a clock), 224 KB of
 * shared memory (109 bytes a clock of 128). Target: 640 at 8,192 queries, 680 at 32,768.
 *
 * TFLOP/s at 2,048 / 8,192 / 32,768 queries, and 16 x 512; one H200, 2026-11-22; 640 were hoped
 * for of each.
 *
 *           what                                                           measured
 *   (64)    tiles of 64 keys, nothing overlaps: what src/cuda had          243 / 326 / 347, 141
 *   (64o)   the next scores while values are added, state in registers     236 / 351 / 374, 112
 *   (128r)  128 keys, state, sums and scores in registers: 600 B of spills 222 / 279 / 268, 114
 *   (128)   the next scores with the values, state in shared memory        307 / 416 / 432, 156
 *   (128t)  the same, and the groups take turns by named barriers          319 / 430 / 453, 165
 *   (128j)  as 128; the join between the next scores and the values        312 / 422 / 453, 157
 *   (128jh) and half the values' products behind the maximum               311 / 424 / 442, 159
 *   (128jt) as 128j, in turns                                              313 / 413 / 433, 168
 *   wg      as 128; keys and values by a warp each, values given back in
 *           the midst of exponentials, no products by 1 in joins           314 / 446 / 492, 146
 *   (wgt)   the same in turns                                              317 / 440 / 463, 152
 *   (wg0)   wg without loads behind the first 300 keys: wrong results      322 / 488 / 550, 149
 *   wg      splits of 512 from 4,096 on: src/cuda                          322 / 451 / 485, 157
 *   (plain) the same splits; scores, probabilities and values one after
 *           the other, the state in registers                              322 / 443 / 481, 134
 *   (turns) plain, in turns for each product                               314 / 448 / 497, 142
 *
 * What stands above the second `wg` had splits of 256 from 1,024 to 16,384; versions in brackets
 * are gone.
 *
 * What was learnt, with clocks (wg, 32,768 queries, a tile of 128 keys of one warpgroup, with the
 * cost of the clocks: 3,800 clk in all):
 * - 820 clk go by until 16 products are issued. Some four are under way at a time and a warp waits
 *   to issue the next, so a product's time is its warp's time: behind the values nobody waits.
 * - 650 from there to references, 750 for exponentials, 170 to pack; both groups are often at the
 *   same, and share ALU and MUFU then.
 * - A join is 1,650 clk, on average 750 to 1,000 a tile, which makes it the largest of what is
 *   left: 64 KB of shared memory read and written beside products that take 64 to 96 bytes a clock
 *   of 128. But `plain`, which joins in registers, is no faster, nor are longer splits: what the
 *   versions have in common binds, and that is the chain from scores to packed probabilities, some
 *   1,500 clk for 330 instructions a warp, where MUFU alone would take 512. Not yet understood;
 *   operands of products under way take a third and more of the registers' bandwidth beside it.
 * - An item begins and ends in 9,000 to 11,000 clk (queries, first scores, last values, output):
 *   7 % at 8,192 queries, a quarter at 2,048.
 * - Loads are not waited for: without them the same clocks, and 9 % more speed, as the chip then
 *   runs at 1.76 GHz instead of 1.64. Power is what they cost.
 * - With two tiles of 64 as one of 128 (src/cuda now), another H200, with parts knocked out (wrong
 *   results); TFLOP/s at 2,048 queries behind 0 and 8,192, 8,192 and 32,768 behind 0:
 *     wg, places of operands in ordinary registers            306 / 466 / 430 / 487
 *     in uniform ones (src/cuda); 5 % more were expected      327 / 523 / 443 / 500
 *     and no joins of splits, nor what serves rare values     423 / 642 / 549 / 582
 *     products alone                                          550 / 907 / 831 / 929
 *   Products reach the ceiling, and joins are the largest of what is left: their 128 KB go through
 *   a shared memory of which scores take 96 bytes a clock of 128. Beyond that maxima are 3 %, sums
 *   4 %, exponentials and packing nothing.
 * - Exponentials that overlap the values for certain (the wait made to depend on their sum), 640
 *   being hoped for: 415 where 430 without. Groups in turns by mbarriers besides: 408. Half the
 *   exponentials by a polynomial: 6 % slower than none. Clocks fall from 1.78 to 1.5 GHz as a run
 *   gets longer, in all of these alike.
 * - Tried and not landed, as BF16 and heads of 64 had no run on a device: `wg` in turns, a quarter
 *   of the state in registers, references found anew for each tile so that nothing is spilled in
 * the loop, exponentials held before the wait for the values by a store that never happens and
 * hangs on their sum, queries prefetched to L2, results stored as whole rows. 336 / 434 / 484, 176
 * where `wg` had 328 / 431 / 472, 171 (again: 335 / 435 / 467, 177 for 326 / 435 / 457, 178). All
 * of the state in registers, and the next item's first scores begun with or behind the last values:
 * 216 / 327 / 335 and 260 / 355 / 352, with 936 and 278 bytes of spills.
 * - Clocks of a tile of a group there, without joins, 3,365 in all, of which the tensor cores work
 *   2,048 for both groups: 220 until its turn, 770 to 980 until products are issued and scores are
 *   there, 630 for maxima (in 4 chains or in 16 alike), 770 to 1,190 for exponentials, 170 to pack,
 *   300 to the next tile. A split's end adds 1,000: 600 for the join, 400 for a reference from
 *   nothing. So the chain of one group is longer than the products of both, and nobody waits for
 *   the tensor cores.
 * - A word spilled in the loop is a read of L2, as 28 KB of L1 are left: with 70 words and more the
 *   same chain took 5,000 to 7,000 clk.
 * - Next queries' first products begun with the last values: ptxas serializes all products (C7520).
 * - ptxas lets nothing that changes a sum stand between two products of it, not even behind a wait
 *   in a branch (C7515).
 * - The compiler moves sl_wgmma_wait above arithmetic, and gives registers of a product under way
 *   to others (C7513): sl_wgmma_keep on both sides.
 * - Parts of src/cuda knocked out once more, alone (wrong results, one H200, F16, the same columns,
 * and 16 x 512): all of it 331 / 482 / 470 / 495, 163. Nothing for late references nor values that
 * are no numbers 365 / 512 / 513 / 517, 183. Splits end, but join nothing 383 / 559 / 504 / 543,
 * 171. No splits 401 / 586 / 532 / 566, 172. None of these 425 / 591 / 610 / 580, 198. At 8,192 one
 * program varies by 10 % from run to run.
 * - So the first two are cheaper now: 351 / 500 / 490 / 512, 185; and results by whole rows 360 /
 * 492 / 470 / 511, 198.
 * - A state in registers, all splits 128 keys, whose sums are made from nothing, 64 dimensions
 * after 64, and join it in the midst of exponentials: 333 / 445 / 425 to 474 / 416, 166 with a
 * quarter of it in shared memory (a half: 311 / 409 / 406 / 384, 162). Four waits a pair instead of
 * two cost more than joins. Splits of 512, 1,024 and 2,048 keys for 128, 256 and 512: 375 / 514 /
 * 557 / 528, 176, but then a decode of one sequence has a quarter of the parts. Splits of 1,024
 * from 16,384 on and of 2,048 from 65,536: 8,192 behind 122,880 525 for 512, 512 behind 131,072 525
 * for 502.
 * - A join between the next scores and the values: 322 where 351 at the end of a step.
 * - The next item's queries asked for before the last join: 337 for 347, 16 x 512 184 for 179.
 * - Two warpgroups for 64 dimensions, nothing spilled: 235 / 348 / 349 / 367, 141 for 227 / 321 /
 * 347 / 383, 133.
 * - Clocks of an item of 16 x 512 before results by whole rows (some 20,000; the clocks cost): to
 * get queries 3,400, scores 900, probabilities 1,500, steps 5,000 each, the last values 1,300,
 * the last join and results 2,800. Of a step: until scores are there 1,200, half of the
 * exponentials and the values 1,700, the other half 900, a join 1,000 (2,000 at 32,768 queries,
 * each fourth step), and 400 until the next.
 *
 * - Splits' lengths once more, of today's kernel, one call of one H200, and what they cost where a
 * decode has one sequence (768 positions, us) and where FP8 batches have many (256 x 540):
 *
 *   keys of a split                        2,048  8,192  32,768  16 x 512     768   256 x 540
 *   128, from 1,024 256, 4,096 512           356    470     510       220     6.2         113
 *   256, from 1,024 512                      380    492     521       222     8.2         147
 *   512                                      388    492     523       224    10.9         118
 *   512, from 4,096 1,024                    398    497     533       225
 *   cuDNN, BF16, another call                399    542     600       325
 *
 *   (768 and 256 x 540 of 512 by a kernel whose four warps share each 128 keys, of 256 by today's.)
 *   So splits are worth 10 % at 2,048 and 5 behind more, and a decode pays more than that.
 *
 * - A second tile's late reference, the order of a step's second half, queries by the copy engine
 * (F16 pages, one H200 a call, two or three rounds in turn; TFLOP/s at 512, 2,048, 16 x 512, 2,048
 * behind 8,192, 512 behind 131,072; us of 2,048 behind 8,192 with keys of lengths as in
 * attention_skip.cu, x 8 none short, x 2 70 % short):
 *
 *   a late pair's product all again by mma.sync      131  359  222  480  526   1,209  914
 *   zeros for the late tile, which mma.sync adds     130  370  222  493  545   1,041  801
 *   and values waited for before exponentials        131  372  224  490  545   1,050  813
 *   and queries brought as a tile                    128  374  236  496  547     998  793
 *   the same, a copy for each row, not for a token   118  345  213  475  513
 *   queries by loads of whole rows                   115  327  188  464  507
 *   scores and values waited for at once             128  353  222  477  521
 *   joins in the midst of a row's exponentials       125  351  213  483  535
 *   queries in registers, scores' A operand          121  343  214  464  521
 *   the next item's queries and first scores behind
 *   the last values, results beside them             121  329  212  459  506
 *   three groups of 64 rows, tiles of 64 keys         80  282  150  402  460     807  769
 *
 *   (The last five on top of versions some per cent from the ones above: of joins 371, 222 and 554
 *   in the same call, of queries in registers 352, 222 and 525, of the next item's 352, 223 and
 *   525.) A pair of a late tile still costs: the sums kept before the product, all the row's
 *   exponentials of a new reference, and the group waits for its slowest warp.
 * - 64 dimensions, the same columns: before 63 227 139 322 360; with that order 62 225 136 315 338;
 *   with the values waited for before references, too: 64 230 137 317 353, which src/cuda has.
 * - `volatile` members of a class that the compiler takes apart are registers all the same, and
 *   what each pair needs was spilled in their place. What a loop that is not unrolled indexes is
 *   memory.
 * - The compiler had half of the exponentials behind the wait for values that stood before it, and
 *   where all stand behind it nothing is slower: the other group's products run beside them.
 *
 * 256 dimensions (attention_single.cuh), parts knocked out, TFLOP/s at 2,048, 8,192, 512 behind
 * 131,072:
 *
 *   wide, mma.sync                                              61   85   94
 *   state in L2, its loads two or three at a time              207  293  370
 *   state in L2, eight at a time                               302  405  490
 *   no loads of keys and values behind the first 300           313  447  593
 *   no probabilities: scores as they are                       314  418  532
 *   no joins                                                   474  603  659
 *   a quarter of it in shared memory, twelve at a time         314  431  537
 *
 * So a join, 7,600 clk for 512 keys, is what is left there.
 */
#include "lab.h"

#include "cuda/attention/attention_tmpl.cuh"
#include "cuda/bench_attention.h"

/* ------------------------------------------------------------------ versions */

typedef void run_fn(struct sl_cuda *cu, const struct sl_attn_args *a, int32_t grid);

#define F16 struct sl_kv_f16
#define FP8 struct sl_kv_fp8
static const struct version {
    const char *name, *what;
    enum sl_dtype dtype;
    run_fn *run[3]; /* of 64, 128 and 256 dimensions */
} versions[] = {
    {"wide",
     "mma.sync: the bits",
     SL_DTYPE_F16,
     {sl_attn_run_wide<F16, 64, false>, sl_attn_run_wide<F16, 128, false>,
      sl_attn_run_wide<F16, 256, false>}},
    {"wg",
     "of src/cuda",
     SL_DTYPE_F16,
     {sl_attn_run_group<sl_attn_wg<F16, 64>>, sl_attn_run_group<sl_attn_wg<F16, 128>>,
      sl_attn_run_group<sl_attn_single<F16, 256, 2>>}},
    {"wide-fp8",
     "mma.sync, pages of FP8: the bits",
     SL_DTYPE_FP8_E4M3,
     {sl_attn_run_wide<FP8, 64, false>, sl_attn_run_wide<FP8, 128, false>,
      sl_attn_run_wide<FP8, 256, false>}},
    {"wg-fp8",
     "of src/cuda, pages of FP8",
     SL_DTYPE_FP8_E4M3,
     {sl_attn_run_group<sl_attn_wg<FP8, 64>>, sl_attn_run_group<sl_attn_wg<FP8, 128>>,
      sl_attn_run_group<sl_attn_single<FP8, 256, 2>>}},
};

static const struct version *version; /* that runs */

#define RUN(name, i)                                                                   \
    void name(struct sl_cuda *cu, const struct sl_attn_args *a, int cls, int32_t grid) \
    {                                                                                  \
        if (cls == 1)                                                                  \
            version->run[i](cu, a, grid);                                              \
    }                                                                                  \
    static_assert(true, "")
RUN(sl_attn_run_f16_64, 0);
RUN(sl_attn_run_f16_128, 1);
RUN(sl_attn_run_f16_256, 2);
RUN(sl_attn_run_fp8_64, 0);
RUN(sl_attn_run_fp8_128, 1);
RUN(sl_attn_run_fp8_256, 2);

/* What attention.cu could start besides. */
#define NONE(name)                                                         \
    void name(struct sl_cuda *, const struct sl_attn_args *, int, int32_t) \
    {                                                                      \
    }                                                                      \
    static_assert(true, "")
NONE(sl_attn_run_16);
NONE(sl_attn_run_32);
NONE(sl_attn_run_64);
NONE(sl_attn_run_80);
NONE(sl_attn_run_96);
NONE(sl_attn_run_128);
NONE(sl_attn_run_256);
NONE(sl_attn_run_f16_16);
NONE(sl_attn_run_f16_32);
NONE(sl_attn_run_f16_80);
NONE(sl_attn_run_f16_96);
NONE(sl_attn_run_fp8_16);
NONE(sl_attn_run_fp8_32);
NONE(sl_attn_run_fp8_80);
NONE(sl_attn_run_fp8_96);

/* ------------------------------------------------------------------ one case */

static size_t workspace_bytes(const struct attn_case &c, struct attn_dims d)
{
    struct sl_cuda_attention_limits m = {c.n_seqs * c.n, c.n_seqs, c.pos + c.n,
                                         d.n_heads,      d.n_kv,   d.hd};
    return sl_cuda_attention_workspace(&lab_cu, &m);
}

/* Calls f(op, out, n) with a planned case. */
template <class F> static void with(struct attn_dims d, const struct attn_case &c, int window, F f)
{
    const size_t n = static_cast<size_t>(c.n_seqs) * static_cast<size_t>(c.n) *
                     static_cast<size_t>(d.n_heads) * static_cast<size_t>(d.hd);
    attn_device on(c);
    dev<uint8_t> workspace(workspace_bytes(c, d));
    dev<float> q(n);
    dev<uint16_t> out(n), want(n);
    fill(q.p, n, FILL_F32, ATTN_PASS);
    lab_cu.workspace = workspace.p;
    lab_cu.workspace_bytes = workspace.n;
    struct sl_op_attention op = {};
    op.batch = &on.batch;
    op.q = q.p;
    op.ld_q = op.ld_out = static_cast<int64_t>(d.n_heads) * d.hd;
    op.n_heads = d.n_heads;
    op.n_kv_heads = d.n_kv;
    op.head_dim = d.hd;
    op.window = window;
    op.scale = static_cast<float>(1.0 / sqrt(static_cast<double>(d.hd)));
    op.out = out.p;
    sl_cuda_attention_plan(&lab_cu, &on.batch, d.n_heads, d.n_kv, d.hd);
    f(op, out, want, n);
    lab_must_be_well("case");
}

static void attend(const struct version *v, struct sl_op_attention op, uint16_t *out)
{
    version = v;
    op.out = out;
    sl_cuda_attention(&lab_cu.base, &op);
}

/* The wide kernel over the same pages. */
static const struct version *reference(enum sl_dtype dtype)
{
    const struct version *v = versions;
    while (v->dtype != dtype)
        v++;
    return v;
}

/* Bits against it. */
static void check(const struct version *v, const dev<uint16_t> *pool, struct attn_dims d, int seqs,
                  int n, int pos, int window)
{
    struct attn_case c = attn_make(d, seqs, n, pos, 1);
    CHECK(attn_pool_bytes(&c) <= pool->n * 2, "pool");
    with(d, c, window,
         [&](struct sl_op_attention op, dev<uint16_t> &out, dev<uint16_t> &want, size_t n_out) {
             op.kv = attn_view(&c, pool, 0);
             attend(reference(d.dtype), op, want.p);
             lab_must_be_well("wide");
             attend(v, op, out.p);
             lab_must_be_well(v->name);
             unsigned long long bad = lab_differ(out.p, want.p, n_out / 2);
             printf("%-9s d%-3d %d x %5d behind %5d window %4d: %llu words differ\n", v->name, d.hd,
                    seqs, n, pos, window, bad);
             if (window == 0)
                 attn_check(&c, d, &want, 0);
             fflush(stdout);
             if (bad > 0)
                 exit(2);
         });
}

static void measure(const struct version *v, const dev<uint16_t> *pool, struct attn_dims d,
                    int seqs, int n, int pos, double ms)
{
    struct attn_case c = attn_make(d, seqs, n, pos, 8);
    CHECK(attn_pool_bytes(&c) <= pool->n * 2, "pool");
    with(d, c, 0, [&](struct sl_op_attention op, dev<uint16_t> &out, dev<uint16_t> &, size_t) {
        double us = time_us(c.n_layers, ms, [&](int layer) {
            op.kv = attn_view(&c, pool, layer);
            attend(v, op, out.p);
        });
        double pairs = static_cast<double>(n) * pos + 0.5 * n * (n + 1.0);
        double flops = 4.0 * d.hd * d.n_heads * pairs * seqs;
        printf("%-9s d%-3d %d x %5d behind %5d %9.1f us %6.1f TFLOP/s\n", v->name, d.hd, seqs, n,
               pos, us, flops / us * 1e-6);
        fflush(stdout);
    });
}

static void check_all(const struct version *v, const dev<uint16_t> *pool, struct attn_dims d)
{
    check(v, pool, d, 1, 700, 0, 0);
    check(v, pool, d, 3, 77, 1111, 0);
    check(v, pool, d, 1, 600, 3000, 0);
    check(v, pool, d, 1, 999, 1500, 700);
    check(v, pool, d, 1, 40, 30000, 0);
    check(v, pool, d, 1, 128, 65536, 0);
}

static void measure_all(const struct version *v, const dev<uint16_t> *pool, struct attn_dims d,
                        bool quick)
{
    static const struct {
        int seqs, n, pos;
        double ms;
        bool quick;
    } cases[] = {
        {1, 512, 0, 30.0, true},      {1, 2048, 0, 30.0, true},      {1, 8192, 0, 60.0, true},
        {16, 512, 0, 30.0, true},     {4, 2048, 0, 30.0, false},     {1, 2048, 8192, 60.0, false},
        {1, 32768, 0, 100.0, false},  {1, 8, 16384, 20.0, false},    {1, 32, 32768, 20.0, false},
        {1, 128, 32768, 20.0, false}, {1, 128, 65536, 20.0, true},   {1, 600, 32768, 40.0, false},
        {1, 8, 131072, 20.0, false},  {1, 128, 131072, 20.0, false}, {1, 512, 131072, 40.0, true},
    };
    for (const auto &c : cases)
        if (c.quick || !quick)
            measure(v, pool, d, c.seqs, c.n, c.pos, c.ms);
}

static int usage()
{
    fprintf(stderr, "attention_prefill --list | --only NAME [--quick] [--dim 64|128|256]\n");
    return 2;
}

int main(int argc, char **argv)
{
    const struct version *v = nullptr;
    bool quick = false;
    int dim = 128;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) {
            for (const struct version &x : versions)
                printf("%-9s %s\n", x.name, x.what);
            return 0;
        }
        if (!strcmp(argv[i], "--only") && i + 1 < argc) {
            i++;
            for (const struct version &x : versions)
                if (!strcmp(argv[i], x.name))
                    v = &x;
        } else if (!strcmp(argv[i], "--dim") && i + 1 < argc) {
            dim = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--quick")) {
            quick = true;
        }
    }
    if (v == nullptr || (dim != 64 && dim != 128 && dim != 256))
        return usage();
    lab_start();
    dev<uint16_t> pool(b.tiny ? static_cast<size_t>(2) << 20 : static_cast<size_t>(1) << 30);
    const struct attn_dims d = {32, 8, dim, v->dtype};
    attn_fill(reinterpret_cast<uint8_t *>(pool.p), pool.n * 2, d);
    if (b.tiny) {
        const struct attn_dims t = {4, 1, dim, v->dtype};
        check(v, &pool, t, 1, 40, 0, 0);
        check(v, &pool, t, 2, 70, 17, 0);
        check(v, &pool, t, 1, 33, 1200, 0);
        check(v, &pool, t, 1, 33, 1300, 100);
        return 0;
    }
    check_all(v, &pool, d);
    measure_all(v, &pool, d, quick);
    return 0;
}
