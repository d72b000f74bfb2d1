/* SPDX-License-Identifier: MIT
 * The library's lexer goes on after memory for its text was refused, and then reads and writes
 * beyond its buffers (2.14: a string whose closing quote was lost). So nothing of it runs after a
 * refusal: parsing is left by a jump, and what it held is freed from a list that runs through the
 * blocks.
 */
#include "base/json_load.h"

#include "base/buf.h"
#include "base/sys.h"

#include <setjmp.h>
#include <string.h>

struct block { /* before every block the library holds; those of one parse form a ring */
    struct block *prev, *next;
};

_Static_assert(sizeof(struct block) % 16 == 0, "what follows stays aligned");

struct parse {
    struct block ring; /* the ring's beginning, taken out when the parse ends well */
    jmp_buf out;
};

static _Thread_local struct parse *parsing; /* NULL: no parse of this thread */

static void unlink_block(struct block *b)
{
    SL_ASSERT(b->prev->next == b && b->next->prev == b);
    b->prev->next = b->next;
    b->next->prev = b->prev;
}

static void *json_memory(size_t n_bytes)
{
    /* unreachable: too many bytes, those of a text are in memory */
    struct block *b = n_bytes <= SIZE_MAX - sizeof *b ? sl_malloc(sizeof *b + n_bytes) : NULL;
    if (b == NULL && parsing != NULL)
        longjmp(parsing->out, 1);
    if (b == NULL)
        return NULL;
    b->prev = b->next = b;
    if (parsing != NULL) {
        b->prev = &parsing->ring;
        b->next = parsing->ring.next;
        b->prev->next = b->next->prev = b;
    }
    return b + 1;
}

static void json_release(void *p)
{
    if (p == NULL) /* unreachable: true, jansson looks itself */
        return;
    struct block *b = (struct block *)p - 1;
    unlink_block(b);
    sl_free(b);
}

/* Before main, because the library's functions must not change once it holds memory. */
__attribute__((constructor)) static void use_own_memory(void)
{
    json_set_alloc_funcs(json_memory, json_release);
}

json_t *sl_json_load(const char *text, size_t n, size_t flags, json_error_t *why)
{
    struct parse p;
    SL_ASSERT(parsing == NULL);
    p.ring.prev = p.ring.next = &p.ring;
    if (setjmp(p.out) != 0) {
        parsing = NULL;
        while (p.ring.next != &p.ring)
            json_release(p.ring.next + 1);
        memset(why, 0, sizeof *why);
        why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory;
        return NULL;
    }
    parsing = &p;
    json_t *root = json_loadb(text, n, flags, why);
    parsing = NULL;
    SL_DCHECK(root != NULL || p.ring.next == &p.ring); /* who fails has given everything back */
    unlink_block(&p.ring);
    return root;
}

/* ---- integers beyond 64 bits */

static bool json_load_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_wide(const char *digits, size_t n, bool negative)
{
    static const char most[] = "9223372036854775807";
    if (n != sizeof most - 1)
        return n > sizeof most - 1;
    int order = memcmp(digits, most, n);
    return negative ? order > 0 && memcmp(digits, "9223372036854775808", n) > 0 : order > 0;
}

bool sl_json_next_wide(const char *text, size_t n, size_t *at, size_t *begin)
{
    bool in_string = false;
    for (size_t i = *at; i < n; i++) {
        if (in_string && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && json_load_is_digit(text[i])) {
            size_t first = i;
            bool negative = first > 0 && text[first - 1] == '-';
            while (i < n && json_load_is_digit(text[i]))
                i++;
            bool wide = is_wide(text + first, i - first, negative);
            bool is_real = i < n && (text[i] == '.' || text[i] == 'e' || text[i] == 'E');
            if (wide && !is_real) {
                *begin = first - negative;
                *at = i;
                return true;
            }
            while (i < n && (json_load_is_digit(text[i]) || strchr(".eE+-", text[i]) != NULL))
                i++;
            i--;
        }
    }
    *at = n;
    return false;
}

json_t *sl_json_load_wide(const char *text, size_t n, size_t flags, json_error_t *why)
{
    json_t *root = sl_json_load(text, n, flags, why);
    if (root != NULL || json_error_code(why) != json_error_numeric_overflow)
        return root;
    struct sl_buf b = {0};
    size_t at = 0, copied = 0, begin;
    while (sl_json_next_wide(text, n, &at, &begin)) {
        sl_buf_put(&b, text + copied, at - copied);
        sl_buf_puts(&b, ".0");
        copied = at;
    }
    sl_buf_put(&b, text + copied, n - copied);
    if (sl_buf_ok(&b)) {
        root = sl_json_load(b.data, b.n_bytes, flags, why);
    } else {
        memset(why, 0, sizeof *why);
        why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory;
    }
    sl_buf_deinit(&b);
    return root;
}

void sl_json_free_text(char *text)
{
    json_release(text);
}

bool sl_json_no_memory(const json_error_t *why)
{
    return json_error_code(why) == json_error_out_of_memory;
}
