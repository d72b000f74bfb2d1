/* SPDX-License-Identifier: MIT
 * chat_commands.c - what a chat understands besides messages: lines that begin with a slash. What
 * they say goes to stderr, so that stdout holds the answers alone.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/str.h"
#include "base/sys.h"
#include "cmd/chat.h"
#include "cmd/flags.h"

#include <stdio.h>
#include <string.h>

#define MAX_PATH 4096

static enum sl_chat_next on_help(struct sl_chat *c, const char *arg);

static void complain(const struct sl_error *err)
{
    sl_command_complain(&sl_cmd_chat, err);
}

/* A file name as it was typed; a leading ~/ is the home, as in a shell. NULL: none, and it said so.
 */
static const char *file_of(const char *arg, char path[MAX_PATH])
{
    const char *home = sl_environment("HOME");
    if (arg[0] == '\0') {
        fputs("which file?\n", stderr);
        return NULL;
    }
    if (!sl_starts_with(arg, "~/") || home == NULL)
        return arg;
    int n = snprintf(path, MAX_PATH, "%s%s", home, arg + 1);
    return n > 0 && n < MAX_PATH ? path : arg;
}

static void show_settings(const struct sl_chat *c)
{
    for (int i = 0; i < sl_n_flags_sampling; i++) {
        const struct sl_flag *f = &sl_flags_sampling[i];
        const char *field = (const char *)&c->sampling + f->offset;
        char value[32] = "";
        if (f->kind == SL_FLAG_INT)
            snprintf(value, sizeof value, "%d", *(const int32_t *)(const void *)field);
        else if (f->kind == SL_FLAG_FLOAT)
            snprintf(value, sizeof value, "%g", (double)*(const float *)(const void *)field);
        else if (f->kind == SL_FLAG_SWITCH)
            snprintf(value, sizeof value, "%s", *(const bool *)(const void *)field ? "on" : "off");
        else if (f->kind == SL_FLAG_U64 && c->sampling.has_seed)
            snprintf(value, sizeof value, "%llu", (unsigned long long)c->sampling.seed);
        if (f->kind != SL_FLAG_HEADING)
            fprintf(stderr, "  %-20s %-10s %s\n", f->name, value[0] != '\0' ? value : "-", f->help);
    }
}

static const struct sl_flag *find_setting(const char *name, size_t n)
{
    const char *names[32];
    size_t n_names = 0;
    for (int i = 0; i < sl_n_flags_sampling; i++) {
        const struct sl_flag *f = &sl_flags_sampling[i];
        if (f->kind == SL_FLAG_HEADING)
            continue;
        if (strlen(f->name) == n && memcmp(f->name, name, n) == 0)
            return f;
        SL_ASSERT(n_names < SL_COUNT(names));
        names[n_names++] = f->name;
    }
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)SL_MIN(n, sizeof word - 1), name);
    sl_scrub(word, strlen(word));
    const char *near = sl_nearest(word, names, n_names);
    if (near != NULL)
        fprintf(stderr, "no setting %s; did you mean %s?\n", word, near);
    else
        fprintf(stderr, "no setting %s; /set lists them\n", word);
    return NULL;
}

/* "/set temperature 0.5": the flag of the command line, with its checks. */
static enum sl_chat_next on_set(struct sl_chat *c, const char *arg)
{
    char flag[160];
    struct sl_error err = {0};
    size_t n = strcspn(arg, " \t=");
    const char *value = arg + n + strspn(arg + n, " \t=");
    if (n == 0) {
        show_settings(c);
        return SL_CHAT_READ;
    }
    const struct sl_flag *f = find_setting(arg, n);
    if (f == NULL)
        return SL_CHAT_READ;
    struct sl_sampling given = c->sampling;
    struct sl_flag_group group = {sl_flags_sampling, sl_n_flags_sampling, &given, 0};
    int n_positional;
    if (f->kind == SL_FLAG_SWITCH)
        snprintf(flag, sizeof flag, "--%s%s", strcmp(value, "off") == 0 ? "no-" : "", f->name);
    else
        snprintf(flag, sizeof flag, "--%s=%.80s", f->name, value);
    char *argv[] = {NULL, flag};
    if (sl_flags_parse(&sl_cmd_chat, &group, 1, 2, argv, NULL, 0, &n_positional, &err) != 0) {
        complain(&err);
        return SL_CHAT_READ;
    }
    c->sampling = given;
    c->sampling.has_seed |= sl_flags_given(&group, "seed");
    fprintf(stderr, "[%s]\n", flag + 2);
    return SL_CHAT_READ;
}

static enum sl_chat_next on_system(struct sl_chat *c, const char *arg)
{
    struct sl_error err = {0};
    const char *now = sl_conversation_system(&c->talk);
    if (arg[0] == '\0') {
        fprintf(stderr, "[%s]\n", now != NULL ? now : "no system message; /system TEXT sets one");
        return SL_CHAT_READ;
    }
    if (sl_conversation_set_system(&c->talk, strcmp(arg, "\"\"") == 0 ? "" : arg, &err) != 0)
        complain(&err);
    else
        fputs("[system message set]\n", stderr);
    return SL_CHAT_READ;
}

static enum sl_chat_next on_save(struct sl_chat *c, const char *arg)
{
    char path[MAX_PATH];
    struct sl_error err = {0};
    const char *file = file_of(arg, path);
    if (file == NULL)
        return SL_CHAT_READ;
    if (sl_conversation_save(&c->talk, c->model, file, &err) != 0)
        complain(&err);
    else
        fprintf(stderr, "[%zu messages saved to %s]\n", c->talk.n, file);
    return SL_CHAT_READ;
}

static enum sl_chat_next on_load(struct sl_chat *c, const char *arg)
{
    char path[MAX_PATH];
    struct sl_error err = {0};
    const char *file = file_of(arg, path);
    if (file == NULL)
        return SL_CHAT_READ;
    if (sl_conversation_load(&c->talk, file, &err) != 0)
        complain(&err);
    else
        fprintf(stderr, "[%zu messages loaded from %s]\n", c->talk.n, file);
    return SL_CHAT_READ;
}

static enum sl_chat_next on_regen(struct sl_chat *c, const char *arg)
{
    (void)arg;
    size_t n = c->talk.n;
    while (n > 0 && strcmp(c->talk.turns[n - 1].role, "user") != 0)
        n--;
    if (n == 0) {
        fputs("[there is no message to answer yet]\n", stderr);
        return SL_CHAT_READ;
    }
    sl_conversation_cut(&c->talk, n);
    c->sampling.seed += c->sampling.has_seed; /* the same seed would give the same answer */
    return SL_CHAT_AGAIN;
}

static enum sl_chat_next on_clear(struct sl_chat *c, const char *arg)
{
    (void)arg;
    sl_conversation_clear(&c->talk);
    fputs("[conversation cleared]\n", stderr);
    return SL_CHAT_READ;
}

static enum sl_chat_next on_bye(struct sl_chat *c, const char *arg)
{
    (void)c;
    (void)arg;
    return SL_CHAT_LEAVE;
}

static const struct {
    const char *name, *arg, *help;
    enum sl_chat_next (*fn)(struct sl_chat *c, const char *arg);
} table[] = {
    {"/set", "[NAME VALUE]", "change how tokens are sampled; alone: show all names and values",
     on_set},
    {"/system", "[TEXT]", "set the system message (\"\" removes it); alone: show it", on_system},
    {"/regen", "", "answer the last message again", on_regen},
    {"/clear", "", "forget the conversation, not the system message", on_clear},
    {"/save", "FILE", "write the conversation as JSON, a body for /v1/chat/completions", on_save},
    {"/load", "FILE", "go on with a saved conversation", on_load},
    {"/help", "", "this list", on_help},
    {"/bye", "", "leave; also /exit, /quit and Ctrl-D", on_bye},
    {"/exit", "", NULL, on_bye}, /* without a text: not in the list */
    {"/quit", "", NULL, on_bye},
    {"/?", "", NULL, on_help},
};

const char *const sl_chat_words[] = {"/set",  "/system", "/regen", "/clear", "/save",
                                     "/load", "/help",   "/bye",   "/exit",  "/quit"};
const size_t sl_chat_n_words = SL_COUNT(sl_chat_words);

static enum sl_chat_next on_help(struct sl_chat *c, const char *arg)
{
    (void)c;
    (void)arg;
    for (size_t i = 0; i < SL_COUNT(table) && table[i].help != NULL; i++)
        fprintf(stderr, "  %-8s%-14s%s\n", table[i].name, table[i].arg, table[i].help);
    fputs("  \"\"\"     begins a message of several lines, \"\"\" ends it; a line that ends in \\ "
          "goes on\n"
          "  Ctrl-C  stops an answer; Ctrl-R searches earlier messages\n",
          stderr);
    return SL_CHAT_READ;
}

enum sl_chat_next sl_chat_command(struct sl_chat *c, const char *line)
{
    size_t n = strcspn(line, " \t\n");
    if (line[n] == '\0' && n == 0)
        return SL_CHAT_READ;
    if (line[0] != '/' || memchr(line + 1, '/', n - 1) != NULL) /* a path begins a message */
        return SL_CHAT_ASK;
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        if (strlen(table[i].name) == n && memcmp(table[i].name, line, n) == 0)
            return table[i].fn(c, line + n + strspn(line + n, " \t"));
    }
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)SL_MIN(n, sizeof word - 1), line);
    sl_scrub(word, strlen(word));
    const char *near = sl_nearest(word, sl_chat_words, sl_chat_n_words);
    if (near != NULL)
        fprintf(stderr, "no command %s; did you mean %s?\n", word, near);
    else
        fprintf(stderr, "no command %s; /help lists them\n", word);
    return SL_CHAT_READ;
}
