/* SPDX-License-Identifier: MIT
 *
 * sl_hub_files_pick: which files of a repository a model needs.
 */
#include "base/buf.h"
#include "base/check.h"
#include "base/str.h"
#include "hub/files.h"
#include "io/json.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_QUANT "Q4_K_M" /* what llama.cpp takes too when nobody names one */
#define SPLIT_TAIL    20       /* bytes of "-00001-of-00003.gguf" */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool has_tail(const char *s, const char *tail)
{
    size_t n = strlen(s), n_tail = strlen(tail);
    return n >= n_tail && strcasecmp(s + n - n_tail, tail) == 0;
}

/* ---- a folder: safetensors and small files */

/* Mistral's tokenizer.model.v3 */
static bool is_versioned_model(const char *path)
{
    return strncmp(path, "tokenizer.model.v", 17) == 0;
}

static bool is_tokenizer(const char *path)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "vocab.txt",      "tekken.json",     "spiece.model"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (strcmp(path, names[i]) == 0)
            return true;
    }
    return strchr(path, '/') == NULL &&
           (sl_ends_with(path, ".tiktoken") || is_versioned_model(path));
}

/* The modules of a sentence encoder lie in folders like 1_Pooling. */
static bool pick_is_module(const char *path)
{
    const char *slash = strchr(path, '/');
    if (slash == NULL || path[0] < '0' || path[0] > '9')
        return false;
    size_t n_digits = strspn(path, "0123456789");
    SL_ASSERT(n_digits > 0 && path + n_digits <= slash);
    return path[n_digits] == '_' &&
           (strcmp(slash, "/config.json") == 0 || strcmp(slash, "/model.safetensors") == 0);
}

static bool is_small(const char *path)
{
    static const char *const tails[] = {".json", ".jinja", ".model", ".tiktoken"};
    if (strchr(path, '/') != NULL)
        return pick_is_module(path);
    if (strcmp(path, "merges.txt") == 0 || strcmp(path, "vocab.txt") == 0 ||
        is_versioned_model(path))
        return true;
    if (strstr(path, ".bin.") != NULL || strstr(path, "consolidated") != NULL)
        return false;
    for (size_t i = 0; i < SL_COUNT(tails); i++) {
        if (has_tail(path, tails[i]))
            return true;
    }
    return false;
}

static int want(struct sl_hub_files *f, const char *path, struct sl_error *err)
{
    struct sl_hub_file *file = sl_hub_files_find(f, path);
    if (file == NULL)
        return sl_fail(err, SL_ENOTFOUND, "file %.120s is missing", path);
    file->wanted = true;
    return 0;
}

static int want_shards(struct sl_hub_files *f, const struct sl_hub_pick *pick, struct sl_error *err)
{
    json_t *root = NULL, *shard;
    const char *tensor, *last = "";
    SL_ASSERT(pick->index != NULL && !pick->needs_index);
    int rc =
        sl_json_object(pick->index, pick->n_index, SL_JSON_MAX_INDEX, SL_HUB_INDEX, &root, err);
    if (rc != 0)
        return rc;
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = sl_fail(err, SL_EFORMAT, "%s: weight_map is missing or empty", SL_HUB_INDEX);
    json_object_foreach(map, tensor, shard)
    {
        const char *path = json_string_value(shard);
        if (rc != 0)
            break;
        if (path == NULL)
            rc = sl_fail(err, SL_EFORMAT, "%s: weight_map of %.80s is not a string", SL_HUB_INDEX,
                         tensor);
        else if (strcmp(path, last) != 0) /* tensors of a shard mostly stand together */
            rc = want(f, path, err);
        last = path;
    }
    json_decref(root);
    return rc;
}

static int pick_folder(struct sl_hub_files *f, struct sl_hub_pick *pick, struct sl_error *err)
{
    bool tokenizer = false;
    for (size_t i = 0; i < f->n; i++) {
        const char *path = f->items[i].path;
        bool weights = sl_ends_with(path, ".safetensors");
        f->items[i].wanted = is_small(path) && !(weights && pick->text_only);
        tokenizer = tokenizer || is_tokenizer(path);
    }
    bool adapter = sl_hub_files_find(f, "adapter_config.json") != NULL;
    if (sl_hub_files_find(f, adapter ? "adapter_config.json" : "config.json") == NULL)
        return sl_fail(err, SL_ENOTFOUND, "file config.json is missing");
    /* A snapshot another program has begun may lack the tokenizer; a repository without one will
     * say so when it is loaded. */
    if (pick->only_cached && !tokenizer && !adapter)
        return sl_fail(err, SL_ENOTFOUND, "the files of its tokenizer are missing");
    if (pick->text_only)
        return 0;
    if (adapter)
        return want(f, "adapter_model.safetensors", err);
    struct sl_hub_file *single = sl_hub_files_find(f, "model.safetensors");
    if (single != NULL) {
        single->wanted = true;
        return 0;
    }
    if (sl_hub_files_find(f, SL_HUB_INDEX) == NULL) /* an adapter's weights brought us here */
        return sl_fail(err, SL_ENOTFOUND, "there is neither model.safetensors nor " SL_HUB_INDEX);
    pick->needs_index = pick->index == NULL;
    return pick->needs_index ? 0 : want_shards(f, pick, err);
}

/* ---- GGUF */

static bool is_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
    }
    return true;
}

/* Bytes of the path in front of "-00001-of-00003.gguf", and the numbers; 0 if it is no part, as the
 * first of none is. */
static size_t split_stem(const char *path, uint64_t *part, uint64_t *n_parts)
{
    size_t n = strlen(path);
    if (n <= SPLIT_TAIL)
        return 0;
    const char *tail = path + n - SPLIT_TAIL;
    SL_DCHECK(strlen(tail) == SPLIT_TAIL);
    if (tail[0] != '-' || !is_digits(tail + 1, 5) || memcmp(tail + 6, "-of-", 4) != 0 ||
        !is_digits(tail + 10, 5) || strcasecmp(tail + 15, ".gguf") != 0)
        return 0;
    if (!sl_parse_u64(tail + 1, 5, part) || !sl_parse_u64(tail + 10, 5, n_parts) || *part == 0 ||
        *part > *n_parts)
        return 0;
    return n - SPLIT_TAIL;
}

static bool is_model_gguf(const char *path)
{
    const char *name = base_name(path);
    uint64_t part, n_parts;
    if (!has_tail(path, ".gguf") || strncasecmp(name, "mmproj", 6) == 0 ||
        strncasecmp(name, "imatrix", 7) == 0)
        return false;
    return split_stem(path, &part, &n_parts) == 0 || part == 1;
}

/* Does the file's name end in the quantisation? "x-Q4_K_M.gguf" is Q4_K_M and not K_M. */
static bool is_quant(const char *path, const char *quant)
{
    uint64_t part, n_parts;
    size_t n = split_stem(path, &part, &n_parts), n_quant = strlen(quant);
    const char *name = base_name(path);
    SL_ASSERT(is_model_gguf(path));
    n = (n != 0 ? n : strlen(path) - 5) - (size_t)(name - path);
    if (n < n_quant || strncasecmp(name + n - n_quant, quant, n_quant) != 0)
        return false;
    return n == n_quant || name[n - n_quant - 1] == '-' || name[n - n_quant - 1] == '.';
}

static int want_parts(struct sl_hub_files *f, const char *first, struct sl_error *err)
{
    uint64_t part, n_parts;
    char path[512];
    size_t n = split_stem(first, &part, &n_parts), n_all = strlen(first);
    if (n == 0)
        return want(f, first, err);
    if (part != 1)
        return sl_fail(err, SL_EINVAL, "%.120s: name the first of its %d parts", first,
                       (int)n_parts);
    if (n_all >= sizeof path)
        return sl_fail(err, SL_ELIMIT, "%.80s...: name too long", first);
    int rc = 0;
    memcpy(path, first, n_all + 1);
    SL_ASSERT(n_parts <= 99999 && n + SPLIT_TAIL == n_all);
    for (part = 1; rc == 0 && part <= n_parts; part++) {
        for (uint64_t i = 0, x = part; i < 5; i++, x /= 10)
            path[n + 5 - i] = (char)('0' + x % 10);
        rc = want(f, path, err);
    }
    return rc;
}

/* Names of GGUF files, as far as they fit into a message. */
static void list_models(const struct sl_hub_files *f, struct sl_buf *out)
{
    for (size_t i = 0; i < f->n && out->n_bytes < 120; i++) {
        if (is_model_gguf(f->items[i].path))
            sl_buf_printf(out, "%s%.60s", out->n_bytes > 0 ? ", " : "",
                          base_name(f->items[i].path));
    }
}

static int no_quant(const struct sl_hub_files *f, const char *quant, struct sl_error *err)
{
    struct sl_buf names = {0};
    list_models(f, &names);
    int rc;
    if (names.n_bytes == 0 || !sl_buf_ok(&names))
        rc = sl_fail(err, SL_ENOTFOUND, "there is no GGUF file");
    else
        rc = sl_fail(err, SL_ENOTFOUND, "no %s among its GGUF files; name one of: %s", quant,
                     names.data);
    sl_buf_deinit(&names);
    return rc;
}

static int pick_gguf(struct sl_hub_files *f, const struct sl_hub_name *name,
                     struct sl_hub_pick *pick, struct sl_error *err)
{
    const char *quant = name->quant[0] != '\0' ? name->quant : DEFAULT_QUANT;
    const char *best = NULL, *other = NULL;
    size_t n_models = 0;
    for (size_t i = 0; i < f->n; i++) {
        const char *path = f->items[i].path;
        if (!is_model_gguf(path))
            continue;
        n_models++;
        other = path;
        /* Beside x-Q4_K_M there may be x-UD-Q4_K_M: the plain one is the shorter. */
        if (is_quant(path, quant) && (best == NULL || strlen(path) < strlen(best)))
            best = path;
    }
    if (best == NULL && n_models == 1 && name->quant[0] == '\0') {
        best = other;
        pick->other_quant = true;
    }
    if (best == NULL)
        return no_quant(f, quant, err);
    SL_ASSERT(n_models > 0 && sl_hub_files_find(f, best) != NULL);
    pick->main = best;
    return want_parts(f, best, err);
}

/* ---- either */

int sl_hub_files_pick(struct sl_hub_files *f, const struct sl_hub_name *name,
                      struct sl_hub_pick *pick, struct sl_error *err)
{
    bool gguf = false, pickle = false;
    pick->main = NULL;
    pick->needs_index = pick->other_quant = false;
    for (size_t i = 0; i < f->n; i++) {
        f->items[i].wanted = false;
        gguf = gguf || is_model_gguf(f->items[i].path);
        pickle = pickle || has_tail(f->items[i].path, ".bin");
    }
    if (name->file[0] != '\0') {
        SL_ASSERT(sl_hub_path_safe(name->file, strlen(name->file)));
        struct sl_hub_file *file = sl_hub_files_find(f, name->file);
        pick->main = file != NULL ? file->path : NULL;
        return file != NULL ? want_parts(f, file->path, err) : want(f, name->file, err);
    }
    bool folder = sl_hub_files_find(f, "model.safetensors") != NULL ||
                  sl_hub_files_find(f, SL_HUB_INDEX) != NULL ||
                  sl_hub_files_find(f, "adapter_model.safetensors") != NULL ||
                  (pick->text_only && !gguf);
    if (name->quant[0] == '\0' && folder)
        return pick_folder(f, pick, err);
    if (gguf || name->quant[0] != '\0')
        return pick_gguf(f, name, pick, err);
    SL_ASSERT(pick->main == NULL && !pick->needs_index);
    return sl_fail(err, SL_ENOTFOUND, "there are neither safetensors nor GGUF weights%s",
                   pickle ? ", only pickled ones (.bin), which can run code and are not read" : "");
}
