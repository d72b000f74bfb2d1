/* SPDX-License-Identifier: MIT
 * line.h - lines that a person types: editing and history by libedit where it is installed, the
 * terminal's own line discipline where it is not, plain reading where stdin is no terminal.
 *
 * One reader per process, on the thread that opened it.
 */
#ifndef SL_CMD_LINE_H
#define SL_CMD_LINE_H

#include "base/buf.h"
#include "base/err.h"

struct sl_line; /* opaque */

enum sl_line_result { SL_LINE_OK, SL_LINE_EOF, SL_LINE_INTERRUPTED, SL_LINE_FAILED };

struct sl_line_config {
    const char *const *words; /* [n_words] that Tab completes at the beginning of a line */
    size_t n_words;
    bool history; /* keep lines in a file: $XDG_STATE_HOME/sluice/chat_history, mode 0600 */
};

SL_MUST_CHECK int sl_line_open(const struct sl_line_config *cfg, struct sl_line **out,
                               struct sl_error *err);
void sl_line_close(struct sl_line *l);
bool sl_line_is_terminal(const struct sl_line *l);
/* One input without its line end: a line, lines that end in a backslash joined, or all between a
 * line that begins with three double quotes and one that ends with them. A paste is one input,
 * whatever line ends it has. */
enum sl_line_result sl_line_read(struct sl_line *l, struct sl_buf *out, struct sl_error *err);

#endif
