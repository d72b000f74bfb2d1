/* SPDX-License-Identifier: MIT
 * folder.h - a temporary folder of small model files, removed at the end.
 */
#ifndef SL_TESTS_IO_FOLDER_H
#define SL_TESTS_IO_FOLDER_H

#include "io/gguf_write.h"
#include "io/safetensors_write.h"

#include "base/sys.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct folder {
    char path[200], file[512];
};

static inline bool folder_make(struct folder *f)
{
    const char *base = getenv("TMPDIR");
    snprintf(f->path, sizeof f->path, "%s/sluice-test-XXXXXX", base != NULL ? base : P_tmpdir);
    return mkdtemp(f->path) != NULL;
}

/* Path of a file in it; lives until the next call. */
static inline const char *folder_path(struct folder *f, const char *name)
{
    snprintf(f->file, sizeof f->file, "%s/%s", f->path, name);
    return f->file;
}

static inline void folder_clear(struct folder *f)
{
    DIR *d = opendir(f->path);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlink(folder_path(f, e->d_name)) != 0)
            rmdir(f->file);
    }
    if (d != NULL)
        closedir(d);
}

static inline void folder_remove(struct folder *f)
{
    folder_clear(f);
    rmdir(f->path);
}

static inline bool folder_text(struct folder *f, const char *name, const char *text)
{
    return sl_write_file(folder_path(f, name), text, strlen(text), NULL) == 0;
}

/* A safetensors file with an f32 tensor [2] for each of the comma-separated names; element i of
 * tensor k is 10 * k + i. */
static inline bool folder_shard(struct folder *f, const char *name, const char *tensors)
{
    struct sl_st_writer *w;
    int n = 0;
    if (sl_st_writer_create(folder_path(f, name), &w, NULL) != 0)
        return false;
    sl_st_writer_add_metadata(w, "format", "pt");
    for (const char *s = tensors; *s != '\0'; n++) {
        char tensor[128];
        size_t len = strcspn(s, ",");
        snprintf(tensor, sizeof tensor, "%.*s", (int)len, s);
        sl_st_writer_add_tensor(w, tensor, SL_DTYPE_F32, 1, (int64_t[]){2});
        s += len + (s[len] == ',');
    }
    bool ok = sl_st_writer_begin_data(w, NULL) == 0;
    for (int k = 0; ok && k < n; k++) {
        float x[2] = {(float)(10 * k), (float)(10 * k + 1)};
        ok = sl_st_writer_write_tensor_data(w, x, sizeof x, NULL) == 0;
    }
    return sl_st_writer_finish(w, NULL) == 0 && ok;
}

/* A GGUF file likewise; split_count 0 leaves the split keys out. */
static inline bool folder_gguf(struct folder *f, const char *name, const char *tensors,
                               uint16_t split_no, uint16_t split_count, int32_t n_total)
{
    struct sl_gguf_writer *w;
    int n = 0;
    if (sl_gguf_writer_create(folder_path(f, name), &w, NULL) != 0)
        return false;
    sl_gguf_writer_add_str(w, "general.architecture", "llama");
    if (split_count != 0) {
        sl_gguf_writer_add_u16(w, "split.no", split_no);
        sl_gguf_writer_add_u16(w, "split.count", split_count);
        sl_gguf_writer_add_i32(w, "split.tensors.count", n_total);
    }
    for (const char *s = tensors; *s != '\0'; n++) {
        char tensor[128];
        size_t len = strcspn(s, ",");
        snprintf(tensor, sizeof tensor, "%.*s", (int)len, s);
        sl_gguf_writer_add_tensor(w, tensor, SL_DTYPE_F32, 2, (int64_t[]){1, 2});
        s += len + (s[len] == ',');
    }
    bool ok = sl_gguf_writer_begin_data(w, NULL) == 0;
    for (int k = 0; ok && k < n; k++) {
        float x[2] = {(float)(10 * k), (float)(10 * k + 1)};
        ok = sl_gguf_writer_write_tensor_data(w, x, sizeof x, NULL) == 0;
    }
    return sl_gguf_writer_finish(w, NULL) == 0 && ok;
}

#endif
