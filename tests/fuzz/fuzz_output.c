/* SPDX-License-Identifier: MIT
 * Parsers of model output: any answer, made of markers and bytes, through any pair of formats. Cut
 * at any places it must give the events that it gives byte by byte; calls must be begun and ended
 * in order, whole arguments must be an object to another parser, and of an answer through no parser
 * every byte must come out.
 */
#include "../text/test_output_util.h"
#include "fuzz.h"

#include <stdio.h>

/* Pieces of every format, so that an input is a program of a few bytes. */
static const char *const words[] = {
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "{\"name\": \"",
    "weather",
    "\", \"arguments\": {",
    "\"city\": \"",
    "\"}",
    "}}",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    ">",
    "\n",
    "city",
    "days",
    "tags",
    "3",
    "[1, 2]",
    "{\"a\": null}",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|channel|>",
    "analysis",
    "commentary to=functions.weather ",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|start|>assistant",
    "weather(",
    "city=",
    "'",
    "\\",
    ")",
    ", ",
    "[",
    "]",
    "<|\"|>",
    "call:weather{",
    "city:",
    "}",
    "<|tool_call>",
    "<tool_call|>",
    "functions.weather:0",
    "<|python_tag|>",
    "; ",
    " ",
    "true",
    "None",
    "\\u00e9",
    "</",
    "<|",
    "{",
    "\"id\": \"x\"",
};

static const char *format_name(const char *(*list)(size_t), size_t pick, char *out, size_t room)
{
    size_t n = 0;
    while (list(n) != NULL)
        n++;
    if (pick % (n + 1) == n)
        return NULL;
    snprintf(out, room, "%.*s", (int)strcspn(list(pick % (n + 1)), " "), list(pick % (n + 1)));
    return out;
}

static void make_answer(struct sl_input *in, struct sl_buf *b)
{
    while (!sl_input_empty(in)) {
        uint8_t c = sl_input_byte(in);
        if (c > 0 && c < 8)
            sl_buf_puts(b, words[sl_input_below(in, SL_COUNT(words))]);
        else
            sl_buf_putc(b, (char)c);
    }
}

static bool by_bits(void *arg, size_t i)
{
    uint64_t *x = arg;
    (void)i;
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (*x >> 60) < 6;
}

static bool always(void *arg, size_t i)
{
    (void)arg;
    (void)i;
    return true;
}

static json_t *tools;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    tools =
        json_loads("[{\"function\":{\"name\":\"weather\",\"parameters\":{\"properties\":{\"city\":"
                   "{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"tags\":{\"type\":"
                   "\"array\"}}}}}]",
                   0, NULL);
    return tools == NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sl_buf text;
    struct sl_input in = {data, data + size};
    struct events a = {0}, b = {0};
    char tools_name[64], reasoning_name[64];
    sl_buf_clear(&text);
    struct sl_output_options o = {
        .tools_format = format_name(sl_output_tools_names, sl_input_byte(&in), tools_name, 64),
        .reasoning_format =
            format_name(sl_output_reasoning_names, sl_input_byte(&in), reasoning_name, 64),
        .start = (enum sl_output_start)sl_input_below(&in, 3),
        .tools = sl_input_flag(&in) ? tools : NULL,
    };
    uint64_t cuts = sl_input_byte(&in);
    make_answer(&in, &text);
    SL_ASSERT(events_run(&a, o, text.data, text.n_bytes, always, NULL) == 0);
    SL_ASSERT(events_run(&b, o, text.data, text.n_bytes, by_bits, &cuts) == 0);
    SL_ASSERT(!a.bad && !b.bad);
    SL_ASSERT(a.lines.n_bytes == b.lines.n_bytes);
    SL_ASSERT(a.lines.n_bytes == 0 || memcmp(a.lines.data, b.lines.data, a.lines.n_bytes) == 0);
    if (o.tools_format == NULL && o.reasoning_format == NULL)
        SL_ASSERT(a.n_given == text.n_bytes);
    events_deinit(&a);
    events_deinit(&b);
    return 0;
}
