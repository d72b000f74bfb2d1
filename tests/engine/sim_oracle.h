/* SPDX-License-Identifier: MIT
 * sim_oracle.h - what a request is like and what it must give: tokens, ends, text. It knows the
 * keyed hash of the device and the sampler, nothing of pages, batches or order.
 */
#ifndef SL_TESTS_SIM_ORACLE_H
#define SL_TESTS_SIM_ORACLE_H

#include "engine/sim_device.h"

/* 48 ids: letters, whole words and halves of characters, so that text is cut in awkward places. */
static const char sim_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
    "\"added_tokens\":[{\"id\":1,\"content\":\"<eos>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"<eos>\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,"
    "\"\u00c3\":6,\"\u00a9\":7,\"\u0120\":8,\"\u010a\":9,\"ab\":10,\"bc\":11,\"abc\":12,"
    "\"\u00c3\u00a9\":13,\"f\":14,\"g\":15,\"h\":16,\"i\":17,\"j\":18,\"k\":19,\"l\":20,\"m\":21,"
    "\"n\":22,\"o\":23,\"p\":24,\"q\":25,\"r\":26,\"s\":27,\"t\":28,\"u\":29,\"v\":30,\"w\":31,"
    "\"x\":32,\"y\":33,\"z\":34,\"0\":35,\"1\":36,\"2\":37,\"3\":38,\"4\":39,\"5\":40,\"6\":41,"
    "\"7\":42,\"8\":43,\"9\":44,\"\\\"\":45,\"\\\\\":46,\"!\":47},\"merges\":[]}}";

static const char *const sim_stops[] = {"a", "bc", "abcab", "\xc3\xa9", "cc", "ba", "dd"};
static const char *const sim_salts[] = {NULL, "red", "blue"};

/* What a constrained text must be: one with a choice everywhere, one that forces whole pieces. */
#define SIM_FREE    "[abc]{3,12}"
#define SIM_FORCING "[bc]{1,3}acbcab(a|cc)[bc]{1,2}abcaab"
enum { FREE_MIN = 3, FREE_MAX = 12, FORCING_END = 19 };

/* SIM_FORCING, character by character: where a, b and c lead to; 0: they may not come. */
static const int32_t forcing_steps[FORCING_END + 1][3] = {
    {0, 1, 1},  {4, 2, 2},  {4, 3, 3},   {4, 0, 0},  {0, 0, 5},   {0, 6, 0},    {0, 0, 7},
    {8, 0, 0},  {0, 9, 0},  {11, 0, 10}, {0, 0, 11}, {0, 12, 12}, {14, 13, 13}, {14, 0, 0},
    {0, 15, 0}, {0, 0, 16}, {17, 0, 0},  {18, 0, 0}, {0, 19, 0},  {0, 0, 0}};

static const char *sim_piece(const struct world *w, int32_t id)
{
    static const char *const pieces[] = {"a", "", "b", "c", "",   "",   "",
                                         "",  "", "",  "",  "ab", "bc", "abc"};
    static const int32_t first_long = 10;
    if (id >= w->cfg.n_vocab || id > first_long + 2)
        return "";
    return id < first_long ? pieces[id] : pieces[id + 1];
}

/* Where the text leads from there; -1: it may not come. */
static int32_t sim_step(const struct oracle *o, int32_t at, const char *text)
{
    for (; *text != '\0' && at >= 0; text++) {
        int32_t to = o->forcing ? forcing_steps[at][*text - 'a'] : at + (at < FREE_MAX);
        at = to == 0 || to == at ? -1 : to;
    }
    return at;
}

static bool sim_is_full(const struct oracle *o, int32_t at)
{
    return at == (o->forcing ? FORCING_END : FREE_MAX);
}

/* ------------------------------------------------------------------ requests */

static void make_prompt(const struct world *w, struct sl_rng *r, struct oracle *o)
{
    int32_t max = w->cfg.max_len - 2, n = 0, len = between(r, 1, max);
    if (chance(r, 60))
        len = SL_MIN(len, between(r, 1, 40)); /* mostly short */
    if (chance(r, 30))                        /* ends with a page */
        len = SL_MAX(len / w->cfg.block_size, 1) * w->cfg.block_size;
    len = SL_MIN(len, max);
    if (w->n_last > 0 && w->n_last < max && chance(r, 25)) {
        n = w->n_last;
        memcpy(o->prompt, w->last, (size_t)n * sizeof(int32_t));
        len = between(r, n, max);
        len = SL_MIN(len, n + 12);
    } else if (chance(r, 70)) {
        n = between(r, 1, len);
        memcpy(o->prompt, w->bases[below(r, N_BASES)], (size_t)n * sizeof(int32_t));
    }
    for (; n < len; n++)
        o->prompt[n] = below(r, w->cfg.n_vocab);
    o->desc.prompt = o->prompt;
    o->desc.n_prompt = len;
}

static void make_choice(const struct world *w, struct sl_rng *r, struct oracle *o)
{
    struct sl_sampling *p = &o->desc.sampling;
    p->temperature = w->cfg.sampling && chance(r, 50) ? 0.75f : 0.0f;
    if (p->temperature > 0 && chance(r, 50))
        p->top_p = 0.75f;
    if (p->temperature > 0 && chance(r, 20))
        p->top_k = between(r, 1, 10);
    if (w->cfg.penalties && chance(r, 50)) {
        p->repetition_penalty = 1.25f;
        p->presence_penalty = 0.5f;
        p->frequency_penalty = 0.25f;
    }
    if (chance(r, 10)) {
        o->bias[0] = (struct sl_logit_bias){below(r, w->cfg.n_vocab), 4.0f};
        p->logit_bias = o->bias;
        p->n_logit_bias = 1;
    }
    p->has_seed = true;
    p->seed = sl_rng_next(r) >> 2; /* a JSON integer */
}

static void make_limits(const struct world *w, struct sl_rng *r, struct oracle *o, bool http)
{
    struct sl_sampling *p = &o->desc.sampling;
    int32_t room = w->cfg.max_len - o->desc.n_prompt;
    p->n = chance(r, 25) ? between(r, 1, w->cfg.max_n) : 1;
    p->max_tokens = !http && chance(r, 10) ? 0 : between(r, 1, chance(r, 20) ? 60 : 16);
    p->min_tokens = p->max_tokens > 0 && chance(r, 30) ? below(r, p->max_tokens + 1) : 0;
    p->min_tokens = SL_MIN(p->min_tokens, room);
    p->ignore_eos = chance(r, 40);
    p->n_stop_token_ids = chance(r, 30) ? between(r, 1, CLIENT_STOPS) : 0;
    for (int32_t i = 0; i < CLIENT_STOPS; i++)
        o->stop_ids[i] = below(r, w->cfg.n_vocab);
    p->stop_token_ids = o->stop_ids;
    p->n_stop = w->cfg.stops && chance(r, 50) ? between(r, 1, MAX_SIM_STOP) : 0;
    for (int32_t i = 0; i < MAX_SIM_STOP; i++)
        o->stops[i] = sim_stops[below(r, SL_COUNT(sim_stops))];
    p->stop = o->stops;
    o->max_out = p->max_tokens > 0 ? SL_MIN(p->max_tokens, room) : room;
}

/* From numbers of their own, as those of masks. */
static void make_token_rules(const struct world *w, struct oracle *o)
{
    struct sl_sampling *p = &o->desc.sampling;
    struct sl_rng r = {.seed = p->seed ^ 0x72756c6573u};
    if (!w->cfg.token_rules)
        return;
    p->bad_words = o->bad;
    p->n_bad_words = chance(&r, 50) ? between(&r, 1, MAX_SIM_BAD) : 0;
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        o->bad[i] = (struct sl_bad_word){o->bad_ids[i], between(&r, 1, MAX_SIM_BAD)};
        for (int32_t k = 0; k < o->bad[i].n_ids; k++) /* of few ids, so that it comes up */
            o->bad_ids[i][k] = below(&r, SL_MIN(w->cfg.n_vocab, k == 0 ? 48 : 6));
    }
    if (o->constrained || !chance(&r, 40))
        return;
    p->allowed_token_ids = o->allowed_ids;
    p->n_allowed_token_ids = between(&r, 1, SL_MIN(w->cfg.n_vocab, chance(&r, 50) ? 5 : 48));
    for (int32_t i = 0; i < p->n_allowed_token_ids; i++)
        o->allowed_ids[i] = below(&r, w->cfg.n_vocab);
}

static void oracle_make(const struct world *w, struct sl_rng *r, struct oracle *o, bool http)
{
    memset(o, 0, sizeof *o);
    make_prompt(w, r, o);
    sl_sampling_default(&o->desc.sampling);
    make_choice(w, r, o);
    make_limits(w, r, o, http);
    o->desc.sampling.logprobs = chance(r, 15) ? below(r, 4) : -1;
    o->desc.sampling.prompt_logprobs = !http && chance(r, 8) ? below(r, 3) : -1;
    o->desc.priority = below(r, w->cfg.n_priorities);
    /* Stop ids could leave nothing that may come. */
    o->constrained = o->desc.sampling.n_stop_token_ids == 0 &&
                     o->desc.sampling.seed % (uint64_t)w->cfg.constrain_every == 0;
    o->forcing = o->desc.sampling.seed / (uint64_t)w->cfg.constrain_every % 2 == 0;
    if (!http) /* where bad words are text */
        make_token_rules(w, o);
    o->salt = w->cfg.salts ? below(r, 3) : 0;
    o->desc.cache_salt = sim_salts[o->salt];
    uint64_t h = w->hash_key;
    for (int32_t i = 0; i < o->desc.n_prompt; i++)
        h = hash_token(h, o->prompt[i], i);
    for (int32_t i = 0; i < o->desc.sampling.n; i++) {
        uint64_t seed = o->desc.sampling.seed;
        o->seqs[i].hash = h;
        o->seqs[i].seed = i == 0 ? seed : sl_rng_at(~seed, (uint64_t)i);
    }
}

/* ------------------------------------------------------------------ tokens */

/* The tokens of a sequence so far, counted anew: NULL without penalties. */
static const struct sl_counts *count_all(const struct oracle *o, const struct oracle_seq *s)
{
    static struct sl_count entries[2 * MAX_LEN];
    static int32_t slots[4 * MAX_LEN];
    static struct sl_counts counts;
    if (!sl_sampling_has_penalty(&o->desc.sampling))
        return NULL;
    sl_counts_init(&counts, entries, slots, sl_counts_slots(MAX_LEN, MAX_VOCAB));
    for (int32_t i = 0; i < o->desc.n_prompt; i++)
        sl_counts_add(&counts, o->prompt[i], 0);
    for (int32_t i = 0; i < s->n; i++)
        sl_counts_add(&counts, s->tokens[i], 1);
    return &counts;
}

/* Where its text is after n_tokens tokens. */
static int32_t text_at(const struct world *w, const struct oracle *o, const struct oracle_seq *s,
                       int32_t n_tokens)
{
    int32_t at = 0;
    for (int32_t i = 0; i < n_tokens && at >= 0; i++)
        at = s->tokens[i] == EOS_ID ? at : sim_step(o, at, sim_piece(w, s->tokens[i]));
    return at;
}

/* The tokens that may come next. */
static const uint32_t *oracle_mask(const struct world *w, const struct oracle *o,
                                   const struct oracle_seq *s)
{
    static uint32_t mask[(MAX_VOCAB + 31) / 32];
    const struct sl_sampling *p = &o->desc.sampling;
    memset(mask, 0, sizeof mask);
    for (int32_t i = 0; i < p->n_allowed_token_ids; i++)
        mask[p->allowed_token_ids[i] / 32] |= 1u << (p->allowed_token_ids[i] & 31);
    if (!o->constrained)
        return p->n_allowed_token_ids > 0 ? mask : NULL;
    int32_t at = text_at(w, o, s, s->n);
    for (int32_t id = 0; id < w->cfg.n_vocab; id++) {
        const char *piece = sim_piece(w, id);
        bool fits = *piece != '\0' && sim_step(o, at, piece) >= 0;
        bool may_end = !o->forcing && at >= FREE_MIN && !o->desc.sampling.ignore_eos;
        if (fits || (id == EOS_ID && may_end))
            mask[id / 32] |= 1u << (id & 31);
    }
    return mask;
}

static bool text_is_full(const struct world *w, const struct oracle *o, const struct oracle_seq *s,
                         int32_t n_tokens)
{
    return o->constrained && sim_is_full(o, text_at(w, o, s, n_tokens));
}

/* ------------------------------------------------------------------ forced tokens */

/* May some longer token come that begins with `rest`, behind which the text is at `end`? */
static bool may_go_on(const struct world *w, const struct oracle *o, const char *rest, int32_t end)
{
    size_t n = strlen(rest);
    for (int32_t id = 0; id < w->cfg.n_vocab; id++) {
        const char *piece = sim_piece(w, id);
        if (strlen(piece) > n && strncmp(piece, rest, n) == 0 && sim_step(o, end, piece + n) >= 0)
            return true;
    }
    return false;
}

/* What is forced from there on, up to where it may be part of a longer token: the tokenizer makes
 * each character a token, as it has no merges. */
static int32_t forced_text(const struct world *w, const struct oracle *o, int32_t at,
                           char text[MAX_LEN])
{
    int32_t n = 0;
    for (int32_t n_ways = 1; n_ways == 1 && o->forcing && !sim_is_full(o, at);) {
        char c = 0;
        n_ways = 0;
        for (char k = 'a'; k <= 'c'; k++) {
            bool may = sim_step(o, at, (char[]){k, '\0'}) >= 0;
            n_ways += may;
            c = may ? k : c;
        }
        if (n_ways != 1)
            break;
        text[n++] = c;
        at = sim_step(o, at, (char[]){c, '\0'});
    }
    text[n] = '\0';
    for (int32_t i = 0; i < n; i++)
        if (may_go_on(w, o, text + i, at))
            return i;
    return n;
}

/* The token that is forced behind those there are, -1: none. Forced is what follows a token that
 * was chosen, unless the client has a say on tokens. */
static int32_t forced_token(const struct world *w, const struct oracle *o,
                            const struct oracle_seq *s)
{
    static const int32_t id_of[] = {0, 2, 3};
    bool own_rules = o->desc.sampling.n_logit_bias > 0 || o->desc.sampling.n_bad_words > 0;
    char text[MAX_LEN];
    int32_t n = 0, end = 0; /* of the last run of forced tokens */
    for (int32_t i = 0; i < s->n && o->constrained && !own_rules; i++) {
        if (i < end)
            continue;
        n = forced_text(w, o, text_at(w, o, s, i + 1), text);
        end = i + 1 + n;
    }
    return s->n < end ? id_of[text[n - (end - s->n)] - 'a'] : -1;
}

/* What may not come: stop ids, if the text may not end, and whatever would complete a bad word. */
static int32_t ruled_out(const struct oracle *o, const struct oracle_seq *s, bool stops,
                         int32_t out[CLIENT_STOPS + MAX_SIM_BAD])
{
    const struct sl_sampling *p = &o->desc.sampling;
    int32_t n = stops ? p->n_stop_token_ids : 0;
    memcpy(out, o->stop_ids, (size_t)n * sizeof *out);
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        const struct sl_bad_word *word = &p->bad_words[i];
        int32_t k = 0, before = word->n_ids - 1;
        while (k < before && s->n >= before && s->tokens[s->n - before + k] == word->ids[k])
            k++;
        if (k == before)
            out[n++] = word->ids[before];
    }
    return n;
}

static uint64_t oracle_chain(const struct oracle *o, const struct oracle_seq *s, uint64_t h,
                             int32_t from, int32_t to)
{
    for (int32_t p = from; p <= to; p++)
        h = hash_token(h, p < o->desc.n_prompt ? o->prompt[p] : s->tokens[p - o->desc.n_prompt], p);
    return h;
}

/* What the row at pos is made from: all tokens up to there (hash), those in a window, a state. */
static uint64_t oracle_hash(const struct world *w, const struct oracle *o,
                            const struct oracle_seq *s, uint64_t hash, int32_t pos)
{
    uint64_t h = w->hash_key;
    if (w->cfg.window > 0) {
        h = oracle_chain(o, s, h, seen_from(w->cfg.window, pos), pos);
        hash = w->cfg.no_full ? h : join_hash(hash, h);
    }
    if (w->cfg.state_pages == 0)
        return hash;
    h = oracle_chain(o, s, no_state(w), 0, pos);
    return w->cfg.no_full && w->cfg.window == 0 ? h : join_hash(hash, h);
}

/* The token that must come next, -1: the row holds no number, or nothing may come. */
static int32_t oracle_token(struct world *w, const struct oracle *o, const struct oracle_seq *s,
                            float *row)
{
    const struct sl_sampling *p = &o->desc.sampling;
    uint32_t only[(MAX_VOCAB + 31) / 32] = {0};
    int32_t eos = EOS_ID, forced = forced_token(w, o, s);
    if (forced >= 0 && p->logprobs < 0) /* nobody looks at its row */
        return forced;
    if (forced >= 0)
        only[forced / 32] = 1u << (forced & 31);
    make_row(w, oracle_hash(w, o, s, s->hash, o->desc.n_prompt + s->n - 1), row);
    bool ban = s->n < p->min_tokens;
    int32_t out[CLIENT_STOPS + MAX_SIM_BAD], n_out = ruled_out(o, s, ban, out);
    struct sl_sample_args args = {.logits = row,
                                  .sampling = p,
                                  .seed = s->seed,
                                  .pos = (uint64_t)(o->desc.n_prompt + s->n),
                                  .counts = count_all(o, s),
                                  .allowed = forced >= 0 ? only : oracle_mask(w, o, s),
                                  .banned = {out, &eos},
                                  .n_banned = {n_out, ban && !p->ignore_eos ? 1 : 0}};
    return sl_sample(&w->sampler, &args);
}

/* ------------------------------------------------------------------ ends and text */

static bool is_stop_id(const struct oracle *o, int32_t id)
{
    const struct sl_sampling *p = &o->desc.sampling;
    bool stop = id == EOS_ID && !p->ignore_eos;
    for (int32_t i = 0; i < p->n_stop_token_ids; i++)
        stop = stop || id == p->stop_token_ids[i];
    return stop;
}

/* Where the first stop string begins that ends in text[from, n): the one that ends first, of those
 * the one that began first. n: none. */
static size_t find_stop(const struct oracle *o, const char *text, size_t from, size_t n)
{
    for (size_t end = from + 1; end <= n; end++) {
        size_t begin = n;
        for (int32_t i = 0; i < o->desc.sampling.n_stop; i++) {
            size_t len = strlen(o->stops[i]);
            if (len <= end && memcmp(text + end - len, o->stops[i], len) == 0)
                begin = SL_MIN(begin, end - len);
        }
        if (begin < n)
            return begin;
    }
    return n;
}

/* How the sequence has ended with its last token, and the text its reader has then. All is done
 * again from the first token on. */
static enum sl_finish oracle_end(const struct world *w, const struct oracle *o,
                                 const struct oracle_seq *s, char *text, size_t *n_text)
{
    struct sl_detok d;
    size_t n = 0;
    enum sl_finish finish = SL_RUNNING;
    sl_detok_init(&d, w->tok, true);
    for (int32_t i = 0; i < s->n && finish == SL_RUNNING; i++) {
        bool armed = i + 1 > o->desc.sampling.min_tokens;
        if (armed && is_stop_id(o, s->tokens[i])) {
            finish = SL_FINISH_STOP;
            break;
        }
        size_t before = n;
        n += sl_detok_push(&d, s->tokens[i], text + n);
        size_t at = armed ? find_stop(o, text, before, n) : n;
        if (at < n) {
            *n_text = at;
            return i == s->n - 1 ? SL_FINISH_STOP : SL_FINISH_ERROR; /* too late */
        }
        if (i + 1 == o->max_out)
            finish = SL_FINISH_LENGTH;
        else if (text_is_full(w, o, s, i + 1))
            finish = SL_FINISH_STOP;
        if (finish != SL_RUNNING && i < s->n - 1)
            finish = SL_FINISH_ERROR;
    }
    *n_text = n + sl_detok_finish(&d, text + n);
    return finish;
}

/* Has a sequence with these tokens ended, text aside? Cheap, for every token. */
static bool oracle_over(const struct world *w, const struct oracle *o, const struct oracle_seq *s)
{
    char text[MAX_TEXT];
    size_t n;
    if (s->n == 0)
        return false;
    if (o->desc.sampling.n_stop > 0)
        return oracle_end(w, o, s, text, &n) != SL_RUNNING;
    return s->n == o->max_out || text_is_full(w, o, s, s->n) ||
           (s->n > o->desc.sampling.min_tokens && is_stop_id(o, s->tokens[s->n - 1]));
}

/* Takes the next token that was delivered. */
static void oracle_take(struct world *w, struct oracle *o, struct oracle_seq *s, int32_t id,
                        float *row)
{
    int32_t want = oracle_token(w, o, s, row);
    if (s->n_ends > 0)
        violation(w, "I4: a token after the end");
    if (id != want)
        violation(w, "I11: token %d is %d, the oracle says %d (prompt of %d)", s->n, id, want,
                  o->desc.n_prompt);
    if (oracle_over(w, o, s))
        violation(w, "I4: the sequence should have ended before token %d", s->n);
    s->hash = hash_token(s->hash, id, o->desc.n_prompt + s->n);
    s->tokens[s->n++] = id;
}

static void take_text(struct world *w, struct oracle_seq *s, const char *text, size_t n)
{
    if (s->n_text + n > sizeof s->text)
        violation(w, "a sequence of %d tokens has more than %zu bytes of text", s->n, s->n_text);
    memcpy(s->text + s->n_text, text, n);
    s->n_text += n;
}

/* Its end was delivered, after the tokens and the text that are recorded. */
static void oracle_finish(struct world *w, const struct oracle *o, struct oracle_seq *s,
                          enum sl_finish finish)
{
    char text[MAX_TEXT];
    size_t n = 0;
    if (s->n_ends++ > 0)
        violation(w, "I3: a second end");
    w->n_ended[finish]++;
    enum sl_finish want = oracle_end(w, o, s, text, &n);
    if (finish != SL_FINISH_ABORT && finish != SL_FINISH_ERROR && (s->n == 0 || finish != want))
        violation(w, "I3: ended with reason %d after %d tokens, the oracle says %d", (int)finish,
                  s->n, (int)want);
    if (n != s->n_text || memcmp(text, s->text, n) != 0)
        violation(w, "I4: ended with reason %d and text '%.*s', the oracle says '%.*s'",
                  (int)finish, (int)s->n_text, s->text, (int)n, text);
}

/* May the request fail with an error for what its own rows hold? */
static bool oracle_may_fail(struct world *w, struct oracle *o)
{
    bool reason = o->desc.sampling.prompt_logprobs >= 0 && w->cfg.nan_every > 0;
    for (int32_t i = 0; i < o->desc.sampling.n && !reason; i++) {
        float row[MAX_VOCAB];
        reason = oracle_token(w, o, &o->seqs[i], row) < 0;
    }
    return reason;
}

/* Likewise, but nothing of it was delivered: some sequence comes to such a row sooner or later. */
static bool oracle_will_fail(struct world *w, const struct oracle *o)
{
    float row[MAX_VOCAB];
    bool may = w->cfg.nan_every > 0 || w->cfg.token_rules;
    for (int32_t i = 0; may && i < o->desc.sampling.n; i++) {
        struct oracle_seq s = o->seqs[i];
        while (!oracle_over(w, o, &s)) {
            int32_t id = oracle_token(w, o, &s, row);
            if (id < 0)
                return true;
            s.hash = hash_token(s.hash, id, o->desc.n_prompt + s.n);
            s.tokens[s.n++] = id;
        }
    }
    return false;
}

#endif
