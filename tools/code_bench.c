/* SPDX-License-Identifier: MIT
 * code_bench.c - what the coding of pages (tier/coding.h) brings on real pages, and what it costs.
 *
 *   code_bench [--sizes] FILE [BYTES]
 *
 * FILE is a slab of a folder of pages (--kv-cache-dir with --kv-cache-coding none), or pages of
 * BYTES one after another. Prints bytes before and after, and GB/s of pages that one thread codes,
 * decodes with each instruction set, and copies. --sizes prints a page's coded bytes on each line
 * instead. Times are processor times of the thread. A page that does not come back bit for bit ends
 * it.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/coding.h"
#include "tier/slab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECONDS 1.0        /* of each measurement */
#define ROUND   (1u << 20) /* bytes of a round */

struct pages {
    uint8_t **at; /* [n] */
    size_t n, n_bytes;
    uint8_t **coded;
    size_t *n_coded;
    uint8_t *page, *scratch;
};

static void die(const char *what)
{
    fprintf(stderr, "code_bench: %s\n", what);
    exit(1);
}

static void *room(size_t n)
{
    void *p = sl_calloc(n, 1);
    if (p == NULL)
        die("out of memory");
    return p;
}

/* Pages of a slab that its entries speak of, as they are. */
static bool find_in_slab(struct pages *p, uint8_t *file, size_t n_file)
{
    struct sl_slab_kind kind = {.group = 0};
    if (n_file < SL_SLAB_ENTRY || memcmp(file, "SLUICEKV", 8) != 0)
        return false;
    memcpy(&kind.group, file + 12, sizeof kind.group);
    memcpy(&kind.root, file + 16, sizeof kind.root);
    memcpy(&kind.page_bytes, file + 32, sizeof kind.page_bytes);
    memcpy(&kind.n_slots, file + 40, sizeof kind.n_slots);
    int32_t number;
    memcpy(&number, file + 44, sizeof number);
    if (kind.n_slots <= 0 || sl_slab_kind_of(file, &kind, 1, number) != 0)
        die("a slab of another version");
    p->n_bytes = (size_t)kind.page_bytes;
    p->at = room((size_t)kind.n_slots * sizeof *p->at);
    for (int32_t i = 0; i < kind.n_slots; i++) {
        struct sl_slab_entry e;
        const uint64_t at = sl_slab_page_at(&kind, i);
        if (at + kind.page_bytes > n_file)
            break;
        if (sl_slab_get_entry(file + ((size_t)i + 1) * SL_SLAB_ENTRY, &kind, number, i, &e) ==
                SL_SLAB_GOOD &&
            e.n_coded == 0)
            p->at[p->n++] = file + at;
    }
    return true;
}

static void read_pages(struct pages *p, const char *path, size_t n_bytes)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die("the file cannot be read");
    const long size = ftell(f);
    uint8_t *file = room(SL_MAX((size_t)size, 1u));
    rewind(f);
    if (size <= 0 || fread(file, 1, (size_t)size, f) != (size_t)size)
        die("the file cannot be read");
    fclose(f);
    if (find_in_slab(p, file, (size_t)size))
        return;
    if (n_bytes < 4)
        die("BYTES of a page");
    p->n_bytes = n_bytes;
    p->n = (size_t)size / n_bytes;
    p->at = room(SL_MAX(p->n, 1u) * sizeof *p->at);
    for (size_t i = 0; i < p->n; i++)
        p->at[i] = file + i * n_bytes;
}

static void code_all(struct pages *p)
{
    const size_t most = 2 * p->n_bytes + 4096;
    for (size_t i = 0; i < p->n; i++) {
        if (p->coded[i] == NULL)
            p->coded[i] = room(most);
        p->n_coded[i] = sl_code_page(p->at[i], p->n_bytes, p->coded[i], most, p->scratch);
    }
}

static void decode_all(struct pages *p, bool checks)
{
    for (size_t i = 0; i < p->n; i++) {
        if (!sl_decode_page(p->coded[i], p->n_coded[i], p->page, p->n_bytes, p->scratch))
            die("a page cannot be decoded");
        if (checks && memcmp(p->page, p->at[i], p->n_bytes) != 0)
            die("a page is wrong");
    }
}

static void copy_all(struct pages *p)
{
    for (size_t i = 0; i < p->n; i++) {
        memcpy(p->page, p->at[i], p->n_bytes);
        __asm__ volatile("" : : "r"(p->page) : "memory");
    }
}

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The best round of a second, of processor time: others may use the machine. */
static void measure(struct pages *p, const char *what, int which)
{
    struct pages few = *p;
    double best = 0;
    few.n = SL_MIN(p->n, SL_MAX(ROUND / p->n_bytes, 1u));
    for (const uint64_t end = cpu_ns() + (uint64_t)(SECONDS * 1e9); cpu_ns() < end;) {
        const uint64_t start = cpu_ns();
        if (which == 0)
            code_all(&few);
        else if (which == 1)
            decode_all(&few, false);
        else
            copy_all(&few);
        best = SL_MAX(best, (double)(few.n * p->n_bytes) / (double)(cpu_ns() - start));
    }
    printf("  %-16s %7.2f GB/s\n", what, best);
}

int main(int argc, char **argv)
{
    static const struct sl_code_kernels *const all[] = {&sl_code_kernels_c, &sl_code_kernels_avx2,
                                                        &sl_code_kernels_avx512};
    const bool sizes = argc > 1 && strcmp(argv[1], "--sizes") == 0;
    const int at = sizes ? 2 : 1;
    struct pages p = {0};
    if (argc <= at) {
        fputs("usage: code_bench [--sizes] FILE [BYTES]\n", stderr);
        return 2;
    }
    read_pages(&p, argv[at], argc > at + 1 ? (size_t)strtoull(argv[at + 1], NULL, 10) : 0);
    if (p.n == 0)
        die("no pages");
    p.coded = room(p.n * sizeof *p.coded);
    p.n_coded = room(p.n * sizeof *p.n_coded);
    p.page = room(p.n_bytes);
    p.scratch = room(sl_code_scratch_bytes(p.n_bytes));
    code_all(&p);
    decode_all(&p, true);
    size_t n_all = 0;
    for (size_t i = 0; i < p.n; i++) {
        n_all += p.n_coded[i];
        if (sizes)
            printf("%zu\n", p.n_coded[i]);
    }
    if (sizes)
        return 0;
    printf("%zu pages of %zu bytes: %zu, coded %zu (%.3f x)\n", p.n, p.n_bytes, p.n * p.n_bytes,
           n_all, (double)(p.n * p.n_bytes) / (double)n_all);
    measure(&p, "code", 0);
    for (size_t k = 0; k < SL_COUNT(all); k++) {
        char what[32];
        if (!sl_code_runs(all[k]))
            continue;
        sl_code_use(all[k]);
        decode_all(&p, true);
        snprintf(what, sizeof what, "decode, %s", all[k]->name);
        measure(&p, what, 1);
    }
    measure(&p, "copy", 2);
    return 0;
}
