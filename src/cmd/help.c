/* SPDX-License-Identifier: MIT */
#include "cmd/help.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

static bool takes_value(const struct sl_flag *f)
{
    return f->kind != SL_FLAG_SWITCH && f->kind != SL_FLAG_SWITCH_OFF;
}

/* A switch that is on by itself is shown as what turns it off. */
static const char *prefix(const struct sl_flag *f)
{
    return f->kind == SL_FLAG_SWITCH_OFF ? "no-" : "";
}

/* ---- text */

static void text_head(const struct sl_command *cmd)
{
    printf("sluice %s: %s\n\n", cmd->name, cmd->summary);
    if (cmd->examples != NULL)
        printf("Examples:\n%s\n", cmd->examples);
    printf("Usage: sluice %s %s\n", cmd->name, cmd->usage);
}

static void text_row(const struct sl_command *cmd, const struct sl_flag *f)
{
    char left[64], letter[5] = "    ";
    (void)cmd;
    if (f->kind == SL_FLAG_HEADING) {
        printf("\n%s\n", f->help);
        return;
    }
    if (f->short_name != 0)
        snprintf(letter, sizeof letter, "-%c, ", f->short_name);
    snprintf(left, sizeof left, "%s--%s%s%s%s", letter, prefix(f), f->name,
             f->arg != NULL ? " " : "", f->arg != NULL ? f->arg : "");
    printf("  %-34s %s\n", left, f->help);
}

static void text_tail(const struct sl_command *cmd)
{
    if (cmd->details != NULL)
        printf("\n%s", cmd->details);
}

static bool help_is_named(const struct sl_flag *f, const char *name, size_t n)
{
    return f->kind != SL_FLAG_HEADING && strlen(f->name) == n && memcmp(f->name, name, n) == 0;
}

/* What fits a screen: the flags that most people need. Names in `brief` that no table has are a
 * mistake of ours, which a test finds. */
static void print_brief(const struct sl_command *cmd, const struct sl_flag_group *groups,
                        int n_groups)
{
    int n_all = 0;
    text_head(cmd);
    for (const char *at = cmd->brief; *at != '\0'; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        bool found = false;
        for (int g = 0; g < n_groups && !found; g++) {
            for (int k = 0; k < groups[g].n_flags && !found; k++) {
                found = help_is_named(&groups[g].flags[k], at, n);
                if (found)
                    text_row(cmd, &groups[g].flags[k]);
            }
        }
        SL_ASSERT(found);
        at += n;
    }
    for (int g = 0; g < n_groups; g++) {
        for (int k = 0; k < groups[g].n_flags; k++)
            n_all += groups[g].flags[k].kind != SL_FLAG_HEADING;
    }
    text_tail(cmd);
    printf("\n`sluice %s --help=all` shows all %d flags.\n", cmd->name, n_all);
}

/* ---- troff */

void sl_help_put_troff(const char *text)
{
    bool line_start = true;
    for (const char *p = text; *p != '\0'; p++) {
        if (line_start && (*p == '.' || *p == '\''))
            fputs("\\&", stdout);
        if (*p == '\\')
            fputs("\\e", stdout);
        else if (*p == '-')
            fputs("\\-", stdout);
        else
            putchar(*p);
        line_start = *p == '\n';
    }
}

static void man_head(const struct sl_command *cmd)
{
    printf(".SS sluice %s ", cmd->name);
    sl_help_put_troff(cmd->usage);
    fputs("\n", stdout);
    sl_help_put_troff(cmd->summary);
    fputs(".\n", stdout);
}

static void man_row(const struct sl_command *cmd, const struct sl_flag *f)
{
    (void)cmd;
    if (f->kind == SL_FLAG_HEADING) {
        fputs(".PP\n", stdout);
        sl_help_put_troff(f->help);
        fputs(":\n", stdout);
        return;
    }
    fputs(".TP\n", stdout);
    if (f->short_name != 0)
        printf("\\fB\\-%c\\fR, ", f->short_name);
    fputs("\\fB\\-\\-", stdout);
    sl_help_put_troff(prefix(f));
    sl_help_put_troff(f->name);
    fputs("\\fR", stdout);
    if (f->arg != NULL) {
        fputs(" \\fI", stdout);
        sl_help_put_troff(f->arg);
        fputs("\\fR", stdout);
    }
    fputs("\n", stdout);
    sl_help_put_troff(f->help);
    fputs("\n", stdout);
}

static void man_text(const char *title, const char *text)
{
    if (text == NULL)
        return;
    printf(".PP\n%s.nf\n", title);
    sl_help_put_troff(text);
    fputs(".fi\n", stdout);
}

static void man_tail(const struct sl_command *cmd)
{
    man_text("", cmd->details);
    man_text("Examples:\n", cmd->examples);
}

/* ---- shells */

static void bash_head(const struct sl_command *cmd)
{
    printf("    '%s') flags='--help", cmd->name);
}

static void bash_row(const struct sl_command *cmd, const struct sl_flag *f)
{
    (void)cmd;
    if (f->kind != SL_FLAG_HEADING)
        printf(" --%s%s", prefix(f), f->name);
}

static void bash_tail(const struct sl_command *cmd)
{
    (void)cmd;
    fputs("' ;;\n", stdout);
}

/* Inside single quotes; the characters of `special` get a backslash. */
static void put_quoted(const char *text, const char *special)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\'') {
            fputs("'\\''", stdout);
            continue;
        }
        if (strchr(special, *p) != NULL)
            putchar('\\');
        putchar(*p);
    }
}

static void zsh_head(const struct sl_command *cmd)
{
    printf("    '%s') _arguments '--help[show the flags]'", cmd->name);
}

static void zsh_row(const struct sl_command *cmd, const struct sl_flag *f)
{
    (void)cmd;
    if (f->kind == SL_FLAG_HEADING)
        return;
    for (int is_short = 0; is_short <= (f->short_name != 0); is_short++) {
        const char *more = f->kind == SL_FLAG_STR_LIST ? "*" : "";
        if (is_short)
            printf(" \\\n        '%s-%c[", more, f->short_name);
        else
            printf(" \\\n        '%s--%s%s[", more, prefix(f), f->name);
        put_quoted(f->help, "[]:\\");
        putchar(']');
        if (takes_value(f)) {
            putchar(':');
            put_quoted(f->arg != NULL ? f->arg : "value", "[]:\\");
            fputs(":_files", stdout);
        }
        putchar('\'');
    }
}

static void zsh_tail(const struct sl_command *cmd)
{
    (void)cmd;
    fputs(" \\\n        '*:model:_files' ;;\n", stdout);
}

static void fish_head(const struct sl_command *cmd)
{
    printf("complete -c sluice -n '__fish_use_subcommand' -a '%s' -d '", cmd->name);
    put_quoted(cmd->summary, "\\");
    fputs("'\n", stdout);
}

static void fish_row(const struct sl_command *cmd, const struct sl_flag *f)
{
    if (f->kind == SL_FLAG_HEADING)
        return;
    printf("complete -c sluice -n '__fish_seen_subcommand_from %s' -l %s%s", cmd->name, prefix(f),
           f->name);
    if (f->short_name != 0)
        printf(" -s %c", f->short_name);
    printf("%s -d '", takes_value(f) ? " -r" : "");
    for (const char *p = f->help; *p != '\0'; p++) { /* fish: \' inside single quotes */
        if (*p == '\'' || *p == '\\')
            putchar('\\');
        putchar(*p);
    }
    fputs("'\n", stdout);
}

static void no_tail(const struct sl_command *cmd)
{
    (void)cmd;
}

/* ---- choice */

int sl_help_print(const char *form, const struct sl_command *cmd,
                  const struct sl_flag_group *groups, int n_groups, struct sl_error *err)
{
    static const struct {
        const char *form;
        void (*head)(const struct sl_command *cmd);
        void (*row)(const struct sl_command *cmd, const struct sl_flag *f);
        void (*tail)(const struct sl_command *cmd);
    } forms[] = {
        {"all", text_head, text_row, text_tail},  {"man", man_head, man_row, man_tail},
        {"bash", bash_head, bash_row, bash_tail}, {"zsh", zsh_head, zsh_row, zsh_tail},
        {"fish", fish_head, fish_row, no_tail},
    };
    if (form == NULL && cmd->brief != NULL) {
        print_brief(cmd, groups, n_groups);
        return 0;
    }
    if (form == NULL)
        form = "all";
    size_t i = 0;
    while (i < SL_COUNT(forms) && strcmp(forms[i].form, form) != 0)
        i++;
    if (i == SL_COUNT(forms))
        return sl_fail(err, SL_EINVAL, "--help: '%.20s' is not one of: all, man, bash, zsh, fish",
                       form);
    forms[i].head(cmd);
    for (int g = 0; g < n_groups; g++) {
        for (int k = 0; k < groups[g].n_flags; k++)
            forms[i].row(cmd, &groups[g].flags[k]);
    }
    forms[i].tail(cmd);
    return 0;
}
