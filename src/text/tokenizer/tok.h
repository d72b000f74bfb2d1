/* SPDX-License-Identifier: MIT
 * tok.h - the inside of a tokenizer, shared by the tok_*.c files and by nothing else.
 *
 * A loader (tok_json, tok_gguf, tok_tiktoken, tok_spm) fills struct sl_tokenizer and calls
 * tok_finish; from then on nothing in it changes. One call of encode owns one struct tok_enc, which
 * holds all scratch memory, so that any number of threads may encode at once.
 */
#ifndef SL_TEXT_TOK_H
#define SL_TEXT_TOK_H

#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

/* ---------------------------------------------------------------- strings by id (tok_vocab.c) */

#define TOK_HOLE UINT32_MAX

struct tok_strtab { /* entry i is len bytes of data from off; len TOK_HOLE = none */
    struct sl_buf data;
    struct tok_at {
        uint32_t off, len;
    } * at;
    uint32_t n, cap;
};

struct tok_slot {
    uint32_t hash, id1; /* id + 1; 0 = empty */
};

struct tok_map { /* string -> id over a strtab, open addressing */
    struct tok_slot *slots;
    uint32_t mask, n;
    uint64_t seed; /* drawn per tokenizer: a vocabulary cannot be built to collide */
};

SL_MUST_CHECK int tok_strtab_reserve(struct tok_strtab *t, uint32_t n, struct sl_error *err);
SL_MUST_CHECK int tok_strtab_put(struct tok_strtab *t, uint32_t id, const char *s, size_t n,
                                 struct sl_error *err);
void tok_strtab_deinit(struct tok_strtab *t);
static inline const char *tok_str(const struct tok_strtab *t, uint32_t id, size_t *n)
{
    *n = t->at[id].len;
    return t->data.data + t->at[id].off;
}

SL_MUST_CHECK int tok_map_reserve(struct tok_map *m, uint32_t n, struct sl_error *err);
/* Adds id under its string in t. 1: done, 0: an older equal string keeps its place, -1: no memory.
 */
int tok_map_put(struct tok_map *m, const struct tok_strtab *t, uint32_t id);
uint32_t tok_hash(uint64_t seed, const char *s, size_t n);
int32_t tok_map_get_hashed(const struct tok_map *m, const struct tok_strtab *t, const char *s,
                           size_t n, uint32_t hash);
static inline int32_t tok_map_get(const struct tok_map *m, const struct tok_strtab *t,
                                  const char *s, size_t n)
{
    return tok_map_get_hashed(m, t, s, n, tok_hash(m->seed, s, n));
}

/* ---------------------------------------------------------------- characters (tok_unicode.c) */

enum tok_cat { /* general categories, in the order of tools/gen_unicode.py */
               CAT_CN,
               CAT_CC,
               CAT_CF,
               CAT_CO,
               CAT_CS,
               CAT_LU,
               CAT_LL,
               CAT_LT,
               CAT_LM,
               CAT_LO,
               CAT_MN,
               CAT_MC,
               CAT_ME,
               CAT_ND,
               CAT_NL,
               CAT_NO,
               CAT_PC,
               CAT_PD,
               CAT_PS,
               CAT_PE,
               CAT_PI,
               CAT_PF,
               CAT_PO,
               CAT_SM,
               CAT_SC,
               CAT_SK,
               CAT_SO,
               CAT_ZS,
               CAT_ZL,
               CAT_ZP,
};

#define UNI_CAT     31u /* mask of enum tok_cat */
#define UNI_SPACE   (1u << 5)
#define UNI_WORD    (1u << 6) /* \w */
#define UNI_EXTEND  (1u << 7) /* grapheme clusters: joins what is before it */
#define UNI_PREPEND (1u << 8) /* joins what is behind it */
#define UNI_SPLIT   (1u << 9) /* normal forms: nothing before it composes or reorders with it */
/* As the parts of the tokenizers library have them, which is not what the category says of
 * characters that are newer than their tables. */
#define UNI_MARK    (1u << 10) /* StripAccents drops it */
#define UNI_ACCENT  (1u << 11) /* BertNormalizer drops it as an accent */
#define UNI_OTHER   (1u << 12) /* BertNormalizer's clean_text drops it */
#define UNI_PUNCT   (1u << 13)
#define UNI_NUMERIC (1u << 14)

unsigned tok_uni_prop(uint32_t cp);
/* What PCRE2, whose Unicode version depends on the system, reads in place of cp: a character of the
 * same category and length that every version knows. cp itself where they agree. */
uint32_t tok_uni_stand_in(uint32_t cp);
unsigned tok_uni_ccc(uint32_t cp);
/* The full decomposition into out[18]; returns its length (1 and cp itself when there is none). */
#define TOK_DECOMP_MAX 18
unsigned tok_uni_decompose(uint32_t cp, bool compat, uint32_t out[TOK_DECOMP_MAX]);
uint32_t tok_uni_compose(uint32_t a, uint32_t b);     /* 0: none */
unsigned tok_uni_lower(uint32_t cp, uint32_t out[2]); /* returns 1 or 2 */
size_t tok_grapheme_len(const char *s, size_t n);     /* extended grapheme cluster at s */
/* The character at s: its length (an invalid byte has length 1 and reads as U+FFFD). */
size_t tok_char(const char *s, size_t n, uint32_t *cp);
/* Appends s with U+FFFD for each maximal invalid part, as Python's errors='replace' does. */
void tok_sanitize(struct sl_buf *out, const char *s, size_t n);
size_t tok_valid_prefix(const char *s, size_t n); /* bytes of s before the first invalid one */
void tok_put_cp(struct sl_buf *out, uint32_t cp);
/* The byte a character of the byte-level alphabet ("Ġ" = 0x20) stands for, -1 if it is none. */
int tok_byte_of_cp(uint32_t cp);
uint32_t tok_cp_of_byte(uint8_t b);

/* ---------------------------------------------------------------- tries of byte strings */

struct tok_trie { /* (node, byte) -> node by one hash table; node 0 is the root */
    struct tok_edge {
        uint64_t key1; /* (node << 8 | byte) + 1; 0 = empty */
        uint32_t to;
    } * edges;
    int32_t *value; /* per node, -1 = none */
    uint32_t n_nodes, cap_nodes, mask, n_edges;
    bool first[256]; /* bytes that start an entry */
};
/* An equal entry is replaced. */
SL_MUST_CHECK int tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t value,
                               struct sl_error *err);
uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, uint8_t byte); /* 0: no edge */
/* Longest entry that s begins with; returns its value or -1. */
int32_t tok_trie_longest(const struct tok_trie *t, const char *s, size_t n, size_t *len);
void tok_trie_deinit(struct tok_trie *t);

/* ---------------------------------------------------------------- regexes (tok_regex.c) */

enum tok_fast { /* patterns with a hand-written matcher (tok_split.c) */
                TOK_FAST_NONE,
                TOK_FAST_GPT2,
                TOK_FAST_GPT2_TAIL, /* tiktoken's spelling: trailing white space is one piece */
                TOK_FAST_LLAMA3,
                TOK_FAST_CL100K, /* as Llama 3, but trailing white space is one piece */
                TOK_FAST_QWEN2,  /* as Llama 3, but digits one by one */
                TOK_FAST_O200K,
                TOK_FAST_TEKKEN, /* as o200k without contractions, digits one by one */
};

struct tok_regex;
SL_MUST_CHECK int tok_regex_create(const char *pattern, size_t n, struct tok_regex **out,
                                   struct sl_error *err);
void tok_regex_destroy(struct tok_regex *re);
enum tok_fast tok_fast_kind(const char *pattern, size_t n);
/* End of the piece that begins at pos < n. */
size_t tok_fast_next(enum tok_fast kind, const char *s, size_t n, size_t pos);

struct tok_search;
/* Calls fn(arg, start, end) for each match from left to right. */
typedef int (*tok_match_fn)(void *arg, size_t start, size_t end);
SL_MUST_CHECK int tok_regex_each(const struct tok_regex *re, struct tok_search *search,
                                 const char *s, size_t n, tok_match_fn fn, void *arg,
                                 struct sl_error *err);
/* Scratch memory and time budget of matching over n_bytes of text; NULL above makes one per call.
 */
struct tok_search *tok_search_create(size_t n_bytes, struct sl_error *err);
void tok_search_destroy(struct tok_search *f);

/* ---------------------------------------------------------------- normalizers (tok_normalize.c) */

enum tok_norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
    NORM_BERT,
    NORM_STRIP,
    NORM_PREPEND,
    NORM_REPLACE,     /* string */
    NORM_REPLACE_RE,  /* regex */
    NORM_PRECOMPILED, /* as the tokenizers library applies it: by grapheme cluster */
    NORM_SPM,         /* SentencePiece's own: longest prefix, white space rules, dummy prefix */
    NORM_BYTE_LEVEL,
};

struct tok_charsmap { /* SentencePiece's precompiled_charsmap: a double-array trie and its strings
                       */
    uint32_t *units;
    size_t n_units;
    char *pool; /* n_pool bytes, each string ends with NUL; pool[n_pool] is NUL too */
    size_t n_pool;
};

struct tok_norm {
    enum tok_norm_kind kind;
    bool clean_text, chinese, strip_accents, lowercase;     /* BERT */
    bool left, right;                                       /* STRIP */
    bool dummy_prefix, remove_extra, escape, suffix_spaces; /* SPM */
    char *a, *b;                                            /* PREPEND: b; REPLACE: a -> b */
    size_t n_a, n_b;
    struct tok_regex *re;
    struct tok_charsmap map;
};

SL_MUST_CHECK int tok_charsmap_parse(struct tok_charsmap *m, const uint8_t *data, size_t n,
                                     struct sl_error *err);
void tok_norm_deinit(struct tok_norm *op);
SL_MUST_CHECK int tok_norm_run(const struct sl_tokenizer *t, const struct tok_norm *op,
                               const char *s, size_t n, struct sl_buf *out, struct sl_error *err);
/* All normalizers of t in turn; *res points into bufs or is s itself. */
SL_MUST_CHECK int tok_normalize(const struct sl_tokenizer *t, const char *s, size_t n,
                                struct sl_buf bufs[2], const char **res, size_t *n_res,
                                struct sl_error *err);

/* ---------------------------------------------------------------- pre-tokenizers (tok_pretok.c) */

enum tok_pre_kind {
    PRE_FAST,  /* enum tok_fast */
    PRE_REGEX, /* behaviour, invert */
    PRE_STRING,
    PRE_CHARS, /* a class of single characters, see enum tok_pre_class */
    PRE_WORDS, /* \w+|[^\w\s]+ */
    PRE_METASPACE,
    PRE_BYTE_LEVEL, /* maps bytes to the byte-level alphabet; with add_prefix_space */
    PRE_PREFIX_SPACE,
};
enum tok_pre_class { CLASS_SPACE, CLASS_PUNCT, CLASS_NUMERIC, CLASS_DELIMITER };
enum tok_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGE_PREVIOUS,
    SPLIT_MERGE_NEXT,
    SPLIT_CONTIGUOUS,
};
enum tok_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct tok_enc;

struct tok_pre {
    enum tok_pre_kind kind;
    enum tok_fast fast;
    enum tok_pre_class cls;
    enum tok_behavior behavior;
    enum tok_scheme scheme;
    bool invert, split;
    uint32_t cp; /* delimiter */
    char *str;   /* string pattern, or the metaspace character */
    size_t n_str;
    struct tok_regex *re;
};

struct tok_span {
    uint32_t off, len;
};
struct tok_spans {
    struct tok_span *v;
    size_t n, cap;
};

void tok_pre_deinit(struct tok_pre *op);
/* Splits text into words and gives each to the model. first: text begins the whole input. */
SL_MUST_CHECK int tok_pretokenize(struct tok_enc *e, const char *s, size_t n, bool first);

/* ---------------------------------------------------------------- models */

enum tok_model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL, MODEL_WORLD };

struct tok_pair {
    uint32_t left, right; /* left == TOK_HOLE: empty */
    uint32_t rank, id;
};

struct tok_bpe {
    bool bytes;       /* symbols are bytes and words raw text; else characters and pieces */
    bool by_concat;   /* any two symbols whose text together is an entry may merge */
    bool whole_first; /* a word that is an entry is that entry */
    bool byte_fallback, fuse_unk;
    bool unit_cut;        /* words may be cut before a metaspace: see tok_meta_leads */
    int32_t unk;          /* -1: unknown characters vanish */
    int32_t byte_id[256]; /* symbol of a byte, or its fallback token; -1 = none */
    char *prefix, *suffix;
    size_t n_prefix, n_suffix;
    struct tok_pair *pairs;
    uint32_t pair_mask, n_pairs;
    uint32_t *id_of_rank; /* what the merge of a rank makes; not by_concat */
    uint32_t cap_ranks;
    bool all_bytes; /* bytes, and every byte is an entry */
    uint32_t *rank; /* by_concat: of an entry; NULL = its id */
    uint32_t n_ranks;
    size_t max_len; /* by_concat: longest entry */
};

struct tok_unigram {
    float *score_f;   /* SentencePiece adds scores as float ... */
    double *score_d;  /* ... the tokenizers library as double; one of the two is set */
    double min_score; /* of normal pieces */
    bool byte_fallback, fuse_unk;
    bool cuts; /* as unit_cut of BPE */
    int32_t unk;
    int32_t byte_id[256];
    struct tok_trie trie; /* value = id */
};

struct tok_wordpiece {
    char *prefix; /* of pieces inside a word, "##" */
    size_t n_prefix;
    char *initial; /* of pieces at its beginning, "" or GGUF's metaspace */
    size_t n_initial;
    uint32_t max_chars; /* a longer word is unknown */
    size_t max_len;     /* bytes of the longest entry */
    int32_t unk;
};

/* ---------------------------------------------------------------- added tokens (tok_added.c) */

struct tok_added_flags {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct tok_added {
    struct tok_added_flags *v;
    size_t n, cap;
    struct tok_trie raw, normalized; /* value = index into v */
};

SL_MUST_CHECK int tok_added_add(struct sl_tokenizer *t, const struct tok_added_flags *a,
                                struct sl_error *err);
/* Builds the tries, once normalizers and vocabulary are complete. */
SL_MUST_CHECK int tok_added_build(struct sl_tokenizer *t, struct sl_error *err);
SL_MUST_CHECK int tok_encode_text(struct tok_enc *e, const char *s, size_t n);

/* ---------------------------------------------------------------- decoder (tok_decode.c) */

enum tok_first { /* what the first token of an output loses */
                 FIRST_PLAIN,
                 FIRST_DROP_META, /* Metaspace: every metaspace of the first token */
                 FIRST_NO_JOIN,   /* the space that joins later tokens */
};

enum tok_dec_kind {
    DEC_REPLACE,
    DEC_REPLACE_RE,
    DEC_BYTE_LEVEL,
    DEC_BYTE_FALLBACK,
    DEC_FUSE,
    DEC_STRIP,
    DEC_METASPACE,
    DEC_WORDPIECE,
    DEC_BPE,
};

struct tok_dec_op {
    enum tok_dec_kind kind;
    char *a, *b;
    size_t n_a, n_b;
    uint32_t start, stop;
    bool cleanup;
    enum tok_scheme scheme;
    struct tok_regex *re;
};

struct tok_decoder {
    enum tok_first first;
    char meta[4]; /* FIRST_DROP_META */
    uint8_t n_meta;
    bool delay;      /* BPEDecoder: the last token has another text, so one token waits */
    char suffix[32]; /* what that text leaves out */
    uint8_t n_suffix;
    char strip[4]; /* Strip on the whole text */
    uint8_t n_strip;
    uint32_t strip_start, strip_stop;
};

/* ---------------------------------------------------------------- the whole */

#define TOK_IN_MODEL  32u /* attr: an entry of the model, not only an added token */
#define TOK_MAX_STEPS 32  /* normalizers, pre-tokenizers or decoders of one tokenizer */

struct sl_tokenizer {
    struct tok_strtab pieces; /* as written in the file */
    struct tok_map by_piece;
    uint8_t *attr; /* per id: enum sl_token_attr and TOK_IN_MODEL */
    uint32_t cap_attr;

    struct tok_strtab raw; /* byte-level pieces as the bytes they stand for */
    struct tok_map by_raw;
    struct tok_strtab text; /* what a token decodes to, where that is neither raw nor piece */
    const struct tok_strtab *dec;
    bool bytes;      /* byte-level: invalid UTF-8 passes through */
    bool raw_pieces; /* pieces are bytes already (.tiktoken) */

    struct tok_norm norm[TOK_MAX_STEPS];
    size_t n_norm;
    struct tok_pre pre[TOK_MAX_STEPS];
    size_t n_pre;
    enum tok_model_kind model;
    struct tok_bpe bpe;
    struct tok_unigram uni;
    struct tok_wordpiece wp;
    struct tok_trie user; /* SentencePiece: user-defined symbols, atoms of the model */
    bool has_user;
    struct tok_added added;
    int32_t *prefix_ids, *suffix_ids; /* what ADD_SPECIAL puts around the text */
    size_t n_prefix_ids, n_suffix_ids;
    bool suffix_twice; /* between two texts, as RoBERTa has it */

    struct tok_dec_op dec_ops[TOK_MAX_STEPS];
    size_t n_dec_ops;
    bool join_space;  /* no decoder: tokens joined by spaces */
    bool unk_is_mark; /* the unknown token's text is a mark whose spaces are its own */
    struct tok_decoder decoder;
    size_t max_token_bytes;
    int32_t bos, eos, eot;
};

struct sl_tokenizer *tok_create(struct sl_error *err);
/* Adds a vocabulary entry; refuses an id twice, sizes out of range. attr: enum sl_token_attr.
 * twice: may the same string have an id already? It keeps that one. */
SL_MUST_CHECK int tok_vocab_add(struct sl_tokenizer *t, uint64_t id, const char *piece, size_t n,
                                unsigned attr, bool twice, struct sl_error *err);
int32_t tok_model_find(const struct sl_tokenizer *t, const char *piece, size_t n);
SL_MUST_CHECK int tok_finish(struct sl_tokenizer *t, struct sl_error *err);
/* Hexadecimal of "<0xAB>": the byte, or -1. */
int tok_byte_piece(const char *s, size_t n);
SL_MUST_CHECK int tok_set_affixes(struct sl_tokenizer *t, const int32_t *pre, size_t n_pre,
                                  const int32_t *post, size_t n_post, struct sl_error *err);
SL_MUST_CHECK int tok_dup(char **out, size_t *n_out, const char *s, size_t n, struct sl_error *err);

/* An operation was added by the loader; these check TOK_MAX_STEPS. */
struct tok_norm *tok_add_norm(struct sl_tokenizer *t, enum tok_norm_kind kind,
                              struct sl_error *err);
struct tok_pre *tok_add_pre(struct sl_tokenizer *t, enum tok_pre_kind kind, struct sl_error *err);
struct tok_dec_op *tok_add_dec(struct sl_tokenizer *t, enum tok_dec_kind kind,
                               struct sl_error *err);
/* Adds a Split by pattern with the given behaviour, by the fast matcher where there is one. */
SL_MUST_CHECK int tok_add_split(struct sl_tokenizer *t, const char *pattern, size_t n,
                                enum tok_behavior behavior, bool invert, struct sl_error *err);

/* BertPreTokenizer: split at white space, and punctuation characters apart. */
SL_MUST_CHECK int tok_add_bert_split(struct sl_tokenizer *t, struct sl_error *err);
/* Base64 into out, which has room for 3/4 of n bytes. Strict: groups of four, padding only at the
 * end; false when malformed. */
bool tok_base64(const char *s, size_t n, char *out, size_t *n_out);
/* SentencePiece BPE merges by score: rank 0 is the highest, equal scores share a rank. */
SL_MUST_CHECK int tok_rank_by_score(struct sl_tokenizer *t, const float *scores,
                                    struct sl_error *err);
void tok_unigram_floor(struct sl_tokenizer *t); /* least score of normal pieces */

/* BPE (tok_bpe.c) */
SL_MUST_CHECK int tok_bpe_reserve(struct tok_bpe *b, size_t n_merges, struct sl_error *err);
SL_MUST_CHECK int tok_bpe_add_merge(struct sl_tokenizer *t, const char *l, size_t n_l,
                                    const char *r, size_t n_r, uint32_t rank, struct sl_error *err);
void tok_bpe_finish(struct sl_tokenizer *t);
void tok_bpe_deinit(struct tok_bpe *b);
/* May a word be cut before each metaspace that follows another character? Only if no entry spans
 * such a place: then the parts split as they would inside the whole. */
bool tok_meta_leads(const struct sl_tokenizer *t);
SL_MUST_CHECK int tok_bpe_encode(struct tok_enc *e, const char *w, size_t n);

/* tok_world.c: what t is, before its tokens are added; a token of a GGUF; the tries of all. */
void tok_world_begin(struct sl_tokenizer *t);
SL_MUST_CHECK int tok_world_add_gguf(struct sl_tokenizer *t, uint32_t id, const char *s, size_t n,
                                     struct sl_error *err);
SL_MUST_CHECK int tok_world_finish(struct sl_tokenizer *t, struct sl_error *err);
SL_MUST_CHECK int tok_world_encode(struct tok_enc *e, const char *s, size_t n);
bool tok_is_world(const char *data, size_t n); /* does the first line look like that? */
SL_MUST_CHECK int tok_unigram_finish(struct sl_tokenizer *t, struct sl_error *err);
void tok_unigram_deinit(struct tok_unigram *u);
SL_MUST_CHECK int tok_unigram_encode(struct tok_enc *e, const char *w, size_t n);

SL_MUST_CHECK int tok_wordpiece_encode(struct tok_enc *e, const char *w, size_t n);

SL_MUST_CHECK int tok_decoder_finish(struct sl_tokenizer *t, struct sl_error *err);

/* ---------------------------------------------------------------- one call of encode */

struct tok_sym {
    int32_t id;
    uint32_t off, len; /* its text in the word */
    uint32_t rank;     /* of the merge with its right neighbour, TOK_HOLE = none */
    int32_t to;        /* and what that merge makes */
};

struct tok_word { /* one word being merged */
    const struct sl_tokenizer *t;
    const struct tok_bpe *b;
    const struct tok_strtab *tab; /* entries as symbols spell them */
    const struct tok_map *map;
    const char *s;
    struct tok_sym *y; /* NULL: n symbols of one byte each */
    size_t n;
};

#define TOK_CACHE_SIZE 8192u /* words whose ids one call remembers */

struct tok_cached {
    uint32_t at, n_ids; /* in out->data */
    uint8_t len;
    char key[23];
};

struct tok_enc {
    const struct sl_tokenizer *t;
    struct sl_ids *out;
    struct sl_error *err;
    unsigned flags;
    struct sl_buf clean, norm[2], stage[2], word;
    struct tok_spans spans[2];
    struct tok_sym *syms;
    size_t cap_syms;
    struct tok_bucketq *queue; /* of tok_merge_long */
    struct tok_search *search;
    size_t n_bytes;           /* of the text */
    struct tok_cached *cache; /* direct-mapped, NULL for short texts */
    void *path;               /* Unigram's lattice */
    size_t cap_path;
};

SL_MUST_CHECK int tok_push_slow(struct tok_enc *e, int32_t id);
static inline int tok_push(struct tok_enc *e, int32_t id)
{
    struct sl_ids *o = e->out;
    if (__builtin_expect(o->n == o->cap, 0))
        return tok_push_slow(e, id);
    o->data[o->n++] = id;
    return 0;
}
const struct tok_pair *tok_bpe_find_pair(const struct tok_bpe *b, uint32_t l, uint32_t r);
/* Merges a long word. Leaves *n_left symbols in w->y, or with w->y NULL appends the ids to e->out.
 */
SL_MUST_CHECK int tok_merge_long(struct tok_enc *e, struct tok_word *w, size_t *n_left);
bool tok_cache_find(struct tok_enc *e, const char *w, size_t n, uint32_t hash, int *rc);
void tok_cache_put(struct tok_enc *e, const char *w, size_t n, uint32_t hash, size_t at);
/* One word to the model of e->t. */
SL_MUST_CHECK int tok_model_encode(struct tok_enc *e, const char *w, size_t n);
void tok_bucketq_destroy(struct tok_bucketq *q);

#endif
