/* SPDX-License-Identifier: MIT
 * multipart.h - the parts of a multipart/form-data body (RFC 7578), as forms upload files.
 *
 * Strict: the body begins and ends with its boundary, lines end in CR LF, every part has a name.
 * What a part says of its content's type or encoding is not looked at; the bytes are as they came.
 * Used by one thread; parts borrow the body.
 */
#ifndef SL_SERVER_MULTIPART_H
#define SL_SERVER_MULTIPART_H

#include "server/http/http_parse.h"
#include "server/http/json_in.h"

#define SL_MAX_BOUNDARY   70 /* bytes, as RFC 2046 says */
#define SL_MAX_FORM_PARTS 32
#define SL_MAX_FORM_NAME  256 /* bytes of a name or file name, as sent */

struct sl_form_part {
    char name[SL_MAX_FORM_NAME], filename[SL_MAX_FORM_NAME]; /* filename "": none was given */
    struct sl_str data;
};

struct sl_multipart {
    struct sl_str body;
    char mark[4 + SL_MAX_BOUNDARY]; /* CR LF -- boundary */
    size_t n_mark, at;              /* at: behind the boundary that was read last */
    int n_parts;
};

/* The boundary of a Content-Type, NUL-terminated. SL_EUNSUPPORTED: another type. */
SL_MUST_CHECK int sl_multipart_boundary(const struct sl_str *content_type,
                                        char out[SL_MAX_BOUNDARY + 1], struct sl_refusal *r);
SL_MUST_CHECK int sl_multipart_begin(struct sl_multipart *m, const char *boundary,
                                     struct sl_str body, struct sl_refusal *r);
/* 1: the next part; 0: there is none, and the body ends as it should; negative: refused. */
SL_MUST_CHECK int sl_multipart_next(struct sl_multipart *m, struct sl_form_part *part,
                                    struct sl_refusal *r);

#endif
