/* SPDX-License-Identifier: MIT
 *
 * Hostile templates: each ends with an error or a small result in less than 100 ms of CPU time and
 * within the memory limit; and rendering survives every single allocation failing.
 */
#include "test_template_util.h"

#include "base/check.h"
#include "base/limits.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 60
#elif !defined(__OPTIMIZE__)
#define SLOWER 20.0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define SLOWER 20.0
#endif
#endif
#ifndef SLOWER
#define SLOWER 1.0
#endif

#define LIMIT_MS (100.0 * SLOWER)
/* The fastest try counts. What is near gets more: a virtual processor may be slow for seconds. */
#define TRIES      5
#define TRIES_NEAR 25

#if defined(__SANITIZE_THREAD__) /* one thread: nothing to find here, so the same paths with less \
                                    fuel */
static const struct sl_template_limits hostile_limits = {.fuel = SL_TEMPLATE_FUEL / 50,
                                                         .max_memory = 4u << 20};
#else
static const struct sl_template_limits hostile_limits = {0};
#endif

/* Counts live bytes by asking the real allocator through a header in front of each block. */
static struct {
    size_t live, peak;
    size_t calls, fail_at; /* fail_at 0: never */
} heap;

struct block {
    size_t n_bytes, pad;
};

static void *counted_alloc(size_t n)
{
    if (++heap.calls == heap.fail_at)
        return NULL;
    struct block *b = sl_sys_real.alloc(sizeof *b + n);
    if (b == NULL)
        return NULL;
    b->n_bytes = n;
    heap.live += n;
    heap.peak = SL_MAX(heap.peak, heap.live);
    return b + 1;
}

static void counted_free(void *p)
{
    struct block *b = p;
    if (b == NULL)
        return;
    heap.live -= b[-1].n_bytes;
    sl_sys_real.free(b - 1);
}

static void *counted_realloc(void *p, size_t n)
{
    struct block *b = p;
    void *moved = counted_alloc(n);
    if (moved != NULL && b != NULL)
        memcpy(moved, b, SL_MIN(n, b[-1].n_bytes));
    if (moved != NULL)
        counted_free(b);
    return moved;
}

static struct sl_sys counting;

static void count_heap(bool on)
{
    counting = sl_sys_real;
    counting.alloc = counted_alloc;
    counting.realloc = counted_realloc;
    counting.free = counted_free;
    memset(&heap, 0, sizeof heap);
    sl_sys = on ? &counting : &sl_sys_real;
}

static void run_hostile(const char *name, const char *source, size_t n)
{
    json_t *vars = json_object();
    double best = 1e9;
    struct sl_error err = {0};
    /* The time is that of the allocator in use, not of the one below, which copies at every growth;
     * and the machine may be busy. */
    for (int i = 0; i < (best < 2 * LIMIT_MS ? TRIES_NEAR : TRIES) && best >= LIMIT_MS; i++) {
        double start = cpu_ms();
        struct rendering r = render(source, n, vars, &hostile_limits);
        best = SL_MIN(best, cpu_ms() - start);
        err = r.err;
        sl_buf_deinit(&r.out);
    }
    count_heap(true);
    struct rendering counted = render(source, n, vars, &hostile_limits);
    size_t peak = heap.peak;
    sl_buf_deinit(&counted.out);
    assert_int_equal(heap.live, 0);
    count_heap(false);
    if (best >= LIMIT_MS)
        fail_msg("%.70s: %.1f ms (%s)", name, best, err.msg);
    /* values 64 MiB, output 64 MiB which doubles as it grows, the tree */
    if (peak > (288u << 20))
        fail_msg("%.70s: %zu MiB", name, peak >> 20);
    json_decref(vars);
}

static void hostile_templates(void **state)
{
    (void)state;
#define BIG(n)     "{% set x = 'a' * " #n " %}"
#define LOOP(body) "{% for i in range(100000) %}" body "{% endfor %}"
#define NS(init)   "{% set ns = namespace(l=" init ") %}"
#define GROW(expr) "{% for i in range(100000) %}{% set ns.l = " expr " %}{% endfor %}"
    static const char *const cases[] = {
        "{% for i in range(10**9) %}{% endfor %}",
        LOOP(LOOP(LOOP(""))),
        LOOP(LOOP("x")),
        LOOP("{{ range(100000) | sum }}"),
        LOOP("{{ range(100000) | list | length }}"),
        LOOP("{{ range(100000) | sort | length }}"),
        LOOP("{% if 5.5 in range(100000) %}{% endif %}"),
        LOOP("{% macro m() %}{% endmacro %}"),
        LOOP("{% set y = cycler(1, 2, 3) %}"),
        "{{ range(100000) | map('string') | list | map('length') | list | sort | unique | list }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n < 100 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}"
        "{{ f(1) }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}"
        "{% endcall %}{% endmacro %}{{ r() }}",
        "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ ('a' * 10**7) * 10**7 }}",
        "{{ [1] * 10**9 }}",
        "{{ 2 ** 10 ** 9 }}",
        BIG(10000000) LOOP("{{ x }}"),
        BIG(1000000) "{{ x.replace('a', x) }}",
        BIG(100000) "{{ x.replace('', x) }}",
        "{% set x = ['a' * 100000] * 100000 %}{{ x | join('b' * 10000) }}",
        "{{ '%999999999d' % 5 }}",
        "{{ '%99999999999999999999d' % 5 }}",
        "{{ '%*d' % (10 ** 18, 5) }}",
        "{{ '%.999999999f' % 5.5 }}",
        "{{ '{:999999999}'.format(5) }}",
        "{{ '{:99999999999999999999.99999999999999999999f}'.format(5) }}",
        "{{ 'a'.ljust(10 ** 18) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'x'.zfill(10 ** 12) }}",
        "{{ 'a\\t'.expandtabs(10 ** 12) }}",
        "{{ 'a\\nb' | indent(10 ** 12) }}",
        "{{ 'abc' | wordwrap(10 ** 15) }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ [1] | batch(10 ** 9, 0) | list }}",
        "{{ 1 | tojson(indent=10 ** 9) }}",
        "{{ [[[1]]] | tojson(indent=10 ** 7) }}",
        "{{ 1.5 | round(10 ** 9) }}{{ 1 | round(-10 ** 9) }}",
        NS("[1]") GROW("ns.l + ns.l"),
        NS("'a'") GROW("ns.l ~ ns.l"),
        NS("[]") GROW("ns.l + [i]"),
        NS("[]") GROW("[i] + ns.l"),
        NS("'x'") GROW("'x' + ns.l"),
        NS("[1]") GROW("[ns.l]") "{{ ns.l | tojson }}",
        NS("[1]") GROW("[ns.l]") "{{ ns.l }}",
        NS("[1]") "{% set ns.m = [1] %}" GROW("[ns.l]") "{{ ns.l == ns.m }}",
        NS("(1,)") "{% for i in range(9999) %}{% set ns.l = (ns.l,) %}{% endfor %}{{ {ns.l: 1} }}",
        NS("[1]") "{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        NS("1") "{% set ns.s = ns %}{{ ns }}",
        BIG(10000000) LOOP("{% if 'b' in x %}{% endif %}"),
        BIG(10000000) LOOP("{% if x.find('ab') %}{% endif %}"),
        BIG(1000000) "{% set y = 'a' * 500000 ~ 'b' %}" LOOP("{% if y in x %}{% endif %}"),
        BIG(1000000) "{% set y = 'a' * 500000 ~ 'b' %}" LOOP("{{ x.rfind(y) }}{{ x.count(y) }}"),
        BIG(1000000) "{% set y = 'b' ~ 'a' * 500000 %}" LOOP("{{ x.rsplit(y) | length }}"),
        BIG(1000000) LOOP("{% set y = x.split('a') %}"),
        BIG(1000000) LOOP("{% set y = x.strip(x) %}"),
        BIG(1000000) LOOP("{% set y = x | upper %}"),
        BIG(1000000) LOOP("{% set y = x | title %}"),
        BIG(1000000) LOOP("{% set y = x.title() %}"),
        BIG(1000000) LOOP("{% set y = {x: 1} %}"),
        BIG(1000000) LOOP("{% set y = x | wordcount %}"),
        BIG(1000000) LOOP("{% set y = x | wordwrap(3) %}"),
        BIG(1000000) LOOP("{% set y = x.splitlines() %}"),
        BIG(1000000) LOOP("{% set y = x[::-1] %}"),
        BIG(1000000) LOOP("{% set y = x | list %}"),
        BIG(10000000) LOOP("{% set y = x.islower() %}"),
        BIG(10000000) LOOP("{% set y = x == x ~ '' %}"),
        "{% set x = '\xC3\xA4' * 1000000 %}" LOOP("{% set y = x[500000] %}"),
        "{% set x = ' ' * 10000000 %}" LOOP("{% set y = x.strip() %}"),
        "{% set x = '<' * 1000000 %}" LOOP("{% set y = x | striptags %}"),
        "{% set x = '<!--' * 200000 %}" LOOP("{% set y = x | striptags %}"),
        "{% set x = '<' * 1000000 %}" LOOP("{% set y = x | e %}"),
        "{% set x = '\\x01' * 1000000 %}" LOOP("{% set y = x | tojson %}"),
        "{% set x = '<' * 1000000 %}" LOOP("{% set y = x | urlencode %}"),
        "{% set x = '%s' * 100000 %}" LOOP("{% set y = x % (('a',) * 100000) %}"),
        "{% set x = 'a,' * 1000 %}{{ ([{'a': 1}] * 10000) | sort(attribute=x) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(range) }}",
        "{{ {}.update }}{{ [].append(1) }}",
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        run_hostile(cases[i], cases[i], strlen(cases[i]));
}

static void nested_sources(void **state)
{
    (void)state;
    static const struct {
        const char *head, *open, *middle, *close, *tail;
        size_t n;
    } cases[] = {
        {"{{ ", "(", "1", ")", " }}", 10000},
        {"{{ ", "[", "1", "]", " }}", 10000},
        {"{{ ", "{1:", "1", "}", " }}", 10000},
        {"{{ ", "not ", "1", "", " }}", 100000},
        {"{{ ", "-", "1", "", " }}", 100000},
        {"{{ 1", "+1", "", "", " }}", 300000},
        {"{{ 1", "|abs", "", "", " }}", 200000},
        {"{{ x", ".a", "", "", " }}", 300000},
        {"{{ x", "[0]", "", "", " }}", 200000},
        {"{{ x", "()", "", "", " }}", 200000},
        {"{{ 1", " if 1 else 1", "", "", " }}", 20000},
        {"{{ 1", " ~ 1", "", "", " }}", 200000},
        {"{{ 1", " < 1", "", "", " }}", 200000},
        {"{{ 1", " and 1", "", "", " }}", 100000},
        {"{{ 1", " ** 1", "", "", " }}", 100000},
        {"{{ f(", "f(", "", ")", ") }}", 10000},
        {"{{ ", "'a' ", "", "", "}}", 2000},
        {"", "{% if 1 %}", "x", "{% endif %}", "", 10000},
        {"", "{% for a in b %}", "x", "{% endfor %}", "", 10000},
        {"", "{% macro m() %}", "x", "{% endmacro %}", "", 10000},
        {"{% if 0 %}", "{% elif 0 %}", "", "", "{% endif %}", 60000},
        {"{% filter upper", "|upper", "", "", " %}x{% endfilter %}", 100000},
        {"", "{{ 'x' }}", "", "", "", 100000},
        {"", "{# #}", "", "", "", 100000},
        {"{% set ", "(", "a", ")", " = 1 %}", 10000},
        {"{% raw %}", "{% endra %}", "", "", "", 80000},
        {"{#", "#", "", "", "", 900000},
        {"", "{", "", "", "", 1000000},
        {"{{ '", "\\x41", "", "", "' }}", 200000},
        {"{{ ", "9", "", "", " }}", 100000},
        {"{{ 1.", "9", "", "", " }}", 100000},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf b = {0};
        sl_buf_puts(&b, cases[i].head);
        for (size_t k = 0; k < cases[i].n; k++)
            sl_buf_puts(&b, cases[i].open);
        sl_buf_puts(&b, cases[i].middle);
        for (size_t k = 0; k < cases[i].n; k++)
            sl_buf_puts(&b, cases[i].close);
        sl_buf_puts(&b, cases[i].tail);
        assert_true(sl_buf_ok(&b));
        run_hostile(cases[i].open, b.data, b.n_bytes);
        sl_buf_deinit(&b);
    }
}

static void limits_are_kept(void **state)
{
    (void)state;
    json_t *vars = json_object();
    const char *source = "{% for i in range(100) %}abcdefghij{% endfor %}";
    struct sl_template_limits limits = {.max_output = 999};
    struct rendering r = render(source, strlen(source), vars, &limits);
    assert_int_equal(r.code, SL_EINVAL);
    assert_non_null(strstr(r.err.msg, "too long"));
    sl_buf_deinit(&r.out);
    limits.max_output = 1000;
    r = render(source, strlen(source), vars, &limits);
    assert_int_equal(r.code, 0);
    assert_int_equal(r.out.n_bytes, 1000);
    sl_buf_deinit(&r.out);
    limits = (struct sl_template_limits){.fuel = 300};
    r = render(source, strlen(source), vars, &limits);
    assert_int_equal(r.code, SL_EINVAL);
    assert_non_null(strstr(r.err.msg, "too many steps"));
    sl_buf_deinit(&r.out);
    limits = (struct sl_template_limits){.max_memory = 4096};
    source = "{{ ('x' * 2000 ~ 'y' * 2000) | length }}";
    r = render(source, strlen(source), vars, &limits);
    assert_int_equal(r.code, SL_EINVAL);
    assert_non_null(strstr(r.err.msg, "memory"));
    sl_buf_deinit(&r.out);
    json_decref(vars);
}

/* 149 parentheses are fine, as Python allows them; a recursive macro may go about as deep. */
static void honest_depth_works(void **state)
{
    (void)state;
    json_t *vars = json_object();
    struct sl_buf b = {0};
    sl_buf_puts(&b, "{{ ");
    for (int i = 0; i < 70; i++)
        sl_buf_putc(&b, '(');
    sl_buf_putc(&b, '1');
    for (int i = 0; i < 70; i++)
        sl_buf_putc(&b, ')');
    for (int i = 0; i < 400; i++)
        sl_buf_puts(&b, " + 1");
    sl_buf_puts(&b, " }}");
    struct rendering r = render(b.data, b.n_bytes, vars, NULL);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.out.data, "401");
    sl_buf_deinit(&r.out);
    sl_buf_deinit(&b);
    const char *source =
        "{% macro f(n) %}{% if n > 0 %}{% for i in [1] %}{{ f(n - 1) }}{% endfor %}"
        "{% else %}end{% endif %}{% endmacro %}{{ f(140) }}";
    r = render(source, strlen(source), vars, NULL);
    if (r.code != 0)
        fail_msg("%s", r.err.msg);
    assert_string_equal(r.out.data, "end");
    sl_buf_deinit(&r.out);
    json_decref(vars);
}

/* A template that walks through most of the interpreter. */
static const char wide[] =
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}"
    "{% endmacro %}{% call m(1, 2, 3, z=4) %}body{% endcall %}"
    "{% set ns = namespace(n=0, l=[]) %}"
    "{% for k, v in d.items() if k != 'q' %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + [k] %}"
    "{{ loop.index }}{{ k | upper }}{{ v | tojson(indent=2) }}{% else %}none{% endfor %}"
    "{% for t in tree recursive %}{{ t.n }}{{ loop(t.c) if t.c }}{% endfor %}"
    "{% set x %}captured {{ 'text' | title }}{% endset %}{{ x | replace('t', 'T') | indent }}"
    "{% filter upper %}f{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}"
    "{{ [3, 1, 2] | sort | map('string') | join(',') }}{{ 'a,b'.split(',') }}"
    "{{ '%5d|%s' % (5, 'x') }}{{ '{:>5}'.format('y') }}{{ 'abc'[::-1] }}{{ range(5)[1:] | list }}"
    "{{ {'a': 1, 'b': [1.5, none]} }}{{ ld | groupby('a') }}{{ ld | selectattr('a', 'gt', 1) | "
    "list }}"
    "{{ 'one two three' | wordwrap(5) }}{{ strftime_now('%c') }}{{ dict(a=1) | dictsort }}"
    "{{ '<' | e }}{{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] | unique | list }}{{ 'x' ~ 1 ~ 2.5 }}"
    "{{ {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9, 'j': 10}.j }}";

static void every_allocation_may_fail(void **state)
{
    (void)state;
    json_t *vars = json_loads("{\"d\": {\"a\": 1, \"q\": 2, \"z\": {\"k\": [1, 2]}},"
                              "\"tree\": [{\"n\": \"r\", \"c\": [{\"n\": \"s\", \"c\": []}]}],"
                              "\"ld\": [{\"a\": 1}, {\"a\": 2}]}",
                              0, NULL);
    assert_non_null(vars);
    size_t k = 0;
    for (int code = SL_ENOMEM; code != 0;) {
        count_heap(true);
        heap.fail_at = ++k;
        struct rendering r = render(wide, strlen(wide), vars, NULL);
        code = r.code;
        if (code != 0 && code != SL_ENOMEM)
            fail_msg("allocation %zu: code %d, %s", k, code, r.err.msg);
        if (code != 0)
            assert_true(heap.calls >= k);
        sl_buf_deinit(&r.out);
        assert_int_equal(heap.live, 0);
        count_heap(false);
        assert_true(k < 10000);
    }
    print_message("%zu allocations, each failed once\n", k - 1);
    assert_true(k > 8);
    json_decref(vars);
}

static struct rendering render_messages(const char *source, int n, const char *content)
{
    json_t *vars = json_object(), *messages = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(messages, json_pack("{ssss}", "role", "tool", "content", content));
    json_object_set_new(vars, "messages", messages);
    struct rendering r = render(source, strlen(source), vars, NULL);
    json_decref(vars);
    return r;
}

/* Templates that look through all messages for each of them: how far is up to the conversation,
 * however short its texts are. A third loop has no such excuse. */
static void long_conversation(void **state)
{
    (void)state;
    static const char twice[] = "{% for m in messages %}{% set at = namespace(v=-1) %}"
                                "{% for k in messages %}"
                                "{% if k['role'] == 'assistant' and k['calls'] %}"
                                "{% set at.v = loop.index0 %}{% endif %}{% endfor %}{% endfor %}";
    static const char thrice[] = "{% for m in messages %}{% for k in messages %}"
                                 "{% for l in messages %}{% if l.role == 'x' %}x{% endif %}"
                                 "{% endfor %}{% endfor %}{% endfor %}";
    static char content[401];
    memset(content, 'a', 400);
    for (int is_long = 0; is_long < 2; is_long++) {
        for (int n = 250; n <= 2000; n *= 2) {
            struct rendering r = render_messages(twice, n, is_long ? content : "a");
            if (r.code != 0)
                fail_msg("%d messages of %d bytes: %s", n, is_long ? 400 : 1, r.err.msg);
            sl_buf_deinit(&r.out);
        }
        struct rendering r = render_messages(thrice, 2000, is_long ? content : "a");
        assert_int_equal(r.code, SL_EINVAL);
        assert_non_null(strstr(r.err.msg, "too many steps"));
        sl_buf_deinit(&r.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_templates), cmocka_unit_test(nested_sources),
        cmocka_unit_test(limits_are_kept),   cmocka_unit_test(honest_depth_works),
        cmocka_unit_test(long_conversation), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
