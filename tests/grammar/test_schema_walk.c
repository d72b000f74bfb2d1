/* SPDX-License-Identifier: MIT
 * test_schema_walk.c - random texts that masks allow, to the end: whatever compiles must have a way
 * on from every place, within its limits.
 *
 * test_schema_walk --folder FOLDER VOCABULARY [WALKS [SEED]] walks every schema of a folder (a file
 * with the members "schema" and "tests" is one of MaskBench) and prints a line of JSON for each
 * text, refusal and fault; schema_walk.py has the texts judged by Python's jsonschema. Every walk
 * is made twice on an automaton of its own, and of each mask the shorter time counts, by the
 * thread's processor time and by the wall. "masks" is a checksum of all masks, to compare versions.
 */
#include "base/buf.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/rng.h"
#include "base/str.h"
#include "grammar_rig.h"
#include "text/tokenizer/tokenizer.h"

#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#define MASKBENCH "build/testdata/structured/maskbench"

enum {
    MAX_TOKENS = 1500, /* of a text; one that is not complete by then is left */
    FREE_TOKENS = 40,  /* after these the walk looks for the end */
    MAX_NAMES = 2000,
    MAX_FILES = 5000,
};

enum outcome { COMPLETE, UNFINISHED, DEAD_END, LATE };

struct walk {
    const struct sl_vocab *v;
    int32_t byte_token[256];
    uint32_t *mask;
    double *cpu_us, *wall_us;     /* [MAX_TOKENS + 1] of each mask, the shorter of the repeats */
    const char *names[MAX_NAMES]; /* property names of the schema */
    size_t n_names;
    uint64_t checksum; /* of the masks */
    struct sl_buf text;
    struct sl_error err;
};

static struct {
    int refused, walks, complete, unfinished, dead_ends, late;
    double max_cpu, max_wall;
} all;

static double us_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static bool allowed(const struct walk *w, int32_t id)
{
    return id >= 0 && (w->mask[id / 32] >> (id & 31) & 1) != 0;
}

static int32_t any_allowed(const struct walk *w, struct sl_rng *r)
{
    uint32_t from = (uint32_t)sl_rng_below(r, w->v->n_tokens);
    for (uint32_t i = 0; i < w->v->n_tokens; i++) {
        uint32_t id = from + i < w->v->n_tokens ? from + i : from + i - w->v->n_tokens;
        if ((id & 31) == 0 && w->mask[id / 32] == 0)
            i += SL_MIN(31u, w->v->n_tokens - 1 - id);
        else if (allowed(w, (int32_t)id))
            return (int32_t)id;
    }
    return -1;
}

static int32_t first_of(const struct walk *w, const char *bytes)
{
    for (; *bytes != 0; bytes++)
        if (allowed(w, w->byte_token[(uint8_t)*bytes]))
            return w->byte_token[(uint8_t)*bytes];
    return -1;
}

static int32_t one_byte(const struct walk *w, struct sl_rng *r)
{
    uint32_t from = (uint32_t)sl_rng_below(r, 256);
    for (uint32_t i = 0; i < 256; i++)
        if (allowed(w, w->byte_token[(from + i) & 255]))
            return w->byte_token[(from + i) & 255];
    return -1;
}

/* The next token: at first any, and often one byte, so that values end; later what ends them. */
static int32_t choose(const struct walk *w, struct sl_rng *r, uint32_t n)
{
    for (uint32_t i = 0; i < w->v->n_ends; i++)
        if (allowed(w, w->v->ends[i]) && (n > FREE_TOKENS || sl_rng_below(r, 4) == 0))
            return w->v->ends[i];
    int32_t id = -1;
    if (n > FREE_TOKENS && sl_rng_below(r, 10) != 0)
        id = first_of(w, "}]\",:ntf0123456789");
    else if (n <= FREE_TOKENS && sl_rng_below(r, 2) == 0)
        id = first_of(w, "\"]},:");
    if (id < 0 && (n > FREE_TOKENS || sl_rng_below(r, 3) == 0))
        id = one_byte(w, r);
    return id >= 0 ? id : any_allowed(w, r);
}

static void push_text(struct walk *w, int32_t id)
{
    sl_buf_put(&w->text, w->v->bytes + w->v->start[id], w->v->start[id + 1] - w->v->start[id]);
}

/* Behind an opening quote: the rest of some property's name with what must follow it, if the
 * grammar takes it. Random names would hardly ever be those that are required. */
static void try_name(struct walk *w, struct sl_matcher *m, struct sl_rng *r, uint32_t room)
{
    if (w->n_names == 0 || w->text.n_bytes == 0 || w->text.data[w->text.n_bytes - 1] != '"')
        return;
    uint64_t from = sl_rng_below(r, w->n_names);
    for (size_t i = 0; i < SL_MIN(w->n_names, 64u); i++) {
        const char *name = w->names[(from + i) % w->n_names];
        size_t n = strlen(name), k = 0;
        bool ok = n + 2 < room;
        for (; ok && k < n + 2; k += ok) {
            uint8_t c = (uint8_t)(k < n ? name[k] : "\":"[k - n]);
            if (w->byte_token[c] < 0 || sl_matcher_accept(m, w->byte_token[c], &ok, &w->err) != 0)
                ok = false;
        }
        if (ok) {
            sl_buf_puts(&w->text, name);
            sl_buf_puts(&w->text, "\":");
            return;
        }
        sl_matcher_rollback(m, (uint32_t)k);
    }
}

static enum outcome walk_once(struct walk *w, struct sl_grammar *g, uint64_t seed, bool again)
{
    struct sl_rng r = {seed, 0};
    struct sl_matcher *m;
    enum outcome out = UNFINISHED;
    uint32_t n = 0;
    w->checksum = 0;
    sl_buf_clear(&w->text);
    if (sl_matcher_create(g, MAX_TOKENS, &m, &w->err) != 0)
        return LATE;
    while (out == UNFINISHED && sl_matcher_n_tokens(m) + 1 < MAX_TOKENS) {
        double wall = us_of(CLOCK_MONOTONIC), cpu = us_of(CLOCK_THREAD_CPUTIME_ID);
        int rc = sl_matcher_mask(m, w->mask, &w->err);
        cpu = us_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
        wall = us_of(CLOCK_MONOTONIC) - wall;
        w->cpu_us[n] = again ? SL_MIN(cpu, w->cpu_us[n]) : cpu;
        w->wall_us[n] = again ? SL_MIN(wall, w->wall_us[n]) : wall;
        n++;
        w->checksum = sl_hash64(w->mask, w->v->n_words * sizeof *w->mask, w->checksum);
        int32_t id = rc == 0 ? choose(w, &r, n) : -1;
        bool ok = false;
        if (rc == 0 && id >= 0)
            rc = sl_matcher_accept(m, id, &ok, &w->err);
        if (rc != 0)
            out = LATE;
        else if (id < 0)
            out = DEAD_END;
        else if (!ok)
            fail_msg("a token of the mask is not accepted: %d after %s", id, w->text.data);
        else if (sl_matcher_ended(m))
            out = COMPLETE;
        else
            push_text(w, id);
        if (out == UNFINISHED)
            try_name(w, m, &r, MAX_TOKENS - 2 - sl_matcher_n_tokens(m));
    }
    w->cpu_us[n] = -1;
    sl_matcher_destroy(m);
    return out;
}

/* Names that are required somewhere, and some of the others. */
static void gather_names(struct walk *w, json_t *j, int depth)
{
    const char *key;
    json_t *v;
    size_t i;
    if (depth > 60)
        return;
    if (json_is_object(j)) {
        json_t *required = json_object_get(j, "required");
        json_array_foreach(required, i, v) if (json_is_string(v) && w->n_names < MAX_NAMES)
            w->names[w->n_names++] = json_string_value(v);
        json_object_foreach(j, key, v) gather_names(w, v, depth + 1);
    }
    json_array_foreach(j, i, v) gather_names(w, v, depth + 1);
}

static const char *const outcome_names[] = {"complete", "unfinished", "dead end", "late refusal"};

static void print_line(const struct walk *w, const char *file, uint64_t seed, enum outcome out)
{
    struct sl_buf b = {0};
    double cpu = 0, wall = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; w->cpu_us[i] >= 0; i++) {
        at = w->cpu_us[i] > cpu ? i : at;
        cpu = SL_MAX(cpu, w->cpu_us[i]);
        wall = SL_MAX(wall, w->wall_us[i]);
    }
    sl_buf_puts(&b, "{\"file\": ");
    sl_buf_json_string(&b, file, strlen(file));
    sl_buf_printf(&b, ", \"seed\": %llu, \"outcome\": \"%s\", \"mask_cpu_us\": %.0f, ",
                  (unsigned long long)seed, outcome_names[out], cpu);
    sl_buf_printf(&b, "\"mask_wall_us\": %.0f, \"slowest\": %u, \"masks\": \"%016llx\", ", wall, at,
                  (unsigned long long)w->checksum);
    sl_buf_puts(&b, "\"text\": ");
    sl_buf_json_string(&b, w->text.data != NULL ? w->text.data : "", w->text.n_bytes);
    if (out == LATE) {
        sl_buf_puts(&b, ", \"message\": ");
        sl_buf_json_string(&b, w->err.msg, strlen(w->err.msg));
    }
    assert_true(sl_buf_ok(&b));
    printf("%s}\n", b.data);
    sl_buf_deinit(&b);
    all.max_cpu = SL_MAX(all.max_cpu, cpu);
    all.max_wall = SL_MAX(all.max_wall, wall);
}

static void one_schema(struct walk *w, const char *file, json_t *schema, const char *text,
                       int n_walks, uint64_t seed, bool print)
{
    struct sl_grammar_spec spec = {.kind = SL_GRAMMAR_JSON_SCHEMA, .text = text, .n = strlen(text)};
    struct sl_grammar *g = NULL;
    w->n_names = 0;
    gather_names(w, schema, 0);
    for (int i = 0; i < n_walks; i++) {
        enum outcome out = COMPLETE;
        for (int again = 0; again < (print ? 2 : 1); again++) {
            if (sl_grammar_compile(&spec, w->v, &g, &w->err) != 0) {
                struct sl_buf b = {0};
                sl_buf_json_string(&b, w->err.msg, strlen(w->err.msg));
                if (print)
                    printf("{\"file\": \"%s\", \"outcome\": \"refused\", \"message\": %s}\n", file,
                           b.data);
                sl_buf_deinit(&b);
                all.refused++;
                return;
            }
            out = walk_once(w, g, seed + (uint64_t)i, again != 0);
            sl_grammar_destroy(g);
        }
        all.walks++;
        all.complete += out == COMPLETE;
        all.unfinished += out == UNFINISHED;
        all.dead_ends += out == DEAD_END;
        all.late += out == LATE;
        if (print)
            print_line(w, file, seed + (uint64_t)i, out);
        else if (out >= DEAD_END)
            print_message("%s: %s, seed %llu: %s: %s\n", file, outcome_names[out],
                          (unsigned long long)(seed + (uint64_t)i), w->text.data, w->err.msg);
    }
}

static void walk_init(struct walk *w, const struct sl_vocab *v)
{
    memset(w, 0, sizeof *w);
    w->v = v;
    w->mask = sl_malloc(v->n_words * sizeof *w->mask);
    w->cpu_us = sl_malloc((MAX_TOKENS + 1) * sizeof *w->cpu_us);
    w->wall_us = sl_malloc((MAX_TOKENS + 1) * sizeof *w->wall_us);
    assert_true(w->mask != NULL && w->cpu_us != NULL && w->wall_us != NULL);
    for (int i = 0; i < 256; i++)
        w->byte_token[i] = -1;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (v->start[i + 1] - v->start[i] == 1)
            w->byte_token[(uint8_t)v->bytes[v->start[i]]] = (int32_t)i;
}

static void walk_deinit(struct walk *w)
{
    sl_buf_deinit(&w->text);
    sl_free(w->mask);
    sl_free(w->cpu_us);
    sl_free(w->wall_us);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Every step-th schema of the folder. */
static size_t folder(struct walk *w, const char *path, size_t step, int n_walks, uint64_t seed,
                     bool print)
{
    static char files[MAX_FILES][256];
    size_t n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        if (sl_ends_with(e->d_name, ".json") && n < MAX_FILES)
            snprintf(files[n++], sizeof files[0], "%.255s", e->d_name);
    if (d != NULL)
        closedir(d);
    qsort(files, n, sizeof files[0], by_name);
    for (size_t i = 0; i < n; i += step) {
        char at[1000], *text;
        size_t len;
        json_error_t why;
        snprintf(at, sizeof at, "%.700s/%s", path, files[i]);
        if (sl_read_file(at, 64u << 20, &text, &len, &w->err) != 0)
            continue;
        size_t bom = len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        json_t *j =
            sl_json_load_wide(text + bom, len - bom, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        json_t *schema = json_object_get(j, "schema");
        if (schema != NULL && json_object_get(j, "tests") != NULL) {
            char *part = json_dumps(schema, JSON_ENCODE_ANY);
            assert_non_null(part);
            one_schema(w, files[i], schema, part, n_walks, seed, print);
            sl_json_free_text(part);
        } else if (j != NULL) { /* as it is spelled: integers beyond 64 bits are doubles in j */
            one_schema(w, files[i], j, text + bom, n_walks, seed, print);
        }
        json_decref(j);
        sl_free(text);
    }
    return n;
}

/* Schemas that ended late once, or whose texts have few ways to the end. */
static void test_walks(void **state)
{
    (void)state;
    struct sl_vocab *v = rig_vocab();
    struct walk w;
    walk_init(&w, v);
    memset(&all, 0, sizeof all);
    if (folder(&w, MASKBENCH, 4, 2, 1, false) == 0)
        print_message("skip: MaskBench is not unpacked\n");
    assert_int_equal(all.late + all.dead_ends, 0);
    assert_true(all.complete * 4 >= all.walks * 3);
    walk_deinit(&w);
    sl_vocab_destroy(v);
}

static int walk_folder(int argc, char **argv)
{
    struct sl_error err;
    struct sl_vocab *v;
    struct sl_tokenizer *tok;
    struct walk w;
    int n_walks = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 4;
    uint64_t seed = argc > 5 ? (uint64_t)strtoll(argv[5], NULL, 10) : 1;
    if (sl_tokenizer_open(argv[3], &tok, &err) != 0 ||
        sl_vocab_from_tokenizer(tok, (uint32_t)sl_tokenizer_n_vocab(tok), &v, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    walk_init(&w, v);
    size_t n = folder(&w, argv[2], 1, n_walks, seed, true);
    fprintf(stderr,
            "%zu schemas, %d refused; %d walks: %d complete, %d unfinished, %d dead ends, %d late "
            "refusals; slowest mask %.0f us of the processor, %.0f us by the wall\n",
            n, all.refused, all.walks, all.complete, all.unfinished, all.dead_ends, all.late,
            all.max_cpu, all.max_wall);
    walk_deinit(&w);
    sl_vocab_destroy(v);
    sl_tokenizer_close(tok);
    return n == 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walks),
    };
    if (argc > 3 && strcmp(argv[1], "--folder") == 0)
        return walk_folder(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
