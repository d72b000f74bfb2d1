/* SPDX-License-Identifier: MIT
 * Paged attention and the store into the pages, src/cuda. Against references in double (attention)
 * or of the same bits (store); and attention against itself: a row must have the same bits whether
 * its token came in a long chunk, a short one, as a decode, with other sequences, with padding, on
 * any number of SMs, or with hardly any workspace. Whatever no row may see is NaN: slots nobody has
 * written, pages nobody owns, the space between rows. Runs in the simulator or on a GPU.
 */
#include "attention_scene.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/kv.cuh"
#include "cuda/device.h"
#include "device_array.h"
#include "quant/float.h"
#include "quant/fp8_e4m3.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#ifdef SL_CUDA_SIM
#include "sim.h"
#endif

/* ---------------------------------------------------------------- reference */

/* The tiles that a row with these scores leaves out, by the text of attention.cuh; false: one is so
 * near the limit that a rounding decides. */
static bool left_out(const scene &s, int pos, std::vector<double> &score)
{
    double best = -INFINITY, m = -INFINITY;
    const double reach = log((double)s.skip / (pos + 1));
    if (s.skip == 0.0f || s.window > 0 || pos < SL_SKIP_FROM || reach >= 0)
        return true;
    for (int j = 0; j < 16; j++)
        best = std::max(best, score[(size_t)j]);
    for (int t = 0; t * 64 <= pos; t++) {
        const int size = t < 16 ? 2 : t < 64 ? 4 : 8; /* tiles of a split */
        double top = -INFINITY;
        if (t % size == 0)
            m = -INFINITY;
        for (int j = t * 64; j < std::min(t * 64 + 64, pos + 1); j++)
            top = std::max(top, score[(size_t)j]);
        const double limit = std::max(best, m) + reach;
        if (fabs(top - limit) < 1e-3 || fabs(top - m - 8 * log(2.0)) < 1e-3)
            return false;
        for (int j = t * 64; top < limit && j < std::min(t * 64 + 64, pos + 1); j++)
            score[(size_t)j] = -INFINITY;
        if (top >= limit && top - m > 8 * log(2.0))
            m = top;
    }
    return true;
}

/* One head of one row in double. The output, a BF16, is wrong by up to 2^-8 of itself, and so are
 * the probabilities, or by 2^-11 in F16. */
static void check_row(const scene &s, int seq, int pos, int head, const uint16_t *got)
{
    const int kv = head / (s.nq / s.nkv);
    const int from = s.seen_from(pos), last = s.seen_last(seq, pos);
    std::vector<double> score, sum((size_t)s.hd, 0.0), size((size_t)s.hd, 0.0);
    std::vector<float> q((size_t)s.hd);
    for (int d = 0; d < s.hd; d++)
        q[(size_t)d] = rounded(s.format, s.q(seq, pos, head, d));
    double top = s.sinks ? (double)s.sink(head) : -INFINITY, l = 0.0;
    for (int j = from; j <= last; j++) {
        double x = 0.0;
        for (int d = 0; d < s.hd; d++)
            x += (double)q[(size_t)d] * (double)s.k(seq, j, kv, d);
        x *= (double)s.scale();
        if (s.softcap > 0.0f)
            x = (double)s.softcap * tanh(x / (double)s.softcap);
        score.push_back(x);
        top = std::max(top, x);
    }
    if (!left_out(s, pos, score))
        return;
    for (int j = from; j <= last; j++) {
        double p = exp(score[(size_t)(j - from)] - top);
        l += p;
        for (int d = 0; d < s.hd; d++) {
            double v = (double)s.v(seq, j, kv, d);
            sum[(size_t)d] += p * v;
            size[(size_t)d] += p * fabs(v);
        }
    }
    if (s.sinks)
        l += exp((double)s.sink(head) - top);
    for (int d = 0; d < s.hd; d++) {
        double want = sum[(size_t)d] / l, have = (double)from_bf16(got[d]);
        double p_error = s.format == SL_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
        double allowed = fabs(want) / 256 + size[(size_t)d] / l * p_error + 1e-6;
        CHECK(fabs(have - want) <= allowed,
              "hd %d heads %d/%d window %d seq %d pos %d head %d d %d: %g, not %g", s.hd, s.nq,
              s.nkv, s.window, seq, pos, head, d, have, want);
    }
    n_rows_checked++;
}

static void check_rows(const scene &s, const std::vector<span_of> &spans, const rows_of &rows,
                       int every)
{
    size_t at = 0;
    for (const span_of &x : spans) {
        if (x.seq < 0)
            continue;
        for (int t = 0; t < x.n; t++, at++)
            for (int h = 0; h < s.nq; h++)
                if ((t * s.nq + h) % every == 0 || t == 0 || t == x.n - 1)
                    check_row(s, x.seq, x.pos + t, h, &rows[at][(size_t)(h * s.hd)]);
    }
}

/* Every row of a against the row of the same sequence and position in b, where there is one. */
static void same_bits(const char *what, const scene &s, const std::vector<span_of> &sa,
                      const rows_of &a, const std::vector<span_of> &sb, const rows_of &b)
{
    size_t at = 0;
    for (const span_of &x : sa) {
        if (x.seq < 0)
            continue;
        for (int t = 0; t < x.n; t++, at++) {
            size_t bt = 0;
            for (const span_of &y : sb) {
                if (y.seq < 0)
                    continue;
                int i = x.pos + t - y.pos;
                if (y.seq == x.seq && i >= 0 && i < y.n) {
                    const std::vector<uint16_t> &ra = a[at], &rb = b[bt + (size_t)i];
                    bool same = true; /* a NaN is a NaN */
                    for (size_t c = 0; c < ra.size(); c++)
                        same = same && (ra[c] == rb[c] ||
                                        ((ra[c] & 0x7FFF) > 0x7F80 && (rb[c] & 0x7FFF) > 0x7F80));
                    CHECK(same, "%s: hd %d heads %d/%d bs %d window %d seq %d pos %d", what, s.hd,
                          s.nq, s.nkv, s.bs, s.window, x.seq, x.pos + t);
                    n_rows_compared++;
                }
                bt += (size_t)y.n;
            }
        }
    }
}

/* ---------------------------------------------------------------- cases */

static scene make_scene(int hd, int nq, int nkv, int bs, std::vector<int> lens, uint64_t seed,
                        enum sl_dtype format = SL_DTYPE_BF16)
{
    scene s = {hd, nq, nkv, bs, 0, 0.0f, false, lens, seed};
    s.format = format;
    return s;
}

/* Whole prefills are right, and pieces of them have the same bits. decodes: positions. */
static void check_scene(const scene &s, int every, std::vector<int> chunks,
                        std::vector<int> decodes)
{
    std::vector<span_of> whole;
    for (size_t i = 0; i < s.lens.size(); i++)
        whole.push_back({(int)i, 0, s.lens[i]});
    rows_of all = run(s, whole, 3);
    if (s.odd_pos < 0)
        check_rows(s, whole, all, every);
    for (int chunk : chunks) /* the last chunks of each sequence, with each other */
        for (int back = 0; back < 2; back++) {
            std::vector<span_of> part;
            for (size_t i = 0; i < s.lens.size(); i++) {
                int pos = (s.lens[i] - 1) / chunk * chunk - back * chunk;
                if (pos >= 0)
                    part.push_back({(int)i, pos, std::min(chunk, s.lens[i] - pos)});
            }
            if (!part.empty())
                same_bits("chunk", s, part, run(s, part, back ? 1 : 40), whole, all);
        }
    for (int pos : decodes) {
        std::vector<span_of> part, padded;
        for (size_t i = 0; i < s.lens.size(); i++)
            if (pos < s.lens[i])
                part.push_back({(int)i, pos, 1});
        if (part.empty())
            continue;
        padded = part;
        padded.push_back({-1, 0, 1});
        padded.push_back({-1, 0, 1});
        rows_of got = run(s, part, 1 + pos % 50);
        same_bits("decode", s, part, got, whole, all);
        if (pos % 3 == 0)
            same_bits("padded decode", s, padded, run(s, padded, 3, pos % 2 ? -1 : 4, 2), part,
                      got);
    }
}

/* Every head dimension and group; splits, tiles and pages end on, before and behind lengths. */
static void test_shapes()
{
    static const struct {
        int hd, nq, nkv, bs;
    } shapes[] = {{64, 2, 2, 16},  {64, 5, 1, 32},  {80, 4, 1, 16},  {72, 7, 1, 64},
                  {96, 4, 2, 48},  {128, 8, 1, 16}, {128, 4, 2, 32}, {256, 2, 1, 16},
                  {64, 20, 1, 16}, {16, 3, 1, 16},  {32, 2, 1, 16}};
    uint64_t seed = 1;
    for (auto x : shapes) {
        scene s = make_scene(x.hd, x.nq, x.nkv, x.bs, {1, 64, 33, 130}, seed++);
        check_scene(s, 11, {7}, {0, 63, 64, 129});
    }
}

/* Pages of F16: every head dimension, values and queries that are no numbers. */
static void test_f16()
{
    static const struct {
        int hd, nq, nkv, bs;
    } shapes[] = {{16, 3, 1, 16}, {32, 2, 1, 32},  {64, 5, 1, 16}, {72, 2, 2, 16},
                  {96, 4, 2, 48}, {128, 8, 1, 16}, {256, 2, 1, 16}};
    uint64_t seed = 31;
    for (auto x : shapes) {
        scene s = make_scene(x.hd, x.nq, x.nkv, x.bs, {130, 33}, seed++, SL_DTYPE_F16);
        check_scene(s, 11, {7}, {64, 129});
    }
    scene odd = make_scene(96, 4, 2, 16, {130}, seed++, SL_DTYPE_F16);
    odd.odd_pos = 100;
    check_scene(odd, 1, {7}, {99, 100, 129});
    for (int hd : {64, 96, 256}) { /* by wgmma, by mma.sync, by wgmma of single tiles */
        scene s = make_scene(hd, 4, 1, 16, {70}, seed++, SL_DTYPE_F16);
        s.q_times = INFINITY;
        const std::vector<span_of> whole = {{0, 0, 70}}, last = {{0, 69, 1}};
        for (const rows_of &rows : {run(s, whole, 3), run(s, last, 3)})
            for (const std::vector<uint16_t> &row : rows)
                for (uint16_t x : row)
                    CHECK((x & 0x7FFF) > 0x7F80, "hd %d: %#x of an infinite query", hd, x);
    }
}

/* Outputs of pages that hold values as they are, as attention has them over rotated ones. */
static rows_of rotated_back(const scene &s, rows_of rows)
{
    for (std::vector<uint16_t> &row : rows)
        for (int at = 0; at < s.nq * s.hd; at += s.hd) {
            std::vector<float> x((size_t)s.hd);
            for (int d = 0; d < s.hd; d++)
                x[(size_t)d] = from_bf16(row[(size_t)(at + d)]);
            sl_kv4_rotate_back(x.data(), s.hd);
            for (int d = 0; d < s.hd; d++)
                row[(size_t)(at + d)] = to_bf16(x[(size_t)d]);
        }
    return rows;
}

/* Pages of codes give the bits of pages of BF16 with the same values: all from `from` on, a chunk,
 * decodes, values that are no numbers, and with a window whose first keys share words of scales
 * with keys nobody sees. */
static void check_codes(enum sl_dtype format, scene s, std::vector<int> decodes, int from = 0)
{
    std::vector<span_of> whole, chunk;
    for (size_t i = 0; i < s.lens.size(); i++) {
        whole.push_back({(int)i, from, s.lens[i] - from});
        int n = std::min(s.lens[i], 9);
        chunk.push_back({(int)i, s.lens[i] - n, n});
    }
    s.held = format;
    rows_of want = run(s, whole, 3);
    s.format = format;
    if (format == SL_KV_TURBO4)
        want = rotated_back(s, want);
    same_bits("codes", s, whole, run(s, whole, 3), whole, want);
    if (!s.whole)
        same_bits("codes, chunk", s, chunk, run(s, chunk, 2), whole, want);
    for (int pos : decodes) {
        std::vector<span_of> part;
        for (size_t i = 0; i < s.lens.size(); i++)
            part.push_back({(int)i, std::min(pos, s.lens[i] - 1), 1});
        part.push_back({-1, 0, 1});
        same_bits("codes, decode", s, part, run(s, part, 1 + pos % 50), whole, want);
    }
}

static void check_fp8(const scene &s, const std::vector<int> &decodes, int from = 0)
{
    check_codes(SL_DTYPE_FP8_E4M3, s, decodes, from);
}

/* Pages of four-bit codes: every head dimension there is; windows, values that are no numbers, more
 * pages than a warp knows at once, drafts, rows that see all, tiles that are left out. */
static void test_turbo4()
{
    const enum sl_dtype four = SL_KV_TURBO4;
    static const struct {
        int hd, nq, nkv, bs;
    } shapes[] = {
        {64, 5, 1, 16}, {128, 8, 1, 16}, {256, 2, 1, 16}, {64, 20, 2, 32}, {128, 24, 2, 48}};
    uint64_t seed = 181;
    for (auto x : shapes)
        check_codes(four, make_scene(x.hd, x.nq, x.nkv, x.bs, {150, 33}, seed++), {63, 149});
    for (int hd : {64, 128, 256}) {
        scene s = make_scene(hd, 2, 1, 16, {150}, seed++);
        s.window = 37;
        for (int odd : {-1, 112}) {
            s.odd_pos = odd;
            check_codes(four, s, {149});
        }
        s = make_scene(hd, 4, 1, 16, {4400}, seed++);
        check_codes(four, s, {4399, 4390}, 4380);
        s.window = 700;
        check_codes(four, s, {4399}, 4380);
        s = make_scene(hd, 2, 1, 16, {200, 40}, seed++);
        s.whole = true;
        check_codes(four, s, {});
        s = make_scene(hd, 4, 1, 16, {530}, seed++);
        s.skip = 200.0f;
        check_codes(four, s, {512, 529});
    }
}

static void test_fp8()
{
    static const struct {
        int hd, nq, nkv, bs;
    } shapes[] = {{16, 3, 1, 16}, {32, 2, 1, 32},  {64, 5, 1, 16}, {72, 2, 2, 16},
                  {96, 4, 2, 48}, {128, 8, 1, 16}, {256, 2, 1, 16}};
    uint64_t seed = 61;
    for (auto x : shapes)
        check_fp8(make_scene(x.hd, x.nq, x.nkv, x.bs, {70, 33}, seed++), {63});
    check_fp8(make_scene(120, 4, 1, 16, {600, 40}, 71), {255, 512, 599});
    for (int hd : {64, 128, 256}) {
        scene s = make_scene(hd, 2, 1, 16, {150}, 72);
        s.window = 37;
        for (int odd : {-1, 112, 113}) {
            s.odd_pos = odd;
            check_fp8(s, {149});
        }
        s = make_scene(hd, 2, 1, 16, {4400}, seed++); /* more pages than a warp knows at once */
        check_fp8(s, {4399}, 4380);
        s.window = 700; /* which is fewer keys than there are */
        check_fp8(s, {4399}, 4380);
    }
}

static void test_long()
{
    check_scene(make_scene(64, 4, 1, 16, {1100, 257}, 21), 41, {512, 3},
                {255, 256, 511, 767, 768, 1023, 1024, 1099});
    check_scene(make_scene(128, 8, 1, 64, {520}, 22, SL_DTYPE_F16), 41, {64, 2}, {256, 383, 519});
    check_scene(make_scene(256, 4, 2, 32, {300}, 23), 41, {64, 7}, {255, 256, 299});
}

static void test_windows()
{
    static const int windows[] = {1, 16, 100, 256, 300};
    uint64_t seed = 41;
    for (int w : windows) {
        scene s =
            make_scene(64, 4, 1, 16, {600, 90}, seed, seed % 2 ? SL_DTYPE_BF16 : SL_DTYPE_F16);
        seed++;
        s.window = w;
        check_scene(s, 29, {64, 7}, {62, 319, 599});
    }
    scene s = make_scene(256, 4, 2, 16, {420}, seed);
    s.window = 100;
    check_scene(s, 29, {64, 7}, {62, 319, 419});
}

/* Rows see their own chunk only: the first of one sees itself alone. */
static void test_chunks()
{
    uint64_t seed = 45;
    for (int w : {1, 16, 100, 256, 300}) {
        scene s =
            make_scene(64, 4, 1, 16, {620, 90}, seed, seed % 2 ? SL_DTYPE_BF16 : SL_DTYPE_F16);
        seed++;
        s.window = w;
        s.chunks = true;
        check_scene(s, 29, {64, 7}, {62, 300, 599, 619});
    }
    scene s = make_scene(32, 4, 2, 16, {420}, seed);
    s.window = 100;
    s.chunks = true;
    check_fp8(s, {62, 399, 400, 419});
}

static void test_softcap_and_sinks()
{
    scene s = make_scene(64, 4, 2, 16, {300}, 61);
    s.softcap = 3.0f;
    check_scene(s, 11, {7}, {255, 299});
    s.sinks = true;
    s.format = SL_DTYPE_F16;
    check_scene(s, 11, {64}, {298});
    s.softcap = 0.0f;
    s.window = 70;
    check_scene(s, 11, {64}, {296});
}

/* Rows that see keys behind their own: right, and of the same bits alone, beside other texts, on
 * any number of SMs, with hardly any workspace. */
static void check_whole(const scene &s, int every)
{
    std::vector<span_of> all;
    for (size_t i = 0; i < s.lens.size(); i++)
        all.push_back({(int)i, 0, s.lens[i]});
    rows_of want = run(s, all, 3);
    if (s.odd_pos < 0)
        check_rows(s, all, want, every);
    for (const span_of &x : all)
        same_bits("alone", s, {x}, run(s, {x}, x.n % 2 ? 1 : 60), all, want);
    same_bits("many SMs, two layers", s, all, run(s, all, 132, -1, 2), all, want);
    same_bits("few slots", s, all, run(s, all, 40, 300), all, want);
    std::vector<span_of> ends; /* blocks of drafts behind text that lies in pages */
    for (const span_of &x : all)
        ends.push_back({x.seq, std::max(x.n - 16, 0), std::min(x.n, 16)});
    for (const span_of &x : ends)
        same_bits("an end", s, {x}, run(s, {x}, x.pos % 2 ? 1 : 60), all, want);
    same_bits("ends", s, ends, run(s, ends, 132, -1, 2), all, want);
}

static void test_whole()
{
    static const struct {
        int hd, nq, nkv, bs;
        enum sl_dtype format;
    } shapes[] = {{16, 3, 3, 16, SL_DTYPE_F16},  {32, 2, 2, 32, SL_DTYPE_BF16},
                  {64, 4, 2, 16, SL_DTYPE_F16},  {96, 2, 1, 48, SL_DTYPE_F16},
                  {128, 1, 1, 32, SL_DTYPE_F16}, {256, 2, 1, 16, SL_DTYPE_BF16},
                  {128, 4, 1, 16, SL_DTYPE_BF16}};
    uint64_t seed = 141;
    for (auto x : shapes)
        for (int window : {0, 65}) {
            scene s = make_scene(x.hd, x.nq, x.nkv, x.bs, {1, 140, 64}, seed++, x.format);
            s.whole = true;
            s.window = window;
            check_whole(s, 17);
        }
    for (int hd : {16, 64}) /* several splits, and parts of them */
        for (int window : {0, 150}) {
            scene s = make_scene(hd, 1, 1, 16, {1100, 257}, seed++, SL_DTYPE_F16);
            s.whole = true;
            s.window = window;
            check_whole(s, 61);
        }
    for (int hd : {64, 96, 256}) /* a value that is no number reaches the rows that see it only */
        for (int window : {0, 40}) {
            scene s = make_scene(hd, 1, 1, 16, {200}, seed++, SL_DTYPE_F16);
            s.whole = true;
            s.window = window;
            s.odd_pos = 190;
            check_whole(s, 1);
            rows_of rows = run(s, {{0, 0, 200}}, 3);
            int n_nan = 0;
            for (const std::vector<uint16_t> &row : rows)
                n_nan += (row[1] & 0x7FFF) > 0x7F80;
            CHECK(n_nan == (window > 0 ? window - 1 + 10 : 200), "hd %d: %d rows are NaN", hd,
                  n_nan);
        }
    scene s = make_scene(64, 2, 1, 16, {300, 40}, seed++); /* pages of FP8, of BF16's bits */
    s.whole = true;
    for (int window : {0, 30}) {
        s.window = window;
        check_fp8(s, {});
    }
}

/* Skip-softmax: the rows are right without what they leave out, and their bits are their own; with
 * a factor that nothing is below they are those of all tiles. */
static void test_skip()
{
    static const struct {
        int hd, nq, nkv, bs;
        enum sl_dtype format;
        float softcap;
    } shapes[] = {{64, 4, 1, 16, SL_DTYPE_F16, 0.0f},
                  {128, 8, 1, 32, SL_DTYPE_BF16, 0.0f},
                  {256, 4, 2, 16, SL_DTYPE_F16, 20.0f}};
    uint64_t seed = 101;
    for (auto x : shapes) {
        scene s = make_scene(x.hd, x.nq, x.nkv, x.bs, {700, 530}, seed++, x.format);
        s.softcap = x.softcap, s.skip = 200.0f;
        memset(n_skipped, 0, sizeof n_skipped);
        check_scene(s, 37, {64, 7}, {500, 511, 512, 640, 699});
        for (const struct sl_skip_counts &n : n_skipped) {
            printf("hd %d: skipped %g of %g, %g of %g\n", x.hd, (double)n.skipped, (double)n.tiles,
                   (double)n.units_skipped, (double)n.units);
            CHECK(n.skipped > n.tiles / 20 && n.skipped < n.tiles, "hd %d", x.hd);
            CHECK(n.units_skipped > 0 && n.units_skipped < n.units, "hd %d", x.hd);
        }
        const std::vector<span_of> whole = {{0, 0, 700}}, last = {{0, 699, 1}};
        scene dense = s;
        s.skip = 1e-30f;
        dense.skip = 1e9f; /* more than any position: the same keys, and no row leaves out any */
        rows_of all = run(s, whole, 3), want = run(dense, whole, 3);
        same_bits("nothing skipped", s, whole, all, whole, want);
        same_bits("nothing skipped", s, last, run(s, last, 3), whole, want);
    }
    for (int hd : {64, 128}) {
        scene s = make_scene(hd, 4, 1, 16, {5000}, seed);
        s.skip = 900.0f;
        const std::vector<span_of> all = {{0, 4950, 30}, {0, 4996, 4}};
        const std::vector<span_of> some = {{0, 4961, 1}, {0, 4999, 1}};
        rows_of a = run(s, all, 9);
        check_rows(s, all, a, 3);
        same_bits("long", s, some, run(s, some, 132), all, a);
        s = make_scene(hd, 4, 1, 16, {530}, seed + 1);
        s.skip = 200.0f;
        check_fp8(s, {512, 529});
    }
}

/* Decodes, a few drafts and chunks in one batch, on one SM and on more than there is work for. */
static void test_mixed()
{
    scene s = make_scene(64, 4, 1, 16, {700, 20, 300, 257, 90}, 71);
    std::vector<span_of> whole, mixed = {{0, 699, 1}, {1, 5, 15}, {2, 296, 4}, {-1, 0, 1},
                                         {3, 250, 7}, {4, 89, 1}, {0, 300, 50}};
    for (size_t i = 0; i < s.lens.size(); i++)
        whole.push_back({(int)i, 0, s.lens[i]});
    rows_of all = run(s, whole, 2);
    check_rows(s, whole, all, 37);
    static const int sms[] = {1, 4, 132};
    for (int n : sms)
        same_bits("mixed", s, mixed, run(s, mixed, n), whole, all);
    for (int rows : {0, 9, 700})
        same_bits("mixed, little workspace", s, mixed, run(s, mixed, 132, rows), whole, all);
    same_bits("mixed, three layers", s, mixed, run(s, mixed, 132, -1, 3), whole, all);
}

/* A NaN and infinities among the values reach the rows that see them and no others. */
static void test_odd_values()
{
    static const struct {
        int hd, window;
    } cases[] = {{64, 0}, {64, 40}, {256, 40}};
    for (auto c : cases) {
        const int window = c.window;
        scene s = make_scene(c.hd, 4, 1, 16, {200}, 81, window ? SL_DTYPE_F16 : SL_DTYPE_BF16);
        s.odd_pos = 100, s.q_times = window > 0 ? 1.0f : 8.0f; /* then references rise in pairs */
        s.window = window;
        check_scene(s, 1, {64, 7, 3}, {99, 100, 101, 139, 140, 199});
        scene t = s;
        t.odd_pos = -1;
        std::vector<span_of> whole = {{0, 0, 200}}, before = {{0, 0, 100}};
        rows_of odd = run(s, whole, 3), even = run(t, whole, 3);
        same_bits("before a NaN", s, before, rows_of(odd.begin(), odd.begin() + 100), whole, even);
        int n_nan = 0;
        for (int pos = 100; pos < 200; pos++)
            n_nan += (odd[(size_t)pos][1] & 0x7FFF) > 0x7F80;
        CHECK(n_nan == (window ? window : 100), "%d rows are NaN", n_nan);
    }
}

template <typename T> static void refill(dev<T> &to, const std::vector<T> &from)
{
    CHECK(from.size() <= to.n && cudaMemcpy(to.p, from.data(), from.size() * sizeof(T),
                                            cudaMemcpyHostToDevice) == cudaSuccess,
          "refill");
    to.settle();
}

/* One recording for any lengths: plan and two layers, replayed with other spans of `width` tokens.
 */
static void check_graph(int width)
{
    scene s = make_scene(64, 4, 1, 16, {900, 40, 300}, 95);
    const int n = width;
    const std::vector<std::vector<span_of>> steps = {
        {{0, 0, n}, {1, 3, n}, {-1, 0, n}},
        {{0, 900 - n, n}, {1, 40 - n, n}, {2, 300 - n, n}},
        {{2, 100, n}, {0, 512, n}, {1, 0, n}},
        {{0, 900 - n, n}, {-1, 0, n}, {-1, 0, n}},
    };
    inputs most = make_inputs(s, steps[1]);
    device d(7);
    dev<uint8_t> pool(most.pages.pool);
    dev<struct sl_span> spans(most.spans);
    dev<int32_t> tables(most.tables), positions(most.positions);
    dev<float> q(most.q);
    dev<uint16_t> out(most.q.size());
    struct sl_cuda_attention_limits limits = {most.n_tokens, 3, 1000, s.nq, s.nkv, s.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = most.n_tokens, b.n_spans = 3;
    b.positions = positions.p, b.spans = spans.p, b.block_tables = tables.p;
    b.span_sizes = sl_batch_sizes_of(most.spans.data(), 3);
    struct sl_op_attention op = make_op(s, most.pages);
    op.batch = &b;
    op.q = q.p;
    op.kv.pool = pool.p;
    op.out = out.p;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(d.cu.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
          "begin capture");
    sl_cuda_attention_plan(&d.cu, &b, s.nq, s.nkv, s.hd, s.whole);
    sl_cuda_attention(&d.cu.base, &op);
    sl_cuda_attention(&d.cu.base, &op);
    CHECK(cudaStreamEndCapture(d.cu.stream, &graph) == cudaSuccess, "capture");
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "instantiate");
    for (const std::vector<span_of> &step : steps) {
        inputs in = make_inputs(s, step);
        refill(pool, in.pages.pool);
        refill(spans, in.spans);
        refill(tables, in.tables);
        refill(q, in.q);
        refill(out, std::vector<uint16_t>(out.n, 0x4242));
        CHECK(cudaGraphLaunch(exec, d.cu.stream) == cudaSuccess, "launch");
        CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess, "replay");
        same_bits("replay", s, step, read_rows(s, step, out.get()), step, run(s, step, 3));
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

static void test_graph()
{
    check_graph(1);
    check_graph(6); /* 24 rows: a token and five drafts */
}

/* Several runs, and parts of as many keys each (20 SMs), of as many splits, one: decodes only. */
static void test_many_splits()
{
    scene s = make_scene(64, 2, 1, 16, {17000}, 91), w = s;
    w.window = 700;
    std::vector<span_of> one = {{0, 16990, 1}}, few = {{0, 16985, 8}};
    rows_of a = run(s, one, 20), d = run(w, one, 100);
    check_rows(s, one, a, 1);
    same_bits("100 SMs", s, one, run(s, one, 100), one, a);
    same_bits("one SM", s, one, run(s, one, 1), one, a);
    same_bits("drafts", s, few, run(s, few, 20), one, a);
    check_rows(w, one, d, 1);
    same_bits("window", w, few, run(w, few, 3), one, d);
}

/* More items for a block than it keeps at a time, of one split to six; a window hides some. */
static void test_many_items()
{
    std::vector<int> lens;
    std::vector<span_of> all, drafts;
    for (int i = 0; i < 40; i++) {
        lens.push_back(1 + (int)(mix((uint64_t)i) % (i % 5 == 0 ? 700 : 200)));
        const int n = std::min(1 + i % 9, lens.back());
        all.push_back({i, lens.back() - 1, 1});
        drafts.push_back({i, lens.back() - n, n});
    }
    scene s = make_scene(16, 2, 2, 16, lens, 101);
    for (int window : {0, 150}) {
        s.window = window;
        rows_of apart = run(s, all, 40);
        check_rows(s, all, apart, 13);
        same_bits("one SM", s, all, run(s, all, 1, -1, 2), all, apart);
        same_bits("drafts", s, drafts, run(s, drafts, 1), all, apart);
    }
}

/* A token and drafts behind it, up to 64 rows of a span and more: each row has the bits it has as a
 * decode, with any number of drafts, beside others, on any number of SMs, with few slots. */
static void check_drafts(const scene &s, const std::vector<int> &widths)
{
    const int most = *std::max_element(widths.begin(), widths.end());
    std::vector<span_of> all;
    for (size_t i = 0; i < s.lens.size(); i++)
        all.push_back({(int)i, s.lens[i] - most, most});
    rows_of want = run(s, all, 3);
    if (s.odd_pos < 0)
        check_rows(s, all, want, 7);
    for (int n : widths) {
        std::vector<span_of> some, mixed;
        for (size_t i = 0; i < s.lens.size(); i++) {
            const int m = i % 2 == 0 ? n : 1;
            some.push_back({(int)i, s.lens[i] - n, n});
            mixed.push_back({(int)i, s.lens[i] - m, m});
        }
        mixed.push_back({-1, 0, n});
        same_bits("drafts", s, some, run(s, some, n % 3 == 0 ? 1 : 132), all, want);
        same_bits("drafts beside decodes", s, mixed, run(s, mixed, 6, -1, 2), all, want);
        same_bits("drafts, few slots", s, some, run(s, some, 40, 30), all, want);
    }
    for (const span_of &x : all) {
        std::vector<span_of> one = {{x.seq, x.pos, 1}}, last = {{x.seq, x.pos + most - 1, 1}};
        same_bits("before drafts", s, one, run(s, one, 5), all, want);
        same_bits("a draft alone", s, last, run(s, last, 60), all, want);
    }
}

static void test_drafts()
{
    static const struct {
        int hd, nq, nkv;
        enum sl_dtype format;
        int window;
        float softcap, skip;
        bool sinks, chunks;
    } shapes[] = {
        {128, 8, 1, SL_DTYPE_F16, 0, 0.0f, 0.0f, false, false},
        {128, 4, 1, SL_DTYPE_BF16, 150, 0.0f, 0.0f, true, false},
        {64, 16, 2, SL_DTYPE_F16, 128, 0.0f, 0.0f, true, false},
        {64, 4, 1, SL_DTYPE_BF16, 0, 5.0f, 0.0f, false, false},
        {256, 4, 1, SL_DTYPE_F16, 0, 0.0f, 0.0f, false, false},
        {96, 4, 1, SL_DTYPE_F16, 0, 0.0f, 0.0f, false, false},
        {16, 4, 1, SL_DTYPE_BF16, 100, 0.0f, 0.0f, false, true},
        {128, 8, 1, SL_DTYPE_F16, 0, 0.0f, 200.0f, false, false},
    };
    uint64_t seed = 161;
    for (auto x : shapes) {
        scene s = make_scene(x.hd, x.nq, x.nkv, 16, {1301, 40, 560}, seed++, x.format);
        s.window = x.window, s.softcap = x.softcap, s.skip = x.skip;
        s.sinks = x.sinks, s.chunks = x.chunks;
        check_drafts(s, {3, 5, 8, 16});
    }
    scene odd = make_scene(128, 4, 1, 16, {300}, seed++, SL_DTYPE_F16);
    odd.odd_pos = 295;
    check_drafts(odd, {5, 8, 12});
    for (int hd : {64, 128, 256}) { /* the same numbers as FP8 and as BF16 */
        scene s = make_scene(hd, 4, 1, 16, {700}, seed++);
        s.window = hd == 64 ? 90 : 0;
        check_fp8(s, {699}, 690);
    }
    scene one = make_scene(64, 40, 1, 16, {700}, seed++); /* many heads: a decode has 40 rows */
    check_drafts(one, {1, 2});
}

/* Chunks of few tokens behind a long context: tiles in parts of splits and of runs, by every
 * kernel for more than decodes; also where slots are few. */
static void test_long_chunks()
{
    static const struct {
        int hd, nq, nkv;
        enum sl_dtype format;
        float skip;
        int window;
    } shapes[] = {{64, 4, 2, SL_DTYPE_F16, 0.0f, 0},   {128, 2, 1, SL_DTYPE_BF16, 0.0f, 0},
                  {64, 2, 1, SL_DTYPE_F16, 900.0f, 0}, {16, 2, 1, SL_DTYPE_BF16, 0.0f, 0},
                  {256, 2, 1, SL_DTYPE_F16, 0.0f, 0},  {64, 2, 1, SL_DTYPE_BF16, 0.0f, 7000}};
    uint64_t seed = 121;
    for (auto x : shapes) {
        scene s = make_scene(x.hd, x.nq, x.nkv, 16, {9000, 700}, seed++, x.format);
        s.skip = x.skip;
        s.window = x.window;
        const std::vector<span_of> chunk = {{0, 8180, 36}}, both = {{1, 600, 9}, {0, 8180, 36}};
        const std::vector<span_of> one = {{0, 8193, 1}}, few = {{0, 8188, 20}};
        rows_of a = run(s, chunk, 1), d = run(s, one, 30);
        check_rows(s, chunk, a, 39);
        same_bits("decode", s, one, d, chunk, a);
        same_bits("decode, one SM", s, one, run(s, one, 1), chunk, a);
        for (int n_sms : {3, 60})
            same_bits("parts", s, chunk, run(s, chunk, n_sms), chunk, a);
        same_bits("two layers", s, both, run(s, both, 8, 300, 2), chunk, a);
        for (int n_sms : {1, 60}) /* 40 rows or 20 */
            same_bits("drafts", s, few, run(s, few, n_sms), chunk, a);
    }
}

/* The order of a step: the positions of the step are nobody's until the store, which attention may
 * start beside, so that what it reads too early is NaN. */
static void step_one(const scene &s, const std::vector<span_of> &spans, int n_sms)
{
    inputs in = make_inputs(s, spans);
    rows_of want = run(s, spans, n_sms);
    std::vector<float> k, v;
    for (const span_of &x : spans)
        for (int pos = x.pos; pos < x.pos + x.n; pos++)
            for (int h = 0; h < s.nkv; h++) {
                for (int c = 0; c < s.hd; c++) {
                    k.push_back(x.seq < 0 ? 0.0f : s.k(x.seq, pos, h, c));
                    v.push_back(x.seq < 0 ? 0.0f : s.v(x.seq, pos, h, c));
                }
                int page = x.seq < 0 ? 0 : in.pages.table[(size_t)x.seq][(size_t)(pos / s.bs)];
                uint8_t *at = in.pages.pool.data() + (size_t)page * in.pages.page_bytes;
                std::vector<float> nobody((size_t)s.dim(), NAN);
                put_row(s, at + in.pages.k_offset, h, pos, nobody);
                put_row(s, at + in.pages.v_offset, h, pos, nobody);
            }
    device d(n_sms);
    dev<uint8_t> pool(in.pages.pool);
    dev<struct sl_span> dspans(in.spans);
    dev<int32_t> tables(in.tables), positions(in.positions);
    dev<float> q(in.q), dk(k), dv(v);
    dev<uint16_t> out(std::vector<uint16_t>(in.q.size(), 0x4242));
    struct sl_cuda_attention_limits limits = {in.n_tokens, (int)spans.size(), 20000, s.nq, s.nkv,
                                              s.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = in.n_tokens, b.n_spans = (int)spans.size();
    b.positions = positions.p, b.spans = dspans.p, b.block_tables = tables.p;
    struct sl_op_attention op = make_op(s, in.pages);
    op.batch = &b;
    op.q = q.p;
    op.kv.pool = pool.p;
    op.out = out.p;
    struct sl_op_qk_norm_rope_kv_store store = {};
    store.batch = &b;
    store.q = q.p;
    store.k = dk.p;
    store.v = dv.p;
    store.ld_q = op.ld_q;
    store.ld_k = store.ld_v = s.nkv * s.hd;
    store.n_heads = s.nq;
    store.n_kv_heads = s.nkv;
    store.head_dim = s.hd;
    store.kv = op.kv;
    sl_cuda_attention_plan(&d.cu, &b, s.nq, s.nkv, s.hd, s.whole);
    sl_cuda_qk_norm_rope_kv_store(&d.cu.base, &store);
    sl_cuda_attention(&d.cu.base, &op);
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "step");
    same_bits("step", s, spans, read_rows(s, spans, out.get()), spans, want);
}

static void test_step()
{
    scene s = make_scene(64, 4, 2, 16, {700, 64, 300, 257, 90}, 97);
    for (int n_sms : {1, 3, 40}) {
        step_one(s, {{0, 699, 1}, {1, 63, 1}, {2, 296, 1}, {-1, 0, 1}, {4, 64, 1}}, n_sms);
        step_one(s, {{0, 640, 60}, {1, 60, 4}, {2, 299, 1}, {3, 250, 7}, {4, 88, 2}}, n_sms);
    }
    step_one(make_scene(128, 8, 2, 32, {520}, 98, SL_DTYPE_F16), {{0, 519, 1}}, 132);
    for (int n_sms : {1, 40}) { /* drafts, all of 17 to 64 rows */
        const std::vector<span_of> drafts = {{0, 690, 10}, {1, 48, 16}, {3, 245, 12}};
        step_one(s, drafts, n_sms);
        step_one(s, {{1, 48, 16}}, n_sms); /* all are loaded by the blocks that may be early */
        step_one(s, {{1, 50, 12}}, n_sms);
        step_one(make_scene(128, 4, 1, 16, {700, 64, 1, 257}, 99, SL_DTYPE_F16), drafts, n_sms);
    }
}

/* ---------------------------------------------------------------- the store */

struct store_case {
    int hd, nq, nkv, bs, n_rotated;
    bool norm, interleaved;
    int n;               /* tokens of the second sequence */
    bool values = false; /* norm: of values too, without weights */
    bool alone = false;  /* queries, without keys and values */
    bool norm_after = false;
    struct sl_q_temperature temperature = {};
    float clip = 0.0f;
    bool bare = false; /* q and k are normed without weights */
};

static float norm_scale(const float *x, int hd, float eps)
{
    float lane[32];
    for (int l = 0; l < 32; l++) {
        lane[l] = 0.0f;
        for (int i = l * 4; i < hd; i += 128)
            for (int d = i; d < std::min(i + 4, hd); d++)
                lane[l] = fmaf(x[d], x[d], lane[l]);
    }
    for (int d = 16; d > 0; d /= 2)
        for (int l = 0; l < d; l++)
            lane[l] = lane[l] + lane[l + d];
    return 1.0f / sqrtf(lane[0] / (float)hd + eps);
}

static void reference_norm(const float *w, std::vector<float> &x)
{
    float f = norm_scale(x.data(), (int)x.size(), 1e-5f);
    for (size_t d = 0; d < x.size(); d++) {
        volatile float y = x[d] * f;
        x[d] = y * w[d];
    }
}

static void reference_row(const store_case &c, const float *from, const float *w, bool rotated,
                          const float *angles, std::vector<float> &x)
{
    x.assign(from, from + c.hd);
    if (w != nullptr && !c.norm_after)
        reference_norm(w, x);
    for (float &f : x)
        f = c.clip == 0.0f ? f : f < -c.clip ? -c.clip : f > c.clip ? c.clip : f;
    int n = rotated ? c.n_rotated / 2 : 0;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)(c.interleaved ? 2 * i : i),
               to = (size_t)(c.interleaved ? 2 * i + 1 : i + n);
        volatile float pc = x[at] * angles[2 * i], qs = x[to] * angles[2 * i + 1];
        volatile float qc = x[to] * angles[2 * i], ps = x[at] * angles[2 * i + 1];
        x[at] = pc - qs;
        x[to] = qc + ps;
    }
    if (w != nullptr && c.norm_after)
        reference_norm(w, x);
}

static void reference_temperature(const store_case &c, int pos, std::vector<float> &x)
{
    const struct sl_q_temperature &t = c.temperature;
    if (t.beta == 0.0f)
        return;
    volatile float more = t.beta * logf(1.0f + floorf((float)(pos + t.first) / t.span));
    for (float &f : x)
        f *= 1.0f + more;
}

/* Rows of sizes of every kind, and no numbers. */
static void make_odd(std::vector<float> &q, int ldq, std::vector<float> &kv, int ldk)
{
    static const float odd[] = {INFINITY, NAN, 1e30f, 0.0f, 1e-38f};
    for (int t = 0; t < (int)q.size() / ldq; t++) {
        for (int i = 0; i < ldk; i++)
            kv[(size_t)(t * ldk + i)] *= ldexpf(1.0f, t % 24 * 8 - 110);
        if (t % 16 == 3)
            kv[(size_t)(t * ldk + t % ldk)] = odd[t / 16 % 5];
        for (int i = 0; i < ldq; i++)
            q[(size_t)(t * ldq + i)] *= ldexpf(1.0f, t % 24 * 4 - 40);
        if (t % 8 == 5)
            q[(size_t)(t * ldq + t % ldq)] = INFINITY;
    }
}

/* What does not depend on where the arrays lie. */
static struct sl_op_qk_norm_rope_kv_store store_op(const store_case &c)
{
    struct sl_op_qk_norm_rope_kv_store op = {};
    op.n_heads = c.nq;
    op.n_kv_heads = c.nkv;
    op.head_dim = c.hd;
    op.norm_after = c.norm_after;
    op.norm_bare = c.bare;
    op.clip = c.clip;
    op.temperature = c.temperature;
    op.eps = 1e-5f;
    return op;
}

/* The queries of a token become what they must be. */
static void reference_queries(const store_case &c, float *q, const float *w, const float *angles,
                              int pos, enum sl_dtype format)
{
    std::vector<float> x;
    for (int h = 0; h < c.nq; h++) {
        float *row = q + h * c.hd;
        reference_row(c, row, w, true, angles, x);
        reference_temperature(c, pos, x);
        if (format == SL_KV_TURBO4)
            sl_kv4_rotate(x.data(), c.hd);
        for (float &f : x)
            f = format == SL_DTYPE_F16 ? bounded(f) : f;
        std::copy(x.begin(), x.end(), row);
    }
}

static void store_one(const store_case &c, uint64_t seed, enum sl_dtype format)
{
    scene s = make_scene(c.hd, c.nq, c.nkv, c.bs, {40, 10 + c.n, 100}, seed);
    s.format = format;
    const std::vector<span_of> spans = {{0, 39, 1}, {1, 10, c.n}, {2, 63, 37}};
    pages_of p = make_pages(s, {0, 0, 0});
    const int n_tokens = c.n + 38, ldq = c.nq * c.hd + 4, ldk = c.nkv * c.hd * 2 + 8;
    std::vector<struct sl_span> dev_spans;
    std::vector<int32_t> tables, positions, owner;
    for (size_t i = 0; i < spans.size(); i++) {
        struct sl_span d = {(int32_t)positions.size(), spans[i].n, spans[i].pos,
                            (int32_t)tables.size(), 0};
        dev_spans.push_back(d);
        for (int j = 0; j < (spans[i].pos + spans[i].n + s.bs - 1) / s.bs; j++)
            tables.push_back(p.table[i][(size_t)j]);
        for (int t = 0; t < spans[i].n; t++) {
            positions.push_back(spans[i].pos + t);
            owner.push_back((int32_t)i);
        }
    }
    auto randoms = [&](int n, uint64_t what) {
        std::vector<float> v;
        for (int i = 0; i < n; i++)
            v.push_back(normal((seed * 16 + what) * 1000003 + (uint64_t)i));
        return v;
    };
    std::vector<float> q = randoms(n_tokens * ldq, 1), kv = randoms(n_tokens * ldk, 2);
    std::vector<float> qw = randoms(c.hd, 3), kw = randoms(c.hd, 4);
    std::vector<float> angles = randoms(n_tokens * std::max(c.n_rotated, 1), 5);
    if (format != SL_DTYPE_BF16)
        make_odd(q, ldq, kv, ldk);
    device d(2);
    dev<float> dq(q), dkv(kv), dqw(qw), dkw(kw), dangles(angles);
    dev<uint8_t> pool(p.pool);
    dev<struct sl_span> dspans(dev_spans);
    dev<int32_t> dtables(tables), dpositions(positions);
    struct sl_cuda_attention_limits limits = {n_tokens, 3, 10 + c.n, c.nq, c.nkv, c.hd};
    dev<uint8_t> workspace(anything(sl_cuda_attention_workspace(&d.cu, &limits)));
    d.cu.workspace = workspace.p;
    d.cu.workspace_bytes = workspace.n;
    struct sl_batch b = {};
    b.n_tokens = n_tokens, b.n_spans = 3;
    b.positions = dpositions.p, b.spans = dspans.p, b.block_tables = dtables.p;
    struct sl_rope rope = {c.n_rotated, c.interleaved ? SL_ROPE_INTERLEAVED : SL_ROPE_HALF, nullptr,
                           1.0f};
    struct sl_op_qk_norm_rope_kv_store op = store_op(c);
    op.batch = &b;
    op.q = dq.p;
    op.k = c.alone ? nullptr : dkv.p;
    op.v = dkv.p + c.nkv * c.hd;
    op.norm_v = c.values;
    op.ld_q = ldq;
    op.ld_k = op.ld_v = ldk;
    op.q_norm = c.norm ? dqw.p : nullptr;
    op.k_norm = c.norm ? dkw.p : nullptr;
    op.rope = c.n_rotated > 0 ? &rope : nullptr;
    op.angles = dangles.p;
    op.kv.pool = pool.p;
    op.kv.page_bytes = p.page_bytes;
    op.kv.k_offset = p.k_offset, op.kv.v_offset = p.v_offset;
    op.kv.dtype = format, op.kv.block_size = s.bs;
    /* planned for a layer with other heads: it plans again */
    sl_cuda_attention_plan(&d.cu, &b, c.nkv, c.nkv, 16, false);
    sl_cuda_qk_norm_rope_kv_store(&d.cu.base, &op);
    CHECK(d.cu.plan_heads == c.nq && d.cu.plan_kv_heads == c.nkv && d.cu.plan_dim == c.hd, "plan");
    CHECK(cudaStreamSynchronize(d.cu.stream) == cudaSuccess && d.cu.error == cudaSuccess, "store");

    const std::vector<float> ones((size_t)c.hd, 1.0f);
    const float *qn = c.bare ? ones.data() : c.norm ? qw.data() : nullptr;
    const float *kn = c.bare ? ones.data() : c.norm ? kw.data() : nullptr;
    std::vector<float> x;
    for (int t = 0; t < n_tokens; t++) {
        const float *cs = &angles[(size_t)(t * c.n_rotated)];
        reference_queries(c, &q[(size_t)(t * ldq)], qn, cs, positions[(size_t)t], format);
        for (int h = 0; h < 2 * c.nkv && !c.alone; h++) {
            bool key = h < c.nkv, normed = key ? kn != nullptr : c.values;
            const float *from = &kv[(size_t)(t * ldk + h * c.hd)];
            reference_row(c, from, nullptr, key, cs, x);
            const float scale = norm_scale(c.norm_after ? x.data() : from, c.hd, 1e-5f);
            reference_row(c, from, !normed ? nullptr : key ? kn : ones.data(), key, cs, x);
            int pos = positions[(size_t)t];
            int32_t page = p.table[(size_t)owner[(size_t)t]][(size_t)(pos / s.bs)];
            /* what pads the row is normed, too */
            x.resize((size_t)s.dim(), normed ? 0.0f * scale : 0.0f);
            if (format == SL_KV_TURBO4)
                sl_kv4_rotate(x.data(), c.hd);
            put_row(s,
                    p.pool.data() + (size_t)page * p.page_bytes + (key ? p.k_offset : p.v_offset),
                    h % c.nkv, pos, x);
        }
    }
    std::vector<float> q_got = dq.get();
    bool same = true; /* a NaN is a NaN */
    for (size_t i = 0; i < q.size(); i++)
        same = same && (q[i] == q_got[i] || (q[i] != q[i] && q_got[i] != q_got[i]));
    CHECK(same, "hd %d format %d: queries", c.hd, format);
    CHECK(pool.get() == p.pool, "hd %d bs %d format %d: pages", c.hd, c.bs, format);
}

static void test_store()
{
    static const store_case cases[] = {
        {64, 4, 2, 16, 64, false, false, 50},
        {80, 2, 1, 32, 32, true, false, 50},
        {72, 3, 1, 16, 72, true, true, 50},
        {96, 2, 2, 48, 24, false, true, 50},
        {128, 4, 1, 64, 128, true, false, 50},
        {256, 2, 1, 16, 128, true, true, 50},
        {128, 2, 1, 16, 0, true, false, 160},
        {64, 10, 2, 16, 64, true, true, 160},
        {128, 9, 1, 64, 128, true, false, 160},
        {256, 3, 1, 16, 256, true, false, 160},
        {72, 2, 1, 16, 72, true, false, 50, true},
        {128, 4, 2, 16, 128, true, false, 160, true},
        {80, 2, 1, 32, 32, true, false, 50, false, true},
        {64, 4, 2, 16, 64, true, false, 160, true, true},
        {72, 3, 1, 16, 36, true, true, 50, false, false, true, {0.1f, 16.0f, 0}},
        {64, 4, 2, 16, 64, true, false, 50, false, false, true, {}},
        {128, 4, 2, 16, 128, true, false, 160, false, false, true, {0.3f, 24.0f, 1}},
        {64, 4, 2, 16, 64, false, false, 160, false, false, false, {0.1f, 32.0f, 0}},
        {80, 4, 2, 16, 32, false, false, 50, false, false, false, {}, 0.7f},
        {128, 4, 2, 16, 128, true, true, 160, false, false, false, {}, 1.1f},
        {72, 4, 2, 16, 72, false, true, 50, false, false, true, {}, 0.0f, true},
        {64, 4, 2, 16, 64, false, true, 160, false, false, true, {}, 0.0f, true},
    };
    uint64_t seed = 101;
    for (const store_case &c : cases) {
        for (enum sl_dtype format :
             {SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_FP8_E4M3, SL_KV_TURBO4}) {
            if (sl_cuda_attention_pages(format, c.hd))
                store_one(c, seed, format);
            seed++;
        }
    }
}

static void test_supports()
{
    for (int hd : {16, 24, 32, 64, 72, 80, 88, 96, 120, 128, 248, 256})
        CHECK(sl_cuda_attention_supports(hd, 4), "%d", hd);
    for (int hd : {0, -64, 48, 60, 65, 100, 112, 160, 192, 264, 512})
        CHECK(!sl_cuda_attention_supports(hd, 4), "%d", hd);
    for (int hd : {64, 80, 120, 128, 256}) /* rotated as a whole, or not */
        CHECK(sl_cuda_attention_pages(SL_KV_TURBO4, hd) == (hd % 64 == 0), "%d", hd);
    CHECK(!sl_cuda_attention_pages(SL_KV_TURBO4, 192) && !sl_cuda_attention_pages(SL_KV_K8V4, 128),
          "pages");
    CHECK(!sl_cuda_attention_supports(64, 0) && !sl_cuda_attention_supports(64, 257), "group");
}

static const struct {
    const char *name;
    void (*fn)();
} TESTS[] = {
    {"supports", test_supports},
    {"store", test_store},
    {"shapes", test_shapes},
    {"f16", test_f16},
    {"fp8", test_fp8},
    {"turbo4", test_turbo4},
    {"long", test_long},
    {"windows", test_windows},
    {"chunks", test_chunks},
    {"softcap_and_sinks", test_softcap_and_sinks},
    {"whole", test_whole},
    {"skip", test_skip},
    {"mixed", test_mixed},
    {"odd_values", test_odd_values},
    {"graph", test_graph},
    {"many_splits", test_many_splits},
    {"many_items", test_many_items},
    {"drafts", test_drafts},
    {"long_chunks", test_long_chunks},
    {"step", test_step},
};

/* Names of tests to run, by default all. */
int main(int argc, char **argv)
{
    for (auto &t : TESTS) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++)
            wanted = wanted || strcmp(argv[i], t.name) == 0;
        if (!wanted)
            continue;
        int before = n_failures;
        t.fn();
        printf("%-20s %s\n", t.name, n_failures == before ? "ok" : "FAILED");
        fflush(stdout);
    }
    printf("%ld runs, %ld heads of rows against the reference, %ld rows of bits compared, %d "
           "failures\n",
           n_runs, n_rows_checked, n_rows_compared, n_failures);
    return n_failures != 0;
}
