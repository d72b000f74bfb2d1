/* SPDX-License-Identifier: MIT
 * safetensors: an accepted header is also valid JSON for another parser, with as many tensors, and
 * its tensors tile the file.
 */
#include "base/sys.h"
#include "fuzz.h"
#include "io/safetensors.h"

#include <jansson.h>
#include <string.h>

static uint64_t n_allocated;
static struct sl_sys counting;

static void *count_alloc(size_t n)
{
    n_allocated += n;
    return sl_sys_real.alloc(n);
}

static void *count_realloc(void *p, size_t n)
{
    n_allocated += n;
    return sl_sys_real.realloc(p, n);
}

static void compare_with_json(const struct sl_st *st, const char *header, size_t n)
{
    json_error_t je;
    json_t *root = json_loadb(header, n, JSON_REJECT_DUPLICATES, &je);
    SL_ASSERT(json_is_object(root));
    json_t *metadata = json_object_get(root, "__metadata__");
    SL_ASSERT(json_object_size(root) == sl_st_n_tensors(st) + (metadata != NULL));
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (value == metadata)
            continue;
        const struct sl_st_tensor *t = sl_st_find(st, key);
        SL_ASSERT(t != NULL);
        json_t *shape = json_object_get(value, "shape");
        SL_ASSERT(json_array_size(shape) == (size_t)t->n_dims);
        for (int i = 0; i < t->n_dims; i++)
            SL_ASSERT(json_integer_value(json_array_get(shape, (size_t)i)) == t->dims[i]);
        SL_ASSERT(strcmp(json_string_value(json_object_get(value, "dtype")), t->dtype) == 0);
    }
    json_object_foreach(metadata, key, value)
        SL_ASSERT(strcmp(sl_st_metadata(st, key), json_string_value(value)) == 0);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct sl_error err = {0};
    struct sl_st *st = NULL;
    counting = sl_sys_real;
    counting.alloc = count_alloc;
    counting.realloc = count_realloc;
    sl_sys = &counting;
    n_allocated = 0;
    int rc = sl_st_open(data, n_bytes, "fuzz.st", &st, &err);
    SL_ASSERT(n_allocated <= 24 * (uint64_t)n_bytes + (128u << 10));
    if (rc != 0) {
        SL_ASSERT(err.code == rc && strncmp(err.msg, "fuzz.st: ", 9) == 0);
        return 0;
    }
    uint64_t n_header, total = 0;
    memcpy(&n_header, data, sizeof n_header);
    compare_with_json(st, (const char *)data + sizeof n_header, (size_t)n_header);
    for (size_t i = 0; i < sl_st_n_tensors(st); i++) {
        const struct sl_st_tensor *t = sl_st_tensor_at(st, i);
        SL_ASSERT(t->offset >= sizeof n_header + n_header);
        SL_ASSERT(sl_range_ok(t->offset, t->n_bytes, n_bytes));
        total += t->n_bytes;
    }
    SL_ASSERT(total == n_bytes - sizeof n_header - n_header);
    sl_st_close(st);
    return 0;
}
