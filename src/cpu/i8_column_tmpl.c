/* SPDX-License-Identifier: MIT
 * Single columns of packed panels as floats, which outliers (i8.h) are multiplied by. Included by
 * i8_tmpl.c. All numbers of a column lie at one place of each row's dword, so that one shift brings
 * them down; what is above them does not matter: products take the low words.
 */

/* The byte of sub-block sub, 16 columns each, in the order 0, 2, 1, 3. */
INLINE v16i byte_of_16(const uint8_t *p, int sub)
{
    return vi_byte(vi_loadu(p + 64 + 64 * (sub / 4)), sub % 2 * 2 + sub / 2 % 2);
}

INLINE v16i word_of_32(const uint8_t *p, int sub)
{
    return vi_srl_by(vi_loadu(p + 64 * (sub / 2)), 16 * (sub % 2));
}

INLINE v16i scale_qk(const uint8_t *p, int sub)
{
    const v16i v = vi_loadu(p + 64 + 64 * (sub / 4));
    return vi_and(vi_srl_by(v, 16 * (sub % 2) + 6 * (sub / 2 % 2)), vi_set1(63));
}

/* Of pairs 0 and 1 six bits of the third dword, of the others four of the first or second and two
 * of the third. */
INLINE v16i min_qk(const uint8_t *p, int sub)
{
    const int half = 16 * (sub % 2), pair = sub / 2;
    const bool whole = pair < 2;
    const v16i low =
        vi_srl_by(vi_loadu(p + (whole ? 192 : 64 * (pair - 1))), half + (whole ? 6 * pair : 12));
    const v16i high = vi_srl_by(vi_loadu(p + 192), half + (whole ? 0 : 4 + 2 * pair));
    return vi_merge(high, vi_set1(whole ? 0 : 48), vi_and(low, vi_set1(whole ? 63 : 15)));
}

INLINE v16i scale_mxfp4(const uint8_t *p, int sub)
{
    static const uint8_t scales[16] = {64, 32, 16, 8, 4, 2, 1, 0};
    const v16i shift = vi_and(vi_srl_by(vi_loadu(p + 64), 4 * sub), vi_set1(15));
    return vi_and(vi_lookup(vi_four(scales), shift), vi_set1(255));
}

/* Scale and minimum of a sub-block as words. */
INLINE v16i scale_at(const struct i8_format f, const uint8_t *p, int sub)
{
    if (f.kind == KIND_Q4_0)
        return word_of_32(p + 64, sub);
    if (f.kind == KIND_Q4_1)
        return word_of_32(p + 128, sub);
    if (f.kind == KIND_QK)
        return scale_qk(p, sub);
    if (f.kind == KIND_MXFP4)
        return scale_mxfp4(p, sub);
    const v16i v = byte_of_16(p, sub);
    if (f.kind == KIND_Q2_K)
        return vi_and(v, vi_set1(15));
    return vi_sub(vi_and(vi_add(v, vi_set1(128)), vi_set1(255)), vi_set1(128)); /* its sign */
}

INLINE v16i min_at(const struct i8_format f, const uint8_t *p, int sub)
{
    return f.kind == KIND_Q4_1 ? word_of_32(p + 384, sub)
           : f.kind == KIND_QK ? min_qk(p, sub)
                               : vi_srl(byte_of_16(p, sub), 4);
}

/* Codes of column col of the group, as they are multiplied. */
INLINE v16i code_at(const struct i8_format f, const uint8_t *group, int col)
{
    static const uint8_t mxfp4[16] = {SL_I8_MXFP4_TABLE};
    const uint8_t *strip = group + f.head + col / 64 * f.strip;
    const int quad = col % 64 / 4, byte = 8 * (col % 4), i = quad % 8;
    if (f.kind == KIND_Q8_0)
        return vi_byte(vi_loadu(strip + 64 * quad), col % 4);
    const bool up = quad >= 8;
    v16i c = vi_and(vi_srl_by(vi_loadu(vector_at(f, strip, i)), byte + (up ? 4 : 0)), vi_set1(15));
    if (f.more > 0) {
        const int at = byte + 2 * f.more * (i % PER_PLANE(f)) + (up ? 0 : f.more);
        const v16i more =
            vi_and(vi_srl_by(vi_loadu(plane_at(f, strip, i)), at), vi_set1((1 << f.more) - 1));
        c = up ? vi_or(vi_sll16(c, f.more), more) : vi_or(c, vi_sll16(more, 4));
    }
    if (LOOKS(f))
        c = vi_and(vi_lookup(f.kind == KIND_MXFP4 ? vi_four(mxfp4) : vi_loadu(group + 320), c),
                   vi_set1(255));
    return c;
}

INLINE v16 column(const struct i8_format f, const uint8_t *group, int col)
{
    static const uint8_t zeros[] = {
        [KIND_Q8_0] = 128, [KIND_Q6_K] = 32, [KIND_TABLE] = 128, [KIND_MXFP4] = 128};
    const float *d = (const float *)(const void *)group;
    const int sub = col / (4 * f.sub_quads),
              zero = f.kind == KIND_Q4_0 ? 8 << f.more : zeros[f.kind];
    v16i v = vi_sub(code_at(f, group, col), vi_set1(zero));
    if (f.kind == KIND_Q8_0)
        return v_mul(v_from_int(v), v_load(d));
    v = vi_madd(vi_and(v, vi_set1(0xFFFF)), scale_at(f, group, sub));
    if (f.kind == KIND_Q4_0 || f.kind == KIND_Q6_K || LOOKS(f))
        return v_mul(v_from_int(v), v_load(d));
    const v16i min = vi_madd(vi_set1(1), min_at(f, group, sub));
    if (f.kind == KIND_Q4_1)
        return v_fnma(v_from_int(min), v_load(d + 16), v_mul(v_from_int(v), v_load(d)));
    return v_fnma(v_from_int(min), v_load_f16(group + 32), v_mul(v_from_int(v), v_load_f16(group)));
}

INLINE void add_outlier(v16 w, float x, float *acc)
{
    v_store(acc, v_fma(w, v_set1(x), v_load(acc)));
}

/* Behind a group that is read from its panel by a few tokens. */
INLINE void stream_outliers(const struct i8_format f, const uint8_t *group, const struct sl_i8_x *x,
                            int n_tok, float *acc)
{
    for (int t = 0; t < n_tok; t++)
        for (int i = 0; i < x[t].outliers.n; i++)
            add_outlier(column(f, group, x[t].outliers.col[i]), x[t].outliers.x[i],
                        acc + t * SL_I8_PANELS * 16);
}

/* Columns of a group of some panels. */
struct i8_columns {
    bool is_made[SL_I8_GROUP];
    _Alignas(64) float w[SL_I8_GROUP][SL_I8_PANELS * SL_I8_PANEL];
};

/* Behind a group that many tokens share. They have outliers in the same columns, as a rule, which
 * are made floats once. */
INLINE void tile_outliers(const struct i8_format f, const uint8_t *group, size_t panel_bytes,
                          int n_panels, const struct sl_i8_x *x, int n_tok, float *acc,
                          struct i8_columns *c)
{
    memset(c->is_made, 0, sizeof c->is_made);
    for (int t = 0; t < n_tok; t++)
        for (int i = 0; i < x[t].outliers.n; i++) {
            const int col = x[t].outliers.col[i];
            for (int p = 0; p < n_panels && !c->is_made[col]; p++)
                v_store(c->w[col] + 16 * p, column(f, group + (size_t)p * panel_bytes, col));
            c->is_made[col] = true;
            for (int p = 0; p < n_panels; p++)
                add_outlier(v_load(c->w[col] + 16 * p), x[t].outliers.x[i],
                            acc + (t * SL_I8_PANELS + p) * 16);
        }
}

static inline bool any_outlier(const struct sl_i8_x *x, int n_tok)
{
    int n = 0;
    for (int t = 0; t < n_tok; t++)
        n |= x[t].outliers.n;
    return n != 0;
}
