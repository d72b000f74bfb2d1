/* SPDX-License-Identifier: MIT
 * The exponential and what is made of it, in terms of the sixteen lanes of vec_*.h: included by
 * kernels_tmpl.c and recurrent_tmpl.c.
 */
/* exp(x) = 2^n exp(r), n the integer nearest x / ln 2, |r| <= ln 2 / 2 by subtracting n ln 2 in two
 * parts (the first short enough that n times it is exact), exp(r) by its series up to r^7 / 5040:
 * the next term is below 2^-27. 2^n is applied in two halves, so that subnormal results are rounded
 * once and overflow gives infinity. NaN stays NaN; exp(0) is exactly 1. */
INLINE v16 v_exp(v16 x)
{
    v16 magic = v_set1(0x1.8p23f); /* adding it leaves n in the low bits of the sum */
    x = v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x)); /* this order of operands keeps NaN */
    v16 t = v_fma(x, v_set1(0x1.715476p0f), magic);
    v16 n = v_sub(t, magic);
    v16 r = v_fma(n, v_set1(-0x1.62e4p-1f), x);
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    v16 p = v_set1(0x1.a01a02p-13f);
    p = v_fma(p, r, v_set1(0x1.6c16c2p-10f));
    p = v_fma(p, r, v_set1(0x1.111112p-7f));
    p = v_fma(p, r, v_set1(0x1.555556p-5f));
    p = v_fma(p, r, v_set1(0x1.555556p-3f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    v16i e = vi_sub(v_bits(t), v_bits(magic)), half = vi_half(e), bias = vi_set1(127);
    v16 scale_a = v_from_bits(vi_to_exponent(vi_add(half, bias)));
    v16 scale_b = v_from_bits(vi_to_exponent(vi_add(vi_sub(e, half), bias)));
    return v_mul(v_mul(p, scale_a), scale_b);
}
