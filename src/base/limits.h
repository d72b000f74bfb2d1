/* SPDX-License-Identifier: MIT
 * limits.h - every bound on what comes from outside, in one place. Each is checked where it is used
 * and the refusal names the field. Sources: docs/DETERMINISM.md for tile sizes, reliability
 * practice of safetensors and llama.cpp for the file limits.
 */
#ifndef SL_BASE_LIMITS_H
#define SL_BASE_LIMITS_H

/* model files */
#define SL_MAX_FILES       4096         /* files of one model folder */
#define SL_MAX_SHARDS      1024         /* safetensors or GGUF shards of one model */
#define SL_MAX_TENSORS     262144       /* tensors of one checkpoint; public ones reach 90,000 */
#define SL_MAX_TENSOR_NAME 256          /* bytes */
#define SL_MAX_DIMS        4            /* dimensions of a tensor */
#define SL_MAX_GGUF_KV     65536        /* metadata pairs */
#define SL_MAX_GGUF_STRING (16u << 20)  /* bytes of one metadata string */
#define SL_MAX_GGUF_ARRAY  (16u << 20)  /* elements of one metadata array */
#define SL_MAX_ST_HEADER   100000000u   /* bytes of a safetensors header, as the format says */
#define SL_MAX_JSON_FILE   (256u << 20) /* bytes of a JSON file of a model */
#define SL_MAX_JSON_DEPTH  64
#define SL_MAX_JSON_COST   (4u << 20) /* values of a body, counted in server/http/json_in.c */
#define SL_MAX_LAYERS      1024
#define SL_MAX_KV_SKIP     255 /* bytes of --kv-cache-dtype-skip-layers */
#define SL_MAX_TAPS        8   /* places in a model whose hidden rows a drafter reads */
#define SL_MAX_EXPERTS     1024
#define SL_MAX_RANKS       8    /* that one model is divided among */
#define SL_MAX_REDUNDANT   1024 /* replicas of experts of a layer, among its ranks */
#define SL_MAX_REPLICAS    16   /* engines of one model in a server; a power of two */
#define SL_MAX_STAGES      8    /* likewise, by its layers; not more than ranks */
#define SL_MAX_RANK_DIALS  16   /* connections to rank 0 that have not said who they are */
#define SL_MAX_RANK_NOTE   4096 /* bytes of a message between ranks, but for steps */
#define SL_MAX_RANK_SECRET 4096 /* bytes of --rank-secret-file */
#define SL_MAX_TOP_EXPERTS 32   /* of a token */
#define SL_MAX_HEADS       1024
#define SL_MAX_INDEX_TOP   (1 << 16) /* positions that an index chooses for a row */
#define SL_MAX_HEAD_DIM    1024
#define SL_MAX_STATE_DIM   256 /* of a head of a recurrent state */
#define SL_MAX_CONV_TAPS   8
#define SL_MAX_LABELS      4096 /* of a classifier */
#define SL_MAX_HIDDEN      (1 << 20)
#define SL_MAX_VOCAB       (4 << 20)
#define SL_MAX_CONTEXT     (64 << 20) /* tokens */

/* text */
#define SL_MAX_TEXT        (256u << 20) /* bytes given to the tokenizer in one call */
#define SL_MAX_TOKEN_BYTES (64u << 10)  /* bytes of one vocabulary entry */
#define SL_MAX_REGEX       (64u << 10)  /* bytes of a pre-tokenizer pattern */
#define SL_MAX_TEMPLATE    (1u << 20)   /* bytes of a chat template */
#define SL_TEMPLATE_FUEL   4000000u     /* interpreter steps of one rendering */
#define SL_TEMPLATE_DEPTH  150          /* nesting of template source and calls */
#define SL_TEMPLATE_OUTPUT (64u << 20)  /* bytes one rendering may produce */

/* requests */
#define SL_MAX_N               128 /* sequences of one request */
#define SL_MAX_STOPS           16
#define SL_MAX_STOP_BYTES      256
#define SL_MAX_STOP_IDS        64
#define SL_MAX_MARKER_IDS      256 /* special tokens that appear in text */
#define SL_MAX_LOGIT_BIAS      1024
#define SL_MAX_BAD_WORDS       512  /* token sequences */
#define SL_MAX_BAD_WORD_IDS    64   /* of one */
#define SL_MAX_REPETITION      1024 /* tokens of what is repeated, and times */
#define SL_MAX_LOGPROBS        20
#define SL_MAX_LOGPROB_IDS     128
#define SL_MAX_STREAM_INTERVAL 1024       /* tokens that wait for an event of their own */
#define SL_MAX_CACHE_SALT      64         /* bytes */
#define SL_MAX_KV_LEASES       1024       /* prefixes kept for conversations that called a tool */
#define SL_MAX_SESSIONS        4096       /* that the queue knows */
#define SL_MAX_SESSION_ID      256        /* bytes */
#define SL_MAX_INPUTS          2048       /* texts of one call for embeddings or scores */
#define SL_MAX_PROMPTS         64         /* prompts of one completions call */
#define SL_MAX_REQUEST_BYTES   (1u << 30) /* memory one request may come to use */

/* adapters */
#define SL_MAX_ADAPTERS      16384 /* known by name */
#define SL_MAX_LORAS         1024  /* different ones of one step */
#define SL_MAX_ADAPTER_SCALE 100.0 /* of a request */

/* structured output */
#define SL_MAX_TOOLS         512          /* of one request */
#define SL_MAX_TOOL_NAME     128          /* bytes */
#define SL_MAX_GRAMMAR_TEXT  (4u << 20)   /* bytes of a schema or grammar */
#define SL_MAX_SPACE_PATTERN 256          /* bytes of a whitespace_pattern */
#define SL_MAX_UNIQUE_ITEMS  1024         /* of an array whose items must differ */
#define SL_MAX_GRAMMARS      256          /* compiled ones that are kept */
#define SL_MAX_GRAMMAR_CACHE (512u << 20) /* bytes they may have together */

/* engine */
#define SL_MAX_STATE_SLOTS (1 << 20)
#define SL_MAX_SEQS        1024 /* sequences of one step */
#define SL_MAX_STEP_TOKENS (1 << 17)
#define SL_MAX_DRAFT_PATH  1024 /* bytes of the name of a model that drafts */
#define SL_MAX_NGRAM       64   /* tokens looked up in a text */
#define SL_MAX_BLOCK_SIZE  256
#define SL_MAX_PAGE_TOKENS (SL_MAX_BLOCK_SIZE * SL_MAX_RANKS) /* of a block that ranks divide */
#define SL_MAX_TOP_PAGES   (1 << 20)                          /* that a row attends to, of more */
#define SL_MAX_KV_GROUPS   4 /* of layers that keep different positions */
#define SL_MAX_THREADS     256

/* KV pages outside the device */
#define SL_MAX_TIER_PAGES (1 << 24)  /* of a tier */
#define SL_MAX_TIER_PAGE  (1u << 30) /* bytes of one */
#define SL_MAX_TIER_DIR   3072       /* bytes of the path of its folder */
#define SL_MAX_TIER_TODO  (1 << 16)  /* complete pages that are to be copied to the store */
#define SL_MAX_TIER_MOVES 1024       /* copies of pages under way, in each direction */
#define SL_MAX_TIER_PROBE (1 << 14)  /* pages that the remote tier is asked about at a time */
#define SL_MAX_TIER_ASKED 64         /* pages that a request asks the store for at a time */

/* pages between servers */
#define SL_BOOTSTRAP_PORT   8998      /* where pages are read, as SGLang has it */
#define SL_MAX_NETS         64        /* addresses of a list */
#define SL_MAX_PEER_HOST    254       /* bytes of a peer's name */
#define SL_MAX_PEER_THREADS 8         /* of each side */
#define SL_MAX_PEER_CONNS   64        /* connections of a thread */
#define SL_MAX_PEER_WINDOW  8         /* pages asked for at once over a connection */
#define SL_MAX_PEER_JOBS    1024      /* requests whose pages are under way */
#define SL_MAX_LEASES       4096      /* requests whose pages are on offer */
#define SL_MAX_LEASE_BLOCKS (1 << 20) /* of one prompt */

/* pages that NIXL carries between servers */
#define SL_MAX_NIXL_READS    512        /* at once */
#define SL_MAX_NIXL_REMOTES  64         /* servers that they are read from */
#define SL_MAX_NIXL_METADATA (64 << 10) /* bytes of one's metadata */

/* method suffix of drafts */
#define SL_MAX_SUFFIX_DEPTH   256       /* tokens of a match and the drafts behind it */
#define SL_MAX_SUFFIX_OUTPUTS 1000000   /* that are kept */
#define SL_MAX_SUFFIX_CORPUS  (1 << 26) /* their tokens */

/* HTTP */
#define SL_MAX_HTTP_HEADER  (64u << 10)
#define SL_MAX_HTTP_BODY    (32u << 20)
#define SL_MAX_CONNECTIONS  16384
#define SL_MAX_HTTP_THREADS 64

/* files of clients, and batches */
#define SL_MAX_UPLOAD       (200u << 20) /* bytes of one file, as OpenAI's of a batch */
#define SL_MAX_STORED_FILES 10000
#define SL_MAX_BATCH_LINES  50000 /* requests of one batch, as OpenAI's */
#define SL_MAX_BATCHES      10000 /* that are remembered */
#define SL_MAX_OPEN_BATCHES 256   /* that have not ended */

#endif
