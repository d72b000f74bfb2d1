/* SPDX-License-Identifier: MIT
 * common.h - what run, chat and bench share: opening an engine with progress on stderr, and
 * streaming one request to stdout. Single-threaded use.
 */
#ifndef SL_CMD_COMMON_H
#define SL_CMD_COMMON_H

#include "base/buf.h"
#include "cmd/flags.h"
#include "sluice.h"

/* Opens the engine; loading shows progress on stderr when it is a terminal or takes long. */
SL_MUST_CHECK int sl_cli_open_engine(struct sl_engine_config *cfg, struct sl_engine **out,
                                     struct sl_error *err);

/* Ctrl-C from here on only raises a flag, and kills if the flag is up already; sl_cli_interrupted
 * reads it, sl_cli_uninterrupt lowers it. */
void sl_cli_catch_interrupt(void);
bool sl_cli_interrupted(void);
void sl_cli_uninterrupt(void);
/* Waits until fd can be read (or is at its end); false: a signal came, by sl_cli_wake or Ctrl-C.
 * Whichever thread the kernel gave the signal, and whenever it came, it is not missed. */
bool sl_cli_wait(int fd);
void sl_cli_wake(void); /* for handlers of signals */

struct sl_cli_how { /* a prompt is answered */
    const struct sl_sampling *sampling;
    struct sl_constraint *constraint; /* what the text must be; NULL: any */
    struct sl_adapter *adapter;       /* or NULL */
    float adapter_scale;
};

struct sl_cli_result {
    struct sl_buf text; /* everything that was generated */
    enum sl_finish finish;
    struct sl_usage usage;
};

/* Runs one prompt to its end (or to Ctrl-C) and writes the text to stdout as it comes when echo is
 * set. flags: enum sl_encode_flags for the prompt. The
 * result's text belongs to the caller. */
SL_MUST_CHECK int sl_cli_generate(struct sl_engine *eng, const char *prompt, size_t n_prompt,
                                  unsigned flags, const struct sl_cli_how *how, bool echo,
                                  struct sl_cli_result *out, struct sl_error *err);

/* Appends {"role": role, "content": content} with JSON escapes. */
void sl_cli_message(struct sl_buf *b, const char *role, const char *content, size_t n_content);

const char *sl_cli_finish_name(enum sl_finish f);

#endif
