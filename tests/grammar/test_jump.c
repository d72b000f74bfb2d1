/* SPDX-License-Identifier: MIT
 * test_jump.c - the tokens that a grammar forces, on a small vocabulary with merges: the
 * tokenizer's own, never into what follows, and special tokens where they stand.
 */
#include "grammar/jump.h"
#include "grammar_rig.h"
#include "text/tokenizer/tokenizer.h"

enum { A, B, C, D, E, AB, ABC, CD, QUOTE, COLON, END, TOOL, EOS, N_IDS };

static const char jump_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    "{\"id\":11,\"content\":\"<tool>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
    "\"normalized\":false,\"special\":true},{\"id\":12,\"content\":\"<eos>\",\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
    "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},\"model\":"
    "{"
    "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,"
    "\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"ab\":5,\"abc\":6,\"cd\":7,\"\\\"\":8,\":\":9,\"\\\":\":10},"
    "\"merges\":[\"a b\",\"ab c\",\"c d\",\"\\\" :\"]}}";

static const struct {
    enum sl_grammar_kind kind;
    const char *text;
    int32_t before[6]; /* tokens, -1 ends them */
    int32_t forced[8];
} cases[] = {
    /* merged as the tokenizer merges, and all of it where the text ends */
    {SL_GRAMMAR_REGEX, "dabcabe", {D, -1}, {ABC, AB, E, -1}},
    /* behind a token that the tokenizer would not have put there: by itself */
    {SL_GRAMMAR_REGEX, "dabcabe", {D, A, -1}, {B, C, AB, E, -1}},
    {SL_GRAMMAR_REGEX, "dabcabe", {D, AB, -1}, {C, AB, E, -1}},
    /* what may become another token with what follows is left out */
    {SL_GRAMMAR_REGEX, "deab(cc|d)", {D, -1}, {E, -1}},
    {SL_GRAMMAR_REGEX, "deab(e|d)", {D, -1}, {E, AB, -1}},
    {SL_GRAMMAR_REGEX, "deec(d|e)", {D, -1}, {E, E, -1}},
    {SL_GRAMMAR_REGEX, "dee\"(:|e)", {D, -1}, {E, E, -1}},
    {SL_GRAMMAR_REGEX, "dee\":(:|e)", {D, -1}, {E, E, END, -1}},
    /* a choice, or an end, where one stands */
    {SL_GRAMMAR_REGEX, "d(a|b)", {D, -1}, {-1}},
    {SL_GRAMMAR_REGEX, "d(ee)?", {D, -1}, {-1}},
    {SL_GRAMMAR_CHOICE, "[\"dab\",\"dae\"]", {D, -1}, {-1}},
    {SL_GRAMMAR_CHOICE, "[\"deab\",\"deae\"]", {D, -1}, {E, -1}},
    {SL_GRAMMAR_STRUCTURAL,
     "{\"type\":\"structural_tag\",\"special_tokens\":{\"<tool>\":11},\"format\":{\"type\":"
     "\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":\"d<tool>ab<tool>\"},{"
     "\"type\":"
     "\"regex\",\"pattern\":\"c|e\"}]}}",
     {D, -1},
     {TOOL, AB, TOOL, -1}},
};

static void forced_tokens(void **state)
{
    struct sl_tokenizer *tok;
    struct sl_vocab *v;
    struct sl_error err;
    const int32_t ends[] = {EOS};
    (void)state;
    if (sl_tokenizer_from_json(jump_json, sizeof jump_json - 1, NULL, 0, &tok, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sl_vocab_with_ends(tok, N_IDS, ends, 1, &v, &err), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_grammar *g = rig_compile(cases[i].kind, cases[i].text, v);
        struct sl_matcher *m;
        uint32_t mask[1], n = 0, n_before = 0, want = 0;
        int32_t out[SL_MAX_JUMP];
        bool ok = true;
        assert_int_equal(sl_matcher_create(g, 32, &m, &err), 0);
        for (; cases[i].before[n_before] >= 0 && ok; n_before++)
            assert_int_equal(sl_matcher_accept(m, cases[i].before[n_before], &ok, &err), 0);
        assert_true(ok);
        assert_int_equal(sl_matcher_mask(m, mask, &err), 0);
        const struct sl_jump j = {tok, v, mask, cases[i].before, n_before};
        assert_int_equal(sl_jump_find(m, &j, out, SL_MAX_JUMP, &n, &err), 0);
        while (cases[i].forced[want] >= 0)
            want++;
        if (n != want || memcmp(out, cases[i].forced, n * sizeof out[0]) != 0)
            fail_msg("case %zu, %s: %u tokens, the first %d", i, cases[i].text, n, out[0]);
        assert_int_equal(sl_matcher_n_tokens(m), n_before); /* the matcher has not moved */
        for (uint32_t k = 0; k < n && ok; k++)
            assert_int_equal(sl_matcher_accept(m, out[k], &ok, &err), 0);
        assert_true(ok);
        sl_matcher_rollback(m, n);
        uint32_t some = n;
        assert_int_equal(sl_jump_find(m, &j, out, 1, &n, &err), 0); /* no more than there is room */
        assert_int_equal(n, some > 0);
        sl_matcher_destroy(m);
        sl_grammar_destroy(g);
    }
    sl_vocab_destroy(v);
    sl_tokenizer_destroy(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forced_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
