/* SPDX-License-Identifier: MIT */
#include "server/formats.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

static bool is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

/* Special tokens are left out of text; those of markers must come through for the parser. */
static int find_markers(struct sl_formats *f, struct sl_engine *eng, struct sl_error *err)
{
    const struct sl_tokenizer *tok = sl_engine_tokenizer(eng);
    struct sl_output_options o = {.tools_format = f->tools, .reasoning_format = f->reasoning};
    struct sl_output *p;
    int rc = sl_output_create(&o, &p, err); /* refuses names that no format has */
    if (rc != 0)
        return rc;
    f->marker_ids = sl_calloc(SL_MAX_MARKER_IDS, sizeof *f->marker_ids);
    if (f->marker_ids == NULL)
        rc = sl_fail(err, SL_ENOMEM, "out of memory");
    int32_t n_vocab = tok != NULL ? sl_tokenizer_n_vocab(tok) : 0;
    for (int32_t id = 0; id < n_vocab && rc == 0; id++) {
        size_t n;
        if ((sl_tokenizer_attr(tok, id) & SL_TOKEN_SPECIAL) == 0)
            continue;
        const char *piece = sl_tokenizer_piece(tok, id, &n);
        if (piece == NULL || !sl_output_is_marker(p, piece, n))
            continue;
        if (f->n_marker_ids == SL_MAX_MARKER_IDS)
            break; /* thousands of tokens with one text: no vocabulary that anybody trained */
        f->marker_ids[f->n_marker_ids++] = id;
    }
    sl_output_destroy(p);
    return rc;
}

/* Most templates walk the arguments of earlier calls, a few print them, and then a map would come
 * out as Python writes it. What the template makes of both tells. */
static bool prints_arguments(struct sl_engine *eng)
{
    static const char head[] = "{\"add_generation_prompt\":false,\"messages\":[{\"role\":\"user\","
                               "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\","
                               "\"tool_calls\":[{\"id\":\"abcdefgh1\",\"type\":\"function\","
                               "\"function\":{\"name\":\"f\",\"arguments\":";
    static const char tail[] = "}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\","
                               "\"content\":\"b\"}]}";
    static const char *const forms[] = {"{\"sluice_key\":\"v\"}",
                                        "\"{\\\"sluice_key\\\":\\\"v\\\"}\""};
    bool good[2] = {false, false};
    for (int i = 0; i < 2; i++) {
        struct sl_buf json = {0};
        struct sl_error ignored;
        char *text = NULL;
        size_t n;
        sl_buf_puts(&json, head);
        sl_buf_puts(&json, forms[i]);
        sl_buf_puts(&json, tail);
        if (sl_buf_ok(&json) &&
            sl_engine_render_chat(eng, json.data, json.n_bytes, &text, &n, &ignored) == 0)
            good[i] = strstr(text, "sluice_key") != NULL && strstr(text, "'sluice_key'") == NULL &&
                      strstr(text, "\\\"sluice_key") == NULL;
        sl_free(text);
        sl_buf_deinit(&json);
    }
    return good[1] && !good[0];
}

/* NULL for what names no parser. */
static const char *parser_of(const char *name)
{
    return is_auto(name) || strcmp(name, "none") == 0 ? NULL : name;
}

int sl_formats_check(const char *tools, const char *reasoning, struct sl_error *err)
{
    struct sl_output_options o = {.tools_format = parser_of(tools),
                                  .reasoning_format = parser_of(reasoning)};
    struct sl_output *p = NULL;
    int rc = sl_output_create(&o, &p, err);
    if (rc == 0)
        sl_output_destroy(p);
    return rc;
}

int sl_formats_init(struct sl_formats *f, struct sl_engine *eng, const char *tools,
                    const char *reasoning, const char *source, struct sl_error *err)
{
    const char *found_tools = NULL, *found_reasoning = NULL;
    size_t n = 0;
    memset(f, 0, sizeof *f);
    if (source == NULL)
        source = sl_engine_chat_template(eng, &n);
    else
        n = strlen(source);
    if (source != NULL)
        sl_output_detect(source, n, &found_tools, &found_reasoning);
    f->tools = is_auto(tools) ? found_tools : parser_of(tools);
    f->reasoning = is_auto(reasoning) ? found_reasoning : parser_of(reasoning);
    int rc = find_markers(f, eng, err);
    if (rc != 0) {
        sl_formats_deinit(f);
        return rc;
    }
    const char *open = f->reasoning != NULL ? sl_output_reasoning_open(f->reasoning) : NULL;
    f->reasoning_in_template =
        source != NULL && open != NULL && memmem(source, n, open, strlen(open)) != NULL;
    f->arguments_as_text = sl_engine_has_chat_template(eng) && prints_arguments(eng);
    return 0;
}

void sl_formats_deinit(struct sl_formats *f)
{
    sl_free(f->marker_ids);
    memset(f, 0, sizeof *f);
}

enum sl_output_start sl_formats_start(const struct sl_formats *f, const char *prompt, size_t n)
{
    if (f->reasoning == NULL)
        return SL_OUTPUT_START_CONTENT;
    enum sl_output_start start = sl_output_prompt_start(f->reasoning, prompt, n);
    return start == SL_OUTPUT_START_AUTO && f->reasoning_in_template ? SL_OUTPUT_START_CONTENT
                                                                     : start;
}
