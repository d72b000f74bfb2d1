/* SPDX-License-Identifier: MIT
 * grammar.c - `sluice grammar`: does a schema or grammar compile, what does it accept, what do its
 * masks cost.
 */
#include "grammar/jump.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "cmd/constraint.h"
#include "cmd/model.h"

#include <string.h>
#include <unistd.h>

struct grammar_options {
    const char *kind;
    struct sl_flag_list tests;
    struct sl_cli_json_style style;
    bool draft7, ignore_formats, masks, validate;
};

#define OWN(field) offsetof(struct grammar_options, field)

static const struct sl_flag grammar_flags[] = {
    {SL_FLAG_STR, 'k', "kind", NULL, OWN(kind), 0, 0, "NAME",
     "json-schema, json-object, regex, choice, ebnf, structural-tag"},
    {SL_FLAG_STR_LIST, 't', "test", NULL, OWN(tests), 0, 0, "TEXT",
     "is TEXT accepted, and how far does it go; may be repeated"},
    {SL_FLAG_SWITCH, 'm', "masks", NULL, OWN(masks), 0, 0, NULL,
     "with --test: walk the text token by token and time the masks"},
    {SL_FLAG_SWITCH, 0, "validate", NULL, OWN(validate), 0, 0, NULL,
     "accept all that the schema allows, not only what is generated"},
    {SL_FLAG_SWITCH, 0, "draft7", NULL, OWN(draft7), 0, 0, NULL,
     "treat schemas without $schema as draft 7"},
    {SL_FLAG_SWITCH, 0, "ignore-formats", NULL, OWN(ignore_formats), 0, 0, NULL,
     "do not enforce format"},
};

static int grammar_kind_of(const char *name, enum sl_grammar_kind *out, struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_grammar_kind kind;
    } kinds[] = {{"json-schema", SL_GRAMMAR_JSON_SCHEMA},
                 {"json-object", SL_GRAMMAR_JSON_OBJECT},
                 {"regex", SL_GRAMMAR_REGEX},
                 {"choice", SL_GRAMMAR_CHOICE},
                 {"ebnf", SL_GRAMMAR_EBNF},
                 {"gbnf", SL_GRAMMAR_EBNF},
                 {"lark", SL_GRAMMAR_EBNF},
                 {"structural-tag", SL_GRAMMAR_STRUCTURAL}};
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (name == NULL || strcmp(kinds[i].name, name) == 0) {
            *out = kinds[i].kind;
            return 0;
        }
    return sl_fail(err, SL_EINVAL, "--kind %s: not a kind of grammar", name);
}

static uint32_t count_bits(const uint32_t *mask, uint32_t n_words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(mask[i]);
    return n;
}

/* Tokens that are forced at place i of a text, 0 in the middle of those before. */
static int count_forced(struct sl_matcher *m, struct sl_jump *j, const int32_t *ids, size_t i,
                        size_t *next, struct sl_error *err)
{
    int32_t out[SL_MAX_JUMP];
    uint32_t n = 0;
    if (i == 0 || i < *next)
        return 0;
    j->n_last = (uint32_t)SL_MIN(i, (size_t)SL_JUMP_CONTEXT);
    j->last = ids + i - j->n_last;
    int rc = sl_jump_find(m, j, out, SL_MAX_JUMP, &n, err);
    *next = i + n;
    return rc;
}

static int grammar_walk(struct sl_grammar *g, const struct sl_vocab *v,
                        const struct sl_tokenizer *tok, const char *text, struct sl_buf *out,
                        struct sl_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0, i = 0, next = 0, n_forced = 0;
    uint64_t total = 0, max = 0, first = 0;
    struct sl_matcher *m = NULL;
    uint32_t *mask = sl_malloc(v->n_words * sizeof *mask);
    bool ok = true;
    int rc = mask == NULL ? sl_fail(err, SL_ENOMEM, "out of memory")
                          : sl_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n, err);
    if (rc == 0)
        rc = sl_matcher_create(g, (uint32_t)n + 1, &m, err);
    for (; rc == 0 && ok && i <= n; i += ok) {
        uint64_t t0 = sl_now_ns();
        rc = sl_matcher_mask(m, mask, err);
        uint64_t t = sl_now_ns() - t0;
        first = i == 0 ? t : first;
        max = t > max ? t : max;
        total += t;
        if (i == n)
            break;
        struct sl_jump j = {.tok = tok, .vocab = v, .mask = mask};
        if (rc == 0)
            rc = count_forced(m, &j, ids, i, &next, err);
        n_forced += i < next;
        if (rc == 0)
            rc = sl_matcher_accept(m, ids[i], &ok, err);
    }
    if (rc == 0)
        sl_buf_printf(out,
                      "     %zu of %zu tokens; masks: first %.1f us, mean %.1f, max %.1f; "
                      "%zu tokens forced; %u tokens may follow\n",
                      i, n, (double)first / 1e3, (double)total / 1e3 / (double)(i + 1),
                      (double)max / 1e3, n_forced, count_bits(mask, v->n_words));
    sl_matcher_destroy(m);
    sl_free(mask);
    sl_free(ids);
    return rc;
}

static int check(const struct grammar_options *opt, const struct sl_grammar_spec *spec,
                 const struct sl_vocab *v, const struct sl_tokenizer *tok, bool *all,
                 struct sl_error *err)
{
    struct sl_grammar *g = NULL;
    struct sl_buf out = {0};
    uint64_t t0 = sl_now_ns();
    int rc = sl_grammar_compile(spec, v, &g, err);
    if (rc == 0)
        sl_buf_printf(&out, "compiled in %.2f ms\n", (double)(sl_now_ns() - t0) / 1e6);
    for (int i = 0; i < opt->tests.n && rc == 0; i++) {
        const char *text = opt->tests.items[i];
        size_t at;
        bool yes;
        rc = sl_grammar_matches(g, text, strlen(text), &yes, &at, err);
        if (rc != 0)
            break;
        *all = *all && yes;
        if (yes)
            sl_buf_printf(&out, "yes  %s\n", text);
        else
            sl_buf_printf(&out, "no   %s\n     %s byte %zu\n", text,
                          at < strlen(text) ? "refused at" : "not complete at", at);
        if (v != NULL)
            rc = grammar_walk(g, v, tok, text, &out, err);
    }
    if (rc == 0)
        rc = sl_buf_ok(&out) ? sl_write_all(STDOUT_FILENO, out.data, out.n_bytes, err)
                             : sl_fail(err, SL_ENOMEM, "out of memory");
    sl_buf_deinit(&out);
    sl_grammar_destroy(g);
    return rc;
}

static int grammar_main(int argc, char **argv)
{
    struct grammar_options opt = {0};
    struct sl_error err = {0};
    struct sl_cli_model model = {.hub = {.text_only = true}};
    const char *name = NULL;
    int n_positional;
    char *in = NULL;
    size_t n_in = 0;
    bool all = true;
    struct sl_tokenizer *tok = NULL;
    struct sl_vocab *v = NULL;
    struct sl_grammar_spec spec = {0};
    struct sl_flag_group groups[] = {{grammar_flags, SL_COUNT(grammar_flags), &opt, 0},
                                     {sl_flags_json_style, sl_n_flags_json_style, &opt.style, 0},
                                     {sl_flags_hub, sl_n_flags_hub, &model.hub, 0}};
    int rc = sl_flags_parse(&sl_cmd_grammar, groups, SL_COUNT(groups), argc, argv, &name, 1,
                            &n_positional, &err);
    if (rc == SL_FLAGS_HELP)
        return SL_EXIT_OK;
    if (rc == 0)
        rc = grammar_kind_of(opt.kind, &spec.kind, &err);
    if (rc == 0 && spec.kind != SL_GRAMMAR_JSON_OBJECT)
        rc = sl_read_file("-", SL_MAX_HTTP_BODY, &in, &n_in, &err);
    if (rc == 0 && opt.masks)
        rc = sl_cli_find_model(&model, name, &err);
    if (rc == 0 && opt.masks)
        rc = sl_tokenizer_open(model.path, &tok, &err);
    if (rc == 0 && opt.masks)
        rc = sl_vocab_from_tokenizer(tok, (uint32_t)sl_tokenizer_n_vocab(tok), &v, &err);
    spec.text = in;
    spec.n = n_in;
    if (opt.validate)
        spec.style = (struct sl_json_style){
            .whitespace = "[ \\t\\r\\n]*", .additional_properties = true, .whole_floats = true};
    if (rc == 0)
        rc = sl_cli_json_style(&opt.style, &spec.style, &err);
    spec.draft7 = opt.draft7;
    spec.ignore_formats = opt.ignore_formats;
    if (rc == 0)
        rc = check(&opt, &spec, v, tok, &all, &err);
    sl_vocab_destroy(v);
    if (tok != NULL)
        sl_tokenizer_close(tok);
    sl_free(in);
    sl_cli_model_deinit(&model);
    if (rc != 0) {
        sl_cli_drop_kind(&err); /* "sluice grammar: grammar: " */
        return sl_command_fail(&sl_cmd_grammar, &err);
    }
    return all ? SL_EXIT_OK : SL_EXIT_FAILED;
}

const struct sl_command sl_cmd_grammar = {
    .name = "grammar",
    .usage = "[MODEL_OR_VOCAB] [FLAGS] < GRAMMAR",
    .summary = "check a schema or grammar, test texts, time its masks",
    .examples = "  echo '{\"type\": \"integer\", \"minimum\": 3}' | sluice grammar -t 5 -t 2\n"
                "  sluice grammar -k ebnf -m -t \"1+2\" ./llama3.tiktoken < sums.gbnf\n",
    .details = "The kind is json-schema unless -k says otherwise. The exit status is 0 when every\n"
               "--test is accepted, 1 when one is not, 2 when the grammar is refused.\n",
    .run = grammar_main,
};
