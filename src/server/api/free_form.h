/* SPDX-License-Identifier: MIT
 * free_form.h - tools that take text (type "custom" of OpenAI's APIs), as functions with one
 * string.
 *
 * A model knows functions only: a tool that takes text is shown to it as a function whose only
 * argument is the string SL_OUTPUT_TEXT_ARGUMENT. Its format, a grammar or a regular expression, is
 * told in the description and enforced by the grammar of the calls (text/output/output_tags.h).
 */
#ifndef SL_SERVER_FREE_FORM_H
#define SL_SERVER_FREE_FORM_H

#include "server/api/answer.h"
#include "server/http/json_in.h"

/* What a format says; *syntax NULL: any text. The grammar may be in a member "grammar", as chat
 * completions has it, or in the format itself, as responses has it. field: the format's. */
SL_MUST_CHECK int sl_free_form_format(const json_t *format, const char *field, const char **syntax,
                                      const char **definition, struct sl_refusal *r);
/* custom: {name, description, format}. *function: what the model is shown. *grammar: {syntax,
 * definition}, {} for any text. field: of custom. The name is not checked. */
SL_MUST_CHECK int sl_free_form_function(const json_t *custom, const char *field, json_t **function,
                                        json_t **grammar, struct sl_refusal *r);
/* Text as the arguments of that function, a string of JSON; NULL: no memory. */
json_t *sl_free_form_arguments(const json_t *text);
/* The text that a call passes, as a string of JSON. */
void sl_free_form_put(struct sl_buf *b, const struct sl_part *call);

#endif
