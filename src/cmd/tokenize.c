/* SPDX-License-Identifier: MIT
 * tokenize.c - `sluice tokenize`: text on stdin to a JSON array of ids on stdout, and back.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/model.h"

#include <string.h>
#include <unistd.h>

struct tokenize_options {
    bool decode, add_special, parse_special, skip_special, json;
};

#define OWN(field) offsetof(struct tokenize_options, field)

static const struct sl_flag tokenize_flags[] = {
    {SL_FLAG_SWITCH, 'd', "decode", NULL, OWN(decode), 0, 0, NULL, "ids (a JSON array) to text"},
    {SL_FLAG_SWITCH, 0, "add-special-tokens", NULL, OWN(add_special), 0, 0, NULL,
     "add the model's begin and end tokens"},
    {SL_FLAG_SWITCH, 0, "parse-special", NULL, OWN(parse_special), 0, 0, NULL,
     "parse special tokens in the text"},
    {SL_FLAG_SWITCH, 0, "skip-special-tokens", NULL, OWN(skip_special), 0, 0, NULL,
     "with --decode: leave them out"},
    {SL_FLAG_SWITCH, 0, "json", NULL, OWN(json), 0, 0, NULL,
     "with --decode: print a JSON string (ids are always JSON)"},
};

static int print_ids(const int32_t *ids, size_t n, struct sl_error *err)
{
    struct sl_buf b = {0};
    sl_buf_putc(&b, '[');
    for (size_t i = 0; i < n; i++)
        sl_buf_printf(&b, i > 0 ? ", %d" : "%d", ids[i]);
    sl_buf_puts(&b, "]\n");
    int rc = sl_buf_ok(&b) ? sl_write_all(STDOUT_FILENO, b.data, b.n_bytes, err)
                           : sl_fail(err, SL_ENOMEM, "out of memory for %zu ids", n);
    sl_buf_deinit(&b);
    return rc;
}

static size_t tokenize_skip_space(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r'))
        i++;
    return i;
}

/* Parses "[1, 2, 3]"; *end is where reading stopped, the whole length if all was well. */
static bool parse_id_array(const char *s, size_t n, int32_t *out, size_t *n_out, size_t *end)
{
    size_t i = tokenize_skip_space(s, n, 0);
    *n_out = 0;
    *end = i;
    if (i >= n || s[i] != '[')
        return false;
    i = tokenize_skip_space(s, n, i + 1);
    bool more = !(i < n && s[i] == ']');
    while (more) {
        size_t start = i;
        int64_t id;
        while (i < n && (s[i] == '-' || (s[i] >= '0' && s[i] <= '9')))
            i++;
        *end = start;
        if (!sl_parse_i64(s + start, i - start, &id) || id < INT32_MIN || id > INT32_MAX)
            return false;
        out[(*n_out)++] = (int32_t)id;
        i = tokenize_skip_space(s, n, i);
        *end = i;
        if (i >= n || (s[i] != ',' && s[i] != ']'))
            return false;
        more = s[i] == ',';
        i = more ? tokenize_skip_space(s, n, i + 1) : i;
    }
    *end = tokenize_skip_space(s, n, i + 1);
    return *end == n;
}

static int parse_ids(const char *s, size_t n, int32_t **out, size_t *n_out, struct sl_error *err)
{
    size_t n_bytes, end;
    *n_out = 0;
    if (!sl_mul_size(n / 2 + 1, sizeof **out, &n_bytes) || (*out = sl_malloc(n_bytes)) == NULL)
        return sl_fail(err, SL_ENOMEM, "out of memory for the ids");
    if (parse_id_array(s, n, *out, n_out, &end))
        return 0;
    return sl_fail(err, SL_EFORMAT,
                   "standard input: expected a JSON array of integers, stopped at byte %zu", end);
}

static int decode_stdin(const struct sl_tokenizer *tok, const struct tokenize_options *opt,
                        const char *in, size_t n_in, struct sl_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0, n_text = 0;
    char *text = NULL;
    struct sl_buf quoted = {0};
    int rc = parse_ids(in, n_in, &ids, &n_ids, err);
    if (rc == 0)
        rc = sl_tokenizer_decode(tok, ids, n_ids, opt->skip_special, &text, &n_text, err);
    if (rc == 0 && opt->json) {
        sl_buf_json_string(&quoted, text, n_text);
        sl_buf_putc(&quoted, '\n');
        rc = sl_buf_ok(&quoted) ? sl_write_all(STDOUT_FILENO, quoted.data, quoted.n_bytes, err)
                                : sl_fail(err, SL_ENOMEM, "out of memory for the text");
    } else if (rc == 0) {
        rc = sl_write_all(STDOUT_FILENO, text, n_text, err);
    }
    sl_buf_deinit(&quoted);
    sl_free(text);
    sl_free(ids);
    return rc;
}

static int encode_stdin(const struct sl_tokenizer *tok, const struct tokenize_options *opt,
                        const char *in, size_t n_in, struct sl_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    unsigned flags = (opt->add_special ? SL_ENCODE_ADD_SPECIAL : 0u) |
                     (opt->parse_special ? SL_ENCODE_PARSE_SPECIAL : 0u);
    int rc = sl_tokenizer_encode(tok, in, n_in, flags, &ids, &n_ids, err);
    if (rc == 0)
        rc = print_ids(ids, n_ids, err);
    sl_free(ids);
    return rc;
}

static int tokenize_main(int argc, char **argv)
{
    struct tokenize_options opt = {0};
    struct sl_error err = {0};
    struct sl_cli_model model = {.hub = {.text_only = true}};
    const char *name = NULL;
    int n_positional;
    struct sl_tokenizer *tok = NULL;
    char *in = NULL;
    size_t n_in = 0;
    struct sl_flag_group groups[] = {{tokenize_flags, SL_COUNT(tokenize_flags), &opt, 0},
                                     {sl_flags_hub, sl_n_flags_hub, &model.hub, 0}};
    int rc = sl_flags_parse(&sl_cmd_tokenize, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0)
        rc = sl_cli_find_model(&model, name, &err);
    if (rc == 0)
        rc = sl_tokenizer_open(model.path, &tok, &err);
    if (rc == 0)
        rc = sl_read_file("-", SL_MAX_TEXT, &in, &n_in, &err);
    if (rc == 0)
        rc = opt.decode ? decode_stdin(tok, &opt, in, n_in, &err)
                        : encode_stdin(tok, &opt, in, n_in, &err);
    sl_free(in);
    if (tok != NULL)
        sl_tokenizer_close(tok);
    sl_cli_model_deinit(&model);
    return rc == 0 ? SL_EXIT_OK : sl_command_fail(&sl_cmd_tokenize, &err);
}

const struct sl_command sl_cmd_tokenize = {
    .name = "tokenize",
    .usage = "[MODEL_OR_VOCAB] [FLAGS] < TEXT",
    .summary = "text on stdin to token ids on stdout, and back",
    .details =
        "MODEL_OR_VOCAB: a model folder, or a vocabulary: tokenizer.json, tekken.json, GGUF,\n"
        "tiktoken or SentencePiece, told apart by content; without one, the bundled model's.\n",
    .examples = "  echo -n \"Hello, world\" | sluice tokenize\n"
                "  echo \"[72, 105]\" | sluice tokenize --decode ./Qwen3-0.6B/tokenizer.json\n",
    .run = tokenize_main,
};
