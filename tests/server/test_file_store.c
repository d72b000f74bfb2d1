/* SPDX-License-Identifier: MIT
 * Files and states of batches on disk, without a server: what was kept is there when the folder is
 * opened again, whatever fails in between leaves nothing behind and keeps no room, and a state that
 * was changed in any byte is read as another or refused.
 */
#include "base/check.h"
#include "base/fs.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "server/jobs/batch_file.h"
#include "server/jobs/batch_record.h"
#include "server/jobs/file_store.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOM 1000

static char dir[256];
static struct sl_sys faulty;
static int n_until_fault; /* calls; -1: none */

static bool fails(void)
{
    return n_until_fault >= 0 && n_until_fault-- == 0;
}

static void *faulty_alloc(size_t n)
{
    return fails() ? NULL : sl_sys_real.alloc(n);
}

static void *faulty_realloc(void *p, size_t n)
{
    return fails() ? NULL : sl_sys_real.realloc(p, n);
}

static ssize_t faulty_write(int fd, const void *buf, size_t n)
{
    errno = ENOSPC;
    return fails() ? -1 : sl_sys_real.write(fd, buf, n);
}

static int faulty_open(const char *path, int flags, int mode)
{
    errno = EIO;
    return fails() ? -1 : sl_sys_real.open(path, flags, mode);
}

/* What a power cut leaves is what was synced: a file by its bytes, a name by its folder. One letter
 * for each sync, in order: f a file, D a folder. */
static char synced[64];
static uint64_t n_synced_bytes;

static int recording_sync(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    size_t n = strlen(synced);
    assert_true(n + 1 < sizeof synced);
    synced[n] = S_ISDIR(st.st_mode) ? 'D' : 'f';
    if (S_ISREG(st.st_mode))
        n_synced_bytes += (uint64_t)st.st_size;
    return sl_sys_real.sync(fd);
}

static int faulty_sync(int fd)
{
    errno = EIO;
    return fails() ? -1 : sl_sys_real.sync(fd);
}

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/sluice-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(dir));
    sl_log_set_level(SL_LOG_ERROR);
    n_until_fault = -1;
    return 0;
}

static int end(void **state)
{
    (void)state;
    sl_sys = &sl_sys_real;
    return sl_remove_tree(dir, NULL);
}

static struct sl_file_store *open_store(void)
{
    struct sl_file_store *s;
    struct sl_error err;
    if (sl_file_store_open(dir, ROOM, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

static int count_one(void *arg, const char *path, uint64_t n_bytes, struct sl_error *err)
{
    (void)path;
    (void)n_bytes;
    (void)err;
    ++*(int *)arg;
    return 0;
}

static int n_on_disk(void)
{
    char path[300];
    int n = 0;
    snprintf(path, sizeof path, "%s/files", dir);
    assert_int_equal(sl_list_folder(path, count_one, &n, NULL), 0);
    return n;
}

/* The id of a new file, or false. */
static bool add(struct sl_file_store *s, const char *owner, size_t n_bytes,
                char id[SL_FILE_ID_BYTES + 1])
{
    static const char data[ROOM + 1] = "some data";
    struct sl_refusal r = {0};
    struct sl_buf out = {0};
    int rc = sl_file_store_add(s, owner, "name \"x\"", "batch", (struct sl_str){data, n_bytes},
                               &out, &r);
    bool ok = rc == 0 && sl_buf_ok(&out);
    if (ok)
        snprintf(id, SL_FILE_ID_BYTES + 1, "%s", out.data + strlen("{\"id\":\""));
    sl_buf_deinit(&out);
    assert_true(rc == 0 || r.err.msg[0] != '\0');
    return ok;
}

static bool has(struct sl_file_store *s, const char *owner, const char *id)
{
    struct sl_buf out = {0};
    bool found = sl_file_store_get(s, owner, (struct sl_str){id, strlen(id)}, &out);
    assert_true(found == (out.n_bytes > 0));
    sl_buf_deinit(&out);
    return found;
}

static int delete_file(struct sl_file_store *s, const char *owner, const char *id)
{
    struct sl_refusal r = {0};
    return sl_file_store_delete(s, owner, (struct sl_str){id, strlen(id)}, &r);
}

static void test_a_store(void **state)
{
    (void)state;
    char one[SL_FILE_ID_BYTES + 1], two[sizeof one], none[sizeof one], owner[SL_FILE_OWNER_HEX + 1],
        other[sizeof owner];
    struct sl_refusal r = {0};
    sl_file_store_owner("key", owner);
    sl_file_store_owner("key2", other);
    assert_string_not_equal(owner, other);
    struct sl_file_store *s = open_store();
    assert_true(add(s, owner, 400, one) && add(s, other, 600, two));
    assert_false(add(s, owner, 1, none)); /* full */
    assert_true(has(s, owner, one) && !has(s, other, one) && !has(s, "", one));
    assert_int_equal(delete_file(s, other, one), SL_ENOTFOUND);
    assert_int_equal(sl_file_store_hold(s, owner, one, "batch", false, &r), 0);
    assert_int_equal(sl_file_store_hold(s, owner, one, "vision", false, &r), SL_EINVAL);
    assert_int_equal(delete_file(s, owner, one), SL_EINVAL); /* it is held */
    sl_file_store_close(s);
    s = open_store();
    assert_true(has(s, owner, one) && has(s, other, two));
    assert_false(sl_file_store_charge(s, 1));
    assert_int_equal(delete_file(s, owner, one), 0);
    assert_true(sl_file_store_charge(s, 400) && !sl_file_store_charge(s, 1));
    assert_true(sl_file_store_charge(s, -400));
    assert_int_equal(delete_file(s, other, two), 0);
    assert_int_equal(n_on_disk(), 0);
    sl_file_store_close(s);
}

/* Each call of the system fails once, in each place. */
static void test_faults(void **state)
{
    (void)state;
    char id[SL_FILE_ID_BYTES + 1];
    int n_faults = 0;
    faulty = sl_sys_real;
    faulty.alloc = faulty_alloc;
    faulty.realloc = faulty_realloc;
    faulty.write = faulty_write;
    faulty.open = faulty_open;
    faulty.sync = faulty_sync;
    struct sl_file_store *s = open_store();
    for (bool ok = false; !ok; n_faults++) {
        sl_sys = &faulty;
        n_until_fault = n_faults;
        ok = add(s, "", 500, id);
        bool struck = n_until_fault < 0;
        n_until_fault = -1;
        sl_sys = &sl_sys_real;
        assert_true(ok == !struck || n_faults > 100);
        assert_int_equal(n_on_disk(), ok ? 2 : 0);
        assert_true(sl_file_store_charge(s, ok ? 500 : 1000)); /* no room is kept */
        assert_true(sl_file_store_charge(s, ok ? -500 : -1000));
    }
    assert_true(n_faults > 5);
    assert_true(has(s, "", id));
    sl_file_store_close(s);
    for (int i = 0; i < 40; i++) { /* opening: it says so, or has what there is */
        struct sl_error err = {0};
        sl_sys = &faulty;
        n_until_fault = i;
        int rc = sl_file_store_open(dir, ROOM, &s, &err);
        n_until_fault = -1;
        sl_sys = &sl_sys_real;
        assert_true(rc == 0 || err.msg[0] != '\0');
        if (rc == 0)
            sl_file_store_close(s);
    }
    s = open_store();
    assert_true(has(s, "", id));
    sl_file_store_close(s);
}

/* An upload is acknowledged when content and description are on disk, each under its name. */
static void test_power_cut(void **state)
{
    (void)state;
    char id[SL_FILE_ID_BYTES + 1], path[400];
    uint64_t n_meta;
    faulty = sl_sys_real;
    faulty.sync = recording_sync;
    struct sl_file_store *s = open_store();
    memset(synced, 0, sizeof synced);
    n_synced_bytes = 0;
    sl_sys = &faulty;
    assert_true(add(s, "", 500, id));
    sl_sys = &sl_sys_real;
    sl_file_store_close(s);
    assert_string_equal(synced, "fDfD");
    snprintf(path, sizeof path, "%s/files/%s.json", dir, id);
    assert_true(sl_file_bytes(path, &n_meta) && n_meta > 0);
    assert_int_equal(n_synced_bytes, 500 + n_meta);
}

static void link_files(const char *id, int i)
{
    static const char *const ends[] = {"", ".json"};
    char from[600], to[600];
    for (size_t k = 0; k < SL_COUNT(ends); k++) {
        snprintf(from, sizeof from, "%s/files/%s%s", dir, id, ends[k]);
        snprintf(to, sizeof to, "%s/files/file-%032x%s", dir, (unsigned)i, ends[k]);
        assert_int_equal(link(from, to), 0);
    }
}

/* The number of files is a bound for who brings more, never a reason not to start: those of batches
 * that began have places kept for them. */
static void test_places(void **state)
{
    (void)state;
    char id[SL_FILE_ID_BYTES + 1], other[sizeof id];
    struct sl_refusal r = {0};
    struct sl_file_store *s = open_store();
    assert_true(add(s, "", 0, id));
    sl_file_store_close(s);
    for (int i = 2; i <= SL_MAX_STORED_FILES - 2; i++)
        link_files(id, i);
    s = open_store();
    assert_int_equal(sl_file_store_hold(s, "", id, "batch", false, &r), 0);
    assert_false(add(s, "", 0, other));
    assert_int_equal(sl_file_store_hold(s, "", id, "batch", false, &r), SL_ELIMIT);
    sl_file_store_let_go(s, id);
    assert_true(add(s, "", 0, other));
    assert_int_equal(sl_file_store_hold(s, "", id, "batch", false, &r), SL_ELIMIT);
    assert_int_equal(sl_file_store_hold(s, "", id, "batch", true, &r), 0);
    sl_file_store_close(s);
    for (int i = SL_MAX_STORED_FILES; i < SL_MAX_STORED_FILES + 5; i++)
        link_files(id, i);
    s = open_store();
    assert_true(has(s, "", id) && has(s, "", other) && !add(s, "", 0, other));
    sl_file_store_close(s);
}

/* ---- states of batches */

static const char state_text[] =
    "{\"id\":\"batch_0123456789abcdef0123456789abcdef\",\"object\":\"batch\",\"endpoint\":"
    "\"/v1/completions\",\"input_file_id\":\"file-0123456789abcdef0123456789abcdef\","
    "\"completion_window\":\"24h\",\"status\":\"failed\",\"output_file_id\":null,"
    "\"error_file_id\":\"file-fedcba9876543210fedcba9876543210\",\"errors\":{\"object\":\"list\","
    "\"data\":[{\"code\":\"a\",\"message\":\"b\",\"param\":null,\"line\":7}]},\"created_at\":5,"
    "\"expires_at\":6,\"in_progress_at\":null,\"finalizing_at\":null,\"cancelling_at\":null,"
    "\"completed_at\":null,\"failed_at\":9,\"expired_at\":null,\"cancelled_at\":null,"
    "\"request_counts\":{\"total\":3,\"completed\":1,\"failed\":2},\"metadata\":{\"x\":\"y\"},"
    "\"owner\":\"00\",\"created_ns\":5000000000}";

static void test_states(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    char text[sizeof state_text];
    struct sl_batch_record *r = sl_batch_record_read(state_text, sizeof state_text - 1);
    assert_non_null(r);
    assert_true(sl_batch_has_ended(r));
    sl_batch_record_put(&b, r, true);
    assert_string_equal(b.data, state_text);
    sl_batch_record_free(r);
    for (size_t i = 0; i + 1 < sizeof state_text; i++) {
        static const char into[] = "\"{}[],:0x/.\\\0";
        for (size_t k = 0; k < sizeof into - 1; k++) {
            memcpy(text, state_text, sizeof text);
            text[i] = into[k];
            r = sl_batch_record_read(text, sizeof text - 1);
            if (r == NULL)
                continue;
            assert_null(strpbrk(r->id, "/.")); /* what becomes a path */
            assert_null(strpbrk(r->input_id, "/."));
            assert_null(strpbrk(r->error_id, "/."));
            sl_buf_clear(&b);
            sl_batch_record_put(&b, r, true);
            assert_true(sl_buf_ok(&b));
            sl_batch_record_free(r);
        }
        assert_null(sl_batch_record_read(state_text, i));
    }
    sl_buf_deinit(&b);
    int64_t s;
    assert_true(sl_batch_window("24h", &s) && s == 86400);
    assert_true(sl_batch_window("30d", &s) && s == 30 * 86400 && sl_batch_window("1s", &s));
    static const char *const bad[] = {"",        "h",    "24",   "0h",  "31d",
                                      "-1h",     "1.5h", "24 h", "24H", "99999999999999999999h",
                                      "2592001s"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        assert_false(sl_batch_window(bad[i], &s));
}

/* ---- replies of an earlier run */

static void put_line(struct sl_batch_file *f, size_t i, int status)
{
    struct sl_batch_request req;
    struct sl_error why = {.code = SL_EIO, .msg = "no reply"}, err;
    assert_int_equal(sl_batch_read(f, i, &req, &err), 0);
    assert_int_equal(sl_batch_put(f, i, req.custom_id, status, "{\n}", 3, &why, &err), 0);
    sl_batch_request_deinit(&req);
}

/* Which of them are good is known again, whatever the client called them. */
static void test_parts(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "{\"custom_id\":\"\\\\\\\",\\\"response\\\":{\\\"status_code\\\":200,\",\"method\":"
        "\"POST\","
        "\"url\":\"/v1/completions\",\"body\":{}}\n\n"
        "{\"custom_id\":\"\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "{\"custom_id\":\"\\u2028\\\"\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{}}";
    static const int statuses[] = {200, 404, 0, 200};
    char in[300], part[300], out[300], *text;
    struct sl_batch_file f;
    struct sl_error err;
    size_t n;
    snprintf(in, sizeof in, "%s/in", dir);
    snprintf(part, sizeof part, "%s/part", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    assert_int_equal(sl_write_file(in, lines, sizeof lines - 1, &err), 0);
    assert_int_equal(sl_batch_open(in, part, 3, &f, &err), SL_ELIMIT);
    assert_true(f.cap_lines <= 256); /* what is beyond takes no memory */
    sl_batch_close(&f);
    for (size_t k = 0; k <= 4; k++) {
        assert_int_equal(sl_batch_open(in, part, 4, &f, &err), 0);
        assert_int_equal(f.n_lines, 4);
        assert_int_equal(f.n_done, k);
        assert_int_equal(f.n_good, (k > 0) + (k > 3));
        for (size_t i = 0; i < k; i++)
            assert_int_equal(f.lines[i].good, statuses[i] == 200);
        if (k < 4)
            put_line(&f, k, statuses[k]);
        sl_batch_close(&f);
    }
    assert_int_equal(sl_batch_open(in, part, 4, &f, &err), 0);
    for (enum sl_batch_which which = SL_BATCH_ALL; which <= SL_BATCH_BAD; which++) {
        assert_int_equal(sl_batch_write(&f, which, out, &err), 0);
        assert_int_equal(sl_read_file(out, 10000, &text, &n, &err), 0);
        size_t n_lines = 0;
        for (size_t i = 0; i < n; i++)
            n_lines += text[i] == '\n';
        assert_int_equal(n_lines, which == SL_BATCH_ALL ? 4 : 2);
        assert_true(which == SL_BATCH_BAD ||
                    sl_starts_with(strchr(text, ','), ",\"custom_id\":\"a\""));
        sl_free(text);
    }
    sl_batch_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_store, begin, end),
        cmocka_unit_test_setup_teardown(test_faults, begin, end),
        cmocka_unit_test_setup_teardown(test_power_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_places, begin, end),
        cmocka_unit_test(test_states),
        cmocka_unit_test_setup_teardown(test_parts, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
