/* SPDX-License-Identifier: MIT */
#include "tier/coding.h"

#include "base/check.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "coded bytes are written as memory is");

#define ONE    (1u << SL_CODE_BITS) /* all shares together */
#define LEAST  (1u << 16)           /* a state between two bytes is not below */
#define SAMPLE 8192                 /* bytes of a piece that the length of words is chosen by */
#define PIECES 4
#define GAIN   0.99 /* of its bytes, that a plane must come to */
#define SET    32   /* bytes of the set of byte values that occur */

enum kind { PLAIN, SAME, CODED };

/* ---- the machine ---- */

static const struct sl_code_kernels *_Atomic chosen;

bool sl_code_runs(const struct sl_code_kernels *k)
{
    __builtin_cpu_init();
    if (k == &sl_code_kernels_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return k == &sl_code_kernels_c || __builtin_cpu_supports("avx2");
}

const struct sl_code_kernels *sl_code_kernels(void)
{
    const struct sl_code_kernels *k = atomic_load(&chosen);
    if (k != NULL)
        return k;
    return sl_code_runs(&sl_code_kernels_avx512) ? &sl_code_kernels_avx512
           : sl_code_runs(&sl_code_kernels_avx2) ? &sl_code_kernels_avx2
                                                 : &sl_code_kernels_c;
}

void sl_code_use(const struct sl_code_kernels *use)
{
    atomic_store(&chosen, use);
}

size_t sl_code_scratch_bytes(size_t n_bytes)
{
    return n_bytes + SL_CODE_LANES; /* a last round may be written in part */
}

/* ---- shares ---- */

struct shares {
    uint32_t n[256]; /* bytes of each value */
    uint32_t f[256]; /* of ONE; at least 1 if the value occurs */
    int n_values;
};

static void count_bytes(const uint8_t *p, size_t n, uint32_t counts[256])
{
    uint32_t part[4][256] = {{0}};
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (size_t k = 0; k < 4; k++)
            part[k][p[i + k]]++;
    for (; i < n; i++)
        part[0][p[i]]++;
    for (int b = 0; b < 256; b++)
        counts[b] = part[0][b] + part[1][b] + part[2][b] + part[3][b];
}

/* The value to whose share one is given or taken: the largest, where that costs least. */
static int largest_share(const struct shares *s)
{
    int at = 0;
    for (int b = 1; b < 256; b++)
        if (s->f[b] > s->f[at])
            at = b;
    return at;
}

static void find_shares(struct shares *s, size_t n)
{
    uint32_t sum = 0;
    SL_ASSERT(n > 0);
    s->n_values = 0;
    for (int b = 0; b < 256; b++) {
        const uint64_t share = ((uint64_t)s->n[b] * ONE + n / 2) / n;
        s->f[b] = s->n[b] == 0 ? 0 : (uint32_t)SL_MAX(share, 1u);
        s->n_values += s->n[b] != 0;
        sum += s->f[b];
    }
    for (; s->n_values > 1 && sum < ONE; sum++)
        s->f[largest_share(s)]++;
    for (; s->n_values > 1 && sum > ONE; sum--)
        s->f[largest_share(s)]--;
}

/* Bytes that a plane would take, its table included. */
static double cost_of(const struct shares *s)
{
    double bits = 0;
    if (s->n_values == 1)
        return 1;
    for (int b = 0; b < 256; b++)
        if (s->n[b] > 0)
            bits += (double)s->n[b] * (SL_CODE_BITS - log2((double)s->f[b]));
    return bits / 8 + SET + 2.0 * s->n_values + 4.0 * SL_CODE_LANES;
}

static double plane_cost(const uint8_t *plane, size_t n, struct shares *s)
{
    count_bytes(plane, n, s->n);
    find_shares(s, n);
    return SL_MIN(cost_of(s), (double)n);
}

/* ---- coding ---- */

/* The places of each value's share; returns where they end, which is ONE. */
static uint32_t find_places(const uint32_t f[256], uint32_t first[256])
{
    uint32_t sum = 0;
    for (int b = 0; b < 256; b++) {
        first[b] = sum;
        sum += f[b];
    }
    return sum;
}

/* From the last byte to the first, words downwards from the end of out, so that they are read
 * forwards. Returns the bytes in front of the words, or SIZE_MAX: there is no room. */
static size_t code_words(const uint8_t *plane, size_t n, const uint32_t f[256], uint8_t *out,
                         size_t room, uint32_t x[SL_CODE_LANES])
{
    uint32_t first[256];
    size_t at = room;
    uint32_t sum = find_places(f, first);
    SL_ASSERT(sum == ONE);
    for (int i = 0; i < SL_CODE_LANES; i++)
        x[i] = LEAST;
    for (size_t i = n; i-- > 0;) {
        const uint8_t b = plane[i];
        const uint32_t share = f[b];
        uint32_t y = x[i % SL_CODE_LANES];
        SL_DCHECK(share > 0 && share < ONE);
        if (y >= share << (32 - SL_CODE_BITS)) {
            if (at < 2)
                return SIZE_MAX;
            out[--at] = (uint8_t)(y >> 8);
            out[--at] = (uint8_t)y;
            y >>= 16;
        }
        x[i % SL_CODE_LANES] = (y / share << SL_CODE_BITS) + y % share + first[b];
    }
    return at;
}

static size_t put_u32(uint8_t *out, uint32_t x)
{
    memcpy(out, &x, sizeof x);
    return sizeof x;
}

/* Table, states and words; 0: they do not fit. */
static size_t code_plane(const uint8_t *plane, size_t n, const struct shares *s, uint8_t *out,
                         size_t room)
{
    uint32_t x[SL_CODE_LANES];
    uint8_t set[SET] = {0};
    const size_t n_table = SET + 2 * (size_t)s->n_values + sizeof x;
    SL_ASSERT(s->n_values > 1 && s->n_values <= 256);
    if (room < n_table)
        return 0;
    const size_t at = code_words(plane, n, s->f, out + n_table, room - n_table, x);
    if (at == SIZE_MAX)
        return 0;
    uint8_t *share = out + SET;
    for (int b = 0; b < 256; b++) {
        if (s->f[b] == 0)
            continue;
        set[b / 8] = (uint8_t)(set[b / 8] | 1u << b % 8);
        *share++ = (uint8_t)s->f[b];
        *share++ = (uint8_t)(s->f[b] >> 8);
    }
    memcpy(out, set, SET);
    memcpy(share, x, sizeof x);
    const size_t n_words = room - n_table - at;
    memmove(out + n_table, out + n_table + at, n_words);
    return n_table + n_words;
}

/* A plane as it is best; 0: it does not fit. */
static size_t put_plane(const uint8_t *plane, size_t n, uint8_t *out, size_t room)
{
    struct shares s;
    enum kind kind = PLAIN;
    size_t n_out = n;
    if (plane_cost(plane, n, &s) < GAIN * (double)n)
        kind = s.n_values == 1 ? SAME : CODED;
    if (room < sizeof(uint32_t) + 1)
        return 0;
    room -= sizeof(uint32_t);
    if (kind == CODED) {
        n_out = code_plane(plane, n, &s, out + sizeof(uint32_t), room);
        if (n_out == 0)
            return 0;
    } else if (kind == SAME) {
        out[sizeof(uint32_t)] = plane[0];
        n_out = 1;
    } else {
        if (n > room)
            return 0;
        memcpy(out + sizeof(uint32_t), plane, n);
    }
    SL_ASSERT(n_out < 1u << 30);
    return put_u32(out, (uint32_t)kind << 30 | (uint32_t)n_out) + n_out;
}

/* The length of words that codes pieces of the page best. */
static int choose_word(const uint8_t *page, size_t n_bytes, uint8_t *scratch)
{
    int best = 1;
    double least = 0;
    const size_t n_piece = SL_MIN(n_bytes / PIECES, SAMPLE) & ~(size_t)3;
    for (int word = 1; word <= 4 && n_piece > 0; word *= 2) {
        double cost = 0;
        for (size_t k = 0; k < PIECES; k++) {
            const size_t from = n_bytes / PIECES * k & ~(size_t)3, n = n_piece / (size_t)word;
            sl_code_kernels()->split(page + from, n, word, scratch);
            for (int p = 0; p < word; p++) {
                struct shares s;
                cost += plane_cost(scratch + (size_t)p * n, n, &s);
            }
        }
        if (word == 1 || cost < least) {
            least = cost;
            best = word;
        }
    }
    return best;
}

size_t sl_code_page(const uint8_t *page, size_t n_bytes, uint8_t *out, size_t room,
                    uint8_t *scratch)
{
    SL_ASSERT(n_bytes > 0 && n_bytes < 1u << 30);
    const int word = choose_word(page, n_bytes, scratch);
    const size_t n = n_bytes / (size_t)word, n_rest = n_bytes % (size_t)word;
    const struct sl_code_head head = {SL_CODE_MAGIC, (uint32_t)word, n_bytes};
    size_t at = sizeof head;
    if (room < at + n_rest || n == 0)
        return 0;
    memcpy(out, &head, sizeof head);
    sl_code_kernels()->split(page, n, word, scratch);
    for (int p = 0; p < word; p++) {
        const size_t n_out = put_plane(scratch + (size_t)p * n, n, out + at, room - n_rest - at);
        if (n_out == 0)
            return 0;
        at += n_out;
    }
    memcpy(out + at, page + n * (size_t)word, n_rest);
    return at + n_rest;
}

/* ---- decoding: nothing of the input is believed ---- */

/* The table of a plane; returns the bytes that it took, 0: it is none. */
static size_t read_table(const uint8_t *in, size_t n_in, uint32_t table[ONE])
{
    size_t at = SET;
    uint32_t sum = 0;
    if (n_in < SET)
        return 0;
    for (uint32_t b = 0; b < 256; b++) {
        if ((in[b / 8] >> b % 8 & 1) == 0)
            continue;
        if (n_in - at < 2)
            return 0;
        const uint32_t f = in[at] | (uint32_t)in[at + 1] << 8;
        at += 2;
        if (f == 0 || f >= ONE || f > ONE - sum)
            return 0;
        for (uint32_t i = 0; i < f; i++)
            table[sum + i] = b << 24 | f << SL_CODE_BITS | i;
        sum += f;
    }
    return sum == ONE ? at : 0;
}

/* The bytes behind the rounds that a kernel does: each with a look whether a word is left. */
static bool decode_rest(struct sl_code_stream *s, uint8_t *out, size_t from, size_t n)
{
    for (size_t i = from; i < n; i++) {
        uint32_t *x = &s->x[i % SL_CODE_LANES];
        const uint32_t e = s->table[*x & (ONE - 1)];
        *x = (e >> SL_CODE_BITS & (ONE - 1)) * (*x >> SL_CODE_BITS) + (e & (ONE - 1));
        if (*x < LEAST) {
            if (s->end - s->at < 2)
                return false;
            *x = *x << 16 | s->at[0] | (uint32_t)s->at[1] << 8;
            s->at += 2;
        }
        out[i] = (uint8_t)(e >> 24);
    }
    return true;
}

static bool decode_plane(const uint8_t *in, size_t n_in, uint8_t *out, size_t n)
{
    uint32_t table[ONE];
    struct sl_code_stream s = {.table = table, .end = in + n_in};
    const size_t at = read_table(in, n_in, table);
    if (at == 0 || n_in - at < sizeof s.x || (n_in - at) % 2 != 0)
        return false;
    memcpy(s.x, in + at, sizeof s.x);
    s.at = in + at + sizeof s.x;
    const size_t done = sl_code_kernels()->rounds(&s, out, n / SL_CODE_LANES);
    SL_ASSERT(done <= n / SL_CODE_LANES && s.at <= s.end);
    if (!decode_rest(&s, out, done * SL_CODE_LANES, n))
        return false;
    for (int i = 0; i < SL_CODE_LANES; i++)
        if (s.x[i] != LEAST)
            return false;
    return s.at == s.end;
}

/* Where a plane's bytes are: in the input, or in `room` after this. NULL: it is none. */
static const uint8_t *get_plane(const uint8_t **in, const uint8_t *end, uint8_t *room, size_t n)
{
    uint32_t head;
    if ((size_t)(end - *in) < sizeof head)
        return NULL;
    memcpy(&head, *in, sizeof head);
    const uint8_t *p = *in + sizeof head;
    const size_t n_in = head & ((1u << 30) - 1);
    if (n_in > (size_t)(end - p))
        return NULL;
    *in = p + n_in;
    switch (head >> 30) {
    case PLAIN:
        return n_in == n ? p : NULL;
    case SAME:
        if (n_in != 1)
            return NULL;
        memset(room, *p, n);
        return room;
    case CODED:
        return decode_plane(p, n_in, room, n) ? room : NULL;
    default:
        return NULL;
    }
}

bool sl_decode_page(const uint8_t *in, size_t n_in, uint8_t *page, size_t n_bytes, uint8_t *scratch)
{
    struct sl_code_head head;
    const uint8_t *at = in + sizeof head, *end = in + n_in, *planes[4] = {NULL};
    if (n_in < sizeof head)
        return false;
    memcpy(&head, in, sizeof head);
    if (head.magic != SL_CODE_MAGIC || head.n_bytes != n_bytes ||
        (head.word != 1 && head.word != 2 && head.word != 4))
        return false;
    const size_t n = n_bytes / head.word, n_rest = n_bytes % head.word;
    for (uint32_t p = 0; p < head.word; p++) {
        planes[p] = get_plane(&at, end, scratch + p * n, n);
        if (planes[p] == NULL)
            return false;
    }
    if ((size_t)(end - at) != n_rest)
        return false;
    sl_code_kernels()->merge(page, n, (int)head.word, planes);
    memcpy(page + n * head.word, at, n_rest);
    return true;
}
