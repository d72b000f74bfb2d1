/* SPDX-License-Identifier: MIT
 * ollama_in.h - bodies of Ollama's /api/chat and /api/generate in the shape of chat completions:
 * options, format, think, images, tool calls with arguments as objects, keep_alive. Fields that
 * Ollama does not have are left as they are and are read by the one table of server/api/params.h.
 */
#ifndef SL_SERVER_OLLAMA_IN_H
#define SL_SERVER_OLLAMA_IN_H

#include "server/http/json_in.h"

struct sl_ollama_model { /* what the model can do, which decides what may be asked of it */
    const char *name;
    bool has_template, thinks;
};

struct sl_ollama_request {
    bool raw;    /* the prompt is the text as it is: the tree has the fields of completions */
    bool idle;   /* nothing to answer: the model is to be loaded, or unloaded */
    bool unload; /* keep_alive is 0 */
};

/* Both change the tree. A refusal names the field as the client knows it. */
SL_MUST_CHECK int sl_ollama_chat(json_t *root, const struct sl_ollama_model *m,
                                 struct sl_ollama_request *out, struct sl_refusal *r);
SL_MUST_CHECK int sl_ollama_generate(json_t *root, const struct sl_ollama_model *m,
                                     struct sl_ollama_request *out, struct sl_refusal *r);
/* keep_alive: seconds, or a duration such as "5m". *zero: it asks to unload the model. */
SL_MUST_CHECK int sl_ollama_keep_alive(json_t *root, bool *zero, struct sl_refusal *r);
/* The options that mean the same for embeddings: none; checks that it is an object. */
SL_MUST_CHECK int sl_ollama_drop_options(json_t *root, struct sl_refusal *r);

#endif
