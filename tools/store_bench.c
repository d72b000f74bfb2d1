/* SPDX-License-Identifier: MIT
 * store_bench.c - GB/s of the store of KV pages (src/tier), beside copies of memory and sequential
 * reads and writes of one file in the same folder, in turns.
 *
 * usage: store_bench FOLDER [KB of a page] [MB in all] [rounds]
 *
 * "cached" is the store on a file system that cannot bypass the system's cache. Caches of files are
 * dropped before every read. Processor time is of the whole process.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/sys.h"
#include "tier/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCK  (4u << 20) /* bytes of one call of the sequential streams */
#define WINDOW 16         /* pages that are asked for at a time */

struct bench {
    const char *dir;
    uint64_t page_bytes, n_pages, n_bytes;
    uint8_t *pages; /* [n_pages] what is stored */
    uint8_t *out;   /* [BLOCK or a page] */
    pthread_mutex_t lock;
    pthread_cond_t woken;
    uint64_t n_wakes;
};

struct timing {
    uint64_t at, cpu;
};

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct timing start(void)
{
    return (struct timing){sl_now_ns(), cpu_ns()};
}

static void report(const char *what, const struct timing *t, uint64_t n_bytes)
{
    double s = (double)(sl_now_ns() - t->at) / 1e9, cpu = (double)(cpu_ns() - t->cpu) / 1e9;
    printf("  %-34s %7.2f GB/s   %5.2f s of processor time a GB\n", what, (double)n_bytes / 1e9 / s,
           cpu / ((double)n_bytes / 1e9));
}

static void die(const char *what)
{
    fprintf(stderr, "store_bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void wake(void *arg)
{
    struct bench *b = arg;
    pthread_mutex_lock(&b->lock);
    b->n_wakes++;
    pthread_cond_signal(&b->woken);
    pthread_mutex_unlock(&b->lock);
}

static struct sl_store *open_store(struct bench *b, const char *dir, uint64_t host_bytes)
{
    struct sl_store_config cfg = {.root = {7, 7},
                                  .n_groups = 1,
                                  .page_bytes = {b->page_bytes},
                                  .host_bytes = host_bytes,
                                  .dir = dir,
                                  .disk_bytes = b->n_bytes * 2,
                                  .wake = wake,
                                  .wake_arg = b};
    struct sl_error err = {0};
    struct sl_store *s;
    if (sl_store_open(&cfg, &s, &err) != 0) {
        fprintf(stderr, "store_bench: %s\n", err.msg);
        exit(1);
    }
    return s;
}

static struct sl_store_key key_of(uint64_t i)
{
    return (struct sl_store_key){{sl_mix64(i + 1), i}, 0};
}

/* ---- the store ---- */

static void put_all(struct bench *b, struct sl_store *s)
{
    for (uint64_t i = 0; i < b->n_pages; i++) {
        struct sl_store_key key = key_of(i);
        uint8_t *page;
        struct sl_store_stats st;
        do { /* nothing is evicted because memory is not ready yet */
            sl_store_stats(s, SL_TIER_HOST, &st);
        } while (st.ready_bytes < st.capacity_bytes &&
                 (i + 64) * (b->page_bytes + 4096) > st.ready_bytes && usleep(200) == 0);
        while ((page = sl_store_reserve(s, &key)) == NULL)
            usleep(50);
        memcpy(page, b->pages + i * b->page_bytes, b->page_bytes);
        sl_store_commit(s, page);
        do { /* as fast as the disk takes them, none dropped */
            sl_store_stats(s, SL_TIER_DISK, &st);
            if (st.capacity_bytes == 0 || i + 1 - st.stored < WINDOW)
                break;
            usleep(50);
        } while (true);
    }
}

static bool take(struct bench *b, struct sl_store *s, struct sl_store_get *get, uint64_t i)
{
    int32_t state = atomic_load(&get->state);
    if (state == SL_STORE_PENDING)
        return false;
    if (state != SL_STORE_HERE)
        die("a page is missing");
    memcpy(b->out, get->page, b->page_bytes);
    if (memcmp(b->out, b->pages + i * b->page_bytes, 64) != 0)
        die("a page is wrong");
    sl_store_end(s, get);
    return true;
}

/* In order, WINDOW pages ahead. */
static void get_all(struct bench *b, struct sl_store *s)
{
    static struct sl_store_get gets[WINDOW];
    uint64_t begun = 0;
    for (uint64_t i = 0; i < b->n_pages; i++) {
        for (; begun < b->n_pages && begun < i + WINDOW; begun++) {
            gets[begun % WINDOW].key = key_of(begun);
            sl_store_begin(s, &gets[begun % WINDOW]);
        }
        pthread_mutex_lock(&b->lock);
        uint64_t seen = b->n_wakes;
        pthread_mutex_unlock(&b->lock);
        while (!take(b, s, &gets[i % WINDOW], i)) {
            pthread_mutex_lock(&b->lock);
            while (b->n_wakes == seen)
                pthread_cond_wait(&b->woken, &b->lock);
            seen = b->n_wakes;
            pthread_mutex_unlock(&b->lock);
        }
    }
}

static void drop_caches(const char *dir)
{
    char path[4096];
    for (int i = 0; i < 100000; i++) {
        snprintf(path, sizeof path, "%s/kv-%06d.slab", dir, i);
        int fd = open(path, O_RDWR);
        if (fd < 0)
            continue;
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static int refuse_direct(const char *path, int flags, int mode)
{
    if ((flags & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    return sl_sys_real.open(path, flags, mode);
}

static void bench_disk(struct bench *b, bool cached)
{
    struct sl_sys plain = sl_sys_real;
    char dir[4096];
    struct sl_error err;
    snprintf(dir, sizeof dir, "%s/store_bench", b->dir);
    plain.open = refuse_direct;
    sl_sys = cached ? &plain : &sl_sys_real;
    uint64_t host = SL_MAX(b->page_bytes * WINDOW * 4, 64u << 20);
    struct sl_store *s = open_store(b, dir, host);
    struct timing t = start();
    put_all(b, s);
    sl_store_close(s);
    if (cached)
        drop_caches(dir); /* it ends when the bytes are on the disk, as the others do */
    report(cached ? "disk put, cached" : "disk put", &t, b->n_bytes);
    drop_caches(dir);
    uint64_t at = sl_now_ns();
    s = open_store(b, dir, host);
    double open_ms = (double)(sl_now_ns() - at) / 1e6;
    t = start();
    get_all(b, s);
    report(cached ? "disk get, cached" : "disk get", &t, b->n_bytes);
    sl_store_close(s);
    if (!cached)
        printf("  opened with %llu pages in %.2f ms\n", (unsigned long long)b->n_pages, open_ms);
    if (sl_remove_tree(dir, &err) != 0)
        die(err.msg);
    sl_sys = &sl_sys_real;
}

static void bench_host(struct bench *b)
{
    struct sl_store *s = open_store(b, NULL, b->n_bytes + (64u << 20));
    struct timing t = start();
    put_all(b, s);
    report("host put, new memory", &t, b->n_bytes);
    t = start();
    get_all(b, s);
    report("host get", &t, b->n_bytes);
    t = start();
    for (uint64_t i = 0; i < b->n_pages; i++)
        memcpy(b->out, b->pages + i * b->page_bytes, b->page_bytes);
    report("memcpy of the same", &t, b->n_bytes);
    sl_store_close(s);
}

/* ---- one file, from its beginning to its end ---- */

static void bench_file(struct bench *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/store_bench.file", b->dir);
    for (int direct = 1; direct >= 0; direct--) {
        int flags = direct ? O_DIRECT : 0;
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | flags, 0600);
        if (fd < 0 && direct)
            continue;
        struct timing t = start();
        for (uint64_t at = 0; at < b->n_bytes; at += BLOCK)
            if (write(fd, b->pages + at, BLOCK) != (ssize_t)BLOCK)
                die(path);
        if (!direct)
            fdatasync(fd);
        report(direct ? "sequential write" : "sequential write, cached", &t, b->n_bytes);
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
        fd = open(path, O_RDONLY | flags);
        t = start();
        for (uint64_t at = 0; at < b->n_bytes; at += BLOCK)
            if (read(fd, b->out, BLOCK) != (ssize_t)BLOCK)
                die(path);
        report(direct ? "sequential read" : "sequential read, cached", &t, b->n_bytes);
        close(fd);
        unlink(path);
    }
}

static bool number(int argc, char **argv, int i, uint64_t *out)
{
    return argc <= i || (sl_parse_u64(argv[i], strlen(argv[i]), out) && *out > 0);
}

int main(int argc, char **argv)
{
    struct bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .woken = PTHREAD_COND_INITIALIZER};
    uint64_t kb = 512, mb = 1024, rounds = 3;
    if (argc < 2 || argc > 5 || !number(argc, argv, 2, &kb) || !number(argc, argv, 3, &mb) ||
        !number(argc, argv, 4, &rounds) || kb > (1u << 20) || mb < 64 || mb > (1u << 20)) {
        fprintf(stderr, "usage: store_bench FOLDER [KB of a page] [MB in all] [rounds]\n");
        return 2;
    }
    sl_log_set_level(SL_LOG_WARN);
    b.dir = argv[1];
    b.page_bytes = kb << 10;
    b.n_bytes = SL_ROUND_UP(mb << 20, (uint64_t)BLOCK);
    b.n_pages = b.n_bytes / b.page_bytes;
    b.pages = sl_aligned_alloc(b.n_bytes);
    b.out = sl_aligned_alloc(SL_MAX(b.page_bytes, BLOCK));
    if (b.pages == NULL || b.out == NULL)
        die("memory");
    for (uint64_t i = 0; i < b.n_bytes / 8; i++)
        ((uint64_t *)(void *)b.pages)[i] = sl_rng_at(1, i);
    for (uint64_t i = 0; i < rounds; i++) {
        printf("round %llu: %llu pages of %llu KB\n", (unsigned long long)i + 1,
               (unsigned long long)b.n_pages, (unsigned long long)kb);
        bench_host(&b);
        bench_file(&b);
        bench_disk(&b, false);
        bench_disk(&b, true);
    }
    sl_aligned_free(b.out, SL_MAX(b.page_bytes, BLOCK));
    sl_aligned_free(b.pages, b.n_bytes);
    return 0;
}
