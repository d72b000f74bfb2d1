/* SPDX-License-Identifier: MIT
 * Hostile bodies of the protocols that are brought into the shape of chat completions. A table says
 * of every field, and of every place inside the structured ones, which values it takes. Alone, a
 * value is accepted or refused as the table says; with others, one bad value refuses the body and
 * good ones never give anything but an answer or a refusal. Refusals have the protocol's own shape.
 */
#include "server/hostile.h"

#include "base/rng.h"
#include "server/api/params.h"
#include "server/http/json_tree.h"

#define MAX_MODEL_LEN 64
#define MAX_VALUES    64

enum type { T_NULL, T_BOOL, T_NUM, T_STR, T_ARRAY, T_OBJECT };

static const struct value {
    const char *json;
    enum type type;
    double num; /* of numbers; of others how much they hold */
    bool whole;
} common[] = {
    {"null", T_NULL, 0, false},
    {"true", T_BOOL, 1, false},
    {"false", T_BOOL, 0, false},
    {"0", T_NUM, 0, true},
    {"-1", T_NUM, -1, true},
    {"1", T_NUM, 1, true},
    {"-0.0", T_NUM, 0, true},
    {"1.5", T_NUM, 1.5, false},
    {"1e308", T_NUM, 1e308, false},
    {"4294967297", T_NUM, 4294967297.0, true},
    {"\"\"", T_STR, 0, false},
    {"\"a\"", T_STR, 1, false},
    {"\"NaN\"", T_STR, 3, false},
    {"\"\\u0000\"", T_STR, -1, false}, /* a NUL inside */
    {"[]", T_ARRAY, 0, false},
    {"[1]", T_ARRAY, 1, false},
    {"[null]", T_ARRAY, 1, false},
    {"[[]]", T_ARRAY, 1, false},
    {"[{}]", T_ARRAY, 1, false},
    {"{}", T_OBJECT, 0, false},
    {"{\"a\":1}", T_OBJECT, 1, false},
    {"{\"type\":null}", T_OBJECT, 1, false},
    {"{\"type\":1}", T_OBJECT, 1, false},
    {"{\"type\":\"\"}", T_OBJECT, 1, false},
    {"{\"type\":\"\\u0000\"}", T_OBJECT, 1, false},
};

enum rule {
    R_BOOL,
    R_INT,    /* whole, in [min, max] */
    R_NUMBER, /* in [min, max] */
    R_ABOVE,  /* in (min, max] */
    R_TEXT,   /* without NUL, at most max bytes */
    R_ANY,
    R_EMPTY, /* only what is empty */
    R_NEVER,
    R_LISTED, /* what takes says of common values, and the row's own */
};

enum {
    A_NULL = 1,
    A_STR = 2,
    A_EMPTY = 4,
    A_ARRAY0 = 8,
    A_OBJECT = 16,
    A_BOOL = 32,
    A_NUL = 64,
    A_ANY = 128,
    A_ARRAY = 256, /* whatever is in it */
    A_SCHEMA = 512 /* objects may be schemas or not */
};

struct field {
    const char *name;
    enum rule rule;
    double min, max;
    unsigned takes;
    const char *good[8], *bad[12];
};

#define MSG(content) "[{\"role\":\"user\",\"content\":" content "}]"
#define TOOL         "{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}"
#define USE          "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{}}"
#define TEXT         (A_STR | A_EMPTY | A_NUL)

#define ROW(n, rule)           \
    {                          \
        n, rule, 0, 0, 0, {0}, \
        {                      \
            0                  \
        }                      \
    }
#define RANGE(n, rule, min, max)   \
    {                              \
        n, rule, min, max, 0, {0}, \
        {                          \
            0                      \
        }                          \
    }
static const struct field messages[] = {
    ROW("add_generation_prompt", R_BOOL),
    ROW("add_special_tokens", R_BOOL),
    {"allowed_token_ids", R_LISTED, 0, 0, A_NULL, {"[1]"}, {"[5000]", "[]"}},
    {"bad_words", R_LISTED, 0, 0, A_NULL | A_ARRAY0, {"[\"a\"]"}, {"[\"\"]", "[1]"}},
    ROW("cache_control", R_ANY),
    ROW("bootstrap_host", R_ANY),
    ROW("bootstrap_port", R_ANY),
    ROW("bootstrap_room", R_ANY),
    {"cache_salt", R_LISTED, 0, 0, A_NULL | A_STR, {0}, {0}},
    {"chat_template", R_LISTED, 0, 0, A_NULL, {0}, {"\"x\""}},
    {"chat_template_kwargs", R_LISTED, 0, 0, A_NULL | A_OBJECT, {0}, {0}},
    ROW("container", R_EMPTY),
    {"context_management",
     R_LISTED,
     0,
     0,
     A_NULL | A_OBJECT,
     {"{\"edits\":[]}"},
     {"{\"edits\":1}"}},
    {"continue_final_message", R_LISTED, 0, 0, A_NULL, {"false"}, {"true"}},
    ROW("diagnostics", R_ANY),
    {"documents", R_LISTED, 0, 0, A_NULL | A_ARRAY, {0}, {0}},
    ROW("ec_transfer_params", R_EMPTY),
    RANGE("frequency_penalty", R_NUMBER, -2, 2),
    {"grammar", R_LISTED, 0, 0, A_NULL | A_EMPTY, {"\"root ::= [a-z]\""}, {0}},
    {"guided_choice", R_LISTED, 0, 0, A_NULL, {"[\"a\",\"bc\"]"}, {0}},
    ROW("guided_decoding_backend", R_ANY),
    {"guided_grammar", R_LISTED, 0, 0, A_NULL, {"\"root ::= [a-z]\""}, {0}},
    {"guided_json", R_LISTED, 0, 0, A_NULL | A_SCHEMA, {"true", "{}"}, {"\"a\"", "[]"}},
    ROW("guided_json_object", R_BOOL),
    {"regex", R_LISTED, 0, 0, A_NULL | TEXT, {0}, {0}},
    {"ebnf", R_LISTED, 0, 0, A_NULL, {"\"root ::= [a-z]\""}, {0}},
    {"structural_tag", R_LISTED, 0, 0, A_NULL, {"{\"format\":{\"type\":\"any_text\"}}"}, {0}},
    ROW("stop_regex", R_EMPTY),
    ROW("custom_logit_processor", R_EMPTY),
    {"guided_regex", R_LISTED, 0, 0, A_NULL | TEXT, {0}, {0}},
    {"guided_whitespace_pattern", R_TEXT, 0, SL_MAX_SPACE_PATTERN, 0, {"\"[ ]?\""}, {0}},
    ROW("ignore_eos", R_BOOL),
    ROW("include_reasoning", R_BOOL),
    ROW("include_stop_str_in_output", R_BOOL),
    ROW("inference_geo", R_ANY),
    {"json_schema", R_LISTED, 0, 0, A_NULL | A_SCHEMA, {"true", "{}"}, {"1"}},
    ROW("kv_transfer_params", R_EMPTY),
    {"logit_bias", R_LISTED, 0, 0, A_NULL, {"{}", "{\"0\":100}"}, {"{\"5000\":1}"}},
    {"lora_scale", R_LISTED, 0, 0, A_NULL, {"1"}, {"0.5"}}, /* the model is no adapter */
    {"max_tokens", R_LISTED, 0, 0, 0, {"0", "1", "-0.0", "2147483647"}, {"2147483648"}},
    ROW("mcp_servers", R_EMPTY),
    {"messages",
     R_LISTED,
     0,
     0,
     0,
     {MSG("\"\""), MSG("\"a\""), MSG("[]"), MSG("[{\"type\":\"text\",\"text\":\"\"}]"),
      "[{\"role\":\"assistant\",\"content\":[" USE "]}]",
      "[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\"}]}]",
      "[{\"role\":\"system\",\"content\":\"a\"}]"},
     {MSG("null"), MSG("{}"), MSG("1"), "[{\"role\":\"user\"}]", "[{\"content\":\"a\"}]",
      "[{\"role\":\"assistant\",\"content\":\"\"}]", /* nothing to go on from */
      "[{\"role\":\"tool\",\"content\":\"a\"}]", MSG("[" USE "]")}},
    ROW("metadata", R_ANY),
    RANGE("min_p", R_NUMBER, 0, 1),
    {"min_tokens", R_LISTED, 0, 0, A_NULL, {"0", "1", "-0.0"}, {0}},
    {"model", R_LISTED, 0, 0, A_NULL, {"\"storyteller\""}, {0}},
    {"output_config",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{}", "{\"a\":1}", "{\"type\":null}", "{\"type\":1}", "{\"type\":\"\"}",
      "{\"effort\":\"low\"}", "{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}",
      "{\"type\":\"\\u0000\"}"},
     {"{\"effort\":1}", "{\"format\":1}", "{\"format\":{\"type\":\"json_schema\"}}"}},
    {"output_format",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{\"type\":\"json_schema\",\"schema\":{\"type\":\"integer\"}}"},
     {"{\"type\":\"json_schema\",\"schema\":1}"}},
    ROW("nvext", R_ANY),
    ROW("parallel_tool_calls", R_BOOL),
    RANGE("presence_penalty", R_NUMBER, -2, 2),
    {"priority", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "-1", "1"}, {0}},
    {"reasoning_effort", R_TEXT, 0, 64, 0, {0}, {0}},
    {"repetition_detection",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{}", "{\"max_pattern_size\":2,\"min_count\":2}"},
     {"{\"min_pattern_size\":2}"}},
    RANGE("repetition_penalty", R_ABOVE, 0, 100),
    {"request_id", R_TEXT, 0, 128, 0, {0}, {"\" \""}},
    {"response_format", R_LISTED, 0, 0, A_NULL, {"{\"type\":\"json_object\"}"}, {0}},
    {"seed", R_INT, -0x1p63, 0x1p63, 0, {0}, {0}},
    ROW("service_tier", R_ANY),
    ROW("session_id", R_ANY),
    ROW("skip_special_tokens", R_BOOL),
    ROW("spaces_between_special_tokens", R_ANY),
    ROW("speed", R_ANY),
    {"stop_sequences", R_LISTED, 0, 0, A_NULL | A_STR | A_ARRAY0, {"[\"a\"]"}, {"[\"\"]"}},
    {"stop_token_ids", R_LISTED, 0, 0, A_NULL | A_ARRAY0, {"[1]"}, {"[5000]"}},
    ROW("stream", R_BOOL),
    RANGE("stream_interval", R_INT, 1, SL_MAX_STREAM_INTERVAL),
    {"structured_outputs", R_LISTED, 0, 0, A_NULL, {"{\"regex\":\"a\"}"}, {0}},
    {"system",
     R_LISTED,
     0,
     0,
     A_NULL | A_ARRAY0 | TEXT,
     {"[{\"type\":\"text\",\"text\":\"a\"}]"},
     {"[{\"type\":\"image\"}]", "[{\"type\":\"text\"}]"}},
    RANGE("temperature", R_NUMBER, 0, 100),
    {"thinking",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{\"type\":\"disabled\"}", "{\"type\":\"adaptive\"}",
      "{\"type\":\"enabled\",\"budget_tokens\":9}"},
     {"{\"type\":\"enabled\"}", "{\"type\":\"enabled\",\"budget_tokens\":0}"}},
    {"thinking_token_budget", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "1", "-1"}, {0}},
    {"tool_choice",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{\"type\":\"auto\"}", "{\"type\":\"none\"}",
      "{\"type\":\"auto\",\"disable_parallel_tool_use\":true}"},
     {"{\"type\":\"any\"}", "{\"type\":\"tool\"}", "{\"type\":\"tool\",\"name\":\"f\"}",
      "{\"type\":\"auto\",\"disable_parallel_tool_use\":1}"}},
    {"tools",
     R_LISTED,
     0,
     0,
     A_NULL | A_ARRAY0,
     {"[" TOOL "]", "[{\"name\":\"f\",\"type\":\"custom\",\"strict\":true,\"input_schema\":{}}]"},
     {"[" TOOL "," TOOL "]", "[{\"name\":\"(\",\"input_schema\":{}}]",
      "[{\"name\":\"f\",\"input_schema\":{},\"strict\":1}]",
      "[{\"name\":\"f\",\"input_schema\":{},\"type\":\"bash\"}]",
      "[{\"name\":\"f\",\"input_schema\":[]}]", "[{\"input_schema\":{}}]"}},
    {"top_k", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "1", "-1"}, {0}},
    RANGE("top_p", R_ABOVE, 0, 1),
    {"truncate_prompt_tokens", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "1", "-1"}, {0}},
    {"truncation_side", R_LISTED, 0, 0, A_NULL, {"\"left\"", "\"right\""}, {0}},
    ROW("user", R_ANY),
    ROW("vllm_xargs", R_EMPTY),
    {"watermarking", R_LISTED, 0, 0, A_NULL, {"false"}, {"true"}},
};

#define CALL    "{\"type\":\"function\",\"name\":\"f\"}"
#define ITEM(x) "[{\"role\":\"user\",\"content\":" x "}]"

static const struct field responses[] = {
    ROW("add_generation_prompt", R_BOOL),
    ROW("add_special_tokens", R_BOOL),
    {"allowed_token_ids", R_LISTED, 0, 0, A_NULL, {"[1]"}, {"[5000]", "[]"}},
    {"background", R_LISTED, 0, 0, A_NULL, {"false"}, {"true"}},
    {"bad_words", R_LISTED, 0, 0, A_NULL | A_ARRAY0, {"[\"a\"]"}, {"[\"\"]", "[1]"}},
    ROW("bootstrap_host", R_ANY),
    ROW("bootstrap_port", R_ANY),
    ROW("bootstrap_room", R_ANY),
    {"cache_salt", R_LISTED, 0, 0, A_NULL | A_STR, {0}, {0}},
    {"chat_template", R_LISTED, 0, 0, A_NULL, {0}, {"\"x\""}},
    {"chat_template_kwargs", R_LISTED, 0, 0, A_NULL | A_OBJECT, {0}, {0}},
    {"continue_final_message", R_LISTED, 0, 0, A_NULL, {"false"}, {"true"}},
    ROW("conversation", R_NEVER),
    {"documents", R_LISTED, 0, 0, A_NULL | A_ARRAY, {0}, {0}},
    ROW("ec_transfer_params", R_EMPTY),
    RANGE("frequency_penalty", R_NUMBER, -2, 2),
    {"grammar", R_LISTED, 0, 0, A_NULL | A_EMPTY, {"\"root ::= [a-z]\""}, {0}},
    {"guided_choice", R_LISTED, 0, 0, A_NULL, {"[\"a\",\"bc\"]"}, {0}},
    ROW("guided_decoding_backend", R_ANY),
    {"guided_grammar", R_LISTED, 0, 0, A_NULL, {"\"root ::= [a-z]\""}, {0}},
    {"guided_json", R_LISTED, 0, 0, A_NULL | A_SCHEMA, {"true", "{}"}, {"\"a\"", "[]"}},
    ROW("guided_json_object", R_BOOL),
    {"regex", R_LISTED, 0, 0, A_NULL | TEXT, {0}, {0}},
    {"ebnf", R_LISTED, 0, 0, A_NULL, {"\"root ::= [a-z]\""}, {0}},
    {"structural_tag", R_LISTED, 0, 0, A_NULL, {"{\"format\":{\"type\":\"any_text\"}}"}, {0}},
    ROW("stop_regex", R_EMPTY),
    ROW("custom_logit_processor", R_EMPTY),
    {"guided_regex", R_LISTED, 0, 0, A_NULL | TEXT, {0}, {0}},
    {"guided_whitespace_pattern", R_TEXT, 0, SL_MAX_SPACE_PATTERN, 0, {"\"[ ]?\""}, {0}},
    ROW("ignore_eos", R_BOOL),
    {"include",
     R_LISTED,
     0,
     0,
     A_NULL | A_ARRAY0,
     {"[\"message.output_text.logprobs\"]", "[\"reasoning.encrypted_content\"]"},
     {"[\"a\"]"}},
    ROW("include_reasoning", R_BOOL),
    ROW("include_stop_str_in_output", R_BOOL),
    {"input",
     R_LISTED,
     0,
     0,
     TEXT,
     {ITEM("\"a\""), ITEM("[]"), ITEM("[{\"type\":\"input_text\",\"text\":\"a\"}]"),
      "[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"\"}]",
      "[{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":\"b\"}]"},
     {ITEM("1"), ITEM("[{\"type\":\"input_image\"}]"), "[{\"type\":\"item_reference\"}]",
      "[{\"role\":\"tool\",\"content\":\"a\"}]",
      "[{\"type\":\"function_call_output\",\"call_id\":\"a\"}]"}},
    {"instructions", R_LISTED, 0, 0, A_NULL | A_STR | A_EMPTY, {0}, {0}},
    {"json_schema", R_LISTED, 0, 0, A_NULL | A_SCHEMA, {"true", "{}"}, {"1"}},
    ROW("kv_transfer_params", R_EMPTY),
    {"logit_bias", R_LISTED, 0, 0, A_NULL, {"{}", "{\"0\":100}"}, {"{\"5000\":1}"}},
    ROW("logprobs", R_BOOL),
    {"lora_scale", R_LISTED, 0, 0, A_NULL, {"1"}, {"0.5"}},
    {"max_output_tokens", R_LISTED, 0, 0, A_NULL, {"1", "2147483647"}, {"2147483648"}},
    ROW("max_tool_calls", R_ANY),
    ROW("metadata", R_ANY),
    RANGE("min_p", R_NUMBER, 0, 1),
    {"min_tokens", R_LISTED, 0, 0, A_NULL, {"0", "1", "-0.0"}, {0}},
    {"model", R_LISTED, 0, 0, A_NULL, {"\"storyteller\""}, {0}},
    ROW("nvext", R_ANY),
    ROW("parallel_tool_calls", R_BOOL),
    RANGE("presence_penalty", R_NUMBER, -2, 2),
    {"previous_response_id", R_LISTED, 0, 0, A_NULL, {0}, {"\"resp_0\""}},
    {"priority", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "-1", "1"}, {0}},
    ROW("prompt_cache_key", R_ANY),
    ROW("prompt_cache_options", R_ANY),
    ROW("prompt_cache_retention", R_ANY),
    {"reasoning",
     R_LISTED,
     0,
     0,
     A_NULL | A_OBJECT,
     {"{\"effort\":\"none\"}", "{\"effort\":null}"},
     {"{\"effort\":1}"}},
    {"reasoning_effort", R_TEXT, 0, 64, 0, {0}, {0}},
    {"repetition_detection",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"{}", "{\"max_pattern_size\":2,\"min_count\":2}"},
     {"{\"min_pattern_size\":2}"}},
    RANGE("repetition_penalty", R_ABOVE, 0, 100),
    {"request_id", R_TEXT, 0, 128, 0, {0}, {"\" \""}},
    {"response_format", R_LISTED, 0, 0, A_NULL, {"{\"type\":\"json_object\"}"}, {0}},
    ROW("safety_identifier", R_ANY),
    {"seed", R_INT, -0x1p63, 0x1p63, 0, {0}, {0}},
    ROW("service_tier", R_ANY),
    ROW("session_id", R_ANY),
    ROW("skip_special_tokens", R_BOOL),
    ROW("spaces_between_special_tokens", R_ANY),
    {"stop", R_LISTED, 0, 0, A_NULL | A_STR | A_ARRAY0, {"[\"a\"]"}, {"[\"\"]"}},
    {"stop_token_ids", R_LISTED, 0, 0, A_NULL | A_ARRAY0, {"[1]"}, {"[5000]"}},
    ROW("store", R_BOOL),
    ROW("stream", R_BOOL),
    RANGE("stream_interval", R_INT, 1, SL_MAX_STREAM_INTERVAL),
    {"stream_options", R_LISTED, 0, 0, A_NULL, {0}, {0}},
    {"structured_outputs", R_LISTED, 0, 0, A_NULL, {"{\"regex\":\"a\"}"}, {0}},
    RANGE("temperature", R_NUMBER, 0, 100),
    {"text",
     R_LISTED,
     0,
     0,
     A_NULL | A_OBJECT,
     {"{\"format\":{\"type\":\"text\"}}", "{\"format\":{\"type\":\"json_object\"}}",
      "{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}"},
     {"{\"format\":1}", "{\"format\":{\"type\":\"grammar\"}}",
      "{\"format\":{\"type\":\"json_schema\"}}"}},
    {"thinking_token_budget", R_LISTED, 0, 0, A_NULL, {"-1"}, {"0", "1"}}, /* it does not think */
    {"tool_choice",
     R_LISTED,
     0,
     0,
     A_NULL,
     {"\"auto\"", "\"none\""},
     {"\"required\"", "{\"type\":\"function\"}", "{\"type\":\"function\",\"name\":\"f\"}",
      "{\"type\":\"web_search\"}"}},
    {"tools",
     R_LISTED,
     0,
     0,
     A_NULL | A_ARRAY0,
     {"[" CALL "]", "[" CALL ",{\"type\":\"web_search\"}]",
      "[{\"type\":\"function\",\"name\":\"f\",\"parameters\":null,\"strict\":null}]"},
     {"[" CALL "," CALL "]", "[{\"type\":\"mcp\"}]", "[{\"type\":\"function\"}]",
      "[{\"type\":\"function\",\"name\":\"f\",\"parameters\":1}]"}},
    {"top_k", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "1", "-1"}, {0}},
    RANGE("top_logprobs", R_INT, 0, 20),
    RANGE("top_p", R_ABOVE, 0, 1),
    {"truncate_prompt_tokens", R_LISTED, 0, 0, A_NULL, {"0", "-0.0", "1", "-1"}, {0}},
    {"truncation_side", R_LISTED, 0, 0, A_NULL, {"\"left\"", "\"right\""}, {0}},
    {"truncation", R_LISTED, 0, 0, A_NULL, {"\"auto\"", "\"disabled\""}, {0}},
    ROW("user", R_ANY),
    ROW("vllm_xargs", R_EMPTY),
    {"watermarking", R_LISTED, 0, 0, A_NULL, {"false"}, {"true"}},
};

/* Places inside of bodies. */
struct place {
    const char *before, *after;
    unsigned takes;
};

#define BLOCK_OF(role) "{\"max_tokens\":1,\"messages\":[{\"role\":\"" role "\",\"content\":["
#define BLOCK          BLOCK_OF("user")
#define ANSWER_BLOCK   BLOCK_OF("assistant")
#define END            "]}]}"
#define WITH           "{\"max_tokens\":1,\"messages\":" MSG("\"a\"") ","

static const struct place message_places[] = {
    {"{\"max_tokens\":1,\"messages\":[", "]}", 0},
    {"{\"max_tokens\":1,\"messages\":[{\"content\":\"a\",\"role\":", "}]}", 0},
    {"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":", "}]}", TEXT | A_ARRAY0},
    {BLOCK, END, 0},
    {BLOCK "{\"type\":\"text\",\"text\":", "}" END, TEXT},
    {BLOCK "{\"type\":\"text\",\"text\":\"a\",\"cache_control\":", "}" END, A_ANY},
    {BLOCK "{\"text\":\"a\",\"type\":", "}" END, 0},
    {BLOCK "{\"type\":\"tool_result\",\"tool_use_id\":", "}" END, TEXT},
    {BLOCK "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":", "}" END, A_ANY},
    {BLOCK "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":", "}" END,
     A_NULL | TEXT | A_ARRAY0},
    {BLOCK "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[", "]}" END, 0},
    {BLOCK "{\"type\":\"thinking\",\"thinking\":", "}" END, 0}, /* not a user's */
    {ANSWER_BLOCK USE ",{\"type\":\"thinking\",\"thinking\":", "}" END, TEXT},
    {ANSWER_BLOCK USE ",{\"type\":\"redacted_thinking\",\"data\":", "}" END, A_ANY},
    {ANSWER_BLOCK "{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{},\"id\":", "}" END, TEXT},
    {ANSWER_BLOCK "{\"type\":\"tool_use\",\"id\":\"i\",\"input\":{},\"name\":", "}" END, TEXT},
    {ANSWER_BLOCK "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":", "}" END,
     A_OBJECT},
    {ANSWER_BLOCK "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"x\":", "}}" END,
     A_ANY},
    {WITH "\"system\":[", "]}", 0},
    {WITH "\"system\":[{\"type\":\"text\",\"text\":", "}]}", TEXT},
    {WITH "\"tools\":[", "]}", 0},
    {WITH "\"tools\":[{\"input_schema\":{},\"name\":", "}]}", A_STR},
    {WITH "\"tools\":[{\"name\":\"f\",\"input_schema\":", "}]}", A_OBJECT},
    {WITH "\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"description\":", "}]}", A_NULL | TEXT},
    {WITH "\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"strict\":", "}]}", A_NULL | A_BOOL},
    {WITH "\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"type\":", "}]}", A_NULL},
    {WITH "\"tools\":[" TOOL "],\"tool_choice\":{\"type\":", "}}", 0},
    {WITH "\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"tool\",\"name\":", "}}", 0},
    {WITH "\"thinking\":{\"type\":", "}}", 0},
    {WITH "\"output_config\":{\"effort\":", "}}", A_NULL | A_STR | A_EMPTY},
    {WITH "\"output_config\":{\"format\":", "}}", A_NULL},
    {WITH "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":", "}}}", A_SCHEMA},
    {WITH "\"never_heard_of\":", "}", A_ANY},
};

#define IN     "{\"max_output_tokens\":1,\"input\":["
#define ASKING "{\"max_output_tokens\":1,\"input\":\"a\","
#define WITH_F ASKING "\"tools\":[" CALL "],"

static const struct place response_places[] = {
    {IN, "]}", 0},
    {IN "{\"content\":\"a\",\"role\":", "}]}", 0},
    {IN "{\"content\":\"a\",\"role\":\"user\",\"type\":", "}]}", A_NULL},
    {IN "{\"role\":\"developer\",\"content\":", "}]}", TEXT | A_ARRAY0},
    {IN "{\"role\":\"assistant\",\"content\":[", "]}]}", 0},
    {IN "{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":", "}]}]}", TEXT},
    {IN "{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":", "}]}]}", TEXT},
    {IN "{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"\",\"call_id\":", "}]}", TEXT},
    {IN "{\"type\":\"function_call\",\"call_id\":\"a\",\"arguments\":\"\",\"name\":", "}]}", TEXT},
    {IN "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":", "}]}", TEXT},
    {IN "{\"type\":\"function_call_output\",\"output\":\"\",\"call_id\":", "}]}", TEXT},
    {IN "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":", "}]}", TEXT | A_ARRAY0},
    {IN "{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\",\"content\":", "}]}",
     A_NULL | TEXT | A_ARRAY0},
    {IN "{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\",\"summary\":", "}]}", A_ANY},
    {IN "{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"reasoning\",\"encrypted_content\":",
     "}]}", A_ANY},
    {ASKING "\"tools\":[", "]}", 0},
    {ASKING "\"tools\":[{\"type\":", "}]}", 0},
    {ASKING "\"tools\":[{\"type\":\"function\",\"name\":", "}]}", A_STR},
    {ASKING "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":", "}]}",
     A_NULL | A_OBJECT},
    {ASKING "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":", "}]}", A_NULL | A_BOOL},
    {ASKING "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":", "}]}",
     A_NULL | TEXT},
    {WITH_F "\"tool_choice\":", "}", A_NULL},
    {WITH_F "\"tool_choice\":{\"type\":", "}}", 0},
    {WITH_F "\"tool_choice\":{\"type\":\"function\",\"name\":", "}}", 0},
    {ASKING "\"text\":{\"format\":", "}}", A_NULL},
    {ASKING "\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":", "}}}", A_SCHEMA},
    {ASKING "\"text\":{\"verbosity\":", "}}", A_ANY},
    {ASKING "\"reasoning\":{\"effort\":", "}}", A_NULL | A_STR | A_EMPTY},
    {ASKING "\"reasoning\":{\"summary\":", "}}", A_ANY},
    {ASKING "\"include\":[", "]}", 0},
    {ASKING "\"prompt\":", "}", A_NULL},
    {ASKING "\"never_heard_of\":", "}", A_ANY},
};

#define FEW     "{\"options\":{\"num_predict\":1},"
#define TURN    FEW "\"messages\":[{\"role\":\"user\","
#define REPLY   FEW "\"messages\":[{\"role\":\"assistant\","
#define CHATTED FEW "\"messages\":" MSG("\"a\"") ","
#define PROMPT  FEW "\"prompt\":\"a\","
#define NOTHING (A_NULL | A_EMPTY | A_ARRAY0)

/* Fields that Ollama's bodies share with chat completions are test_hostile_params' business. */
static const struct place ollama_chat_places[] = {
    {FEW "\"messages\":", "}", A_NULL | A_ARRAY0}, /* nothing to answer */
    {FEW "\"messages\":[", "]}", 0},
    {FEW "\"messages\":[{\"content\":\"a\",\"role\":", "}]}", A_STR},
    {TURN "\"content\":", "}]}", A_NULL | TEXT},
    {TURN "\"content\":\"a\",\"images\":", "}]}", NOTHING},
    {TURN "\"content\":\"a\",\"thinking\":", "}]}", A_NULL | TEXT},
    {REPLY "\"tool_calls\":", "}]}", A_NULL | A_ARRAY0},
    {REPLY "\"tool_calls\":[", "]}]}", 0},
    {REPLY "\"tool_calls\":[{\"function\":", "}]}]}", 0},
    {REPLY "\"tool_calls\":[{\"function\":{\"name\":", "}}]}]}", TEXT},
    {REPLY "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":", "}}]}]}", A_ANY},
    {REPLY "\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"tool_name\":",
     "}]}", A_NULL | TEXT},
    {CHATTED "\"options\":", "}", A_NULL | A_OBJECT},
    {CHATTED "\"options\":{\"mirostat\":\"a\",\"x\":", "}}", 0},
    {CHATTED "\"format\":", "}", A_NULL | A_EMPTY | A_SCHEMA},
    {CHATTED "\"stream\":", "}", A_NULL | A_BOOL},
    {CHATTED "\"tools\":", "}", NOTHING},
    {CHATTED "\"truncate\":", "}", A_ANY},
    {CHATTED "\"never_heard_of\":", "}", A_ANY},
};

static const struct place ollama_generate_places[] = {
    {FEW "\"prompt\":", "}", A_NULL | TEXT},   {PROMPT "\"system\":", "}", A_NULL | TEXT},
    {PROMPT "\"raw\":", "}", A_NULL | A_BOOL}, {PROMPT "\"suffix\":", "}", NOTHING},
    {PROMPT "\"template\":", "}", NOTHING},    {PROMPT "\"context\":", "}", NOTHING},
    {PROMPT "\"images\":", "}", NOTHING},      {PROMPT "\"never_heard_of\":", "}", A_ANY},
};

struct protocol {
    const char *path;
    enum sl_endpoint endpoint;
    const char *good; /* members of a good body, by name */
    const struct field *fields;
    size_t n_fields;
    const struct place *places;
    size_t n_places;
};

static const struct protocol protocols[] = {
    {"/v1/messages", SL_ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":" MSG("\"a\"") "}",
     messages, SL_COUNT(messages), message_places, SL_COUNT(message_places)},
    {"/v1/responses", SL_ENDPOINT_RESPONSES, "{\"max_output_tokens\":1,\"input\":\"a\"}", responses,
     SL_COUNT(responses), response_places, SL_COUNT(response_places)},
};

/* Their fields are those of chat completions. */
static const struct protocol shared[] = {
    {.path = "/api/chat", .places = ollama_chat_places, .n_places = SL_COUNT(ollama_chat_places)},
    {.path = "/api/generate",
     .places = ollama_generate_places,
     .n_places = SL_COUNT(ollama_generate_places)},
};

static int start(void **state)
{
    static const struct host_options options = {.real_model = true, .max_model_len = MAX_MODEL_LEN};
    (void)state;
    host_start(&host, &options);
    return 0;
}

static bool takes(unsigned t, const struct value *v)
{
    switch (v->type) {
    case T_NULL:
        return t & (A_NULL | A_ANY);
    case T_BOOL:
        return t & (A_BOOL | A_ANY);
    case T_NUM:
        return t & A_ANY;
    case T_STR:
        return t & (A_ANY | (v->num > 0 ? A_STR : v->num == 0 ? A_EMPTY : A_NUL));
    case T_ARRAY:
        return t & (A_ANY | A_ARRAY | (v->num == 0 ? A_ARRAY0 : 0u));
    case T_OBJECT:
        return t & (A_OBJECT | A_ANY);
    }
    return false;
}

/* Only who compiles it can tell. */
static bool unsure(unsigned t, const struct value *v)
{
    return (t & A_SCHEMA) && v->type == T_OBJECT;
}

static bool listed(const char *const *list, size_t n, const char *json)
{
    for (size_t i = 0; i < n && list[i] != NULL; i++) {
        if (strcmp(list[i], json) == 0)
            return true;
    }
    return false;
}

static bool good_value(const struct field *f, const struct value *v)
{
    bool in = v->type == T_NUM && v->num >= f->min && v->num <= f->max;
    if (listed(f->good, SL_COUNT(f->good), v->json))
        return true;
    if (v->type == T_NULL && f->rule != R_LISTED)
        return true;
    switch (f->rule) {
    case R_BOOL:
        return v->type == T_BOOL;
    case R_INT:
        return in && v->whole;
    case R_NUMBER:
        return in;
    case R_ABOVE:
        return in && v->num > f->min;
    case R_TEXT:
        return v->type == T_STR && v->num >= 0;
    case R_ANY:
        return true;
    case R_EMPTY:
        return (v->type == T_STR || v->type == T_ARRAY || v->type == T_OBJECT) && v->num == 0;
    case R_NEVER:
        return false;
    case R_LISTED:
        return takes(f->takes, v);
    }
    return false;
}

/* A good body with members replaced or added, as text. */
static void build(struct sl_buf *b, const struct protocol *p, const struct field *const *fields,
                  const char *const *values, int n)
{
    json_t *root = json_loads(p->good, 0, NULL);
    assert_non_null(root);
    for (int i = 0; i < n; i++)
        (void)json_object_del(root, fields[i]->name);
    sl_buf_clear(b);
    sl_json_put(b, root);
    b->n_bytes--; /* its closing brace */
    for (int i = 0; i < n; i++)
        sl_buf_printf(b, "%s\"%s\":%s", b->n_bytes > 1 ? "," : "", fields[i]->name, values[i]);
    sl_buf_putc(b, '}');
    assert_true(sl_buf_ok(b));
    json_decref(root);
}

static int post(struct client *c, const struct protocol *p, const struct sl_buf *b)
{
    struct answer a;
    int status = client_post(c, p->path, host.key, b->data, b->n_bytes, &a);
    answer_free(&a);
    host.n_cases++;
    return status;
}

/* refusal: what it may be besides 400 */
static void expect(struct client *c, const struct protocol *p, const struct sl_buf *b, bool good,
                   bool either, int refusal)
{
    int status = post(c, p, b);
    bool refused = status == 400 || status == refusal;
    if ((either || good) && status == 200)
        return;
    if (!refused || (good && !either))
        fail_msg("%s %s\n  gives %d", p->path, host_show(b->data, b->n_bytes), status);
}

static void test_every_field_is_here(void **state)
{
    (void)state;
    for (size_t k = 0; k < SL_COUNT(protocols); k++) {
        const struct protocol *p = &protocols[k];
        size_t n = 0;
        for (int i = 0; i < sl_params_n_fields(); i++) {
            unsigned endpoints;
            const char *name = sl_params_field(i, &endpoints);
            bool here = false;
            for (size_t f = 0; f < p->n_fields; f++)
                here |= strcmp(p->fields[f].name, name) == 0;
            if (here != ((endpoints & (unsigned)p->endpoint) != 0))
                fail_msg("%s: %s is in one table only", p->path, name);
            n += here;
        }
        assert_int_equal(n, p->n_fields);
    }
}

static void test_each_value(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t k = 0; k < SL_COUNT(protocols); k++) {
        const struct protocol *p = &protocols[k];
        for (size_t i = 0; i < p->n_fields; i++) {
            const struct field *f = &p->fields[i];
            struct client c;
            client_open(&c, &host);
            for (size_t v = 0; v < SL_COUNT(common); v++) {
                build(&b, p, &f, &common[v].json, 1);
                bool model = strcmp(f->name, "model") == 0;
                expect(&c, p, &b, good_value(f, &common[v]), unsure(f->takes, &common[v]),
                       model ? 404 : 400);
            }
            for (size_t v = 0; v < SL_COUNT(f->good) && f->good[v] != NULL; v++) {
                build(&b, p, &f, &f->good[v], 1);
                expect(&c, p, &b, true, false, 400);
            }
            for (size_t v = 0; v < SL_COUNT(f->bad) && f->bad[v] != NULL; v++) {
                build(&b, p, &f, &f->bad[v], 1);
                expect(&c, p, &b, false, false, 400);
            }
            client_close(&c);
            host_good(&host);
        }
    }
    sl_buf_deinit(&b);
}

static void test_each_place(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    for (size_t k = 0; k < SL_COUNT(protocols) + SL_COUNT(shared); k++) {
        const struct protocol *p =
            k < SL_COUNT(protocols) ? &protocols[k] : &shared[k - SL_COUNT(protocols)];
        for (size_t i = 0; i < p->n_places; i++) {
            const struct place *at = &p->places[i];
            struct client c;
            client_open(&c, &host);
            for (size_t v = 0; v < SL_COUNT(common); v++) {
                sl_buf_clear(&b);
                sl_buf_puts(&b, at->before);
                sl_buf_puts(&b, common[v].json);
                sl_buf_puts(&b, at->after);
                expect(&c, p, &b, takes(at->takes, &common[v]), unsure(at->takes, &common[v]), 400);
            }
            client_close(&c);
            host_good(&host);
        }
    }
    sl_buf_deinit(&b);
}

/* One bad value refuses the body whatever else it has; good ones may still not go together. */
static void test_combinations(void **state)
{
    enum { MOST = 6 };
    (void)state;
    struct sl_rng rng = {.seed = 7};
    struct sl_buf b = {0};
    int n_good = 0;
    for (int round = 0; round < 1000; round++) {
        const struct protocol *p = &protocols[(size_t)round % SL_COUNT(protocols)];
        const struct field *fields[MOST];
        const char *values[MOST];
        int n = 2 + (int)sl_rng_below(&rng, MOST - 1);
        bool all_good = true;
        for (int i = 0; i < n; i++) {
            bool again = true;
            while (again) { /* no field twice */
                fields[i] = &p->fields[sl_rng_below(&rng, (uint32_t)p->n_fields)];
                again = false;
                for (int q = 0; q < i; q++)
                    again |= fields[q] == fields[i];
            }
            const struct value *v = &common[sl_rng_below(&rng, SL_COUNT(common))];
            for (int tries = 0; round % 2 == 0 && tries < 200 && !good_value(fields[i], v); tries++)
                v = &common[sl_rng_below(&rng, SL_COUNT(common))];
            values[i] = v->json;
            all_good = all_good && (good_value(fields[i], v) || unsure(fields[i]->takes, v));
        }
        struct client c;
        client_open(&c, &host);
        build(&b, p, fields, values, n);
        int status = post(&c, p, &b);
        client_close(&c);
        if (status != 400 && !(status == 404 && strstr(b.data, "\"model\"") != NULL) &&
            !(all_good && status == 200))
            fail_msg("%s %s\n  gives %d", p->path, host_show(b.data, b.n_bytes), status);
        n_good += status == 200;
    }
    host_good(&host);
    assert_true(n_good > 60);
    sl_buf_deinit(&b);
}

static void test_enough_cases(void **state)
{
    (void)state;
    print_message("hostile protocols: %ld cases\n", host.n_cases);
    assert_true(host.n_cases > 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_is_here), cmocka_unit_test(test_each_value),
        cmocka_unit_test(test_each_place),          cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_enough_cases),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
