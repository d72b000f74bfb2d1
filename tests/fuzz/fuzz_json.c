/* SPDX-License-Identifier: MIT
 * The JSON files of a model folder: the input is read as config.json and as the index of a folder
 * with two shards, which exists only in the system table below.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "io/checkpoint.h"
#include "io/json.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct blob {
    const char *suffix; /* of the path */
    const void *data;
    size_t n_bytes;
};

#define SHARD(name)              \
    "\x38\0\0\0\0\0\0\0{\"" name \
    "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0\0"

static const char shard_a[] = SHARD("a"), shard_b[] = SHARD("b");
static struct blob blobs[5];
static int n_open;
static struct sl_sys in_memory;

/* A descriptor is the index of a blob; the folder itself has one past the last. */
static int blob_open(const char *path, int flags, int mode)
{
    (void)mode;
    n_open++;
    if ((flags & O_DIRECTORY) != 0)
        return (int)SL_COUNT(blobs);
    SL_ASSERT(sl_starts_with(path, "dir/") && strchr(path + 4, '/') == NULL);
    for (size_t i = 0; i < SL_COUNT(blobs); i++) {
        if (blobs[i].suffix != NULL && strcmp(path + 4, blobs[i].suffix) == 0)
            return (int)i;
    }
    n_open--;
    errno = ENOENT;
    return -1;
}

static int blob_close(int fd)
{
    (void)fd;
    n_open--;
    return 0;
}

static int64_t blob_size(int fd)
{
    return (int64_t)blobs[fd].n_bytes;
}

static void *blob_map(int fd, size_t n)
{
    SL_ASSERT(n == blobs[fd].n_bytes);
    return (void *)(uintptr_t)blobs[fd].data;
}

static void blob_unmap(void *p, size_t n)
{
    (void)p;
    (void)n;
}

static int open_folder(void)
{
    struct sl_error err = {0};
    struct sl_ckpt *c = NULL;
    int rc = sl_ckpt_open("dir", &c, &err);
    SL_ASSERT(rc == 0 || (err.code == rc && err.msg[0] != '\0'));
    if (rc == 0) {
        SL_ASSERT(json_is_object(sl_ckpt_config(c)));
        SL_ASSERT(sl_ckpt_find(c, "a") != NULL || sl_ckpt_find(c, "b") != NULL);
    }
    sl_ckpt_close(c);
    SL_ASSERT(n_open == 0);
    return rc;
}

static int open_with_index(const void *data, size_t n_bytes)
{
    blobs[0] = (struct blob){"a.safetensors", shard_a, sizeof shard_a - 1};
    blobs[1] = (struct blob){"b.safetensors", shard_b, sizeof shard_b - 1};
    blobs[2] = (struct blob){"config.json", "{}", 2};
    blobs[3] = (struct blob){"model.safetensors.index.json", data, n_bytes};
    blobs[4] = (struct blob){0};
    return open_folder();
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    sl_log_set_level(SL_LOG_ERROR);
    in_memory = sl_sys_real;
    in_memory.open = blob_open;
    in_memory.close = blob_close;
    in_memory.file_size = blob_size;
    in_memory.map = blob_map;
    in_memory.unmap = blob_unmap;
    sl_sys = &in_memory;
    static const char good[] = "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}";
    SL_ASSERT(open_with_index(good, sizeof good - 1) == 0); /* the folder itself is sound */
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct sl_error err = {0};
    json_t *root = NULL;
    int rc =
        sl_json_object((const char *)data, n_bytes, SL_JSON_MAX_CONFIG, "fuzz.json", &root, &err);
    SL_ASSERT(rc == 0 || strncmp(err.msg, "fuzz.json: ", 11) == 0);
    json_decref(root);
    (void)open_with_index(data, n_bytes);
    blobs[2] = (struct blob){"config.json", data, n_bytes};
    blobs[3] = (struct blob){"generation_config.json", data, n_bytes};
    blobs[4] = (struct blob){"model.safetensors", shard_a, sizeof shard_a - 1};
    (void)open_folder();
    return 0;
}
