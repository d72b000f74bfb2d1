/* SPDX-License-Identifier: MIT
 * tok_spm.c - SentencePiece .model files: a protobuf of pieces and two specifications.
 *
 * The reader is strict where it matters (lengths, wire types of the fields it knows, varints of at
 * most ten bytes) and skips fields it does not know, as the format asks. The file does not say
 * which special tokens surround a text; ADD_SPECIAL does as the models that ship such files: BPE
 * (Llama) begins with BOS, Unigram (T5) ends with EOS.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/sys.h"
#include "text/tokenizer/tok.h"

#include <string.h>

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
enum { MODEL_TYPE_UNIGRAM = 1, MODEL_TYPE_BPE = 2 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct span {
    const uint8_t *p, *end;
};

struct field {
    uint32_t number, wire;
    uint64_t value; /* varint or fixed */
    struct span bytes;
};

static bool varint(struct span *s, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (s->p == s->end)
            return false;
        uint8_t b = *s->p++;
        if (shift == 63 && b > 1)
            return false;
        v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* 1: a field, 0: the end, -1: malformed. */
static int next_field(struct span *s, struct field *f)
{
    uint64_t key;
    if (s->p == s->end)
        return 0;
    if (!varint(s, &key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF)
        return -1;
    f->number = (uint32_t)(key >> 3);
    f->wire = (uint32_t)(key & 7);
    size_t left, n;
    switch (f->wire) {
    case WIRE_VARINT:
        return varint(s, &f->value) ? 1 : -1;
    case WIRE_BYTES:
        if (!varint(s, &f->value) || f->value > (uint64_t)(s->end - s->p))
            return -1;
        f->bytes = (struct span){s->p, s->p + f->value};
        s->p += f->value;
        return 1;
    case WIRE_64:
    case WIRE_32:
        left = (size_t)(s->end - s->p);
        n = f->wire == WIRE_64 ? 8 : 4;
        if (left < n)
            return -1;
        f->value = 0;
        for (size_t i = 0; i < n; i++)
            f->value |= (uint64_t)s->p[i] << (8 * i);
        s->p += n;
        return 1;
    default:
        return -1;
    }
}

/* What the two specifications say, with the defaults of the format. */
struct spec {
    uint64_t model_type, unk_id, bos_id, eos_id;
    bool byte_fallback, suffix_spaces;
    bool dummy_prefix, remove_extra, escape;
    struct span charsmap, unk_surface;
};

static bool need_wire(const struct field *f, uint32_t wire, bool *ok)
{
    *ok &= f->wire == wire;
    return f->wire == wire;
}

static bool trainer_spec(struct span s, struct spec *sp)
{
    struct field f;
    bool ok = true;
    int rc;
    while (ok && (rc = next_field(&s, &f)) != 0) {
        if (rc < 0)
            return false;
        if (f.number == 3 && need_wire(&f, WIRE_VARINT, &ok))
            sp->model_type = f.value;
        else if (f.number == 24 && need_wire(&f, WIRE_VARINT, &ok))
            sp->suffix_spaces = f.value != 0;
        else if (f.number == 35 && need_wire(&f, WIRE_VARINT, &ok))
            sp->byte_fallback = f.value != 0;
        else if (f.number == 40 && need_wire(&f, WIRE_VARINT, &ok))
            sp->unk_id = f.value;
        else if (f.number == 41 && need_wire(&f, WIRE_VARINT, &ok))
            sp->bos_id = f.value;
        else if (f.number == 42 && need_wire(&f, WIRE_VARINT, &ok))
            sp->eos_id = f.value;
        else if (f.number == 44 && need_wire(&f, WIRE_BYTES, &ok))
            sp->unk_surface = f.bytes;
    }
    return ok;
}

static bool normalizer_spec(struct span s, struct spec *sp)
{
    struct field f;
    bool ok = true;
    int rc;
    while (ok && (rc = next_field(&s, &f)) != 0) {
        if (rc < 0)
            return false;
        if (f.number == 2 && need_wire(&f, WIRE_BYTES, &ok))
            sp->charsmap = f.bytes;
        else if (f.number == 3 && need_wire(&f, WIRE_VARINT, &ok))
            sp->dummy_prefix = f.value != 0;
        else if (f.number == 4 && need_wire(&f, WIRE_VARINT, &ok))
            sp->remove_extra = f.value != 0;
        else if (f.number == 5 && need_wire(&f, WIRE_VARINT, &ok))
            sp->escape = f.value != 0;
    }
    return ok;
}

struct pieces {
    float *scores;
    uint32_t n, cap;
    int32_t unk;
};

static int add_piece(struct sl_tokenizer *t, struct span s, struct pieces *ps, struct sl_error *err)
{
    struct field f;
    struct span text = {NULL, NULL};
    uint64_t type = PIECE_NORMAL;
    float score = 0;
    bool ok = true;
    int rc;
    while (ok && (rc = next_field(&s, &f)) != 0) {
        if (rc < 0)
            return sl_fail(err, SL_EFORMAT, "SentencePiece model: piece %u is malformed", ps->n);
        if (f.number == 1 && need_wire(&f, WIRE_BYTES, &ok)) {
            text = f.bytes;
        } else if (f.number == 2 && need_wire(&f, WIRE_32, &ok)) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof(score));
        } else if (f.number == 3 && need_wire(&f, WIRE_VARINT, &ok)) {
            type = f.value;
        }
    }
    if (!ok || text.p == text.end || type < PIECE_NORMAL || type > PIECE_BYTE ||
        !(score >= -1e30f && score <= 1e30f))
        return sl_fail(err, SL_EFORMAT, "SentencePiece model: piece %u is malformed", ps->n);
    if (ps->n == ps->cap) {
        uint32_t cap = SL_MAX(ps->cap * 2, 1024u);
        float *grown = sl_realloc(ps->scores, cap * sizeof(*grown));
        if (grown == NULL)
            return sl_fail(err, SL_ENOMEM, "SentencePiece model: %u pieces", cap);
        ps->scores = grown;
        ps->cap = cap;
    }
    static const unsigned attrs[] = {
        [PIECE_NORMAL] = TOK_IN_MODEL,      [PIECE_UNKNOWN] = SL_TOKEN_UNKNOWN | SL_TOKEN_SPECIAL,
        [PIECE_CONTROL] = SL_TOKEN_SPECIAL, [PIECE_USER] = TOK_IN_MODEL | SL_TOKEN_ADDED,
        [PIECE_UNUSED] = SL_TOKEN_UNUSED,   [PIECE_BYTE] = SL_TOKEN_BYTE,
    };
    size_t n = (size_t)(text.end - text.p);
    const char *p = (const char *)text.p;
    if (tok_valid_prefix(p, n) < n)
        return sl_fail(err, SL_EFORMAT, "SentencePiece model: piece %u is not UTF-8", ps->n);
    if ((rc = tok_vocab_add(t, ps->n, p, n, attrs[type], false, err)) != 0)
        return rc;
    if (type == PIECE_UNKNOWN)
        ps->unk = (int32_t)ps->n;
    ps->scores[ps->n] = score;
    if (type == PIECE_USER) {
        t->has_user = true;
        rc = tok_trie_add(&t->user, p, n, (int32_t)ps->n, err);
    } else if (type == PIECE_CONTROL) {
        struct tok_added_flags a = {.id = (int32_t)ps->n, .special = true};
        rc = tok_added_add(t, &a, err);
    }
    ps->n++;
    return rc;
}

static int add_decoder(struct sl_tokenizer *t, const struct spec *sp, struct sl_error *err)
{
    struct tok_dec_op *op = tok_add_dec(t, DEC_REPLACE, err);
    if (op == NULL)
        return SL_ELIMIT;
    int rc = tok_dup(&op->a, &op->n_a, "\xE2\x96\x81", 3, err);
    if (rc == 0)
        rc = tok_dup(&op->b, &op->n_b, " ", 1, err);
    if (rc != 0)
        return rc;
    if (tok_add_dec(t, DEC_BYTE_FALLBACK, err) == NULL || tok_add_dec(t, DEC_FUSE, err) == NULL)
        return SL_ELIMIT;
    if (sp->suffix_spaces || !(sp->dummy_prefix || sp->remove_extra))
        return 0;
    if ((op = tok_add_dec(t, DEC_STRIP, err)) == NULL)
        return SL_ELIMIT;
    op->start = sp->remove_extra ? UINT32_MAX : 1;
    return tok_dup(&op->a, &op->n_a, " ", 1, err);
}

static int add_normalizer(struct sl_tokenizer *t, const struct spec *sp, struct sl_error *err)
{
    struct tok_norm *op = tok_add_norm(t, NORM_SPM, err);
    if (op == NULL)
        return SL_ELIMIT;
    op->dummy_prefix = sp->dummy_prefix;
    op->remove_extra = sp->remove_extra;
    op->escape = sp->escape;
    op->suffix_spaces = sp->suffix_spaces;
    if (sp->charsmap.p == sp->charsmap.end)
        return 0;
    return tok_charsmap_parse(&op->map, sp->charsmap.p, (size_t)(sp->charsmap.end - sp->charsmap.p),
                              err);
}

static int tok_spm_build(struct sl_tokenizer *t, const struct spec *sp, struct pieces *ps,
                         struct sl_error *err)
{
    int32_t id;
    int rc;
    if (ps->unk < 0)
        return sl_fail(err, SL_EFORMAT, "SentencePiece model: no unknown piece");
    if ((rc = add_normalizer(t, sp, err)) != 0 || (rc = add_decoder(t, sp, err)) != 0)
        return rc;
    t->bos = sp->bos_id < ps->n ? (int32_t)sp->bos_id : -1;
    t->eos = sp->eos_id < ps->n ? (int32_t)sp->eos_id : -1;
    if (sp->model_type == MODEL_TYPE_BPE) {
        t->model = MODEL_BPE;
        t->bpe.by_concat = t->bpe.fuse_unk = true;
        t->bpe.byte_fallback = sp->byte_fallback;
        t->bpe.unk = ps->unk;
        id = t->bos;
        if ((rc = tok_rank_by_score(t, ps->scores, err)) != 0 ||
            (rc = tok_set_affixes(t, &id, id >= 0, NULL, 0, err)) != 0)
            return rc;
    } else if (sp->model_type == MODEL_TYPE_UNIGRAM) {
        t->model = MODEL_UNIGRAM;
        t->uni.fuse_unk = true;
        t->uni.byte_fallback = sp->byte_fallback;
        t->uni.unk = ps->unk;
        t->uni.score_f = ps->scores;
        ps->scores = NULL;
        tok_unigram_floor(t);
        id = t->eos;
        if ((rc = tok_set_affixes(t, NULL, 0, &id, id >= 0, err)) != 0)
            return rc;
    } else {
        return sl_fail(err, SL_EUNSUPPORTED, "SentencePiece model: model_type %llu",
                       (unsigned long long)sp->model_type);
    }
    if ((rc = tok_finish(t, err)) != 0)
        return rc;
    /* The unknown token shows as a mark of its own, not as "<unk>". */
    size_t n = (size_t)(sp->unk_surface.end - sp->unk_surface.p);
    t->max_token_bytes = SL_MAX(t->max_token_bytes, n);
    t->unk_is_mark = true;
    return tok_strtab_put(&t->text, (uint32_t)ps->unk, (const char *)sp->unk_surface.p, n, err);
}

int sl_tokenizer_from_spm(const char *data, size_t n, struct sl_tokenizer **out,
                          struct sl_error *err)
{
    static const uint8_t surface[] = " \xE2\x81\x87 ";
    struct spec sp = {.model_type = MODEL_TYPE_UNIGRAM,
                      .bos_id = 1,
                      .eos_id = 2,
                      .dummy_prefix = true,
                      .remove_extra = true,
                      .escape = true,
                      .unk_surface = {surface, surface + sizeof(surface) - 1}};
    struct pieces ps = {.unk = -1};
    struct span all = {(const uint8_t *)data, (const uint8_t *)data + n};
    struct field f;
    struct sl_tokenizer *t = tok_create(err);
    int rc = t == NULL ? SL_ENOMEM : 0, more = 1;
    while (rc == 0 && (more = next_field(&all, &f)) > 0) {
        if (f.number <= 3 && f.wire != WIRE_BYTES)
            more = -1;
        else if (f.number == 1)
            rc = add_piece(t, f.bytes, &ps, err);
        else if ((f.number == 2 && !trainer_spec(f.bytes, &sp)) ||
                 (f.number == 3 && !normalizer_spec(f.bytes, &sp)))
            more = -1;
        if (more < 0)
            break;
    }
    if (rc == 0 && more < 0)
        rc = sl_fail(err, SL_EFORMAT, "SentencePiece model: malformed at byte %zu",
                     (size_t)((const char *)all.p - data));
    if (rc == 0)
        rc = tok_spm_build(t, &sp, &ps, err);
    sl_free(ps.scores);
    if (rc != 0) {
        sl_tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}
