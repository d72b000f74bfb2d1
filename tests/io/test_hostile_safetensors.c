/* SPDX-License-Identifier: MIT
 * Hostile Hugging Face folders beyond the header's grammar, which test_safetensors.c covers: a
 * whole small model of which one tensor's entry, one number of the header, one file, the index or
 * the generation defaults are wrong. Each case states the code that it must give and what the
 * message must name; changes that leave the model valid must open and run.
 */
#include "hostile_model.h"

#include "base/limits.h"

#include <sys/stat.h>

#define MAX   UINT64_MAX
#define INDEX "model.safetensors.index.json"

struct st_entry {
    const char *name;
    int rows, cols; /* cols 0: a vector */
};

static const struct st_entry entries[] = {
    {"model.embed_tokens.weight", VOCAB, HIDDEN},
    {"model.norm.weight", HIDDEN, 0},
    {"lm_head.weight", VOCAB, HIDDEN},
    {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.self_attn.q_proj.weight", 16, HIDDEN},
    {"model.layers.0.self_attn.k_proj.weight", 8, HIDDEN},
    {"model.layers.0.self_attn.v_proj.weight", 8, HIDDEN},
    {"model.layers.0.self_attn.o_proj.weight", HIDDEN, 16},
    {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
    {"model.layers.0.mlp.gate_proj.weight", 48, HIDDEN},
    {"model.layers.0.mlp.up_proj.weight", 48, HIDDEN},
    {"model.layers.0.mlp.down_proj.weight", HIDDEN, 48},
};
enum { N_ENTRIES = SL_COUNT(entries) };

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16,\"intermediate_size\":48,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"vocab_size\":8,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":10000,\"tie_word_embeddings\":false}";
static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"</s>\":1,\"a\":2,\"b\":3,\"c\":4,\"ab\":5,"
    "\"abc\":6,\"\\u0120\":7},\"merges\":[\"a b\",\"ab c\"]},\"pre_tokenizer\":{\"type\":"
    "\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false},\"decoder\":{\"type\":"
    "\"ByteLevel\"}}";

static uint64_t entry_bytes(int i)
{
    return 4 * (uint64_t)entries[i].rows * (uint64_t)SL_MAX(entries[i].cols, 1);
}

/* Where tensor i begins in the data of the valid file. */
static uint64_t entry_at(int i)
{
    uint64_t at = 0;
    for (int k = 0; k < i; k++)
        at += entry_bytes(k);
    return at;
}

static const char *shape_of(int i)
{
    static char text[2][40];
    static int turn;
    turn = !turn;
    if (entries[i].cols > 0)
        snprintf(text[turn], sizeof text[0], "[%d,%d]", entries[i].rows, entries[i].cols);
    else
        snprintf(text[turn], sizeof text[0], "[%d]", entries[i].rows);
    return text[turn];
}

/* One entry of the header, with any part given or as it should be. */
static void put_entry(struct sl_buf *h, int i, const char *name, const char *dtype,
                      const char *shape, const char *offsets)
{
    char right[60];
    snprintf(right, sizeof right, "[%" PRIu64 ",%" PRIu64 "]", entry_at(i), entry_at(i + 1));
    sl_buf_printf(h, "%s\"%s\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}",
                  h->n_bytes > 1 ? "," : "", name != NULL ? name : entries[i].name,
                  dtype != NULL ? dtype : "\"F32\"", shape != NULL ? shape : shape_of(i),
                  offsets != NULL ? offsets : right);
}

static void write_st(const char *file, const struct sl_buf *header, uint64_t n_header,
                     uint64_t n_data)
{
    struct sl_buf b = {0};
    sl_buf_put(&b, &n_header, 8);
    sl_buf_put(&b, header->data, header->n_bytes);
    for (uint64_t i = 0; i < n_data; i++)
        sl_buf_putc(&b, 0);
    assert_true(sl_buf_ok(&b));
    write_new(folder_path(&dir, file), b.data, b.n_bytes);
    sl_buf_deinit(&b);
}

/* The header of the valid file, in which the entry of tensor i is the text given, or missing. */
static struct sl_buf header_with(int i, const char *entry)
{
    struct sl_buf h = {0};
    sl_buf_putc(&h, '{');
    for (int k = 0; k < N_ENTRIES; k++) {
        if (k != i)
            put_entry(&h, k, NULL, NULL, NULL, NULL);
        else if (entry != NULL)
            sl_buf_printf(&h, "%s%s", h.n_bytes > 1 ? "," : "", entry);
    }
    sl_buf_putc(&h, '}');
    return h;
}

static void expect_header(struct sl_buf h, uint64_t n_data, int code, const char *named,
                          const char *label)
{
    write_st("model.safetensors", &h, h.n_bytes, n_data);
    sl_buf_deinit(&h);
    expect_path(dir.path, code, named, label);
}

/* Tensor i written in another way; the data are those of the valid file. */
static void expect_entry(int i, const char *name, const char *dtype, const char *shape,
                         const char *offsets, int code, const char *named)
{
    struct sl_buf e = {0};
    char label[300];
    put_entry(&e, i, name, dtype, shape, offsets);
    snprintf(label, sizeof label, "%s", e.data);
    expect_header(header_with(i, e.data), entry_at(N_ENTRIES), code, named, label);
    sl_buf_deinit(&e);
}

static void the_valid_model(void **state)
{
    (void)state;
    expect_header(header_with(-1, NULL), entry_at(N_ENTRIES), 0, "", "unchanged");
    struct sl_buf h = header_with(-1, NULL);
    for (int i = 0; i < 100; i++)
        sl_buf_putc(&h, ' ');
    expect_header(h, entry_at(N_ENTRIES), 0, "", "padded");
    h = (struct sl_buf){0};
    sl_buf_putc(&h, '{');
    for (int k = N_ENTRIES - 1; k >= 0; k--)
        put_entry(&h, k, NULL, NULL, NULL, NULL);
    sl_buf_putc(&h, '}');
    expect_header(h, entry_at(N_ENTRIES), 0, "", "listed backwards");
    h = (struct sl_buf){0};
    sl_buf_putc(&h, '{');
    for (int k = 0; k < N_ENTRIES; k++) /* some checkpoints leave the prefix out */
        put_entry(&h, k, entries[k].name + (k != 2 ? strlen("model.") : 0), NULL, NULL, NULL);
    sl_buf_putc(&h, '}');
    expect_header(h, entry_at(N_ENTRIES), 0, "", "without the leading model.");
}

/* ---------------------------------------------------------------- entries */

static void every_dtype_of_every_tensor(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
        bool good;
    } types[] = {
        {"F32", 32, true},     {"F16", 16, true},   {"BF16", 16, true},    {"F64", 64, false},
        {"I8", 8, false},      {"U8", 8, false},    {"I16", 16, false},    {"U16", 16, false},
        {"I32", 32, false},    {"U32", 32, false},  {"I64", 64, false},    {"U64", 64, false},
        {"BOOL", 8, false},    {"C64", 64, false},  {"F8_E4M3", 8, false}, {"F8_E5M2", 8, false},
        {"F8_E8M0", 8, false}, {"F4", 4, false},    {"f32", 32, false},    {"FLOAT", 32, false},
        {"F32 ", 32, false},   {"Q8_0", 32, false},
    };
    for (int i = 0; i < N_ENTRIES; i++) {
        for (size_t t = 0; t < SL_COUNT(types); t++) {
            struct sl_buf h = {0};
            uint64_t at = 0;
            char dtype[24], offsets[60], label[120];
            /* a matrix may be FP8 if scales are there */
            bool scales = strcmp(types[t].name, "F8_E4M3") == 0 && i != 0 && entries[i].cols > 0;
            int bad = scales ? SL_EFORMAT : SL_EUNSUPPORTED;
            snprintf(dtype, sizeof dtype, "\"%s\"", types[t].name);
            snprintf(label, sizeof label, "%s as %s", entries[i].name, types[t].name);
            sl_buf_putc(&h, '{');
            for (int k = 0; k < N_ENTRIES; k++) { /* what follows moves */
                uint64_t n =
                    k == i ? entry_bytes(k) * (uint64_t)types[t].bits / 32 : entry_bytes(k);
                snprintf(offsets, sizeof offsets, "[%" PRIu64 ",%" PRIu64 "]", at, at + n);
                put_entry(&h, k, NULL, k == i ? dtype : NULL, NULL, offsets);
                at += n;
            }
            sl_buf_putc(&h, '}');
            expect_header(h, at, types[t].good ? 0 : bad, types[t].good ? "" : entries[i].name,
                          label);
        }
    }
}

static void every_shape_of_every_tensor(void **state)
{
    (void)state;
    for (int i = 0; i < N_ENTRIES; i++) {
        char flat[40], turned[40], more[60], leading[60];
        long n = (long)entry_bytes(i) / 4;
        bool square = entries[i].cols == 0 || entries[i].rows == entries[i].cols;
        snprintf(flat, sizeof flat, "[%ld]", n);
        snprintf(turned, sizeof turned, "[%d,%d]", entries[i].cols, entries[i].rows);
        snprintf(more, sizeof more, "[%ld,1]", n);
        snprintf(leading, sizeof leading, "[1,%ld,1]", n);
        if (entries[i].cols > 0)
            expect_entry(i, NULL, NULL, flat, NULL, SL_EFORMAT, entries[i].name);
        if (!square)
            expect_entry(i, NULL, NULL, turned, NULL, SL_EFORMAT, entries[i].name);
        expect_entry(i, NULL, NULL, more, NULL, SL_EFORMAT, entries[i].name);
        expect_entry(i, NULL, NULL, leading, NULL, SL_EFORMAT, entries[i].name);
        expect_entry(i, NULL, NULL, "[1,1,1,1,1,1,1,1,1]", NULL, SL_EFORMAT, entries[i].name);
        static const char *const shapes[] = {
            "[]",
            "[0]",
            "[1]",
            "[4294967295]",
            "[4294967296]",
            "[4294967297]",
            "[2147483648,2]",
            "[9223372036854775807]",
            "[9223372036854775808]",
            "[18446744073709551615]",
            "[4294967296,4294967296]",
            "[4611686018427387904,4]",
            "[16,0]",
            "null",
            "{}",
            "\"[16]\"",
            "[-16]",
            "[16.0]",
            "[1e1]",
            "[true]",
            "[[16]]",
            "[null]",
        };
        for (size_t s = 0; s < SL_COUNT(shapes); s++) {
            const char *named = shapes[s][0] == '[' && shapes[s][1] >= '0' && shapes[s][1] <= '9' &&
                                        strpbrk(shapes[s], ".e") == NULL
                                    ? entries[i].name
                                    : "header byte";
            if (strcmp(shapes[s], "[]") == 0)
                named = entries[i].name;
            expect_entry(i, NULL, NULL, shapes[s], NULL, SL_EFORMAT, named);
        }
    }
}

static void every_offset_of_every_tensor(void **state)
{
    (void)state;
    for (int i = 0; i < N_ENTRIES; i++) {
        uint64_t a = entry_at(i), b = entry_at(i + 1);
        const uint64_t pairs[][2] = {
            {b, a},
            {a, b - 1},
            {a, b + 1},
            {a + 1, b},
            {a + 1, b + 1},
            {a, a},
            {a, 0x7FFFFFFF},
            {a, 0x80000000},
            {a, 0x80000001},
            {a, 0xFFFFFFFF},
            {a, 1ull << 32},
            {a, (1ull << 32) + 1},
            {a, INT64_MAX},
            {a, 1ull << 63},
            {a, MAX},
            {MAX, MAX},
            {1ull << 32, 1ull << 32},
            {a + (1ull << 32), b + (1ull << 32)},
            {MAX, a},
            {b, b + (b - a)},
        };
        for (size_t p = 0; p < SL_COUNT(pairs); p++) {
            char offsets[80];
            snprintf(offsets, sizeof offsets, "[%" PRIu64 ",%" PRIu64 "]", pairs[p][0],
                     pairs[p][1]);
            /* the neighbour may be the one that is blamed */
            expect_entry(i, NULL, NULL, NULL, offsets, SL_EFORMAT, "model.safetensors");
        }
        static const char *const odd[] = {"null",    "{}",      "[]",    "[0]",
                                          "[0,1,2]", "0",       "\"\"",  "[,]",
                                          "[-1,0]",  "[0,1.5]", "[0 1]", "[\"0\",1]"};
        for (size_t p = 0; p < SL_COUNT(odd); p++)
            expect_entry(i, NULL, NULL, NULL, odd[p], SL_EFORMAT, "model.safetensors");
    }
}

static void every_name_of_every_tensor(void **state)
{
    (void)state;
    for (int i = 0; i < N_ENTRIES; i++) {
        char label[100], longer[SL_MAX_TENSOR_NAME + 2];
        snprintf(label, sizeof label, "%s left out", entries[i].name);
        uint64_t n = entry_at(N_ENTRIES) - (i == N_ENTRIES - 1 ? entry_bytes(i) : 0);
        expect_header(header_with(i, NULL), n, SL_EFORMAT,
                      i == N_ENTRIES - 1 ? entries[i].name : "gap", label);
        memset(longer, 'x', sizeof longer);
        longer[SL_MAX_TENSOR_NAME + 1] = '\0';
        const struct {
            const char *name;
            int code;
            const char *named;
        } names[] = {
            {"", SL_EFORMAT, "name of tensor"},
            {"other", SL_EFORMAT, entries[i].name},
            {"MODEL.NORM.WEIGHT", SL_EFORMAT, entries[i].name},
            {entries[(i + 1) % N_ENTRIES].name, SL_EFORMAT, "appears twice"},
            {"a\\u0000b", SL_EFORMAT, "name of tensor"},
            {"a\\u001b[2J", SL_EFORMAT, "name of tensor"},
            {"a\xFF", SL_EFORMAT, "UTF-8"},
            {"a\xED\xA0\x80", SL_EFORMAT, "UTF-8"},
            {"\\ud800", SL_EFORMAT, "escape"},
            {longer, SL_ELIMIT, "name of tensor"},
            {"__metadata__", SL_EFORMAT, "header byte"},
            {"../../etc/passwd", SL_EFORMAT, entries[i].name},
        };
        for (size_t k = 0; k < SL_COUNT(names); k++)
            expect_entry(i, names[k].name, NULL, NULL, NULL, names[k].code, names[k].named);
        static const char *const types[] = {
            "null", "32", "true", "[]", "{}", "\"\"", "\"F32\\u0000\"", "\"\\ud800\"", "F32"};
        for (size_t k = 0; k < SL_COUNT(types); k++)
            expect_entry(i, NULL, types[k], NULL, NULL, SL_EFORMAT, "model.safetensors");
    }
}

/* ---------------------------------------------------------------- the file as a whole */

static void header_length_with_every_border(void **state)
{
    (void)state;
    struct sl_buf h = header_with(-1, NULL);
    uint64_t right = h.n_bytes;
    const struct {
        uint64_t n;
        int code;
    } cases[] = {
        {0, SL_EFORMAT},
        {1, SL_EFORMAT},
        {7, SL_EFORMAT},
        {8, SL_EFORMAT},
        {right - 1, SL_EFORMAT},
        {right, 0},
        {right + 1, SL_EFORMAT},
        {right + 4, SL_EFORMAT},
        {right + entry_at(N_ENTRIES), SL_EFORMAT},
        {SL_MAX_ST_HEADER, SL_EFORMAT},
        {SL_MAX_ST_HEADER + 1ull, SL_ELIMIT},
        {0x7FFFFFFF, SL_ELIMIT},
        {0x80000000, SL_ELIMIT},
        {0x80000001, SL_ELIMIT},
        {0xFFFFFFFF, SL_ELIMIT},
        {1ull << 32, SL_ELIMIT},
        {(1ull << 32) + right, SL_ELIMIT},
        {right << 32, SL_ELIMIT},
        {INT64_MAX, SL_ELIMIT},
        {1ull << 63, SL_ELIMIT},
        {(1ull << 63) + right, SL_ELIMIT},
        {MAX - 7, SL_ELIMIT},
        {MAX, SL_ELIMIT},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char label[60];
        snprintf(label, sizeof label, "header of %" PRIu64 " bytes", cases[i].n);
        write_st("model.safetensors", &h, cases[i].n, entry_at(N_ENTRIES));
        expect_path(dir.path, cases[i].code, "model.safetensors", label);
    }
    sl_buf_deinit(&h);
}

static void data_length_with_every_border(void **state)
{
    (void)state;
    uint64_t right = entry_at(N_ENTRIES);
    const uint64_t sizes[] = {0,         1,     right / 2, right - 4,
                              right - 1, right, right + 1, right + 4096};
    for (size_t i = 0; i < SL_COUNT(sizes); i++)
        expect_header(header_with(-1, NULL), sizes[i], sizes[i] == right ? 0 : SL_EFORMAT,
                      "model.safetensors", "data length");
    struct sl_buf h = header_with(-1, NULL);
    size_t n_all = 8 + h.n_bytes + (size_t)right;
    struct sl_buf b = {0};
    uint64_t n = h.n_bytes;
    sl_buf_put(&b, &n, 8);
    sl_buf_put(&b, h.data, h.n_bytes);
    while (b.n_bytes < n_all)
        sl_buf_putc(&b, 0);
    for (size_t cut = 0; cut < n_all; cut += cut < 8 + h.n_bytes + 8 ? 1 : 61) {
        write_new(folder_path(&dir, "model.safetensors"), b.data, cut);
        expect_path(dir.path, SL_EFORMAT, "model.safetensors", "cut");
    }
    sl_buf_deinit(&b);
    sl_buf_deinit(&h);
}

static void other_files(void **state)
{
    (void)state;
    static const struct {
        const char *label, *front;
        size_t n;
    } fronts[] = {
        {"zip", "PK\3\4\24\0\0\0", 8},
        {"pickle", "\x80\4\x95\0\0\0\0\0", 8},
        {"GGUF", "GGUF\3\0\0\0", 8},
        {"ELF",
         "\x7F"
         "ELF\2\1\1\0",
         8},
        {"JSON", "{\"__met", 7},
        {"byte order mark", "\xEF\xBB\xBF", 3},
        {"a NUL", "\0", 1},
        {"gzip", "\x1F\x8B\x08\0\0\0\0\0", 8},
        {"HTML", "<!DOCTYP", 8},
        {"git LFS pointer", "version ", 8},
    };
    struct sl_buf h = header_with(-1, NULL);
    for (size_t i = 0; i < SL_COUNT(fronts); i++) {
        struct sl_buf b = {0};
        uint64_t n = h.n_bytes;
        sl_buf_put(&b, fronts[i].front, fronts[i].n);
        sl_buf_put(&b, &n, 8);
        sl_buf_put(&b, h.data, h.n_bytes);
        write_new(folder_path(&dir, "model.safetensors"), b.data, b.n_bytes);
        struct sl_error err = {0};
        int rc = open_all(dir.path, &err);
        n_cases++;
        if ((rc != SL_EFORMAT && rc != SL_ELIMIT) || strstr(err.msg, "model.safetensors") == NULL)
            fail_msg("%s before: code %d (%s)", fronts[i].label, rc, err.msg);
        sl_buf_deinit(&b);
    }
    sl_buf_deinit(&h);
    /* two openings of the object, comments, a second object, values nobody knows */
    static const char *const texts[] = {" {}",
                                        "{}{}",
                                        "[{}]",
                                        "{\"__metadata__\":{\"a\":{}}}",
                                        "{\"__metadata__\":[]}",
                                        "{\"a\":{}}",
                                        "{\"a\":[]}",
                                        "{\"a\":null}",
                                        "{/**/}",
                                        "{}//",
                                        "\xEF\xBB\xBF{}",
                                        "{}\0"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        struct sl_buf t = {0};
        sl_buf_put(&t, texts[i], i + 1 == SL_COUNT(texts) ? 3 : strlen(texts[i]));
        expect_header(t, 0, SL_EFORMAT, "model.safetensors", texts[i]);
    }
}

static void many_entries(void **state)
{
    (void)state;
    for (int extra = 0; extra < 2; extra++) { /* metadata at and over the limit */
        struct sl_buf h = {0};
        sl_buf_puts(&h, "{\"__metadata__\":{");
        for (int i = 0; i < SL_MAX_GGUF_KV + extra; i++)
            sl_buf_printf(&h, "%s\"k%d\":\"\"", i > 0 ? "," : "", i);
        sl_buf_puts(&h, "}");
        for (int k = 0; k < N_ENTRIES; k++)
            put_entry(&h, k, NULL, NULL, NULL, NULL);
        sl_buf_putc(&h, '}');
        write_st("model.safetensors", &h, h.n_bytes, entry_at(N_ENTRIES));
        sl_buf_deinit(&h);
        struct sl_error err = {0};
        assert_int_equal(open_all(dir.path, &err), extra ? SL_ELIMIT : 0);
        n_cases++;
    }
    struct sl_buf h = {0}; /* 100,000 tensors that the model does not use: told, and it runs */
    sl_buf_putc(&h, '{');
    for (int k = 0; k < N_ENTRIES; k++)
        put_entry(&h, k, NULL, NULL, NULL, NULL);
    for (int i = 0; i < 100000; i++)
        sl_buf_printf(&h, ",\"x%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i);
    sl_buf_putc(&h, '}');
    write_st("model.safetensors", &h, h.n_bytes, entry_at(N_ENTRIES));
    sl_buf_deinit(&h);
    uint64_t start = sl_now_ns();
    struct sl_error err = {0};
    if (open_all(dir.path, &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(sl_now_ns() - start < 20u * 1000000000ull);
    two_tokens(dir.path, "100,000 tensors more");
    n_cases++;
    n_opened++;
}

/* ---------------------------------------------------------------- the index */

static void indices(void **state)
{
    (void)state;
    static const struct {
        const char *value; /* of the last tensor in weight_map */
        int code;
        const char *named;
    } cases[] = {
        {"\"s.safetensors\"", 0, ""},
        {"\"../s.safetensors\"", SL_EFORMAT, "../s.safetensors"},
        {"\"..\\\\s.safetensors\"", SL_EFORMAT, "down_proj"},
        {"\"./s.safetensors\"", SL_EFORMAT, "down_proj"},
        {"\"s.safetensors/\"", SL_EFORMAT, "down_proj"},
        {"\"//s.safetensors\"", SL_EFORMAT, "down_proj"},
        {"\"/dev/zero.safetensors\"", SL_EFORMAT, "down_proj"},
        {"\"..\"", SL_EFORMAT, "down_proj"},
        {"\"...safetensors\"", SL_ENOTFOUND, "...safetensors"},
        {"\"..%2fs.safetensors\"", SL_ENOTFOUND, "..%2fs.safetensors"},
        {"\"s.safetensors \"", SL_EUNSUPPORTED, "down_proj"},
        {"\" s.safetensors\"", SL_ENOTFOUND, " s.safetensors"},
        {"\"S.SAFETENSORS\"", SL_EUNSUPPORTED, "down_proj"},
        {"\"s.safetensors\\u0000x\"", SL_EFORMAT, INDEX},
        {"\"s\\u202e.safetensors\"", SL_ENOTFOUND, ".safetensors"},
        {"\"\\ud800.safetensors\"", SL_EFORMAT, INDEX},
        {"\"C:s.safetensors\"", SL_ENOTFOUND, "C:s.safetensors"},
        {"\"https:\\/\\/x\\/s.safetensors\"", SL_EFORMAT, "down_proj"},
        {"null", SL_EFORMAT, "down_proj"},
        {"true", SL_EFORMAT, "down_proj"},
        {"7", SL_EFORMAT, "down_proj"},
        {"[\"s.safetensors\"]", SL_EFORMAT, "down_proj"},
        {"{\"file\":\"s.safetensors\"}", SL_EFORMAT, "down_proj"},
        {"\"\"", SL_EFORMAT, "down_proj"},
        {"\"" INDEX "\"", SL_EUNSUPPORTED, "down_proj"},
        {"\"model.bin\"", SL_EUNSUPPORTED, "model.bin"},
        {"\"loop.safetensors\"", SL_EIO, "loop.safetensors"},
        {"\"pipe.safetensors\"", SL_EIO, "pipe.safetensors"},
        {"\"folder.safetensors\"", SL_EIO, "folder.safetensors"},
        {"\"gone.safetensors\"", SL_ENOTFOUND, "gone.safetensors"},
        {"\"dangling.safetensors\"", SL_ENOTFOUND, "dangling.safetensors"},
        {"\"copy.safetensors\"", SL_EFORMAT, "is in s.safetensors and in copy.safetensors"},
        {"\"s.safetensors\",\"extra\":\"s.safetensors\"", SL_EFORMAT, "extra"},
        {"\"s.safetensors\",\"lm_head.weight\":\"s.safetensors\"", SL_EFORMAT, "duplicate"},
    };
    struct sl_buf h = header_with(-1, NULL);
    (void)unlink(folder_path(&dir, "model.safetensors"));
    write_st("s.safetensors", &h, h.n_bytes, entry_at(N_ENTRIES));
    write_st("copy.safetensors", &h, h.n_bytes, entry_at(N_ENTRIES));
    sl_buf_deinit(&h);
    assert_int_equal(symlink("loop.safetensors", folder_path(&dir, "loop.safetensors")), 0);
    assert_int_equal(symlink("nowhere", folder_path(&dir, "dangling.safetensors")), 0);
    assert_int_equal(mkfifo(folder_path(&dir, "pipe.safetensors"), 0644), 0);
    assert_int_equal(mkdir(folder_path(&dir, "folder.safetensors"), 0755), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf b = {0};
        sl_buf_puts(&b, "{\"metadata\":{\"total_size\":\"any\"},\"weight_map\":{");
        for (int k = 0; k < N_ENTRIES - 1; k++)
            sl_buf_printf(&b, "\"%s\":\"s.safetensors\",", entries[k].name);
        sl_buf_printf(&b, "\"%s\":%s}}", entries[N_ENTRIES - 1].name, cases[i].value);
        write_new(folder_path(&dir, INDEX), b.data, b.n_bytes);
        expect_path(dir.path, cases[i].code, cases[i].named, cases[i].value);
        sl_buf_deinit(&b);
    }
    (void)rmdir(folder_path(&dir, "folder.safetensors"));
    struct sl_buf b = {0}; /* 100,000 tensors that no shard has: the first is named */
    sl_buf_puts(&b, "{\"weight_map\":{");
    for (int i = 0; i < 100000; i++)
        sl_buf_printf(&b, "%s\"x%d\":\"s.safetensors\"", i > 0 ? "," : "", i);
    sl_buf_puts(&b, "}}");
    write_new(folder_path(&dir, INDEX), b.data, b.n_bytes);
    sl_buf_deinit(&b);
    struct sl_error err = {0};
    assert_int_equal(open_all(dir.path, &err), SL_EFORMAT);
    assert_non_null(strstr(err.msg, "is not in s.safetensors"));
    n_cases++;
    (void)unlink(folder_path(&dir, INDEX));
}

/* ---------------------------------------------------------------- what is read at the start */

static void generation_defaults(void **state)
{
    (void)state;
    static const char *const keys[] = {"temperature", "top_p", "min_p", "repetition_penalty",
                                       "top_k"};
    static const struct {
        const char *value;
        bool good[5];
    } values[] = {
        {"null", {true, true, true, true, true}},
        {"1", {true, true, true, true, true}},
        {"0", {true, true, true, false, true}},
        {"-1", {false, false, false, false, true}},
        {"-2", {false, false, false, false, false}},
        {"1.5", {true, false, false, true, true}},
        {"101", {false, false, false, false, true}},
        {"1e308", {false, false, false, false, false}},
        {"-1e308", {false, false, false, false, false}},
        {"9223372036854775807", {false, false, false, false, false}},
        {"\"0.5\"", {false, false, false, false, false}},
        {"true", {false, false, false, false, false}},
        {"[]", {false, false, false, false, false}},
        {"{}", {false, false, false, false, false}},
    };
    struct sl_buf h = header_with(-1, NULL);
    write_st("model.safetensors", &h, h.n_bytes, entry_at(N_ENTRIES));
    sl_buf_deinit(&h);
    for (size_t k = 0; k < SL_COUNT(keys); k++) {
        for (size_t v = 0; v < SL_COUNT(values); v++) {
            struct sl_engine_config cfg = tiny_config(dir.path);
            struct sl_engine *eng = NULL;
            struct sl_error err = {0};
            char text[120];
            snprintf(text, sizeof text, "{\"%s\":%s}", keys[k], values[v].value);
            write_new(folder_path(&dir, "generation_config.json"), text, strlen(text));
            int rc = sl_engine_create(&cfg, &eng, &err);
            n_cases++;
            n_opened += rc == 0;
            if ((rc == 0) != values[v].good[k] ||
                (rc != 0 && (rc != SL_EFORMAT || strstr(err.msg, keys[k]) == NULL)))
                fail_msg("%s: code %d (%s)", text, rc, err.msg);
            sl_engine_destroy(eng);
        }
    }
    (void)unlink(folder_path(&dir, "generation_config.json"));
}

/* Files that are there but cannot be read are not taken for absent ones. */
static void unreadable_files(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json",         "generation_config.json",
                                        "tokenizer.json",      "tokenizer_config.json",
                                        "chat_template.jinja", "model.safetensors"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char path[512], saved[512];
        snprintf(path, sizeof path, "%s", folder_path(&dir, files[i]));
        snprintf(saved, sizeof saved, "%s", folder_path(&dir, "saved"));
        bool had = rename(path, saved) == 0;
        assert_int_equal(mkdir(path, 0755), 0);
        expect_path(dir.path, SL_EIO, files[i], "a folder in its place");
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(symlink(files[i], path), 0);
        expect_path(dir.path, SL_EIO, files[i], "a link to itself");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0644), 0);
        expect_path(dir.path, SL_EIO, files[i], "a pipe");
        assert_int_equal(unlink(path), 0);
        if (had)
            assert_int_equal(rename(saved, path), 0);
    }
    expect_path(dir.path, 0, "", "all files back");
}

static void enough_cases(void **state)
{
    (void)state;
    print_message("%d cases, %d of them valid\n", n_cases, n_opened);
    assert_true(n_cases >= 200);
    assert_true(n_opened >= 50);
}

static int make_dir(void **state)
{
    (void)state;
    sl_log_set_level(SL_LOG_ERROR);
    if (!folder_make(&dir))
        return -1;
    write_new(folder_path(&dir, "config.json"), config, sizeof config - 1);
    write_new(folder_path(&dir, "tokenizer.json"), tokenizer, sizeof tokenizer - 1);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_valid_model),
        cmocka_unit_test(every_dtype_of_every_tensor),
        cmocka_unit_test(every_shape_of_every_tensor),
        cmocka_unit_test(every_offset_of_every_tensor),
        cmocka_unit_test(every_name_of_every_tensor),
        cmocka_unit_test(header_length_with_every_border),
        cmocka_unit_test(data_length_with_every_border),
        cmocka_unit_test(other_files),
        cmocka_unit_test(many_entries),
        cmocka_unit_test(indices),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(unreadable_files),
        cmocka_unit_test(enough_cases),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
