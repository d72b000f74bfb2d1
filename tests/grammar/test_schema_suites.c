/* SPDX-License-Identifier: MIT
 * test_schema_suites.c - JSON-Schema-Test-Suite, MaskBench schemas and JSONTestSuite, where they
 * are unpacked: no invalid instance may be accepted, byte by byte and through real vocabularies.
 *
 * test_schema_suites --bench [VOCABULARY [RUNS]] prints the figures: groups, verdicts, times of
 * compiling and of masks along each instance, and the slowest masks. Of several runs each time is
 * the shortest, so that other work on the machine does not count. At every place of a valid text it
 * also asks for the tokens that are forced: those must be the tokenizer's own of the whole text.
 */
#include "base/buf.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/str.h"
#include "grammar/jump.h"
#include "grammar_rig.h"
#include "text/tokenizer/tokenizer.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#define DATA "build/testdata/structured/"

enum { SLOW_MASK_US = 1500 };

/* All that the specification allows; other grammars are for generation, and allow less. */
static const struct sl_json_style as_specified = {
    .whitespace = "[ \\t\\r\\n]*", .additional_properties = true, .whole_floats = true};

struct times {
    double *us;
    size_t n, cap, at; /* at: of this run */
};

static struct totals {
    int groups, supported, tests, false_accepts, false_rejects, limits, masks;
    long tokens, forced, jumps, unlike; /* of valid texts; jumps that the tokenizer makes unlike */
    struct times compile, mask, jump;
    uint64_t checksum; /* of all masks, to compare two versions */
    const struct sl_vocab *vocab;
    struct sl_tokenizer *tok;
    bool print, again; /* again: one more run of the same */
} all;

static double add_time(struct times *t, uint64_t ns)
{
    double us = (double)ns / 1000.0;
    if (t->n == t->cap) {
        t->cap = t->cap == 0 ? 1024 : t->cap * 2;
        t->us = sl_realloc(t->us, t->cap * sizeof t->us[0]);
        assert_non_null(t->us);
    }
    if (t->at == t->n)
        t->us[t->n++] = us;
    t->us[t->at] = SL_MIN(t->us[t->at], us);
    return t->us[t->at++];
}

/* Of this thread, so that other work on the machine does not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, struct times *t)
{
    if (t->n == 0)
        return;
    qsort(t->us, t->n, sizeof t->us[0], by_value);
    printf("%s: n %zu  p50 %.1f us  p90 %.1f  p99 %.1f  max %.1f\n", name, t->n, t->us[t->n / 2],
           t->us[t->n * 9 / 10], t->us[t->n * 99 / 100], t->us[t->n - 1]);
}

static json_t *load_file(const char *path)
{
    char *text;
    size_t n;
    json_error_t why;
    struct sl_error err;
    if (sl_read_file(path, 64u << 20, &text, &n, &err) != 0)
        return NULL;
    json_t *j = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (j == NULL)
        j = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    sl_free(text);
    return j;
}

/* As Python's json.dumps(ensure_ascii=False) writes it, so that numbers look as models write them.
 */
static void dump(struct sl_buf *b, const json_t *v)
{
    const char *key;
    json_t *kid;
    size_t i, len;
    if (json_is_object(v)) {
        sl_buf_putc(b, '{');
        json_object_keylen_foreach((json_t *)v, key, len, kid)
        {
            if (b->data[b->n_bytes - 1] != '{')
                sl_buf_puts(b, ", ");
            sl_buf_json_string(b, key, len);
            sl_buf_puts(b, ": ");
            dump(b, kid);
        }
        sl_buf_putc(b, '}');
    } else if (json_is_array(v)) {
        sl_buf_putc(b, '[');
        json_array_foreach(v, i, kid)
        {
            sl_buf_puts(b, i > 0 ? ", " : "");
            dump(b, kid);
        }
        sl_buf_putc(b, ']');
    } else if (json_is_string(v)) {
        sl_buf_json_string(b, json_string_value(v), json_string_length(v));
    } else if (json_is_real(v)) {
        double x = json_real_value(v);
        if (x > -1e16 && x < 1e16 && (double)(int64_t)x >= x && (double)(int64_t)x <= x)
            sl_buf_printf(b, "%.1f", x);
        else
            sl_buf_json_double(b, x);
    } else {
        char *s = json_dumps(v, JSON_ENCODE_ANY);
        sl_buf_puts(b, s);
        sl_json_free_text(s);
    }
}

static const char *name_of(const json_t *group)
{
    const char *s = json_string_value(json_object_get(group, "description"));
    return s != NULL ? s : "?";
}

/* At place i of a valid text, what is forced there: the tokens that the text has. */
static void try_jump(struct sl_matcher *m, const struct sl_ids *ids, size_t i, const uint32_t *mask,
                     size_t *next)
{
    int32_t out[SL_MAX_JUMP];
    uint32_t n = 0, n_last = (uint32_t)SL_MIN(i, (size_t)SL_JUMP_CONTEXT);
    struct sl_error err;
    const struct sl_jump j = {.tok = all.tok,
                              .vocab = all.vocab,
                              .mask = mask,
                              .last = ids->data + i - n_last,
                              .n_last = n_last};
    uint64_t t0 = cpu_ns();
    assert_int_equal(sl_jump_find(m, &j, out, SL_MAX_JUMP, &n, &err), 0);
    (void)add_time(&all.jump, cpu_ns() - t0);
    assert_true(i + n <= ids->n);
    bool same = n == 0 || memcmp(out, ids->data + i, n * sizeof out[0]) == 0;
    all.jumps += n > 0;
    all.unlike += !same;
    if (!same && !all.again)
        for (uint32_t k = 0; k < n; k++) {
            const char *s = all.vocab->bytes + all.vocab->start[out[k]];
            printf("%s'%.*s'", k == 0 ? "unlike: " : " ",
                   (int)(all.vocab->start[out[k] + 1] - all.vocab->start[out[k]]), s);
            printf("%s", k + 1 == n ? "\n" : "");
        }
    if (i >= *next) { /* as an engine would go through it */
        all.forced += n;
        *next = i + n;
    }
    all.tokens++;
}

/* Does the text pass through the vocabulary, each token allowed by the mask before it? */
static bool passes_tokens(struct sl_grammar *g, const char *text, size_t n, bool valid)
{
    struct sl_ids ids = {0};
    struct sl_matcher *m;
    struct sl_error err;
    bool ok = true;
    uint32_t *mask = sl_malloc(all.vocab->n_words * sizeof *mask);
    assert_non_null(mask);
    assert_int_equal(sl_tokenizer_encode_into(all.tok, text, n, 0, &ids, &err), 0);
    assert_int_equal(sl_matcher_create(g, (uint32_t)ids.n + 1, &m, &err), 0);
    for (size_t i = 0, next = 0; i <= ids.n && ok; i++) {
        uint64_t t0 = cpu_ns();
        int rc = sl_matcher_mask(m, mask, &err);
        double us = add_time(&all.mask, cpu_ns() - t0);
        if (us > SLOW_MASK_US && !all.again)
            printf("slow mask: %.0f us, token %zu of %.150s\n", us, i, text);
        if (valid && rc == 0 && i > 0 && i < ids.n)
            try_jump(m, &ids, i, mask, &next);
        all.checksum = sl_hash64(mask, all.vocab->n_words * sizeof *mask, all.checksum);
        if (rc != 0) {
            all.limits++;
            printf("limit: %s\n", err.msg);
            ok = false;
        } else if (i == ids.n) {
            ok = sl_matcher_complete(m);
        } else {
            int32_t id = ids.data[i];
            bool may = (mask[id / 32] >> (id & 31) & 1) != 0;
            ok = sl_matcher_accept(m, id, &ok, &err) == 0 && ok;
            assert_int_equal(may, ok);
        }
    }
    sl_matcher_destroy(m);
    sl_free(ids.data);
    sl_free(mask);
    return ok;
}

static void one_test(struct sl_grammar *g, const json_t *group, const json_t *test)
{
    struct sl_buf b = {0};
    bool valid = json_is_true(json_object_get(test, "valid")), yes = false;
    size_t at = 0;
    struct sl_error err;
    dump(&b, json_object_get(test, "data"));
    assert_true(sl_buf_ok(&b));
    if (g != NULL && sl_grammar_matches(g, b.data, b.n_bytes, &yes, &at, &err) != 0) {
        all.limits++;
        printf("limit: %s: %s\n", name_of(group), err.msg);
    }
    if (g != NULL && all.vocab != NULL && yes != passes_tokens(g, b.data, b.n_bytes, yes))
        fail_msg("%s: tokens and bytes disagree on %s", name_of(group), b.data);
    all.tests++;
    all.false_accepts += yes && !valid;
    all.false_rejects += !yes && valid;
    if (yes != valid && (all.print || yes))
        printf("%s: %s / %s: %.150s\n", yes ? "FALSE ACCEPT" : "false reject", name_of(group),
               name_of(test), b.data);
    sl_buf_deinit(&b);
}

static void one_group(const json_t *group, struct sl_grammar_spec spec)
{
    struct sl_grammar *g = NULL;
    struct sl_error err = {0};
    size_t i;
    json_t *t;
    char *text = json_dumps(json_object_get(group, "schema"), JSON_ENCODE_ANY);
    assert_non_null(text);
    spec.kind = SL_GRAMMAR_JSON_SCHEMA;
    spec.text = text;
    spec.n = strlen(text);
    uint64_t t0 = cpu_ns();
    int rc = sl_grammar_compile(&spec, all.vocab, &g, &err);
    (void)add_time(&all.compile, cpu_ns() - t0);
    all.groups++;
    if (rc == 0 || strstr(err.msg, "no text satisfies it") != NULL) {
        all.supported++;
        json_array_foreach(json_object_get(group, "tests"), i, t) one_test(g, group, t);
    } else if (all.print) {
        printf("refused: %s: %s\n", name_of(group), err.msg);
    }
    sl_grammar_destroy(g);
    sl_json_free_text(text);
}

static size_t list_files(const char *folder, char names[2000][200])
{
    size_t n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (sl_ends_with(e->d_name, ".json") && n < 2000)
            snprintf(names[n++], 200, "%.199s", e->d_name);
    if (d != NULL)
        closedir(d);
    qsort(names, n, 200, (int (*)(const void *, const void *))strcmp);
    return n;
}

static char files[2000][200];
static struct sl_grammar_remote remotes[200];
static size_t n_remotes;

/* The suite's remotes, under the address that it gives them. */
static void load_remotes(const char *sub, const char *draft)
{
    char path[600], uri[400];
    snprintf(path, sizeof path, DATA "JSON-Schema-Test-Suite/remotes%.300s", sub);
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char at[300];
        size_t n;
        struct sl_error err;
        if (e->d_name[0] == '.')
            continue;
        snprintf(at, sizeof at, "%.90s/%.199s", sub, e->d_name);
        if (e->d_type == DT_DIR) {
            if (strncmp(e->d_name, "draft", 5) != 0 || strcmp(e->d_name, draft) == 0)
                load_remotes(at, draft);
            continue;
        }
        snprintf(uri, sizeof uri, "http://localhost:1234%.300s", at);
        snprintf(path, sizeof path, DATA "JSON-Schema-Test-Suite/remotes%.300s", at);
        char *text;
        if (n_remotes < SL_COUNT(remotes) && sl_read_file(path, 1 << 20, &text, &n, &err) == 0)
            remotes[n_remotes++] = (struct sl_grammar_remote){sl_strdup(uri), text, n};
    }
    if (d != NULL)
        closedir(d);
}

static bool suite(const char *draft, struct sl_json_style style)
{
    char folder[300], path[600];
    snprintf(folder, sizeof folder, DATA "JSON-Schema-Test-Suite/tests/%s", draft);
    size_t n = list_files(folder, files), i;
    struct sl_grammar_spec spec = {
        .draft7 = strcmp(draft, "draft7") == 0, .ignore_formats = true, .style = style};
    if (n == 0)
        return false;
    load_remotes("", draft);
    spec.remotes = remotes;
    spec.n_remotes = n_remotes;
    for (size_t f = 0; f < n; f++) {
        json_t *group, *doc;
        snprintf(path, sizeof path, "%.300s/%.199s", folder, files[f]);
        doc = load_file(path);
        assert_non_null(doc);
        json_array_foreach(doc, i, group) one_group(group, spec);
        json_decref(doc);
    }
    for (; n_remotes > 0; n_remotes--) {
        sl_free((char *)remotes[n_remotes - 1].uri);
        sl_free((char *)remotes[n_remotes - 1].text);
    }
    return true;
}

static bool maskbench(struct sl_json_style style)
{
    size_t n = list_files(DATA "maskbench", files);
    for (size_t i = 0; i < n; i++) {
        char path[600];
        snprintf(path, sizeof path, DATA "maskbench/%.199s", files[i]);
        json_t *group = load_file(path);
        assert_non_null(group);
        one_group(group, (struct sl_grammar_spec){.style = style});
        json_decref(group);
    }
    return n > 0;
}

static void begin(bool first)
{
    all.groups = all.supported = all.tests = all.false_accepts = all.false_rejects = 0;
    all.limits = all.masks = 0;
    all.tokens = all.forced = all.jumps = all.unlike = 0;
    all.checksum = 0;
    all.compile.at = all.mask.at = all.jump.at = 0;
    if (first)
        all.compile.n = all.mask.n = all.jump.n = 0;
}

static void report(const char *name)
{
    printf(
        "%s: %d of %d groups supported, %d tests, %d false accepts, %d false rejects, %d limits\n",
        name, all.supported, all.groups, all.tests, all.false_accepts, all.false_rejects,
        all.limits);
    if (all.print) {
        print_times("  compile", &all.compile);
        print_times("  mask", &all.mask);
        print_times("  jump", &all.jump);
        printf("  forced: %ld of %ld tokens; of %ld jumps %ld are unlike the tokenizer's\n",
               all.forced, all.tokens, all.jumps, all.unlike);
        printf("  checksum of masks %016" PRIx64 "\n", all.checksum);
    }
}

static void test_suites(void **state)
{
    (void)state;
    static const char *const drafts[] = {"draft2020-12", "draft7"};
    for (size_t i = 0; i < SL_COUNT(drafts); i++) {
        begin(true);
        if (!suite(drafts[i], as_specified)) {
            print_message("skip: JSON-Schema-Test-Suite is not unpacked\n");
            return;
        }
        report(drafts[i]);
        assert_int_equal(all.false_accepts + all.limits, 0);
        assert_in_range(all.supported * 100, all.groups * 95, all.groups * 100);
        assert_in_range(all.false_rejects, 0, 9);
        /* What is generated by default is among what the specification allows. */
        begin(true);
        suite(drafts[i], (struct sl_json_style){0});
        report("  by default");
        assert_int_equal(all.false_accepts + all.limits, 0);
        assert_in_range(all.supported * 100, all.groups * 95, all.groups * 100);
    }
}

static void test_maskbench(void **state)
{
    (void)state;
    begin(true);
    if (!maskbench(as_specified)) {
        print_message("skip: MaskBench is not unpacked\n");
        return;
    }
    report("MaskBench");
    assert_int_equal(all.false_accepts + all.limits, 0);
    assert_in_range(all.supported, 1085, 1090);
    assert_in_range(all.false_rejects, 0, 13); /* 1 % of what is valid */
    begin(true);
    maskbench((struct sl_json_style){0});
    report("  by default");
    assert_int_equal(all.false_accepts + all.limits, 0);
    assert_in_range(all.supported, 1085, 1090);
}

/* Any JSON object: what the suite calls valid is accepted inside one, what is invalid is not. */
static void test_json_texts(void **state)
{
    (void)state;
    size_t n = list_files(DATA "JSONTestSuite/test_parsing", files);
    struct sl_grammar_spec spec = {.kind = SL_GRAMMAR_JSON_OBJECT, .style = as_specified};
    struct sl_error why;
    struct sl_grammar *g = NULL;
    assert_int_equal(sl_grammar_compile(&spec, NULL, &g, &why), 0);
    if (n == 0)
        print_message("skip: JSONTestSuite is not unpacked\n");
    for (size_t i = 0; i < n; i++) {
        char path[600], *text;
        size_t len, at;
        bool yes;
        struct sl_error err;
        struct sl_buf b = {0};
        snprintf(path, sizeof path, DATA "JSONTestSuite/test_parsing/%.199s", files[i]);
        assert_int_equal(sl_read_file(path, 1 << 20, &text, &len, &err), 0);
        sl_buf_puts(&b, "{\"a\":");
        sl_buf_put(&b, text, len);
        sl_buf_putc(&b, '}');
        int rc = sl_grammar_matches(g, b.data, b.n_bytes, &yes, &at, &err);
        if (rc != 0)
            fail_msg("%s: %s", files[i], err.msg);
        /* Whitespace only, and a comma that the object around it makes valid. */
        bool closed = strstr(files[i], "n_structure_object_followed_by_closing") != NULL;
        if (!closed && ((files[i][0] == 'y' && !yes) || (files[i][0] == 'n' && yes)))
            fail_msg("%s: %d", files[i], yes);
        sl_buf_deinit(&b);
        sl_free(text);
    }
    sl_grammar_destroy(g);
}

static int bench(const char *path, int runs)
{
    struct sl_error err;
    struct sl_vocab *v = NULL;
    if (path != NULL) {
        if (sl_tokenizer_open(path, &all.tok, &err) != 0) {
            printf("%s\n", err.msg);
            return 1;
        }
        uint64_t t0 = sl_now_ns();
        if (sl_vocab_from_tokenizer(all.tok, 128256, &v, &err) != 0) {
            printf("%s\n", err.msg);
            return 1;
        }
        printf("vocabulary: %u nodes of plain tokens, %u of others, %.1f ms\n", v->plain.n,
               v->rest.n, (double)(sl_now_ns() - t0) / 1e6);
        all.vocab = v;
    }
    static const char *const names[] = {"draft2020-12", "draft7", "MaskBench"};
    for (size_t k = 0; k < SL_COUNT(names); k++) {
        for (int i = 0; i < runs; i++) {
            all.again = i + 1 < runs;
            all.print = !all.again;
            begin(i == 0);
            if (k < 2)
                suite(names[k], (struct sl_json_style){0});
            else
                maskbench((struct sl_json_style){0});
        }
        report(names[k]);
    }
    sl_vocab_destroy(v);
    sl_tokenizer_close(all.tok);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suites),
        cmocka_unit_test(test_maskbench),
        cmocka_unit_test(test_json_texts),
    };
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc > 2 ? argv[2] : NULL,
                     argc > 3 ? SL_MAX((int)strtol(argv[3], NULL, 10), 1) : 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
