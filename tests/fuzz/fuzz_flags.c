/* SPDX-License-Identifier: MIT
 * Command lines: words separated by NUL against the tables of all commands and one with every kind
 * of flag. What is accepted lies in range and was on the line; what is refused says why; the rest
 * of the structs stays as it was.
 */
#include "cmd/flags.h"
#include "fuzz.h"
#include "sluice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_WORDS 24

struct own {
    bool on, off;
    const char *word;
    struct sl_flag_list list;
    int32_t small;
    uint64_t big;
    float real;
};

#define OWN(field) offsetof(struct own, field)

static const struct sl_flag own_flags[] = {
    {SL_FLAG_HEADING, 0, NULL, NULL, 0, 0, 0, NULL, "All kinds"},
    {SL_FLAG_SWITCH, 'a', "on-switch", "on", OWN(on), 0, 0, NULL, "a switch"},
    {SL_FLAG_SWITCH_OFF, 0, "off-switch", NULL, OWN(off), 0, 0, NULL, "a switch that is on"},
    {SL_FLAG_STR, 'w', "word", "w-alias", OWN(word), 0, 0, "W", "a word"},
    {SL_FLAG_STR_LIST, 'l', "list", NULL, OWN(list), 0, 0, "W", "words"},
    {SL_FLAG_INT, 'i', "small", NULL, OWN(small), -5, 100000, "N", "an integer"},
    {SL_FLAG_U64, 'b', "big", NULL, OWN(big), 0, 0x1p53, "N", "a large integer"},
    {SL_FLAG_FLOAT, 'f', "real", NULL, OWN(real), -1, 2, "X", "a number"},
};

struct line {
    struct sl_engine_config engine;
    struct sl_sampling sampling;
    struct own own;
    struct sl_flag_group groups[3];
};

static void line_init(struct line *l, uint8_t fill)
{
    memset(l, fill, sizeof *l);
    l->own.list.n = 0;
    l->groups[0] = (struct sl_flag_group){sl_flags_engine, sl_n_flags_engine, &l->engine, 0};
    l->groups[1] = (struct sl_flag_group){sl_flags_sampling, sl_n_flags_sampling, &l->sampling, 0};
    l->groups[2] = (struct sl_flag_group){own_flags, (int)SL_COUNT(own_flags), &l->own, 0};
}

static bool on_line(const char *s, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (s >= argv[i] && s <= argv[i] + strlen(argv[i]))
            return true;
    return false;
}

static void check_field(const struct sl_flag *f, const void *field, bool given, int argc,
                        char **argv)
{
    const struct sl_flag_list *list = field;
    double x = 0;
    if (f->kind == SL_FLAG_INT)
        x = *(const int32_t *)field;
    else if (f->kind == SL_FLAG_U64)
        x = (double)*(const uint64_t *)field;
    else if (f->kind == SL_FLAG_FLOAT)
        x = (double)*(const float *)field;
    /* Bounds are given as doubles; a float at the bound may be rounded past it. */
    SL_ASSERT(!given || f->min == f->max ||
              (x >= (double)(float)f->min && x <= fmax(f->max, (double)(float)f->max)));
    if (given && f->kind == SL_FLAG_STR)
        SL_ASSERT(on_line(*(const char *const *)field, argc, argv));
    for (int i = 0; f->kind == SL_FLAG_STR_LIST && i < list->n; i++)
        SL_ASSERT(i < SL_FLAG_LIST_MAX && on_line(list->items[i], argc, argv));
}

static void check_line(struct line *l, int argc, char **argv)
{
    for (size_t g = 0; g < SL_COUNT(l->groups); g++) {
        const struct sl_flag_group *group = &l->groups[g];
        SL_ASSERT(group->n_flags == 64 || group->given >> group->n_flags == 0);
        for (int i = 0; i < group->n_flags; i++) {
            bool given = (group->given >> i & 1) != 0;
            const struct sl_flag *f = &group->flags[i];
            if (f->name == NULL)
                continue;
            SL_ASSERT(sl_flags_given(group, f->name) == given);
            check_field(f, (char *)group->base + f->offset, given, argc, argv);
        }
    }
}

/* A second line with other defaults has the same given fields, and overlay makes them equal. */
static void check_overlay(struct line *l, struct own *onto)
{
    *onto = l->own;
    onto->small++;
    onto->real = -onto->real;
    onto->on = !onto->on;
    sl_flags_overlay(&l->groups[2], onto);
    const struct sl_flag_group *g = &l->groups[2];
    SL_ASSERT((onto->small == l->own.small) == sl_flags_given(g, "small"));
    SL_ASSERT((onto->on == l->own.on) == sl_flags_given(g, "on-switch"));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return freopen("/dev/null", "w", stdout) != NULL ? 0 : 1; /* --help prints */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct sl_command cmd = {.name = "fuzz", .usage = "", .summary = ""};
    static struct line l;
    char words[512] = "", *argv[MAX_WORDS + 1] = {words};
    const char *positional[3] = {NULL};
    struct own onto;
    struct sl_error err = {.code = 0};
    int argc = 1, n_positional = -1;
    size_t n = SL_MIN(size, sizeof words - 2);
    if (n > 0)
        memcpy(words + 1, data, n); /* words[0] ends the program's name */
    for (size_t at = 1; at < n + 1 && argc < MAX_WORDS; at += strlen(words + at) + 1)
        argv[argc++] = words + at;
    line_init(&l, 0);
    int rc = sl_flags_parse(&cmd, l.groups, (int)SL_COUNT(l.groups), argc, argv, positional,
                            (int)SL_COUNT(positional), &n_positional, &err);
    SL_ASSERT(n_positional >= 0 && n_positional <= (int)SL_COUNT(positional));
    SL_ASSERT(rc == 0 || rc == SL_FLAGS_HELP || (rc < 0 && err.code == rc && err.msg[0] != '\0'));
    for (int i = 0; i < n_positional; i++)
        SL_ASSERT(on_line(positional[i], argc, argv));
    if (rc != 0)
        return 0;
    check_line(&l, argc, argv);
    check_overlay(&l, &onto);
    return 0;
}
