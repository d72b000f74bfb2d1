/* SPDX-License-Identifier: MIT
 * Weights in a file (cpu/weight_stream.h): which are in memory and when, and engines whose bits are
 * those of an engine with all weights in memory.
 */
#include "base/check.h"
#include "base/sys.h"
#include "cpu/weight_stream.h"
#include "sluice.h"
#include "synth/synth.h"

#include <linux/magic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_WEIGHTS = 12, N_OUT = 24 };
#define WEIGHT_BYTES ((size_t)24 << 20) /* three are read ahead */
#define PATIENCE_NS  UINT64_C(20000000000)

static char folder[64];
static bool in_memory; /* of a file system: nothing can leave it */

/* ---------------------------------------------------------------- the stream */

static size_t bytes_here(const void *weight)
{
    static unsigned char pages[WEIGHT_BYTES / 4096];
    size_t n = 0;
    assert_int_equal(mincore((void *)(uintptr_t)weight, WEIGHT_BYTES, pages), 0);
    for (size_t i = 0; i < sizeof pages; i++)
        n += (pages[i] & 1) * (size_t)4096;
    return n;
}

/* The thread that reads is given time. Of a weight that is not wanted the system may read some, as
 * it lies beside one that is. */
static void wait_for(const void *weight, bool here)
{
    const uint64_t end = sl_now_ns() + PATIENCE_NS;
    while (!in_memory &&
           (here ? bytes_here(weight) < WEIGHT_BYTES : bytes_here(weight) > WEIGHT_BYTES / 2)) {
        if (sl_now_ns() > end)
            fail_msg("%zu of %zu bytes are in memory", bytes_here(weight), WEIGHT_BYTES);
        usleep(1000);
    }
}

static void fill(uint32_t *weight, uint32_t seed)
{
    for (size_t i = 0; i < WEIGHT_BYTES / sizeof *weight; i++)
        weight[i] = seed + (uint32_t)i * 2654435761u;
}

static void check(const uint32_t *weight, uint32_t seed)
{
    for (size_t i = 0; i < WEIGHT_BYTES / sizeof *weight; i++)
        if (weight[i] != seed + (uint32_t)i * 2654435761u)
            fail_msg("weight %u differs at %zu", seed, i);
}

static struct sl_weight_stream *open_stream(void *weights[N_WEIGHTS], int n_in_memory)
{
    struct sl_weight_stream *s = NULL;
    struct sl_error err = {0};
    if (sl_weight_stream_create(folder, (uint64_t)n_in_memory * WEIGHT_BYTES, &s, &err) != 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < N_WEIGHTS; i++) {
        if (sl_weight_stream_take(s, WEIGHT_BYTES, &weights[i], &err) != 0)
            fail_msg("%s", err.msg);
        fill(weights[i], (uint32_t)i);
        if (sl_weight_stream_store(s, weights[i], &err) != 0)
            fail_msg("%s", err.msg);
    }
    return s;
}

static void close_stream(struct sl_weight_stream *s, void *weights[N_WEIGHTS])
{
    for (int i = 0; i < N_WEIGHTS; i += 2)
        sl_weight_stream_give(s, weights[i], WEIGHT_BYTES);
    for (int i = 1; i < N_WEIGHTS; i += 2)
        sl_weight_stream_give(s, weights[i], WEIGHT_BYTES);
    sl_weight_stream_destroy(s);
}

static void test_order(void **state)
{
    enum { IN_MEMORY = 3, AHEAD = 3 };
    void *weights[N_WEIGHTS];
    (void)state;
    struct sl_weight_stream *s = open_stream(weights, IN_MEMORY);
    for (int i = IN_MEMORY; i < N_WEIGHTS; i++)
        wait_for(weights[i], false);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N_WEIGHTS; i++) {
            sl_weight_stream_use(s, (const void *const *)&weights[i], 1);
            check(weights[i], (uint32_t)i);
            if (i >= IN_MEMORY && round == 0)
                wait_for(weights[i], true); /* nothing is known of what comes next */
        }
    }
    /* At weight 5 the next three are there without having been touched; behind the last one come
     * the first of those in the file. */
    for (int i = IN_MEMORY; i <= 5; i++)
        sl_weight_stream_use(s, (const void *const *)&weights[i], 1);
    for (int i = IN_MEMORY; i < N_WEIGHTS; i++)
        wait_for(weights[i], i >= 5 && i <= 5 + AHEAD);
    for (int i = 6; i < N_WEIGHTS; i++)
        sl_weight_stream_use(s, (const void *const *)&weights[i], 1);
    for (int i = IN_MEMORY; i < N_WEIGHTS; i++)
        wait_for(weights[i], i == N_WEIGHTS - 1 || i < IN_MEMORY + AHEAD);
    close_stream(s, weights);
}

/* Weights of one product are in memory together, and the order goes through the last of them. */
static void test_together(void **state)
{
    void *weights[N_WEIGHTS];
    (void)state;
    struct sl_weight_stream *s = open_stream(weights, 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N_WEIGHTS; i += 4)
            sl_weight_stream_use(s, (const void *const *)&weights[i], 4);
    sl_weight_stream_use(s, (const void *const *)&weights[4], 4);
    for (int i = 0; i < N_WEIGHTS; i++)
        wait_for(weights[i], i >= 4 && i < 4 + 4 + 3);
    for (int i = 0; i < N_WEIGHTS; i++)
        check(weights[i], (uint32_t)i);
    close_stream(s, weights);
}

/* What is asked for comes without being touched, stays when products go on, and is not taken for a
 * product's. */
static void test_asked(void **state)
{
    void *weights[N_WEIGHTS], *other = sl_aligned_alloc(64);
    (void)state;
    struct sl_weight_stream *s = open_stream(weights, 2);
    sl_weight_stream_ask(s, other);
    sl_weight_stream_ask(s, weights[0]); /* in memory as it is */
    for (int i = 4; i < 8; i++)
        sl_weight_stream_ask(s, weights[i]);
    for (int i = 2; i < N_WEIGHTS; i++)
        wait_for(weights[i], i >= 4 && i < 8);
    sl_weight_stream_use(s, (const void *const *)&weights[9], 1);
    for (int i = 2; i < N_WEIGHTS; i++)
        wait_for(weights[i], i == 9 || (i >= 4 && i < 8));
    for (int i = 0; i < N_WEIGHTS; i++)
        check(weights[i], (uint32_t)i);
    sl_aligned_free(other, 64);
    close_stream(s, weights);
}

static void test_no_folder(void **state)
{
    struct sl_weight_stream *s = NULL;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_weight_stream_create("/nowhere/at/all", 0, &s, &err), SL_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/at/all: cannot make a file"));
    assert_int_equal(sl_weight_stream_create("/dev/null", 0, &s, &err), SL_EIO);
}

/* ---------------------------------------------------------------- engines */

struct output {
    int32_t ids[N_OUT];
    float logprobs[N_OUT];
    int n;
};

static void generate(struct sl_engine *eng, struct output *out)
{
    static const int32_t prompt[] = {11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, 143, 154};
    struct sl_request_desc desc = {.prompt = prompt, .n_prompt = SL_COUNT(prompt)};
    struct sl_request *req = NULL;
    struct sl_chunk chunk;
    struct sl_error err = {0};
    sl_sampling_default(&desc.sampling);
    desc.sampling.max_tokens = N_OUT;
    desc.sampling.ignore_eos = true;
    desc.sampling.temperature = 0;
    desc.sampling.logprobs = 0;
    if (sl_request_submit(eng, &desc, &req, &err) != 0)
        fail_msg("%s", err.msg);
    out->n = 0;
    while (!sl_request_done(req)) {
        sl_request_wait(req, 1000);
        while (sl_request_read(req, &chunk) == 1)
            for (size_t k = 0; k < chunk.n_tokens; k++) {
                out->ids[out->n] = chunk.tokens[k].id;
                out->logprobs[out->n++] = chunk.tokens[k].logprob;
            }
    }
    assert_int_equal(out->n, N_OUT);
    sl_request_release(req);
}

static struct sl_engine *open_engine(const struct sl_engine_config *cfg)
{
    struct sl_engine *eng = NULL;
    struct sl_error err = {0};
    if (sl_engine_create(cfg, &eng, &err) != 0)
        fail_msg("%s", err.msg);
    return eng;
}

static void compare(const char *model, int ranks)
{
    struct sl_engine_config cfg = {.model = model,
                                   .device = "cpu",
                                   .n_threads = 2,
                                   .max_model_len = 256,
                                   .tensor_parallel_size = ranks};
    struct output want, got;
    struct sl_engine *eng = open_engine(&cfg);
    generate(eng, &want);
    sl_engine_destroy(eng);
    cfg.offload_folder = folder;
    cfg.weights_memory_bytes = 20000; /* the others lie in the file */
    struct sl_error err = {0};
    eng = open_engine(&cfg);
    for (int level = 0; level <= 2; level++) {
        if (level > 0 && (sl_engine_sleep(eng, level, false, 10000, &err) != 0 ||
                          sl_engine_wake(eng, &err) != 0))
            fail_msg("level %d: %s", level, err.msg);
        generate(eng, &got);
        assert_memory_equal(&got, &want, sizeof want);
    }
    sl_engine_destroy(eng);
}

static void write_model(const char *name, enum sl_dtype dtype, const char *path)
{
    struct sl_synth s = {
        .name = name, .dtype = dtype, .format = SL_CKPT_GGUF, .seed = 7, .byte_vocab = true};
    struct sl_error err = {0};
    if (sl_synth_shape(name, "tiny", &s.hp, &err) != 0 || sl_synth_write(&s, path, &err) != 0)
        fail_msg("%s", err.msg);
}

static void test_bits(void **state)
{
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    write_model("llama", SL_DTYPE_Q8_0, path);
    compare(path, 1);
    compare(path, 2);
    write_model("qwen3moe", SL_DTYPE_Q8_0, path);
    compare(path, 1);
    unlink(path);
}

static void refuse(struct sl_engine_config cfg, const char *want)
{
    struct sl_error err = {0};
    struct sl_engine *eng = NULL;
    if (sl_engine_create(&cfg, &eng, &err) == 0 || strstr(err.msg, want) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, want);
}

static void test_refused(void **state)
{
    (void)state;
    refuse((struct sl_engine_config){.device = "cpu", .weights_memory_bytes = 1 << 20},
           "weights_memory_bytes: the other weights need an offload_folder");
    refuse((struct sl_engine_config){.device = "cpu", .offload_folder = "/nowhere/at/all"},
           "/nowhere/at/all: cannot make a file in this folder");
}

static int make_folder(void **state)
{
    struct statfs fs;
    (void)state;
    snprintf(folder, sizeof folder, "build/weights-XXXXXX");
    if (mkdtemp(folder) == NULL || statfs(folder, &fs) != 0)
        return -1;
    in_memory = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
    if (in_memory)
        printf("skip: what leaves memory: this folder's files lie in memory\n");
    return 0;
}

/* The file has no name: nothing is left in the folder. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order), cmocka_unit_test(test_together),
        cmocka_unit_test(test_asked), cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_bits),  cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
