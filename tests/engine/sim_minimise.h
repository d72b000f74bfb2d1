/* SPDX-License-Identifier: MIT
 * sim_minimise.h - makes a failing plan smaller: leaves out acts, many at once and then fewer, as
 * long as the world still fails in the same way. Every attempt is a process of its own, because a
 * violation ends it.
 */
#ifndef SL_TESTS_SIM_MINIMISE_H
#define SL_TESTS_SIM_MINIMISE_H

#include "engine/sim_plan.h"

#include <ctype.h>
#include <sys/wait.h>

#define MAX_REPORT 512

static char keep_text[MAX_ACTS * 4 + 16];

/* "1,5,9": everything else is left out. False: not a list. */
static bool keep_acts(struct world *w, const char *list)
{
    if (list == NULL)
        return true;
    snprintf(keep_text, sizeof keep_text, " KEEP=%s", list);
    replay_args = keep_text;
    for (int32_t i = 0; i < w->n_acts; i++)
        w->acts[i].dropped = true;
    while (*list != '\0') {
        char *end;
        long i = strtol(list, &end, 10);
        if (end == list || i < 0 || i >= w->n_acts || (*end != ',' && *end != '\0'))
            return false;
        w->acts[i].dropped = false;
        list = *end == ',' ? end + 1 : end;
    }
    return true;
}

/* What went wrong, without the numbers; "" if nothing did. The first line of the report. */
static void attempt(const struct world *plan, void (*run)(struct world *), char *what)
{
    int fds[2];
    size_t n = 0;
    what[0] = '\0';
    fflush(stdout);
    if (pipe(fds) != 0)
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        static struct world w;
        w = *plan;
        dup2(fds[1], STDOUT_FILENO);
        alarm(60); /* a world that spins */
        run(&w);
        _exit(0);
    }
    close(fds[1]);
    for (ssize_t got; n < MAX_REPORT - 1 && (got = read(fds[0], what + n, MAX_REPORT - 1 - n)) > 0;)
        n += (size_t)got;
    close(fds[0]);
    int status = 0;
    waitpid(child, &status, 0);
    what[n] = '\0';
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        what[0] = '\0';
    else if (n == 0)
        snprintf(what, MAX_REPORT, "signal %d", WTERMSIG(status));
    what[strcspn(what, "\n")] = '\0';
}

static bool same_failure(const char *a, const char *b)
{
    const char *colon;
    a = (colon = strchr(a + 4, ':')) != NULL && a[0] != '\0' ? colon : a;
    b = b[0] != '\0' && (colon = strchr(b + 4, ':')) != NULL ? colon : b;
    for (;; a++, b++) {
        while (isdigit((unsigned char)*a))
            a++;
        while (isdigit((unsigned char)*b))
            b++;
        if (*a != *b || *a == '\0' || *a == '\'')
            return *a == *b;
    }
}

static void print_small(const struct world *w, const char *what)
{
    const char *comma = "";
    int32_t n = 0;
    print_plan(w);
    for (int32_t i = 0; i < w->n_acts; i++)
        n += !w->acts[i].dropped;
    printf("%d of %d acts are left: %s\nreplay: make sim SEED=%llu KEEP=", n, w->n_acts, what,
           (unsigned long long)w->seed_no);
    for (int32_t i = 0; i < w->n_acts; i++) {
        if (w->acts[i].dropped)
            continue;
        printf("%s%d", comma, i);
        comma = ",";
    }
    printf("\n");
}

static int minimise(struct world *w, void (*run)(struct world *))
{
    char first[MAX_REPORT], what[MAX_REPORT], last[MAX_REPORT];
    attempt(w, run, first);
    if (first[0] == '\0') {
        printf("sim: seed %llu does not fail\n", (unsigned long long)w->seed_no);
        return 1;
    }
    snprintf(last, sizeof last, "%s", first);
    for (int32_t size = SL_MAX(w->n_acts / 2, 1); size > 0;) {
        bool smaller = false;
        for (int32_t at = w->n_acts; at > 0; at -= size) { /* late acts are the least needed */
            struct world small = *w;
            int32_t n = 0;
            for (int32_t i = SL_MAX(at - size, 0); i < at; i++) {
                n += !small.acts[i].dropped;
                small.acts[i].dropped = true;
            }
            if (n == 0)
                continue;
            attempt(&small, run, what);
            if (what[0] == '\0' || !same_failure(first, what))
                continue;
            *w = small;
            memcpy(last, what, sizeof last);
            smaller = true;
        }
        if (size > 1)
            size /= 2;
        else if (!smaller)
            break;
    }
    print_small(w, last);
    return 1;
}

#endif
