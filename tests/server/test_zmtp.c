/* SPDX-License-Identifier: MIT
 * ZMTP as RFC 23 writes it, byte by byte, and the two encodings of KV events as golden bytes.
 */
#include "base/check.h"
#include "server/events/kv_batch.h"
#include "server/events/kv_publisher.h"
#include "server/events/zmtp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A peer's greeting, version 3.1, NULL, and its READY with two properties. */
static const uint8_t greeting[SL_ZMTP_GREETING] = {0xFF, 0,    0, 0, 0,   0,   0,   0,
                                                   1,    0x7F, 3, 1, 'N', 'U', 'L', 'L'};
static const char ready[] = "\x04\x26\5READY\x0bSocket-Type\0\0\0\3SUB\x08Identity\0\0\0\0";

static enum sl_zmtp_state feed(struct sl_zmtp *z, const void *data, size_t n)
{
    const uint8_t *at = data;
    while (n > 0 && z->state != SL_ZMTP_BAD) {
        size_t took = sl_zmtp_feed(z, at, 1); /* byte by byte */
        assert_true(took == 1 || z->state == SL_ZMTP_BAD);
        at++;
        n--;
    }
    return z->state;
}

static void test_handshake(void **state)
{
    (void)state;
    struct sl_zmtp z = {0};
    struct sl_str name, rest, value;
    assert_int_equal(sizeof ready - 1, 2 + 0x26);
    assert_int_equal(feed(&z, greeting, sizeof greeting), SL_ZMTP_GREETED);
    assert_int_equal(feed(&z, ready, sizeof ready - 1), SL_ZMTP_FRAME);
    assert_true(sl_zmtp_command(&z, &name, &rest) && sl_str_equals(name, "READY"));
    assert_true(sl_zmtp_property(rest, "socket-type", &value) && sl_str_equals(value, "SUB"));
    assert_true(sl_zmtp_property(rest, "identity", &value) && value.n == 0);
    assert_false(sl_zmtp_property(rest, "other", &value));
    rest.n--; /* cut off */
    assert_false(sl_zmtp_property(rest, "socket-type", &value));
}

static void test_bad_peers(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t byte;
    } edits[] = {{0, 'G'}, {9, 0}, {10, 2}, {12, 'P'}, {16, 'X'}};
    for (size_t i = 0; i < SL_COUNT(edits); i++) {
        struct sl_zmtp z = {0};
        uint8_t bad[SL_ZMTP_GREETING];
        memcpy(bad, greeting, sizeof bad);
        bad[edits[i].at] = edits[i].byte;
        assert_int_equal(feed(&z, bad, sizeof bad), SL_ZMTP_BAD);
        assert_int_equal(sl_zmtp_feed(&z, greeting, sizeof greeting), 0);
    }
    static const char *const frames[] = {"\x08\x01x", "\x05\x01x", "\x02\0\0\0\0\0\0\x04\x01",
                                         "\x02\xff\xff\xff\xff\xff\xff\xff\xff"};
    static const size_t n_frames[] = {3, 3, 9, 9};
    for (size_t i = 0; i < SL_COUNT(frames); i++) {
        struct sl_zmtp z = {0};
        (void)feed(&z, greeting, sizeof greeting);
        assert_int_equal(feed(&z, frames[i], n_frames[i]), SL_ZMTP_BAD);
    }
}

static int subscription(const char *frame, size_t n, const char *topic)
{
    struct sl_zmtp z = {0};
    (void)feed(&z, greeting, sizeof greeting);
    assert_int_equal(feed(&z, frame, n), SL_ZMTP_FRAME);
    return sl_zmtp_subscription(&z, (struct sl_str){topic, strlen(topic)});
}

static void test_subscriptions(void **state)
{
    (void)state;
    assert_int_equal(subscription("\0\1\1", 3, "kv"), 1); /* everything */
    assert_int_equal(subscription("\0\3\1kv", 5, "kv@a"), 1);
    assert_int_equal(subscription("\0\3\0kv", 5, "kv@a"), -1);
    assert_int_equal(subscription("\0\3\1kx", 5, "kv@a"), 0);
    assert_int_equal(subscription("\0\5\1kv@a", 7, "kv"), 0); /* longer than the topic */
    assert_int_equal(subscription("\0\3\2kv", 5, "kv"), 0);
    assert_int_equal(subscription("\0\0", 2, ""), 0);
    assert_int_equal(subscription("\4\x0c\x09SUBSCRIBEkv", 14, "kv"), 1); /* 3.1 */
    assert_int_equal(subscription("\4\x09\6CANCELkv", 11, "kv"), -1);
    assert_int_equal(subscription("\4\x07\4PINGab", 9, "kv"), 0);
}

/* What is sent is read back by the reader. */
static void test_sent(void **state)
{
    (void)state;
    struct sl_buf b = {0};
    struct sl_zmtp z = {0};
    struct sl_str name, rest, value;
    char data[300];
    memset(data, 'x', sizeof data);
    sl_zmtp_put_greeting(&b);
    assert_int_equal(b.n_bytes, SL_ZMTP_GREETING);
    assert_int_equal(feed(&z, b.data, b.n_bytes), SL_ZMTP_GREETED);
    sl_buf_clear(&b);
    sl_zmtp_put_ready(&b, "ROUTER");
    assert_int_equal(feed(&z, b.data, b.n_bytes), SL_ZMTP_FRAME);
    assert_true(sl_zmtp_command(&z, &name, &rest) && sl_str_equals(name, "READY"));
    assert_true(sl_zmtp_property(rest, "socket-type", &value) && sl_str_equals(value, "ROUTER"));
    for (size_t n = 0; n < sizeof data; n += 255) { /* short, and eight bytes of length */
        sl_buf_clear(&b);
        sl_zmtp_put_frame(&b, data, n, n == 0);
        assert_int_equal(feed(&z, b.data, b.n_bytes), SL_ZMTP_FRAME);
        assert_int_equal(z.length, n);
        assert_int_equal(z.flags & SL_ZMTP_MORE, n == 0);
    }
    sl_buf_clear(&b);
    sl_zmtp_put_frame(&b, data, 256, false);
    assert_memory_equal(b.data, "\2\0\0\0\0\0\0\1\0xx", 11);
    sl_buf_clear(&b);
    sl_zmtp_put_pong(&b, (struct sl_str){"ctx", 3});
    assert_memory_equal(b.data, "\4\x08\4PONGctx", 10);
    sl_buf_deinit(&b);
}

static const int32_t tokens[] = {1, 127, 128, 255, 256, 65535, 65536, 7};

/* Groups: full attention, a window of 300, states. */
static const struct sl_model_info info = {
    .block_size = 4,
    .n_kv_groups = 4,
    .kv_groups = {{0}, {.window = 300}, {.state = true}, {.window = 64, .chunks = true}}};

static void expect(const struct sl_kv_event *e, int32_t n, bool arrays, int32_t n_events,
                   const char *bytes, size_t n_bytes)
{
    struct sl_model_info of_rank = info;
    struct sl_buf b = {0};
    assert_int_equal(sl_kv_batch_put(&b, e, n, &info, 1.5, arrays), n_events);
    assert_int_equal(b.n_bytes, n_bytes);
    assert_memory_equal(b.data, bytes, n_bytes);
    sl_buf_clear(&b);
    of_rank.data_parallel_rank = 3; /* the last of the three */
    assert_int_equal(sl_kv_batch_put(&b, e, n, &of_rank, 1.5, arrays), n_events);
    assert_memory_equal(b.data, bytes, n_bytes - 1);
    assert_int_equal(b.data[n_bytes - 1], 3);
    sl_buf_deinit(&b);
}

#define HEAD "\x93\xcb\x3f\xf8\0\0\0\0\0\0" /* [1.5, */
#define H(x) "\xcf\0\0\0\0\0\0\0" x

static void test_golden_batches(void **state)
{
    (void)state;
    const struct sl_kv_event removed[] = {{.kind = SL_KV_CLEARED},
                                          {.kind = SL_KV_REMOVED, .hash = 5},
                                          {.kind = SL_KV_REMOVED, .hash = 6}};
    static const char removed_array[] = HEAD "\x92\x91\xb0"
                                             "AllBlocksCleared\x94\xac"
                                             "BlockRemoved\x92" H("\5") H("\6") "\xa3GPU\0\0";
    static const char removed_map[] =
        HEAD "\x92\x81\xa4type\xb0"
             "AllBlocksCleared\x84\xa4type\xac"
             "BlockRemoved\xac"
             "block_hashes\x92" H("\5") H("\6") "\xa6medium\xa3GPU\xa9group_idx\0\0";
    expect(removed, 3, true, 2, removed_array, sizeof removed_array - 1);
    expect(removed, 3, false, 2, removed_map, sizeof removed_map - 1);
    /* Two pages in a row are one event; the third one begins another prompt. */
    const struct sl_kv_event stored[] = {
        {.kind = SL_KV_STORED, .hash = 1, .tokens = tokens, .salt = "s", .adapter = "ad"},
        {.kind = SL_KV_STORED, .hash = 2, .parent = 1, .tokens = tokens + 4, .adapter = "ad"},
        {.kind = SL_KV_STORED, .hash = 3, .parent = 9, .tokens = tokens},
        {.kind = SL_KV_STORED, .hash = 4, .tokens = tokens, .adapter = ""}};
    static const char stored_array[] =
        HEAD "\x92\x9c\xab"
             "BlockStored\x92" H("\1")
                 H("\2") "\xc0\x98\1\x7f\xcc\x80\xcc\xff\xcd\1\0\xcd\xff\xff\xce\0\1\0\0\7"
                         "\4\xc0\xa3GPU\xa2"
                         "ad\x92\x92\xa2"
                         "ad\xa1s\x91\xa2"
                         "ad\0\xae"
                         "full_attention\xc0"
                         "\x9c\xab"
                         "BlockStored\x91" H("\3")
                             H("\x09") "\x94\1\x7f\xcc\x80\xcc\xff\4\xc0\xa3GPU\xc0\x91\xc0\0\xae"
                                       "full_attention\xc0\0";
    expect(stored, 4, true, 2, stored_array, sizeof stored_array - 1);
    /* A later page of a salted prompt: the salt is no key of its block, but it is named. */
    const struct sl_kv_event salted = {
        .kind = SL_KV_STORED, .hash = 2, .parent = 1, .tokens = tokens, .salt = "s"};
    static const char salted_map[] =
        HEAD "\x91\x8d\xa4type\xab"
             "BlockStored\xac"
             "block_hashes\x91" H("\2") "\xb1parent_block_hash" H(
                 "\1") "\xa9token_ids\x94\1\x7f"
                       "\xcc\x80\xcc\xff\xaa"
                       "block_size\4\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\xaa"
                       "extra_keys\x91\xc0\xa9group_idx\0\xb2kv_cache_spec_kind\xae"
                       "full_attention\xbckv_cache_spec_sliding_window\xc0\xaa"
                       "cache_salt\xa1s\0";
    expect(&salted, 1, false, 1, salted_map, sizeof salted_map - 1);
    assert_int_equal(sl_kv_batch_put(&(struct sl_buf){0}, stored + 3, 1, &info, 1, false), 0);
    /* Of tiers, without tokens: one event for a medium and a group. */
    const struct sl_kv_event tiers[] = {{.kind = SL_KV_REMOVED, .hash = 5, .medium = SL_KV_IN_HOST},
                                        {.kind = SL_KV_REMOVED, .hash = 5},
                                        {.kind = SL_KV_STORED, .hash = 1, .medium = SL_KV_IN_HOST},
                                        {.kind = SL_KV_STORED, .hash = 3, .medium = SL_KV_IN_HOST},
                                        {.kind = SL_KV_STORED, .hash = 3, .medium = SL_KV_ON_DISK}};
    static const char tiers_array[] =
        HEAD "\x94\x94\xac"
             "BlockRemoved\x91" H("\5") "\xa3"
                                        "CPU\0\x94\xac"
                                        "BlockRemoved\x91" H(
                                            "\5") "\xa3"
                                                  "GPU\0\x9c\xab"
                                                  "BlockStored\x92" H("\1")
                                                      H("\3") "\xc0\x90\4\xc0"
                                                              "\xa3"
                                                              "CPU\xc0\xc0\0\xae"
                                                              "full_attention"
                                                              "\xc0\x9c\xab"
                                                              "BlockStored\x91" H("\3") "\xc0\x90"
                                                                                        "\4\xc0\xa4"
                                                                                        "DISK\xc0"
                                                                                        "\xc0\0\xae"
                                                                                        "full_"
                                                                                        "attention"
                                                                                        "\xc0\0";
    expect(tiers, 5, true, 4, tiers_array, sizeof tiers_array - 1);
}

/* Pages of several groups of layers: an event for each, with vLLM's words for what they are. */
static void test_batches_of_groups(void **state)
{
    (void)state;
    const struct sl_kv_event removed[] = {{.kind = SL_KV_REMOVED, .hash = 5, .group = 1},
                                          {.kind = SL_KV_REMOVED, .hash = 5, .group = 2},
                                          {.kind = SL_KV_REMOVED, .hash = 6, .group = 2}};
    static const char removed_array[] =
        HEAD "\x92\x94\xac"
             "BlockRemoved\x91" H("\5") "\xa3GPU\1\x94\xac"
                                        "BlockRemoved\x92" H("\5") H("\6") "\xa3GPU\2\0";
    expect(removed, 3, true, 2, removed_array, sizeof removed_array - 1);
    const struct sl_kv_event stored[] = {
        {.kind = SL_KV_STORED, .hash = 1, .tokens = tokens, .group = 1},
        {.kind = SL_KV_STORED, .hash = 2, .parent = 1, .tokens = tokens, .group = 2}};
    static const char stored_array[] =
        HEAD "\x92\x9c\xab"
             "BlockStored\x91" H(
                 "\1") "\xc0\x94\1\x7f\xcc\x80\xcc\xff\4\xc0\xa3GPU\xc0\x91\xc0\1\xae"
                       "sliding_window\xcd\x01\x2c"
                       "\x9c\xab"
                       "BlockStored\x91" H("\2")
                           H("\1") "\x94\1\x7f\xcc\x80\xcc\xff\4\xc0\xa3GPU\xc0\x91\xc0\2\xa5"
                                   "mamba\xc0\0";
    expect(stored, 2, true, 2, stored_array, sizeof stored_array - 1);
    const struct sl_kv_event chunked = {
        .kind = SL_KV_STORED, .hash = 1, .tokens = tokens, .group = 3};
    static const char chunked_array[] = HEAD
        "\x91\x9c\xab"
        "BlockStored\x91" H("\1") "\xc0\x94\1\x7f\xcc\x80\xcc\xff\4\xc0\xa3GPU\xc0\x91\xc0\3\xb7"
                                  "chunked_local_attention\xc0\0";
    expect(&chunked, 1, true, 1, chunked_array, sizeof chunked_array - 1);
}

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "--kv-events-config"},
        {"[]", "object"},
        {"{\"topics\": \"x\"}", "unknown member 'topics'"},
        {"{\"publisher\": \"nats\"}", "'nats' is neither null nor zmq"},
        {"{\"buffer_steps\": 0}", "buffer_steps"},
        {"{\"hwm\": \"1\"}", "hwm"},
        {"{\"format\": \"json\"}", "neither map nor array"},
        {"{\"enable_kv_cache_events\": 1}", "enable_kv_cache_events"},
    };
    struct sl_kv_events_config c;
    struct sl_error err;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        assert_int_not_equal(sl_kv_events_config_read(bad[i].text, &c, &err), 0);
        assert_non_null(strstr(err.msg, bad[i].message));
    }
    assert_int_equal(sl_kv_events_config_read("{}", &c, &err), 0);
    assert_false(c.enabled);
    assert_string_equal(c.endpoint, "tcp://*:5557");
    assert_true(c.buffer_steps == 10000 && c.hwm == 100000 && c.renumber && !c.arrays);
    static const char text[] =
        "{\"publisher\": \"zmq\", \"endpoint\": \"tcp://h:1\", \"replay_endpoint\": null,"
        "\"enable_kv_cache_events\": true, \"topic\": \"kv@a@b\", \"max_queue_size\": 5,"
        "\"format\": \"array\", \"renumber\": false, \"hwm\": 0}";
    assert_int_equal(sl_kv_events_config_read(text, &c, &err), 0);
    assert_true(c.enabled && c.arrays && !c.renumber && c.hwm == 0);
    assert_string_equal(c.topic, "kv@a@b");
    static const char off[] = "{\"publisher\": \"null\", \"enable_kv_cache_events\": true}";
    assert_int_equal(sl_kv_events_config_read(off, &c, &err), 0);
    assert_false(c.enabled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake),      cmocka_unit_test(test_bad_peers),
        cmocka_unit_test(test_subscriptions),  cmocka_unit_test(test_sent),
        cmocka_unit_test(test_golden_batches), cmocka_unit_test(test_batches_of_groups),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
