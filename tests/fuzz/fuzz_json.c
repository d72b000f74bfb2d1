/* SPDX-License-Identifier: MIT
 * The JSON files of a model folder: the input is read as config.json and as the index of a folder
 * with two shards.
 */
#include "base/log.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "mem_files.h"

#define SHARD(name)              \
    "\x38\0\0\0\0\0\0\0{\"" name \
    "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0\0"

static const char shard_a[] = SHARD("a"), shard_b[] = SHARD("b");

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
    SL_ASSERT(mem_n_open == 0);
    return rc;
}

static int open_with_index(const void *data, size_t n_bytes)
{
    mem_files[0] = (struct mem_file){"a.safetensors", shard_a, sizeof shard_a - 1};
    mem_files[1] = (struct mem_file){"b.safetensors", shard_b, sizeof shard_b - 1};
    mem_files[2] = (struct mem_file){"config.json", "{}", 2};
    mem_files[3] = (struct mem_file){"model.safetensors.index.json", data, n_bytes};
    mem_files[4] = (struct mem_file){0};
    return open_folder();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    sl_log_set_level(SL_LOG_ERROR);
    mem_files_use();
    static const char good[] = "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}";
    SL_ASSERT(open_with_index(good, sizeof good - 1) == 0); /* the folder itself is sound */
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct sl_error err = {0};
    json_t *root = NULL;
    int rc =
        sl_json_object((const char *)data, n_bytes, SL_JSON_MAX_CONFIG, "fuzz.json", &root, &err);
    SL_ASSERT(rc == 0 || strncmp(err.msg, "fuzz.json: ", 11) == 0);
    json_decref(root);
    (void)open_with_index(data, n_bytes);
    mem_files[2] = (struct mem_file){"config.json", data, n_bytes};
    mem_files[3] = (struct mem_file){"generation_config.json", data, n_bytes};
    mem_files[4] = (struct mem_file){"model.safetensors", shard_a, sizeof shard_a - 1};
    (void)open_folder();
    return 0;
}
