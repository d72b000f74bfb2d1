/* SPDX-License-Identifier: MIT
 * GGUF: whatever is accepted must stay inside its file, answer every getter, and have cost memory
 * in proportion to its size.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "io/gguf.h"
#include "quant/dtype.h"

#include <string.h>

static uint64_t n_allocated;
static struct sl_sys counting;

static void *count_alloc(size_t n)
{
    n_allocated += n;
    return sl_sys_real.alloc(n);
}

static void ask_everything(const struct sl_gguf *g, const char *key)
{
    struct sl_error err;
    uint64_t u, pos = 0, n_strings = 0;
    int64_t i;
    double d;
    bool b;
    const char *s;
    size_t n;
    struct sl_gguf_array a;
    int found = 0;
    found += sl_gguf_u64(g, key, &u, &err) == 1;
    found += sl_gguf_i64(g, key, &i, &err) == 1;
    found += sl_gguf_f64(g, key, &d, &err) == 1;
    found += sl_gguf_bool(g, key, &b, &err) == 1;
    if (sl_gguf_str(g, key, &s, &n, &err) == 1) {
        found++;
        SL_ASSERT(n == 0 || memchr(s, '\0', n) != s + n); /* reads all of it */
    }
    for (int type = 0; type <= SL_GGUF_F64; type++) {
        if (sl_gguf_array(g, key, (enum sl_gguf_type)type, &a, &err) != 1)
            continue;
        found++;
        for (uint64_t k = 0; k < a.n && k < 4096; k++)
            found += sl_gguf_array_i64(&a, k, &i);
        for (; sl_gguf_array_next_str(&a, &pos, &s, &n); n_strings++)
            SL_ASSERT(n == 0 || memchr(s, '\0', n) != s + n);
        SL_ASSERT(a.type != SL_GGUF_STRING || (n_strings == a.n && pos == a.n_bytes));
    }
    SL_ASSERT(found > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct sl_error err = {0};
    struct sl_gguf *g = NULL;
    counting = sl_sys_real;
    counting.alloc = count_alloc;
    sl_sys = &counting;
    n_allocated = 0;
    int rc = sl_gguf_open(data, n_bytes, "fuzz.gguf", &g, &err);
    SL_ASSERT(n_allocated <= 16 * (uint64_t)n_bytes + (128u << 10));
    if (rc != 0) {
        SL_ASSERT(err.code == rc && strncmp(err.msg, "fuzz.gguf: ", 11) == 0);
        return 0;
    }
    for (size_t i = 0; i < sl_gguf_n_kv(g); i++) {
        enum sl_gguf_type type;
        ask_everything(g, sl_gguf_key_at(g, i, &type));
    }
    for (size_t i = 0; i < sl_gguf_n_tensors(g); i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        SL_ASSERT(sl_range_ok(t->offset, t->n_bytes, n_bytes));
        int dtype = sl_dtype_from_gguf(t->gguf_type);
        if (dtype < 0)
            continue;
        const struct sl_dtype_info *info = sl_dtype_info((enum sl_dtype)dtype);
        float values[256];
        SL_ASSERT(t->n_bytes >= info->block_bytes);
        info->to_f32(data + t->offset + t->n_bytes - info->block_bytes, values, info->block_elems);
    }
    sl_gguf_close(g);
    return 0;
}
