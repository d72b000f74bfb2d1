/* SPDX-License-Identifier: MIT
 * hostile_json.h - a tokenizer.json that uses every kind of field, and the ways to damage each of
 * its values in turn.
 */
#ifndef SL_TESTS_HOSTILE_JSON_H
#define SL_TESTS_HOSTILE_JSON_H

#include "base/buf.h"
#include "base/check.h"
#include "base/sys.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const char whole_tokenizer[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
    "\"added_tokens\":[{\"id\":13,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"q\"},\"content\":\"a\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"z+\"},\"content\":\"b\"},"
    "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
    "{\"type\":\"Prepend\",\"prepend\":\"a\"},"
    "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
    "\"strip_accents\":true,\"lowercase\":true}]},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]\"},\"behavior\":\"Isolated\","
    "\"invert\":false},{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"},"
    "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"|\"},"
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
    "\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{"
    "\"<s>\":{\"id\":\"<s>\",\"ids\":[13],\"tokens\":[\"<s>\"]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"u\","
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":true,\"ignore_merges\":false,\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"c\":3,"
    "\"_\":4,\"1\":5,\"2\":6,\"ab\":7,\"abc\":8,\"<0x41>\":9,\"<0xC3>\":10,\"<0xA9>\":11,"
    "\"<0x00>\":12},\"merges\":[\"a b\",[\"ab\",\"c\"]]}}";

enum damage {
    GONE,
    NIL,
    YES,
    SEVEN,
    MINUS,
    REAL,
    HUGE_INT,
    EMPTY,
    WORD,
    LONG,
    LIST,
    OBJECT,
    N_DAMAGES
};

static const char *const damage_names[N_DAMAGES] = {
    "gone", "null", "true", "7", "-1", "1.5", "2^62", "\"\"", "\"x\"", "70,000 bytes", "[]", "{}",
};

/* The value that takes the place of another; NULL: none does. */
static inline json_t *damaged_value(enum damage d)
{
    static char text[70001];
    switch (d) {
    case NIL:
        return json_null();
    case YES:
        return json_true();
    case SEVEN:
        return json_integer(7);
    case MINUS:
        return json_integer(-1);
    case REAL:
        return json_real(1.5);
    case HUGE_INT:
        return json_integer(1ll << 62);
    case EMPTY:
        return json_string("");
    case WORD:
        return json_string("x");
    case LONG:
        memset(text, 'y', sizeof text - 1);
        return json_string(text);
    case LIST:
        return json_array();
    case OBJECT:
        return json_object();
    case GONE:
    case N_DAMAGES:
        break;
    }
    return NULL;
}

/* Calls fn for every value below `at`, with its path ("model.vocab.ab", "decoder.decoders[2]"),
 * after damaging it and before putting it back. */
typedef void (*damage_fn)(json_t *root, const char *path, enum damage d, void *arg);

static inline void damage_each(json_t *root, json_t *at, const char *path, damage_fn fn, void *arg);

static inline void damage_one(json_t *root, json_t *at, const char *key, size_t idx,
                              const char *path, damage_fn fn, void *arg)
{
    json_t *old = json_is_object(at) ? json_object_get(at, key) : json_array_get(at, idx);
    json_incref(old);
    for (int d = 0; d < N_DAMAGES; d++) {
        json_t *v = damaged_value((enum damage)d);
        if (v != NULL && json_is_object(at))
            json_object_set_new(at, key, v);
        else if (v != NULL)
            json_array_set_new(at, idx, v);
        else if (json_is_object(at))
            json_object_del(at, key);
        else
            json_array_remove(at, idx);
        fn(root, path, (enum damage)d, arg);
        if (json_is_object(at))
            json_object_set(at, key, old);
        else if (v != NULL)
            json_array_set(at, idx, old);
        else
            json_array_insert(at, idx, old);
    }
    damage_each(root, old, path, fn, arg);
    json_decref(old);
}

static inline void damage_each(json_t *root, json_t *at, const char *path, damage_fn fn, void *arg)
{
    char below[200], keys[40][64];
    size_t n = 0;
    if (json_is_object(at)) {
        const char *key;
        json_t *v;
        json_object_foreach(at, key, v) /* deleting and setting disturbs the walk: names first */
            snprintf(keys[n++ % SL_COUNT(keys)], sizeof keys[0], "%s", key);
        for (size_t i = 0; i < n && i < SL_COUNT(keys); i++) {
            snprintf(below, sizeof below, "%s%s%s", path, path[0] != '\0' ? "." : "", keys[i]);
            damage_one(root, at, keys[i], 0, below, fn, arg);
        }
    } else if (json_is_array(at)) {
        n = json_array_size(at);
        for (size_t i = 0; i < n; i++) {
            snprintf(below, sizeof below, "%s[%zu]", path, i);
            damage_one(root, at, NULL, i, below, fn, arg);
        }
    }
}

#endif
