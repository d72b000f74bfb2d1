/* SPDX-License-Identifier: MIT
 * load_text.h - finds a model's tokenizer and chat template, whatever container it came in. The
 * text layer knows formats, the io layer files; this is where they meet.
 */
#ifndef SL_ENGINE_LOAD_TEXT_H
#define SL_ENGINE_LOAD_TEXT_H

#include "io/checkpoint.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

SL_MUST_CHECK int sl_load_tokenizer(const struct sl_ckpt *ckpt, struct sl_tokenizer **out,
                                    struct sl_error *err);
/* *out is NULL when the model has no template. */
SL_MUST_CHECK int sl_load_template(const struct sl_ckpt *ckpt, struct sl_template **out,
                                   struct sl_error *err);
/* override: a file's path, or the template's text itself (when it holds "{{" or "{%"). */
SL_MUST_CHECK int sl_load_template_override(const char *override, struct sl_template **out,
                                            struct sl_error *err);

/* Renders with the JSON object text `context`; bos_token and eos_token come from tok (may be NULL)
 * unless the context has them, the clock from its member `now` (ISO 8601, UTC) or the system. */
SL_MUST_CHECK int sl_render_context(const struct sl_template *tpl, const struct sl_tokenizer *tok,
                                    const char *context, size_t n_context, struct sl_buf *out,
                                    struct sl_error *err);

/* Two names of tokens with a comma between, "no,yes", to their ids. */
SL_MUST_CHECK int sl_load_two_tokens(const struct sl_tokenizer *tok, const char *names,
                                     int32_t out[2], struct sl_error *err);

#endif
