/* SPDX-License-Identifier: MIT
 * A real trained model end to end: stories260K, converted from the llama2.c "v0" file to a Hugging
 * Face folder, must continue an empty prompt greedily with exactly the published text.
 *
 * The file holds seven int32 (dim, hidden, layers, heads, KV heads, vocabulary, context), then
 * float32 arrays, each for all layers: embedding, attention norms, q, k, v, o, MLP norms, w1, w2,
 * w3, final norm. Rows of q and k are in interleaved order; the folder wants them in halves.
 */
#include "base/str.h"
#include "io/safetensors_write.h"
#include "models/internal.h"
#include "models/model_rig.h"

#include <stdlib.h>
#include <sys/stat.h>

#define FOLDER "build/testdata/models/stories260K"

enum { N_STEPS = 200 };

struct stories { /* the files, read whole */
    char *bin, *tok, *text;
    size_t n_bin, n_tok, n_text;
    int32_t dim, hidden, n_layers, n_heads, n_kv, n_vocab, context;
};

static bool read_part(const char *dir, const char *name, char **out, size_t *n)
{
    struct sl_error err;
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/stories260K/%s", dir, name);
    return sl_read_file(path, 1 << 24, out, n, &err) == 0;
}

static bool open_stories(struct stories *s)
{
    const char *dir = getenv("SLUICE_TESTDATA");
    memset(s, 0, sizeof *s);
    if (dir == NULL)
        dir = "../shared/testdata";
    if (!read_part(dir, "stories260K.bin", &s->bin, &s->n_bin) ||
        !read_part(dir, "tok512.bin", &s->tok, &s->n_tok) ||
        !read_part(dir, "greedy_200_steps.txt", &s->text, &s->n_text)) {
        printf("skip: stories260K: not in %s/checkpoints (set SLUICE_TESTDATA)\n", dir);
        sl_free(s->bin);
        sl_free(s->tok);
        return false;
    }
    memcpy(&s->dim, s->bin, 7 * sizeof s->dim);
    return true;
}

static void close_stories(struct stories *s)
{
    sl_free(s->bin);
    sl_free(s->tok);
    sl_free(s->text);
}

/* ---------------------------------------------------------------- conversion */

struct part {         /* one array of the file, in file order */
    const char *name; /* with the layer as %d, or without */
    int32_t rows, cols;
    bool rope_rows;
};

static void write_config(const struct stories *s)
{
    struct sl_error err = {0};
    struct sl_buf b = {0};
    sl_buf_printf(&b,
                  "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": %d,\n"
                  "\"intermediate_size\": %d, \"num_hidden_layers\": %d,\n"
                  "\"num_attention_heads\": %d, \"num_key_value_heads\": %d,\n"
                  "\"vocab_size\": %d, \"max_position_embeddings\": %d,\n"
                  "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
                  "\"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": 2}\n",
                  s->dim, s->hidden, s->n_layers, s->n_heads, s->n_kv, s->n_vocab, s->context);
    assert_true(sl_buf_ok(&b));
    if (sl_write_file(FOLDER "/config.json", b.data, b.n_bytes, &err) != 0)
        fail_msg("%s", err.msg);
    sl_buf_deinit(&b);
}

static void tensor_name(const struct part *p, int32_t layer, char *name, size_t n)
{
    const char *hash = strchr(p->name, '#');
    if (hash == NULL)
        snprintf(name, n, "%s", p->name);
    else
        snprintf(name, n, "%.*s%d%s", (int)(hash - p->name), p->name, layer, hash + 1);
}

static void convert(const struct stories *s)
{
    const int32_t hd = s->dim / s->n_heads, kv = hd * s->n_kv;
    const struct part parts[] = {
        {"model.embed_tokens.weight", s->n_vocab, s->dim, false},
        {"model.layers.#.input_layernorm.weight", 0, s->dim, false},
        {"model.layers.#.self_attn.q_proj.weight", s->dim, s->dim, true},
        {"model.layers.#.self_attn.k_proj.weight", kv, s->dim, true},
        {"model.layers.#.self_attn.v_proj.weight", kv, s->dim, false},
        {"model.layers.#.self_attn.o_proj.weight", s->dim, s->dim, false},
        {"model.layers.#.post_attention_layernorm.weight", 0, s->dim, false},
        {"model.layers.#.mlp.gate_proj.weight", s->hidden, s->dim, false},
        {"model.layers.#.mlp.down_proj.weight", s->dim, s->hidden, false},
        {"model.layers.#.mlp.up_proj.weight", s->hidden, s->dim, false},
        {"model.norm.weight", 0, s->dim, false},
    };
    struct sl_st_writer *w = NULL;
    struct sl_error err = {0};
    char name[128];

    mkdir("build", 0777);
    mkdir("build/testdata", 0777);
    mkdir("build/testdata/models", 0777);
    mkdir(FOLDER, 0777);
    write_config(s);
    if (sl_st_writer_create(FOLDER "/model.safetensors", &w, &err) != 0)
        fail_msg("%s", err.msg);
    for (int writing = 0; writing < 2; writing++) {
        const char *at = s->bin + 7 * sizeof(int32_t);
        if (writing && sl_st_writer_begin_data(w, &err) != 0)
            fail_msg("%s", err.msg);
        for (size_t i = 0; i < SL_COUNT(parts); i++) {
            const struct part *p = &parts[i];
            int32_t n_layers = strchr(p->name, '#') ? s->n_layers : 1, rows = SL_MAX(p->rows, 1);
            size_t row_bytes = (size_t)p->cols * sizeof(float);
            int64_t dims[2] = {p->rows ? p->rows : p->cols, p->cols};
            for (int32_t l = 0; l < n_layers; l++, at += (size_t)rows * row_bytes) {
                assert_true((size_t)(at - s->bin) + (size_t)rows * row_bytes <= s->n_bin);
                tensor_name(p, l, name, sizeof name);
                if (!writing)
                    sl_st_writer_add_tensor(w, name, SL_DTYPE_F32, p->rows ? 2 : 1, dims);
                for (int32_t r = 0; writing && r < rows; r++) {
                    int64_t from = p->rope_rows ? sl_interleaved_row(r, hd) : r;
                    if (sl_st_writer_write_tensor_data(w, at + (size_t)from * row_bytes, row_bytes,
                                                       &err) != 0)
                        fail_msg("%s", err.msg);
                }
            }
        }
    }
    if (sl_st_writer_finish(w, &err) != 0)
        fail_msg("%s", err.msg);
}

/* ---------------------------------------------------------------- decoding */

/* The piece of token id as llama2.c prints it after token prev: no space after BOS, "<0x0A>" is a
 * byte. */
static void print_token(const struct stories *s, int32_t prev, int32_t id, struct sl_buf *out)
{
    const char *at = s->tok + 4; /* int32: longest piece; then float score, int32 length, bytes */
    int32_t len = 0;
    for (int32_t i = 0; i <= id; i++) {
        memcpy(&len, at + 4, sizeof len);
        at += i < id ? 8 + len : 8;
    }
    if (prev == 1 && len > 0 && at[0] == ' ') {
        at++;
        len--;
    }
    if (len == 6 && memcmp(at, "<0x", 3) == 0) {
        uint64_t byte = 0;
        assert_true(sl_parse_hex_u64(at + 3, 2, &byte));
        sl_buf_putc(out, (char)byte);
        return;
    }
    sl_buf_put(out, at, (size_t)len);
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

static void check_text(const struct stories *s, const struct rig_options *o)
{
    struct rig g;
    struct sl_buf text = {0};
    int32_t tokens[N_STEPS + 1] = {1}, pages[64];
    rig_open(&g, FOLDER, o);
    size_t v = (size_t)g.n_vocab;
    float *logits = sl_malloc((N_STEPS + 1) * v * sizeof *logits);
    rig_pages(pages, 64, 0, true);
    struct seq seq = {tokens, N_STEPS + 1, pages, logits};
    for (int32_t i = 0; i < N_STEPS; i++) {
        struct piece p = {&seq, i, 1, true};
        rig_step(&g, &p, 1);
        tokens[i + 1] = argmax(logits + (size_t)i * v, g.n_vocab);
        print_token(s, tokens[i], tokens[i + 1], &text);
    }
    assert_true(sl_buf_ok(&text));
    if (text.n_bytes != s->n_text || memcmp(text.data, s->text, s->n_text) != 0)
        fail_msg("%s: the story differs:\n%s\nexpected:\n%s", o->isa, text.data, s->text);

    /* the same story read at once gives the same logits */
    float *whole = sl_malloc(N_STEPS * v * sizeof *whole);
    struct seq again = {tokens, N_STEPS, pages, whole};
    rig_run(&g, &again, N_STEPS);
    assert_memory_equal(whole, logits, N_STEPS * v * sizeof *whole);
    sl_free(whole);
    sl_free(logits);
    sl_buf_deinit(&text);
    rig_close(&g);
}

static void test_story(void **state)
{
    static const char *const isas[] = {"c", "avx2", "avx512"};
    struct stories s;
    (void)state;
    if (!open_stories(&s))
        return;
    convert(&s);
    for (size_t i = 0; i < SL_COUNT(isas); i++) {
        if (rig_has_isa(isas[i]))
            check_text(&s, &(struct rig_options){.isa = isas[i], .kv_dtype = "f32"});
        else
            printf("skip: %s: not on this processor\n", isas[i]);
    }
    close_stories(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_story)};
    return cmocka_run_group_tests_name("stories", tests, NULL, NULL);
}
