/* SPDX-License-Identifier: MIT
 * tok_batch.c - encodes many strings with one vocabulary, for tests/text/tok_oracle.py.
 *
 * usage: tok_batch FILE [flags]     flags: 1 add special tokens, 2 parse special tokens, 4 skip
 * them stdin: strings, each after its length as 4 bytes, little-endian stdout: per string a line of
 * ids and a line with the decoded text in hexadecimal
 */
#include "base/buf.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/sys.h"
#include "sluice.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

static int one(const struct sl_tokenizer *t, const char *s, size_t n, unsigned flags,
               struct sl_buf *out, struct sl_error *err)
{
    struct sl_ids ids = {0};
    char *text = NULL;
    size_t n_text = 0;
    int rc = sl_tokenizer_encode_into(t, s, n, flags & 3, &ids, err);
    if (rc == 0)
        rc = sl_tokenizer_decode(t, ids.data, ids.n, (flags & 4) != 0, &text, &n_text, err);
    for (size_t i = 0; i < ids.n && rc == 0; i++)
        sl_buf_printf(out, i > 0 ? " %d" : "%d", ids.data[i]);
    sl_buf_putc(out, '\n');
    for (size_t i = 0; i < n_text && rc == 0; i++)
        sl_buf_printf(out, "%02x", (unsigned)(unsigned char)text[i]);
    sl_buf_putc(out, '\n');
    sl_free(ids.data);
    sl_free(text);
    return rc;
}

int main(int argc, char **argv)
{
    struct sl_error err = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_buf out = {0};
    char *in = NULL;
    size_t n = 0;
    uint64_t flags = 0;
    uint32_t len;
    int rc;
    if (argc < 2 || (argc > 2 && !sl_parse_u64(argv[2], strlen(argv[2]), &flags))) {
        fprintf(stderr, "usage: tok_batch FILE [flags]\n");
        return 2;
    }
    rc = sl_tokenizer_open(argv[1], &t, &err);
    if (rc == 0)
        rc = sl_read_file("-", (size_t)1 << 30, &in, &n, &err);
    for (size_t i = 0; rc == 0 && n - i >= sizeof(len); i += len) {
        memcpy(&len, in + i, sizeof(len));
        i += sizeof(len);
        if (len > n - i) {
            rc = sl_fail(&err, SL_EFORMAT, "string longer than the input");
            break;
        }
        rc = one(t, in + i, len, (unsigned)flags, &out, &err);
    }
    if (rc == 0 && sl_buf_ok(&out) && out.n_bytes > 0)
        rc = sl_write_all(1, out.data, out.n_bytes, &err);
    if (rc != 0)
        fprintf(stderr, "tok_batch: %s\n", err.msg);
    sl_buf_deinit(&out);
    sl_free(in);
    sl_tokenizer_destroy(t);
    return rc != 0;
}
