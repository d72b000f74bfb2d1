/* SPDX-License-Identifier: MIT
 * weight_pack.cuh - from rows as in the file to the packed layouts of weight.h, on the device.
 *
 * A warp makes one unit of one row block; a lane gathers the codes it will hold in the products and
 * writes them in 4 to 16 bytes. Bytes moved: the matrix once in and once out, which is nothing
 * beside its way over PCIe. File rows may start at any address, so they are read by bytes.
 */
#ifndef SL_CUDA_WEIGHT_PACK_CUH
#define SL_CUDA_WEIGHT_PACK_CUH

#include "cuda/gemm/eight_format.cuh"
#include "cuda/gemm/weight_format.cuh"

struct sl_pack_src {
    const uint8_t *rows; /* device: n_rows rows of the file from a row block's first on */
    int64_t row_bytes, n_rows, n_cols;
    int64_t first_row;   /* of the matrix */
    const float *scales; /* device: as struct sl_scales has them, or NULL; */
    int32_t scale_rows, scale_cols;
    int32_t scale_first; /* row of theirs that is the matrix' first */
};

static __device__ __forceinline__ float sl_round_bf16(float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

static __device__ __forceinline__ uint32_t sl_bytes2(const uint8_t *p)
{
    return p[0] | static_cast<uint32_t>(p[1]) << 8;
}

/* Row and column of element e of step j in a unit, as said in weight.h. */
static __device__ __forceinline__ int sl_frag_row(int lane, int e)
{
    return (lane >> 2) + 8 * (e >> 1 & 1);
}
static __device__ __forceinline__ int sl_frag_col(int lane, int j, int e)
{
    return 16 * j + 2 * (lane & 3) + (e & 1) + 8 * (e >> 2);
}

/* ------------------------------------------------------------------ FP8 for FP8 activations */

/* A piece of 16 codes a thread, of units of 64 rows. */
static __global__ void sl_pack_w8a8_codes(sl_pack_src s, uint8_t *out, int64_t n_units)
{
    sl_grid_wait();
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    int64_t unit = i / (SL_CUDA_W8A8_UNIT / 16);
    int row = static_cast<int>(i / 8 % SL_CUDA_W8A8_ROWS), piece = static_cast<int>(i % 8);
    int64_t n_k = (s.n_cols + 127) / 128, r = unit / n_k * SL_CUDA_W8A8_ROWS + row;
    int64_t c = unit % n_k * 128 + 16 * (piece ^ (row & 7));
    uint32_t w[4] = {0, 0, 0, 0};
    if (unit >= n_units)
        return;
    for (int e = 0; e < 16 && r < s.n_rows && c + e < s.n_cols; e++)
        w[e / 4] |= static_cast<uint32_t>(s.rows[r * s.row_bytes + c + e]) << 8 * (e % 4);
    reinterpret_cast<uint4 *>(out)[i] = make_uint4(w[0], w[1], w[2], w[3]);
    sl_grid_launch_dependents();
}

/* Scales of rows, then of units: the file's are either. */
static __global__ void sl_pack_w8a8_scales(sl_pack_src s, float *out, int64_t n_rows,
                                           int64_t n_units)
{
    sl_grid_wait();
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    int64_t n_k = (s.n_cols + 127) / 128, row = i, col = 0;
    bool by_unit = s.scales != nullptr && s.scale_cols < s.n_cols, of_row = i < n_rows;
    if (!of_row) {
        row = (i - n_rows) / n_k * SL_CUDA_W8A8_ROWS;
        col = (i - n_rows) % n_k * 128;
    }
    if (i >= n_rows + n_units)
        return;
    float scale = 1.0f;
    if (s.scales != nullptr && of_row != by_unit && row < s.n_rows)
        scale = s.scales[(s.scale_first + row) / s.scale_rows *
                             ((s.n_cols + s.scale_cols - 1) / s.scale_cols) +
                         col / s.scale_cols];
    out[i] = scale;
    sl_grid_launch_dependents();
}

/* ------------------------------------------------------------------ plain formats */

struct sl_file_f32 {
    static __device__ __forceinline__ uint32_t bits(const uint8_t *row, int64_t k)
    {
        const uint8_t *p = row + 4 * k;
        float v = __uint_as_float(sl_bytes2(p) | sl_bytes2(p + 2) << 16);
        return __bfloat16_as_ushort(__float2bfloat16_rn(v));
    }
};

struct sl_file_f16 {
    static __device__ __forceinline__ uint32_t bits(const uint8_t *row, int64_t k)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(sl_half_bits(sl_bytes2(row + 2 * k))));
    }
};

struct sl_file_bf16 {
    static __device__ __forceinline__ uint32_t bits(const uint8_t *row, int64_t k)
    {
        return sl_bytes2(row + 2 * k);
    }
};

template <class File> struct sl_pack_bf16_of {
    typedef sl_wf_bf16 format;
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        for (int j = 0; j < 4; j++) {
            uint32_t w[4] = {0, 0, 0, 0};
            for (int e = 0; e < 8; e++) {
                int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
                if (row < s.n_rows && k < s.n_cols)
                    w[e >> 1] |= File::bits(s.rows + row * s.row_bytes, k) << 16 * (e & 1);
            }
            for (int i = 0; i < 4; i++)
                *reinterpret_cast<uint32_t *>(out + format::half_bytes * (i & 1) +
                                              format::column_bytes * (2 * j + (i >> 1)) +
                                              4 * lane) = w[i];
        }
    }
};

/* ------------------------------------------------------------------ blocks of 32 */

/* Scales of a unit of 64 columns: lane (g, half, block) writes one. */
template <int block_bytes>
static __device__ __forceinline__ void sl_pack_scales32(const sl_pack_src &s, int64_t r0,
                                                        int64_t k0, uint8_t *out, int lane)
{
    int64_t row = r0 + (lane >> 2) + 8 * (lane >> 1 & 1), k = k0 + 32 * (lane & 1);
    uint32_t d = 0;
    if (row < s.n_rows && k < s.n_cols)
        d = sl_bytes2(s.rows + row * s.row_bytes + k / 32 * block_bytes);
    *reinterpret_cast<uint16_t *>(out + 2 * lane) = static_cast<uint16_t>(d);
}

struct sl_pack_q8_0 {
    typedef sl_wf_q8_0 format;
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        for (int j = 0; j < 4; j++) {
            uint32_t w[2] = {0x80808080u, 0x80808080u};
            for (int e = 0; e < 8; e++) {
                int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
                if (row < s.n_rows && k < s.n_cols)
                    w[e >> 2] ^=
                        static_cast<uint32_t>(s.rows[row * s.row_bytes + k / 32 * 34 + 2 + k % 32])
                        << 8 * (e & 3);
            }
            *reinterpret_cast<uint2 *>(out + 512 * (j >> 1) + 16 * lane + 8 * (j & 1)) =
                make_uint2(w[0], w[1]);
        }
        sl_pack_scales32<34>(s, r0, k0, out + 1024, lane);
    }
};

/* Codes of a step: the word of nibbles, in bytes or in PAIRS, and the upper bits by element. */
template <class Codes, bool PAIRS = false>
static __device__ __forceinline__ uint32_t sl_pack_nibbles(const sl_pack_src &s, int64_t r0,
                                                           int64_t k0, int j, int lane,
                                                           uint32_t upper[8])
{
    uint32_t w = 0;
    for (int e = 0; e < 8; e++) {
        int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
        uint32_t q = 0;
        if (row < s.n_rows && k < s.n_cols)
            q = Codes::code(s.rows + row * s.row_bytes, k);
        w |= (q & 15u) << (PAIRS ? 4 * (e >> 1) + 16 * (e & 1) : 8 * (e & 3) + 4 * (e >> 2));
        upper[e] = q >> 4;
    }
    return w;
}

struct sl_pack_q4_0 {
    typedef sl_wf_q4_0 format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        uint32_t b = row[k / 32 * 18 + 2 + k % 16];
        return k % 32 < 16 ? b & 15u : b >> 4;
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        uint32_t upper[8];
        for (int j = 0; j < 4; j++)
            *reinterpret_cast<uint32_t *>(out + 16 * lane + 4 * j) =
                sl_pack_nibbles<sl_pack_q4_0>(s, r0, k0, j, lane, upper);
        sl_pack_scales32<18>(s, r0, k0, out + 512, lane);
    }
};

/* ------------------------------------------------------------------ groups of four bits */

/* Head of a group of a row, g or (upper) g + 8, whose codes lie four bits higher: m, and above it
 * the scale, which is a bf16. */
static __device__ __forceinline__ uint32_t sl_pack_nibble_head(float scale, float m, int upper)
{
    return sl_pack_bf16(__fmul_rn(m, 1.0f / SL_WF_FACTOR),
                        __fmul_rn(scale, upper ? SL_WF_CODE / 16.0f : SL_WF_CODE));
}

template <class Format, int GROUP> struct sl_pack_int4 {
    typedef Format format;
    static constexpr int block_bytes = 4 + GROUP / 2;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        int e = static_cast<int>(k % GROUP);
        uint32_t b = row[k / GROUP * block_bytes + 4 + 16 * (e / 32) + e % 16];
        return e % 32 < 16 ? b & 15u : b >> 4;
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        constexpr int groups = SL_MAX(format::unit_k / GROUP, 1); /* of a row of the unit */
        uint32_t upper[8];
        for (int step = 0; step < format::unit_k / 16; step++)
            *reinterpret_cast<uint32_t *>(out + 512 * (step >> 2) + 16 * lane + 4 * (step & 3)) =
                sl_pack_nibbles<sl_pack_int4, true>(s, r0, k0, step, lane, upper);
        if (lane >= 16 * groups)
            return;
        int i = lane / groups; /* [g][row g, row g + 8] */
        int64_t row = r0 + (i >> 1) + 8 * (i & 1), k = k0 + GROUP * (lane % groups);
        uint32_t head = 0;
        if (row < s.n_rows && k < s.n_cols) {
            const uint8_t *b = s.rows + row * s.row_bytes + k / GROUP * block_bytes;
            uint32_t v = sl_bytes2(b) | sl_bytes2(b + 2) << 16;
            float scale = sl_round_bf16(__uint_as_float(v & 0xFFFFFF00u));
            head =
                sl_pack_nibble_head(scale, -__fmul_rn(static_cast<float>(v & 0xFFu), scale), i & 1);
        }
        *reinterpret_cast<uint32_t *>(out + format::unit_k * 8 + 4 * lane) = head;
    }
};

/* ------------------------------------------------------------------ blocks of 256 */

/* Scale (which 0) or minimum (1) of run 0..7 from the file's 12 bytes, as src/quant/q4_k.h says. */
static __device__ __forceinline__ uint32_t sl_qk_file_field(const uint8_t *b, int run, int which)
{
    if (run < 4)
        return b[run + 4 * which] & 63u;
    uint32_t low = b[run + 4] >> 4 * which & 15u;
    return low | static_cast<uint32_t>(b[run - 4 + 4 * which] >> 6) << 4;
}

/* The 16 bytes of a row, by lane < 16; block: the row's 256 columns in the file. */
static __device__ __forceinline__ void sl_pack_qk_row(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                      int block_bytes, uint8_t *out, int lane)
{
    if (lane >= 16)
        return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (r0 + lane < s.n_rows && k0 < s.n_cols) {
        const uint8_t *b = s.rows + (r0 + lane) * s.row_bytes + k0 / 256 * block_bytes;
        uint32_t w[3] = {0, 0, 0};
        for (int i = 0; i < 4; i++) {
            for (int sub = 0; sub < 3; sub++)
                w[sub] |= sl_qk_file_field(b + 4, 2 * sub + (i & 1), i >> 1) << 8 * i;
            uint32_t last = sl_qk_file_field(b + 4, 6 + (i & 1), i >> 1);
            for (int p = 0; p < 3; p++)
                w[p] |= (last >> 2 * p & 3u) << (8 * i + 6);
        }
        v = make_uint4(sl_bytes2(b) | sl_bytes2(b + 2) << 16, w[0], w[1], w[2]);
    }
    *reinterpret_cast<uint4 *>(out + 16 * lane) = v;
}

struct sl_pack_q4_k {
    typedef sl_wf_q4_k format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        int i = static_cast<int>(k % 256);
        return row[k / 256 * 144 + 16 + 32 * (i / 64) + i % 32] >> 4 * (i / 32 & 1) & 15u;
    }
    /* Of a run of a block. Code 8 keeps its value, whatever rounding did to the scale. */
    static __device__ __forceinline__ uint32_t head(const uint8_t *block, int run, int upper)
    {
        float v[2]; /* scale and minimum, exact */
        for (int i = 0; i < 2; i++)
            v[i] = __fmul_rn(sl_half_bits(sl_bytes2(block + 2 * i)),
                             static_cast<float>(sl_qk_file_field(block + 4, run, i)));
        float scale = sl_round_bf16(v[0]), eight = __fsub_rn(__fmul_rn(8.0f, v[0]), v[1]);
        return sl_pack_nibble_head(scale, __fsub_rn(eight, __fmul_rn(8.0f, scale)), upper);
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        uint32_t upper[8];
        for (int step = 0; step < 16; step++)
            *reinterpret_cast<uint32_t *>(out + 512 * (step >> 2) + 16 * lane + 4 * (step & 3)) =
                sl_pack_nibbles<sl_pack_q4_k, true>(s, r0, k0, step, lane, upper);
        int64_t row = r0 + (lane >> 2) + 8 * (lane >> 1 & 1);
        bool live = row < s.n_rows && k0 < s.n_cols;
        for (int sub = 0; sub < 4; sub++) /* [g][row g, row g + 8][run] */
            *reinterpret_cast<uint32_t *>(out + 2048 + 128 * sub + 4 * lane) =
                live ? head(s.rows + row * s.row_bytes + k0 / 256 * 144, 2 * sub + (lane & 1),
                            lane >> 1 & 1)
                     : 0u;
    }
};

struct sl_pack_q5_k {
    typedef sl_wf_q5_k format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        int i = static_cast<int>(k % 256);
        const uint8_t *b = row + k / 256 * 176;
        uint32_t low = b[48 + 32 * (i / 64) + i % 32] >> 4 * (i / 32 & 1) & 15u;
        return low | (b[16 + i % 32] >> (i / 32) & 1u) << 4;
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        for (int sub = 0; sub < 4; sub++) {
            uint32_t fifth = 0;
            for (int j = 0; j < 4; j++) {
                uint32_t upper[8];
                *reinterpret_cast<uint32_t *>(out + 512 * sub + 16 * lane + 4 * j) =
                    sl_pack_nibbles<sl_pack_q5_k>(s, r0, k0, 4 * sub + j, lane, upper);
                for (int e = 0; e < 8; e++)
                    fifth |= upper[e] << (8 * (e & 3) + 2 * j + (e >> 2));
            }
            *reinterpret_cast<uint32_t *>(out + 2048 + 128 * sub + 4 * lane) = fifth;
        }
        sl_pack_qk_row(s, r0, k0, 176, out + 2560, lane);
    }
};

struct sl_pack_q6_k {
    typedef sl_wf_q6_k format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        int i = static_cast<int>(k % 256), half = i >> 7, part = i >> 5 & 3, l = i & 31;
        const uint8_t *b = row + k / 256 * 210;
        uint32_t low = b[64 * half + 32 * (part & 1) + l] >> 4 * (part >> 1) & 15u;
        return low | (b[128 + 32 * half + l] >> 2 * part & 3u) << 4;
    }
    template <class Codes>
    static __device__ __forceinline__ void codes(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                 uint8_t *out, int lane)
    {
        for (int sub = 0; sub < 4; sub++) {
            uint32_t h[2] = {0, 0};
            for (int j = 0; j < 4; j++) {
                uint32_t upper[8];
                *reinterpret_cast<uint32_t *>(out + 512 * sub + 16 * lane + 4 * j) =
                    sl_pack_nibbles<Codes>(s, r0, k0, 4 * sub + j, lane, upper);
                for (int e = 0; e < 8; e++) {
                    int group = 2 * j + (e >> 2);
                    h[group >> 2] |= upper[e] << (8 * (e & 3) + 2 * (group & 3));
                }
            }
            *reinterpret_cast<uint2 *>(out + 2048 + 256 * sub + 8 * lane) = make_uint2(h[0], h[1]);
        }
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        codes<sl_pack_q6_k>(s, r0, k0, out, lane);
        if (lane >= 16)
            return;
        const uint8_t *b = s.rows + (r0 + lane) * s.row_bytes + k0 / 256 * 210;
        bool live = r0 + lane < s.n_rows && k0 < s.n_cols;
        for (int i = 0; i < 16; i++)
            out[3072 + 16 * lane + i] = live ? static_cast<uint8_t>(b[192 + i] ^ 0x80) : 0x80;
        *reinterpret_cast<uint16_t *>(out + 3328 + 2 * lane) =
            static_cast<uint16_t>(live ? sl_bytes2(b + 208) : 0);
    }
};

/* ------------------------------------------------------------------ formats read in eights */

/* Those of quant/eight.h become one of the layouts above: bf16, with every value as it is; */
template <class E> struct sl_file_eight {
    static __device__ __forceinline__ uint32_t bits(const uint8_t *row, int64_t k)
    {
        sl_eight e;
        float v[8];
        E::load(row, k - k % 8, &e);
        sl_eight_values(&e, v);
        return __bfloat16_as_ushort(__float2bfloat16_rn(v[k % 8]));
    }
};

static __device__ __forceinline__ uint32_t sl_half_of(float v)
{
    return __half_as_ushort(__float2half_rn(v));
}

/* q8_0, where 32 columns share a scale, which is rounded to f16; */
template <class E> struct sl_pack_eight_q8_0 {
    typedef sl_wf_q8_0 format;
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        sl_eight x;
        for (int j = 0; j < 4; j++) {
            uint32_t w[2] = {0x80808080u, 0x80808080u};
            for (int e = 0; e < 8; e++) {
                int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
                if (row >= s.n_rows || k >= s.n_cols)
                    continue;
                E::load(s.rows + row * s.row_bytes, k - k % 8, &x);
                w[e >> 2] ^= (static_cast<uint32_t>(x.q[k % 8]) & 0xFFu) << 8 * (e & 3);
            }
            *reinterpret_cast<uint2 *>(out + 512 * (j >> 1) + 16 * lane + 8 * (j & 1)) =
                make_uint2(w[0], w[1]);
        }
        int64_t row = r0 + (lane >> 2) + 8 * (lane >> 1 & 1), k = k0 + 32 * (lane & 1);
        uint32_t d = 0;
        if (row < s.n_rows && k < s.n_cols) {
            E::load(s.rows + row * s.row_bytes, k, &x);
            d = sl_half_of(__fmul_rn(x.d, static_cast<float>(x.scale)));
        }
        *reinterpret_cast<uint16_t *>(out + 1024 + 2 * lane) = static_cast<uint16_t>(d);
    }
};

/* q6_k, where codes divided by SHRINK are below 32 and scales fit a byte; d times SHRINK is rounded
 * to f16, which can change it where the file's d is below 2^-11; */
template <class E, int SHRINK> struct sl_pack_eight_q6_k {
    typedef sl_wf_q6_k format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        sl_eight e;
        E::load(row, k - k % 8, &e);
        return static_cast<uint32_t>(e.q[k % 8] / SHRINK + 32);
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        sl_pack_q6_k::codes<sl_pack_eight_q6_k>(s, r0, k0, out, lane);
        if (lane >= 16)
            return;
        const uint8_t *row = s.rows + (r0 + lane) * s.row_bytes;
        bool live = r0 + lane < s.n_rows && k0 < s.n_cols;
        sl_eight e = {0, 0, 0, 0, {0}};
        for (int i = 0; i < 16; i++) {
            if (live)
                E::load(row, k0 + 16 * i, &e);
            out[3072 + 16 * lane + i] = static_cast<uint8_t>(e.scale ^ 0x80);
        }
        *reinterpret_cast<uint16_t *>(out + 3328 + 2 * lane) =
            static_cast<uint16_t>(sl_half_of(__fmul_rn(e.d, static_cast<float>(SHRINK))));
    }
};

/* int4_g32, Q4_1: as Q4_K, code 8 keeps its value. */
struct sl_pack_q4_1 {
    typedef sl_wf_int4_g32 format;
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, int64_t k)
    {
        uint32_t b = row[k / 32 * SL_Q4_1_BYTES + 4 + k % 16];
        return k % 32 < 16 ? b & 15u : b >> 4;
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        uint32_t upper[8];
        for (int step = 0; step < 4; step++)
            *reinterpret_cast<uint32_t *>(out + 16 * lane + 4 * step) =
                sl_pack_nibbles<sl_pack_q4_1, true>(s, r0, k0, step, lane, upper);
        int i = lane / 2; /* [g][row g, row g + 8][group] */
        int64_t row = r0 + (i >> 1) + 8 * (i & 1), k = k0 + 32 * (lane % 2);
        uint32_t head = 0;
        if (row < s.n_rows && k < s.n_cols) {
            const uint8_t *b = s.rows + row * s.row_bytes + k / 32 * SL_Q4_1_BYTES;
            float d = sl_half_bits(sl_bytes2(b)), scale = sl_round_bf16(d);
            float eight = __fadd_rn(__fmul_rn(8.0f, d), sl_half_bits(sl_bytes2(b + 2)));
            head = sl_pack_nibble_head(scale, __fsub_rn(eight, __fmul_rn(8.0f, scale)), i & 1);
        }
        *reinterpret_cast<uint32_t *>(out + 512 + 4 * lane) = head;
    }
};

/* ------------------------------------------------------------------ MXFP4 */

struct sl_pack_mxfp4 {
    typedef sl_wf_mxfp4 format;
    /* A code's bits in a half of a word, of its pair. */
    static __device__ __forceinline__ uint32_t place(uint32_t code, int pair)
    {
        const uint32_t sign = code >> 3 & 1u, rest = code & 7u;
        if (pair < 3)
            return (sign << 15 | rest << 6) >> 3 * pair;
        return sign << 14 | (rest >> 2) << 13 | (rest & 3u) << 10;
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        for (int j = 0; j < 4; j++) {
            uint32_t w = 0;
            for (int e = 0; e < 8; e++) {
                int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
                if (row >= s.n_rows || k >= s.n_cols)
                    continue;
                uint32_t b = s.rows[row * s.row_bytes + k / 32 * SL_MXFP4_BYTES + 1 + k % 16];
                w |= place(k % 32 < 16 ? b & 15u : b >> 4, e >> 1) << 16 * (e & 1);
            }
            *reinterpret_cast<uint32_t *>(out + 16 * lane + 4 * j) = w;
        }
        int64_t row = r0 + (lane >> 2) + 8 * (lane >> 1 & 1), k = k0 + 32 * (lane & 1);
        int e = 0;
        if (row < s.n_rows && k < s.n_cols)
            e = s.rows[row * s.row_bytes + k / 32 * SL_MXFP4_BYTES] + format::bias;
        out[512 + lane] = static_cast<uint8_t>(SL_MIN(e, 254));
    }
};

/* ------------------------------------------------------------------ FP8 */

struct sl_pack_fp8 {
    typedef sl_wf_fp8 format;
    /* Scale of a row of the slice, in two parts; nan: one of its codes is. */
    static __device__ __forceinline__ uint32_t scale(const sl_pack_src &s, int64_t row, int64_t k0,
                                                     bool nan)
    {
        if (row >= s.n_rows)
            return 0;
        if (nan)
            return 0x7FC07FC0u;
        float v = 1.0f;
        if (s.scales != nullptr)
            v = s.scales[(s.scale_first + s.first_row + row) / s.scale_rows *
                             ((s.n_cols + s.scale_cols - 1) / s.scale_cols) +
                         k0 / s.scale_cols];
        v = __fmul_rn(v, 0x1p120f / SL_WF_FACTOR);
        float hi = sl_round_bf16(v);
        return sl_pack_bf16(hi, __fsub_rn(v, hi));
    }
    /* A code's bits in a word, of its pair 0 or 1 (weight_format.cuh). */
    static __device__ __forceinline__ uint32_t place(uint32_t code, int pair)
    {
        if (pair == 0)
            return (code & 0x80u) << 8 | (code & 0x7Fu) << 4;
        return (code & 0x80u) << 4 | (code & 0x70u) << 8 | (code & 0x0Fu);
    }
    static __device__ __forceinline__ void unit(const sl_pack_src &s, int64_t r0, int64_t k0,
                                                uint8_t *out, int lane)
    {
        uint32_t nan = 0; /* bit 0: row g, bit 1: row g + 8 */
        for (int j = 0; j < 8; j++) {
            uint32_t w[2] = {0, 0};
            for (int e = 0; e < 8; e++) {
                int64_t row = r0 + sl_frag_row(lane, e), k = k0 + sl_frag_col(lane, j, e);
                if (row >= s.n_rows || k >= s.n_cols)
                    continue;
                uint32_t code = s.rows[row * s.row_bytes + k];
                w[e >> 2] |= place(code, e >> 1 & 1) << 16 * (e & 1);
                nan |= (code & 0x7Fu) == 0x7Fu ? 1u << (e >> 1 & 1) : 0u;
            }
            *reinterpret_cast<uint2 *>(out + 512 * (j >> 1) + 16 * lane + 8 * (j & 1)) =
                make_uint2(w[0], w[1]);
        }
        nan |= __shfl_xor_sync(0xFFFFFFFFu, nan, 1); /* lanes that share rows */
        nan |= __shfl_xor_sync(0xFFFFFFFFu, nan, 2);
        if ((lane & 3) != 0)
            return;
        int g = lane >> 2;
        *reinterpret_cast<uint2 *>(out + 2048 + 8 * g) = make_uint2(
            scale(s, r0 + g, k0, (nan & 1u) != 0), scale(s, r0 + g + 8, k0, (nan & 2u) != 0));
    }
};

#endif
