/* SPDX-License-Identifier: MIT
 * golden_model.h - golden models (tools/gen_golden.py) as the engine can open them.
 */
#ifndef SL_TESTS_CUDA_GOLDEN_MODEL_H
#define SL_TESTS_CUDA_GOLDEN_MODEL_H

extern "C" {
#include "base/sys.h"
}

#include <stdio.h>
#include <string>
#include <sys/stat.h>

static void golden_write(const std::string &path, const void *data, size_t n)
{
    FILE *f = fopen(path.c_str(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A copy with a tokenizer, which the engine wants and the goldens do without: its path. */
static std::string golden_with_tokenizer(const std::string &name, const char *prefix)
{
    static const char tokenizer[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[]}";
    const std::string to = std::string("build/testdata/models/") + prefix + name;
    for (const char *folder : {"build", "build/testdata", "build/testdata/models"})
        mkdir(folder, 0777);
    mkdir(to.c_str(), 0777);
    for (const char *file : {"/config.json", "/model.safetensors"}) {
        struct sl_error err = {};
        char *data = nullptr;
        size_t n = 0;
        if (sl_read_file(("tests/golden/models/" + name + file).c_str(), 1 << 24, &data, &n,
                         &err) != 0)
            fail_msg("%s: %s", name.c_str(), err.msg);
        golden_write(to + file, data, n);
        sl_free(data);
    }
    golden_write(to + "/tokenizer.json", tokenizer, sizeof tokenizer - 1);
    return to;
}

#endif
