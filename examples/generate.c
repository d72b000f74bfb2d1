/* SPDX-License-Identifier: MIT
 *
 * The C API in one page: open a model, count tokens, stream an answer, stop it, close. Build with
 *     cc generate.c $(pkg-config --cflags --libs sluice)
 * and call ./a.out [MODEL [PROMPT [MAX_BYTES]]]. MODEL: a path, a name like Qwen/Qwen3-0.6B, or "-"
 * for the bundled one.
 */
#include <sluice.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct printer {
    size_t n_bytes, max_bytes;
};

/* What is returned says whether to stop. */
static int print_text(void *arg, const char *text, size_t n)
{
    struct printer *p = arg;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    p->n_bytes += n;
    return p->n_bytes >= p->max_bytes;
}

static int generate(struct sl_engine *engine, const char *prompt, size_t max_bytes,
                    struct sl_error *err)
{
    struct printer printer = {0, max_bytes};
    struct sl_sampling sampling;
    struct sl_usage usage;
    enum sl_finish finish;
    int32_t *ids;
    size_t n_ids;
    int rc = sl_tokenizer_encode(sl_engine_tokenizer(engine), prompt, strlen(prompt),
                                 SL_ENCODE_ADD_SPECIAL, &ids, &n_ids, err);
    if (rc != 0)
        return rc;
    fprintf(stderr, "%zu prompt tokens\n", n_ids);
    sl_free(ids);

    sl_engine_sampling_default(engine, &sampling);
    sampling.temperature = 0;
    sampling.max_tokens = 32;
    struct sl_generate_desc desc = {.prompt = prompt,
                                    .n_prompt = strlen(prompt),
                                    .encode_flags = SL_ENCODE_ADD_SPECIAL,
                                    .sampling = &sampling,
                                    .on_text = print_text,
                                    .arg = &printer};
    rc = sl_generate(engine, &desc, &finish, &usage, err);
    if (rc == 0)
        fprintf(stderr, "\n%d tokens, %s\n", usage.n_output,
                finish == SL_FINISH_ABORT ? "cancelled" : "finished");
    return rc;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    const char *prompt = argc > 2 ? argv[2] : "Once upon a time";
    size_t max_bytes = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : (size_t)-1;
    struct sl_engine *engine = NULL;
    struct sl_error err = {0};
    char *path = NULL;
    int rc = sl_model_find(name, NULL, &path, &err);
    if (rc == 0) {
        struct sl_engine_config config = {.model = path, .device = "cpu", .max_num_seqs = 1};
        rc = sl_engine_create(&config, &engine, &err);
    }
    if (rc == 0) {
        rc = generate(engine, prompt, max_bytes, &err);
        sl_engine_destroy(engine);
    }
    sl_free(path);
    if (rc != 0)
        fprintf(stderr, "generate: %s (%s)\n", err.msg, sl_code_name(rc));
    return rc == 0 ? 0 : 1;
}
