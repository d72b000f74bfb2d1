/* SPDX-License-Identifier: MIT
 * tokenizer.h - text to token ids and back, for every vocabulary kind of current open models.
 *
 * A tokenizer is a pipeline as in Hugging Face's tokenizer.json: added tokens, normalizer,
 * pre-tokenizer, model (byte-level BPE, SentencePiece BPE, Unigram, WordPiece), post-processor,
 * decoder. GGUF, .tiktoken and SentencePiece .model files are translated into the same pipeline.
 * Immutable after opening; any number of threads may use one. Input is hostile until proven.
 */
#ifndef SL_TEXT_TOKENIZER_H
#define SL_TEXT_TOKENIZER_H

#include "base/err.h"

struct sl_tokenizer;

/* What a GGUF file says about its vocabulary; filled by engine code from the metadata, borrowed
 * during the call. Arrays have n_tokens entries unless said. */
struct sl_vocab_gguf {
    const char *model; /* tokenizer.ggml.model: "gpt2", "llama", "bert", "t5", "rwkv" */
    const char *pre;   /* tokenizer.ggml.pre, NULL if absent */
    uint32_t n_tokens;
    const char *const *tokens; /* may hold NUL bytes inside: see token_bytes */
    const uint32_t *token_bytes;
    const float *scores; /* NULL if absent */
    const int32_t
        *types; /* 1 normal, 2 unknown, 3 control, 4 user defined, 6 byte; NULL if absent */
    uint32_t n_merges;
    const char *const *merges; /* "left right" */
    const uint32_t *merge_bytes;
    int64_t bos, eos, unk, sep, pad, cls, mask, eot; /* -1 = absent */
    int add_bos, add_eos;         /* 1, 0, or -1 = absent: the model kind's default */
    int add_space_prefix;         /* likewise */
    int remove_extra_whitespaces; /* likewise */
    const uint8_t *charsmap;      /* precompiled normaliser of Unigram models, or NULL */
    size_t n_charsmap;
};

/* json: tokenizer.json; config: tokenizer_config.json or NULL (BOS/EOS names, added tokens,
 * add_bos). */
SL_MUST_CHECK int sl_tokenizer_from_json(const char *json, size_t n_json, const char *config,
                                         size_t n_config, struct sl_tokenizer **out,
                                         struct sl_error *err);
SL_MUST_CHECK int sl_tokenizer_from_gguf(const struct sl_vocab_gguf *v, struct sl_tokenizer **out,
                                         struct sl_error *err);
/* RWKV's vocabulary file: lines "id literal length". */
SL_MUST_CHECK int sl_tokenizer_from_world(const char *data, size_t n, struct sl_tokenizer **out,
                                          struct sl_error *err);
/* pattern: the pre-tokenizer regex; NULL picks cl100k/o200k/llama3/qwen by the number of ranks. */
SL_MUST_CHECK int sl_tokenizer_from_tiktoken(const char *data, size_t n, const char *pattern,
                                             struct sl_tokenizer **out, struct sl_error *err);
SL_MUST_CHECK int sl_tokenizer_from_spm(const char *data, size_t n, struct sl_tokenizer **out,
                                        struct sl_error *err); /* SentencePiece protobuf */
/* Any of these files but GGUF, and Mistral's tekken.json, told apart by their content. config: as
 * for sl_tokenizer_from_json, which alone looks at it. */
SL_MUST_CHECK int sl_tokenizer_from_bytes(const char *data, size_t n, const char *config,
                                          size_t n_config, struct sl_tokenizer **out,
                                          struct sl_error *err);
void sl_tokenizer_destroy(struct sl_tokenizer *tok);

/* A growing list of ids; ids.data is heap memory, zero-initialise, free with sl_free. */
struct sl_ids {
    int32_t *data;
    size_t n, cap;
};
/* flags: enum sl_encode_flags of sluice.h. Appends to out. Linear time in n_bytes. */
SL_MUST_CHECK int sl_tokenizer_encode_into(const struct sl_tokenizer *tok, const char *text,
                                           size_t n_bytes, unsigned flags, struct sl_ids *out,
                                           struct sl_error *err);

enum sl_token_attr {
    SL_TOKEN_SPECIAL = 1, /* control token: not part of the visible text */
    SL_TOKEN_BYTE = 2,
    SL_TOKEN_UNKNOWN = 4,
    SL_TOKEN_ADDED = 8,
    SL_TOKEN_UNUSED = 16, /* a hole in the vocabulary */
};
unsigned sl_tokenizer_attr(const struct sl_tokenizer *tok, int32_t id);
/* The entry as written in the vocabulary file ("Ġthe"); NULL for a hole or an id out of range. */
const char *sl_tokenizer_piece(const struct sl_tokenizer *tok, int32_t id, size_t *n_bytes);
int32_t sl_tokenizer_find(const struct sl_tokenizer *tok, const char *piece,
                          size_t n);                      /* -1: none */
int32_t sl_tokenizer_bos(const struct sl_tokenizer *tok); /* -1: none */
int32_t sl_tokenizer_eos(const struct sl_tokenizer *tok);
int32_t sl_tokenizer_eot(const struct sl_tokenizer *tok); /* end of turn, -1: none or unknown */
/* Length in bytes of the longest text one token can stand for (sizes the streaming buffers). */
size_t sl_tokenizer_max_token_bytes(const struct sl_tokenizer *tok);

/* Streaming detokenizer: bytes of each token as it comes, never half a character. Fixed size, no
 * heap, so the engine thread may use it. The concatenation of all output equals decoding all ids at
 * once. */
struct sl_detok {
    const struct sl_tokenizer *tok;
    bool skip_special;
    const int32_t *shown; /* special tokens that are text all the same, ascending; borrowed */
    int32_t n_shown;
    bool at_start;       /* nothing emitted yet: the decoder may strip a leading space */
    int32_t waiting1;    /* id + 1 of a token whose text depends on whether another one follows */
    uint32_t strip_left; /* characters the decoder may still take off the start */
    uint32_t n_held;     /* characters it takes off the end, if this is the end */
    unsigned n_pending;  /* bytes of an unfinished character */
    char pending[8];
};
void sl_detok_init(struct sl_detok *d, const struct sl_tokenizer *tok, bool skip_special);
/* Writes the text that id completes; out has room for sl_detok_max_bytes. Returns bytes written. */
size_t sl_detok_push(struct sl_detok *d, int32_t id, char *out);
/* The end: an unfinished character becomes U+FFFD. */
size_t sl_detok_finish(struct sl_detok *d, char *out);
size_t sl_detok_max_bytes(const struct sl_tokenizer *tok);
/* The bytes of one token in the middle of an output, where nothing is stripped; of a character they
 * may be a part. Room and result as above. */
size_t sl_detok_token(const struct sl_tokenizer *tok, int32_t id, char *out);

#endif
