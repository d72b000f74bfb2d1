/* SPDX-License-Identifier: MIT
 * A model that drafts for another one: found, compared with it, loaded, and run beside it.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/str.h"
#include "base/sys.h"
#include "engine/draft.h"
#include "engine/load/loaded.h"

#include <string.h>

/* Ids that the other vocabulary has for other text; reserved and special tokens may differ, as a
 * base model's and a chat model's do. */
static int32_t count_differences(const struct sl_tokenizer *a, const struct sl_tokenizer *b,
                                 int32_t n, int32_t *first)
{
    const unsigned own = SL_TOKEN_SPECIAL | SL_TOKEN_ADDED | SL_TOKEN_UNUSED;
    int32_t n_differ = 0;
    for (int32_t id = n - 1; id >= 0; id--) {
        size_t n_a = 0, n_b = 0;
        const char *x = sl_tokenizer_piece(a, id, &n_a), *y = sl_tokenizer_piece(b, id, &n_b);
        if (((sl_tokenizer_attr(a, id) | sl_tokenizer_attr(b, id)) & own) != 0 || x == NULL ||
            y == NULL || (n_a == n_b && memcmp(x, y, n_a) == 0))
            continue;
        n_differ++;
        *first = id;
    }
    return n_differ;
}

/* Both must mean the same by an id. Widths of logits may differ by padding. */
static int check_vocabulary(const struct sl_tokenizer *tok, const struct sl_ckpt *draft,
                            struct sl_error *err)
{
    struct sl_tokenizer *own = NULL;
    int rc = sl_load_tokenizer(draft, &own, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "speculative-config: vocabulary of %s",
                               sl_ckpt_path(draft));
    const int32_t n_a = sl_tokenizer_n_vocab(tok), n_b = sl_tokenizer_n_vocab(own);
    const int32_t n = SL_MIN(n_a, n_b);
    int32_t first = 0;
    if (count_differences(tok, own, n, &first) > 0)
        rc = sl_fail(err, SL_EINVAL,
                     "speculative-config: the vocabulary of %s is another one: token %d is not the "
                     "same text in both; choose a model of the same family of tokenizers",
                     sl_ckpt_path(draft), first);
    else if (n < SL_MAX(n_a, n_b) / 2)
        rc = sl_fail(err, SL_EINVAL,
                     "speculative-config: the vocabulary of %s has %d tokens, that of the model %d",
                     sl_ckpt_path(draft), n_b, n_a);
    sl_tokenizer_destroy(own);
    return rc;
}

/* A model that takes tokens. */
static int open_model(const struct sl_tokenizer *tok, struct sl_load_draft *out,
                      struct sl_error *err)
{
    int rc = sl_model_open(out->ckpt, &out->model, err);
    if (rc == 0)
        rc = sl_model_set_task(out->model, "generate", NULL, NULL, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "speculative-config: model");
    return check_vocabulary(tok, out->ckpt, err);
}

/* As the method says, or the drafter's own config.json. */
static int open_drafter(const struct sl_speculative *how, const struct sl_model *model,
                        const struct sl_tokenizer *tok, struct sl_load_draft *out,
                        struct sl_error *err)
{
    const char *method = how->method == SL_DRAFT_MODEL ? sl_ckpt_draft_method(out->ckpt)
                         : how->method == SL_DRAFT_MTP ? "gemma4_mtp"
                                                       : sl_speculative_name(how);
    if (method == NULL)
        return open_model(tok, out, err);
    int rc = sl_model_open_draft(out->ckpt, model, method, &out->model, err);
    if (rc != 0)
        return rc;
    const struct sl_model_facts *f = sl_model_facts(out->model);
    if (how->parallel_drafting && f->draft_block == 0)
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: parallel_drafting is true, but %s has no tensor "
                       "\"mask_hidden\": it makes one draft after another",
                       sl_ckpt_path(out->ckpt));
    const int32_t most = f->draft_block - !f->draft_from_anchor;
    if (f->draft_block > 0 && how->num_speculative_tokens > most)
        return sl_fail(err, SL_EINVAL,
                       "speculative-config: num_speculative_tokens is %d, but %s makes at most %d "
                       "drafts in a block (its block_size)",
                       how->num_speculative_tokens, sl_ckpt_path(out->ckpt), most);
    return 0;
}

/* One that has a checkpoint of its own. */
static int open_other(const struct sl_speculative *how, const struct sl_model *model,
                      const struct sl_tokenizer *tok, struct sl_load_draft *out,
                      struct sl_error *err)
{
    const bool bundled = strcmp(how->model, "(bundled)") == 0;
    int rc = sl_ckpt_open(bundled ? NULL : how->model, &out->ckpt, err);
    if (rc != 0)
        return sl_error_prefix(err, rc, "speculative-config: model");
    return open_drafter(how, model, tok, out, err);
}

static int check_context(const struct sl_speculative *how, const struct sl_model *draft,
                         struct sl_error *err)
{
    const int32_t context = sl_model_facts(draft)->context;
    if (how->max_model_len <= context)
        return 0;
    return sl_fail(err, SL_EINVAL,
                   "speculative-config: max_model_len %d is more than the %d tokens that the model "
                   "that drafts can see",
                   how->max_model_len, context);
}

int sl_load_draft_open(const struct sl_engine_config *cfg, const struct sl_model *model,
                       const struct sl_ckpt *ckpt, const struct sl_tokenizer *tok,
                       struct sl_load_draft *out, struct sl_error *err)
{
    struct sl_speculative how;
    *out = (struct sl_load_draft){0};
    int rc = sl_speculative_parse(cfg->speculative_config, cfg->speculative_model, &how, err);
    if (rc != 0 || !sl_speculative_loads(&how))
        return rc;
    /* vLLM's mtp is also what has a checkpoint of its own, if the model's has no module */
    const bool own =
        how.method == SL_DRAFT_MTP && (how.model[0] == '\0' || sl_model_has_mtp(model));
    rc = own ? sl_model_open_draft(ckpt, model, "mtp", &out->model, err)
             : open_other(&how, model, tok, out, err);
    if (rc == 0)
        rc = check_context(&how, out->model, err);
    if (rc != 0)
        sl_load_draft_close(out);
    return rc;
}

void sl_load_draft_close(struct sl_load_draft *d)
{
    SL_ASSERT(d->run == NULL && d->pool == NULL);
    if (d->model != NULL)
        sl_model_close(d->model);
    if (d->ckpt != NULL)
        sl_ckpt_close(d->ckpt);
    *d = (struct sl_load_draft){0};
}

int sl_load_draft_weights(struct sl_load_draft *d, const struct sl_engine_config *cfg,
                          const struct sl_memory_plan *plan, struct sl_backend *be,
                          struct sl_error *err)
{
    if (!sl_speculative_loads(&plan->speculative)) /* this model takes none, those beside it may */
        sl_load_draft_close(d);
    if (d->model == NULL)
        return 0;
    const struct sl_model_facts *f = sl_model_facts(d->model);
    sl_model_set_context(d->model, SL_MIN(f->context, plan->max_model_len));
    sl_log(SL_LOG_INFO,
           "drafts: up to %d tokens by %s (%s, %d layers, %.2f GB of weights), pages %.2f GB",
           plan->speculative.num_speculative_tokens,
           d->ckpt != NULL ? sl_ckpt_path(d->ckpt) : "the model's own module", f->family,
           f->n_layers, (double)f->weight_bytes / 1e9,
           (double)sl_memory_plan_draft_bytes(plan) / 1e9);
    return sl_model_load(d->model, be, cfg->progress, cfg->progress_arg, err);
}

int sl_load_draft_start(struct sl_load_draft *d, const struct sl_memory_plan *plan,
                        uint8_t *const *pools, struct sl_backend *be, struct sl_error *err)
{
    if (d->model == NULL)
        return 0;
    const uint64_t n_bytes = sl_memory_plan_draft_bytes(plan);
    SL_ASSERT(d->run == NULL && d->pool == NULL && plan->draft_kv.n_groups == 1);
    struct sl_run_config run;
    sl_memory_plan_draft_run(plan, d->model, &run);
    if (sl_model_facts(d->model)->draft_borrows) {
        memcpy(run.kv_pool, pools, sizeof run.kv_pool);
        return sl_run_create(d->model, &run, &d->run, err);
    }
    d->pool = be->vt->alloc(be, n_bytes);
    if (d->pool == NULL)
        return sl_fail(err, SL_ENOMEM, "no memory for %.2f GB of KV pages of a model that drafts",
                       (double)n_bytes / 1e9);
    d->pool_bytes = n_bytes;
    run.kv_pool[0] = d->pool;
    return sl_run_create(d->model, &run, &d->run, err);
}

bool sl_load_draft_reads_rows(const struct sl_load_draft *d)
{
    return d->model != NULL && sl_model_facts(d->model)->draft_width > 0;
}

void sl_load_draft_stop(struct sl_load_draft *d, struct sl_backend *be)
{
    SL_ASSERT(d->run == NULL || d->model != NULL);
    if (d->run != NULL)
        sl_run_destroy(d->run);
    if (d->pool != NULL)
        be->vt->free(be, d->pool, d->pool_bytes);
    d->run = NULL;
    d->pool = NULL;
}
