/* SPDX-License-Identifier: MIT
 * output_parse.h - what a model writes, split while it streams: reasoning, content, tool calls.
 *
 * Formats are rows of output_formats.def, chosen by the names that vLLM and SGLang give them or
 * from the chat template's text. One parser belongs to one answer; it is used by one thread at a
 * time and reports through a callback, within the call that brought the bytes. Cutting the text
 * into other pieces changes nothing but where text events are cut.
 *
 * The contract:
 * - A byte that cannot belong to a marker is passed on in the call that brings it. What may still
 *   become a marker is held back until it is one or cannot be one.
 * - White space next to a marker (up to 256 bytes) belongs to the marker. Without a marker, text is
 *   passed on byte for byte.
 * - A call's arguments are the text of one JSON object. Where the format is JSON they are the
 *   model's own bytes; where it is not they are converted, with the types of the tool's schema, as
 *   strings where it says none.
 * - Nothing is repaired. What turns out not to be a call before its BEGIN was reported is text,
 *   from the marker's first byte on. After BEGIN, the call ends at once with END and whole = false,
 *   its arguments stay the prefix they are, and the bytes from the offending structure on are text.
 *   Arguments that are whole stay whole when a closing marker is missing.
 */
#ifndef SL_TEXT_OUTPUT_PARSE_H
#define SL_TEXT_OUTPUT_PARSE_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_output_kind {
    SL_OUTPUT_REASONING,  /* text */
    SL_OUTPUT_CONTENT,    /* text */
    SL_OUTPUT_CALL_BEGIN, /* text is the name; id, if the format has one and it came first */
    SL_OUTPUT_CALL_ARGS,  /* text: the next bytes of the arguments */
    SL_OUTPUT_CALL_END,   /* whole; id, if it came after the arguments */
};

/* Pointers are valid until the callback returns; text and id are NUL-terminated. */
struct sl_output_event {
    enum sl_output_kind kind;
    int index; /* of the call, from 0 */
    const char *text, *id;
    size_t n_text, n_id;
    bool whole; /* END: the arguments are a whole JSON object */
};
typedef void (*sl_output_fn)(void *arg, const struct sl_output_event *event);

enum sl_output_start {
    SL_OUTPUT_START_AUTO,      /* as the reasoning format says */
    SL_OUTPUT_START_REASONING, /* the prompt opened the block */
    SL_OUTPUT_START_CONTENT,   /* the prompt closed the block, or there is none */
};

struct sl_output_options {
    const char *tools_format, *reasoning_format; /* names; NULL or "none": not parsed */
    const json_t *tools; /* the request's list, or NULL; stays the caller's, outlives the parser */
    enum sl_output_start start;
    sl_output_fn fn;
    void *arg;
};

struct sl_output;

/* SL_EINVAL: a name that no format has, with the nearest one. */
SL_MUST_CHECK int sl_output_create(const struct sl_output_options *options, struct sl_output **out,
                                   struct sl_error *err);
void sl_output_destroy(struct sl_output *p);

/* The next bytes of the answer, markers included, whichever tokens spell them: special tokens that
 * are no markers (sl_output_is_marker) are the caller's to leave out. 0 or SL_ENOMEM, which stays:
 * the answer can only be failed then. */
SL_MUST_CHECK int sl_output_push(struct sl_output *p, const char *text, size_t n);
/* The same for text of which a token ends behind each of ends[n_ends] (0 .. n, ascending): adds to
 * *n_thought those that end in a block of reasoning, its markers included. */
SL_MUST_CHECK int sl_output_push_tokens(struct sl_output *p, const char *text, size_t n,
                                        const size_t *ends, size_t n_ends, int64_t *n_thought);
/* Does a special token's text belong to a marker of these formats? */
bool sl_output_is_marker(const struct sl_output *p, const char *text, size_t n);
/* The answer is over: reports what was held back, ends a call that is open. */
SL_MUST_CHECK int sl_output_finish(struct sl_output *p);
/* Ends the reasoning block here (a thinking budget is spent). A closing marker that follows at once
 * is part of it. Nothing happens outside of a block. */
SL_MUST_CHECK int sl_output_end_reasoning(struct sl_output *p);
bool sl_output_in_reasoning(const struct sl_output *p);
/* Is something held back that may still turn out to be content? */
bool sl_output_holds_content(const struct sl_output *p);

/* Names that the template's text tells, or NULL where it tells none. */
void sl_output_detect(const char *chat_template, size_t n, const char **tools_format,
                      const char **reasoning_format);
/* What the end of a rendered prompt says about the answer's start. AUTO: nothing. A caller that
 * chose the format by the template passes CONTENT then: a model of such a template opens the block
 * itself, and a block may open at the start of the content. */
enum sl_output_start sl_output_prompt_start(const char *reasoning_format, const char *prompt,
                                            size_t n);
/* The markers of a reasoning format; NULL where it has no such marker or there is no such format.
 * Harmony's closing marker is that of its analysis channel. */
const char *sl_output_reasoning_open(const char *reasoning_format);
const char *sl_output_reasoning_close(const char *reasoning_format);

/* Does the format write messages with channels (gpt-oss)? Such a template reads what an answer with
 * a call thought from the member "thinking" of its message. */
bool sl_output_has_channels(const char *reasoning_format);

/* May a tool be called so? Other names would not be told from what stands around them. */
bool sl_output_good_name(const char *name, size_t n);
/* An id for a call whose format has none, as the format's template wants it. */
#define SL_OUTPUT_ID_BYTES 32
void sl_output_make_id(const char *tools_format, uint64_t random, char out[SL_OUTPUT_ID_BYTES]);

/* Does an answer with that start begin inside of a block? */
bool sl_output_begins_inside(const char *reasoning_format, enum sl_output_start start);
/* The text behind which the answer begins, and what the model has to write to end its reasoning
 * there and then. NULL: there is no such format. */
const char *sl_output_answer_open(const char *reasoning_format, const char **forced);

/* The formats by number; NULL behind the last. A format's names, separated by spaces. */
const char *sl_output_tools_names(size_t i);
const char *sl_output_reasoning_names(size_t i);

#endif
