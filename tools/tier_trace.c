/* SPDX-License-Identifier: MIT
 * tier_trace.c - how many pages of a trace of requests a tier finds, with LRU and with ARC.
 *
 *   tier_trace [--decisions lru|arc] FILE PAGES...
 *
 * FILE has a page's number on each line, or Mooncake's format: a line for each request with the
 * hash_ids of its prompt's blocks, equal for equal prefixes. The table of a tier (tier/slots.h)
 * with room for so many PAGES is asked for each page in turn; what is not there is put there. One
 * group of layers, so a page is a block.
 *
 * Prints hits of each size and policy. --decisions prints, for one size, a line for each page
 * instead: H if it is there, else M and the page that goes for it, or -.
 */
#include "base/check.h"
#include "base/sys.h"
#include "tier/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t *pages; /* [n_pages] in the order in which they are asked for */
static size_t n_pages, n_room;

static void die(const char *what)
{
    fprintf(stderr, "tier_trace: %s\n", what);
    exit(1);
}

static void add_page(uint64_t page)
{
    if (n_pages == n_room) {
        n_room = n_room > 0 ? 2 * n_room : 4096;
        uint64_t *more = sl_malloc(n_room * sizeof *more);
        if (more == NULL)
            die("out of memory");
        if (n_pages > 0)
            memcpy(more, pages, n_pages * sizeof *more);
        sl_free(pages);
        pages = more;
    }
    pages[n_pages++] = page;
}

static void read_trace(const char *path)
{
    static char line[1 << 16];
    FILE *f = fopen(path, "r");
    if (f == NULL)
        die("the trace cannot be read");
    while (fgets(line, sizeof line, f) != NULL) {
        char *at = strstr(line, "\"hash_ids\": ["), *end;
        if (at == NULL && line[0] == '{')
            die("a request without hash_ids");
        for (at = at != NULL ? strchr(at, '[') + 1 : line;; at = end) {
            at += strspn(at, ", ");
            const uint64_t page = strtoull(at, &end, 10);
            if (end == at)
                break;
            add_page(page);
        }
    }
    fclose(f);
}

/* Pages that were there. The name of a page is its number, so that who went can be told. */
static uint64_t run(int32_t n_slots, enum sl_tier_policy policy, bool tells)
{
    const int32_t n_per_chunk = 1;
    struct sl_slots s;
    struct sl_error err = {0};
    uint64_t n_hits = 0;
    int rc = sl_slots_init(&s, 1, &n_per_chunk, (uint64_t)n_slots, &err);
    if (rc == 0 && policy == SL_POLICY_ARC)
        rc = sl_slots_use_arc(&s, &err);
    uint64_t *in = rc == 0 ? sl_calloc((size_t)n_slots, sizeof *in) : NULL;
    if (in == NULL)
        die(rc != 0 ? err.msg : "out of memory");
    for (size_t i = 0; i < n_pages; i++) {
        const struct sl_store_key key = {{pages[i], 0}, 0};
        const uint64_t n_evicted = s.n_evicted;
        int32_t slot = sl_slots_find(&s, &key);
        if (slot != SL_NO_SLOT) {
            sl_slots_again(&s, slot);
            n_hits++;
            if (tells)
                puts("H");
            continue;
        }
        slot = sl_slots_take(&s, &key);
        SL_ASSERT(slot != SL_NO_SLOT);
        if (tells && s.n_evicted > n_evicted)
            printf("M %llu\n", (unsigned long long)in[slot]);
        else if (tells)
            puts("M -");
        in[slot] = pages[i];
        sl_slots_ready(&s, slot);
        sl_slots_release(&s, slot);
    }
    sl_free(in);
    sl_slots_deinit(&s);
    return n_hits;
}

int main(int argc, char **argv)
{
    const bool tells = argc > 2 && strcmp(argv[1], "--decisions") == 0;
    const int at = tells ? 3 : 1;
    if (argc < at + 2) {
        fputs("usage: tier_trace [--decisions lru|arc] FILE PAGES...\n", stderr);
        return 2;
    }
    read_trace(argv[at]);
    if (!tells)
        printf("%zu pages are asked for\n   room        LRU        ARC\n", n_pages);
    for (int i = at + 1; i < argc; i++) {
        const int32_t n = (int32_t)strtol(argv[i], NULL, 10);
        if (n < 2)
            die("room for 2 pages at least");
        if (tells) {
            run(n, strcmp(argv[2], "arc") == 0 ? SL_POLICY_ARC : SL_POLICY_LRU, true);
            continue;
        }
        const double all = (double)n_pages / 100;
        printf("%7d   %7.2f %%  %7.2f %%\n", n, (double)run(n, SL_POLICY_LRU, false) / all,
               (double)run(n, SL_POLICY_ARC, false) / all);
    }
    sl_free(pages);
    return 0;
}
