/* SPDX-License-Identifier: MIT
 * Every golden snippet with every limit at every height: steps, memory, bytes of output,
 * allocations that fail. A rendering gives what it gives without limits, or fails, leaves the
 * output as it was and holds no memory; what it gives never depends on a limit in any other way.
 */
#include "test_template_util.h"

#include "base/check.h"

#define GOLDEN   "tests/golden/templates.json"
#define MAX_FUEL 4000

static struct {
    int64_t live;      /* blocks */
    uint64_t calls;    /* so far */
    uint64_t fails_at; /* 0: never */
} heap;

static void *heap_alloc(size_t n)
{
    void *p = ++heap.calls == heap.fails_at ? NULL : sl_sys_real.alloc(n);
    heap.live += p != NULL;
    return p;
}

static void *heap_realloc(void *old, size_t n)
{
    void *p = ++heap.calls == heap.fails_at ? NULL : sl_sys_real.realloc(old, n);
    heap.live += p != NULL && old == NULL;
    return p;
}

static void heap_free(void *p)
{
    heap.live -= p != NULL;
    sl_sys_real.free(p);
}

static void heap_watch(bool on)
{
    static struct sl_sys watching;
    watching = sl_sys_real;
    watching.alloc = heap_alloc;
    watching.realloc = heap_realloc;
    watching.free = heap_free;
    sl_sys = on ? &watching : &sl_sys_real;
    memset(&heap, 0, sizeof heap);
}

struct snippet {
    char *source;
    size_t n;
    const json_t *vars;
    struct rendering free; /* without limits */
    enum sl_template_dialect dialect;
};

static int n_checked;

/* One rendering under limits; true if it gave what it gives without. */
static bool same_as_free(const struct snippet *s, const struct sl_template *t,
                         const struct sl_template_limits *limits, const char *what, uint64_t at)
{
    struct sl_buf out = {0};
    struct sl_error err = {0};
    heap_watch(true);
    sl_buf_puts(&out, "<>");
    int code = sl_template_render(t, s->vars, NOW, limits, &out, &err);
    bool good = code == 0
                    ? s->free.code == 0 && out.n_bytes == s->free.out.n_bytes + 2 &&
                          memcmp(out.data, "<>", 2) == 0 &&
                          (s->free.out.n_bytes == 0 ||
                           memcmp(out.data + 2, s->free.out.data, s->free.out.n_bytes) == 0)
                    : out.n_bytes == 2 && memcmp(out.data, "<>", 3) == 0 && err.msg[0] != '\0';
    bool same = code == 0 || (code == s->free.code && strcmp(err.msg, s->free.err.msg) == 0);
    sl_buf_deinit(&out);
    good = good && heap.live == 0;
    heap_watch(false);
    if (!good)
        fail_msg("%.200s\n  with %s %llu: code %d, %s", s->source, what, (unsigned long long)at,
                 code, err.msg);
    n_checked++;
    return same;
}

static void sweep_limits(const struct snippet *s, const struct sl_template *t)
{
    struct sl_template_limits limits = {.dialect = s->dialect, .fuel = 1};
    while (limits.fuel < MAX_FUEL && !same_as_free(s, t, &limits, "fuel", limits.fuel))
        limits.fuel += limits.fuel < 1000 ? 1 : 7;
    limits.fuel = 0;
    for (limits.max_memory = 1024; limits.max_memory < 32768; limits.max_memory += 16)
        if (same_as_free(s, t, &limits, "memory", limits.max_memory))
            break;
    limits.max_memory = 0;
    for (limits.max_output = 1; limits.max_output < 600; limits.max_output++)
        if (same_as_free(s, t, &limits, "output", limits.max_output))
            break;
}

/* Renders with the allocation `at` failing. False: there was no such allocation. */
static bool fail_allocation(const struct snippet *s, uint64_t at)
{
    const struct sl_template_limits limits = {.dialect = s->dialect};
    heap_watch(true);
    heap.fails_at = at;
    struct rendering r = render(s->source, s->n, s->vars, &limits);
    bool struck = heap.calls >= at;
    sl_buf_deinit(&r.out);
    if (heap.live != 0 || (struck && r.code != SL_ENOMEM && r.code != s->free.code))
        fail_msg("%.200s\n  allocation %llu fails: code %d, %s, %lld blocks left", s->source,
                 (unsigned long long)at, r.code, r.err.msg, (long long)heap.live);
    heap_watch(false);
    n_checked++;
    return struck;
}

/* Names that the template mentions and never uses fill what memory a rendering has at least, so
 * that every later allocation can be the one that is too much. */
#define FILLER                                                                       \
    "{% if 0 %}{{ [aa,ab,ac,ad,ae,af,ag,ah,ai,aj,ak,al,am,an,ao,ap,aq,ar,as_,at] }}" \
    "{{ [ba,bb,bc,bd,be,bf,bg,bh,bi,bj,bk,bl,bm,bn,bo,bp,bq,br,bs,bt] }}{% endif %}"

static void sweep(const char *text, const json_t *vars, enum sl_template_dialect dialect)
{
    const struct sl_template_limits limits = {.dialect = dialect};
    struct snippet s = {.vars = vars, .dialect = dialect};
    struct sl_template *t;
    struct sl_error err;
    struct sl_buf source = {0};
    sl_buf_puts(&source, FILLER);
    sl_buf_puts(&source, text);
    s.source = source.data;
    s.n = source.n_bytes;
    s.free = render(s.source, s.n, vars, &limits);
    if (sl_template_compile(s.source, s.n, &t, &err) == 0) {
        sweep_limits(&s, t);
        sl_template_destroy(t);
    }
    for (uint64_t at = 1; fail_allocation(&s, at); at++)
        ;
    sl_buf_deinit(&s.free.out);
    sl_buf_deinit(&source);
}

static void every_limit_at_every_height(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN), *row;
    size_t i;
    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "snippets"), i, row)
    {
        const char *source = json_string_value(json_array_get(row, 0));
        sweep(source, json_array_get(row, 1), SL_TEMPLATE_PYTHON);
        if (i % 4 == 0)
            sweep(source, json_array_get(row, 1), SL_TEMPLATE_JAVASCRIPT);
    }
    print_message("%d renderings under limits\n", n_checked);
    assert_true(n_checked > 50000);
    json_decref(golden);
}

/* Memory comes in chunks, so few allocations are asked of the system. Text of growing length in
 * front of a snippet moves the border of the first two chunks over everything behind it. */
static void every_piece_of_the_tree(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN), *row;
    size_t i;
    assert_non_null(golden);
    n_checked = 0;
    json_array_foreach(json_object_get(golden, "snippets"), i, row)
    {
        const char *source = json_string_value(json_array_get(row, 0));
        struct snippet s = {.vars = json_array_get(row, 1)};
        struct sl_buf text = {0};
        sl_buf_puts(&text, source);
        for (size_t pad = 0; pad < 4096; pad += i % 4 == 0 ? 16 : 64) {
            s.source = text.data;
            s.n = text.n_bytes;
            s.free = render(s.source, s.n, s.vars, NULL);
            for (uint64_t at = 2; at < 6 && fail_allocation(&s, at); at++)
                ;
            sl_buf_deinit(&s.free.out);
            for (int k = 0; k < (i % 4 == 0 ? 1 : 4); k++)
                sl_buf_puts(&text, "0123456789abcdef");
        }
        sl_buf_deinit(&text);
    }
    print_message("%d renderings with an allocation that failed\n", n_checked);
    assert_true(n_checked > 20000);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_limit_at_every_height),
        cmocka_unit_test(every_piece_of_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
