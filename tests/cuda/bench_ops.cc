/* SPDX-License-Identifier: MIT
 * bench_ops - how close the operations of src/cuda come to what the device can do: first the
 * ceilings, then products, attention, recurrent layers, rows and sampling against them. Prints
 * tables fit for bench/results; ends with 1 if a call fails or a result is wrong, 2 if there is no
 * device.
 */
#include "bench_attention.h"
#include "bench_ceilings.h"
#include "bench_chosen.h"
#include "bench_compressed.h"
#include "bench_decode.h"
#include "bench_experts.h"
#include "bench_latent.h"
#include "bench_layers.h"
#include "bench_linear.h"
#include "bench_rows.h"
#include "bench_sparse.h"
#include "bench_state.h"
#include "bench_step.h"
#include "bench_verify.h"

#include "base/sys.h"

static const char *const usage =
    "bench_ops [options]: the operations of the CUDA backend against what the device can do\n"
    "  --only PART      ceilings, linear, layers, experts, attention, latent, sparse, chosen,\n"
    "                   compressed, decode, verify, few, widths, state, prompts, rows, sample or\n"
    "                   step; default all; or choice or formats. The ceilings are always measured\n"
    "  --formats LIST   of weights, as in src/quant/dtypes.def, separated by commas;\n"
    "                   default bf16,q8_0,q4_k\n"
    "  --activations F  fp8: weights of FP8 meet FP8 activations; default bf16\n"
    "  --model NAME     of layers: 1b, 8b, 32b or 70b/8, default all; or square; of experts: a "
    "shape\n"
    "  --device N       default 0\n"
    "  --cublas PATH    the library to compare with, where the program does not find it\n"
    "  --tiny           sizes that say nothing, to try the program itself\n";

struct args {
    const char *only, *formats, *cublas, *model;
    int device;
};

static std::vector<enum sl_dtype> parse_formats(const char *list)
{
    std::vector<enum sl_dtype> out;
    for (const char *p = list; *p != '\0';) {
        size_t n = strcspn(p, ",");
        char name[16] = "";
        if (n < sizeof name)
            memcpy(name, p, n);
        int t = sl_dtype_from_name(name);
        if (t < 0) {
            fprintf(stderr, "bench_ops: --formats: no format \"%.*s\"\n", (int)n, p);
            exit(1);
        }
        out.push_back(static_cast<enum sl_dtype>(t));
        p += n + (p[n] == ',' ? 1 : 0);
    }
    return out;
}

static bool value_of(const char *name, char **argv, int *i, const char **out)
{
    if (strcmp(argv[*i], name) != 0)
        return false;
    if (argv[*i + 1] == nullptr) {
        fprintf(stderr, "bench_ops: %s needs a value\n", name);
        exit(1);
    }
    *out = argv[++*i];
    return true;
}

static void parse(int argc, char **argv, struct args *a)
{
    const char *device = nullptr, *activations = "bf16";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--tiny") == 0)
            b.tiny = true;
        else if (!value_of("--only", argv, &i, &a->only) &&
                 !value_of("--formats", argv, &i, &a->formats) &&
                 !value_of("--activations", argv, &i, &activations) &&
                 !value_of("--cublas", argv, &i, &a->cublas) &&
                 !value_of("--model", argv, &i, &a->model) &&
                 !value_of("--device", argv, &i, &device)) {
            fprintf(stderr, "bench_ops: no option %s\n%s", argv[i], usage);
            exit(1);
        }
    }
    a->device = device != nullptr ? atoi(device) : 0;
    b.use = strcmp(activations, "fp8") == 0 ? SL_USE_LINEAR_FP8 : SL_USE_LINEAR;
    if (b.use == SL_USE_LINEAR && strcmp(activations, "bf16") != 0) {
        fprintf(stderr, "bench_ops: --activations: bf16 or fp8, not \"%s\"\n", activations);
        exit(1);
    }
    static const char *const parts[] = {"ceilings", "linear", "layers",  "experts", "attention",
                                        "latent",   "sparse", "decode",  "verify",  "few",
                                        "widths",   "state",  "rows",    "sample",  "step",
                                        "prompts",  "choice", "formats", "chosen",  "compressed"};
    bool known = a->only == nullptr;
    for (const char *part : parts)
        known = known || strcmp(a->only, part) == 0;
    if (!known) {
        fprintf(stderr, "bench_ops: --only: no part \"%s\"\n%s", a->only, usage);
        exit(1);
    }
}

static bool wanted(const struct args *a, const char *part)
{
    return a->only == nullptr || strcmp(a->only, part) == 0;
}

/* The workspaces of the operations, as a model's loader asks for them: steps of 2,048 tokens and
 * 300 sequences of up to 131,072 positions. */
static void take_workspace()
{
    const struct attn_dims d = attn_dims_of();
    struct sl_step_limits lim = {};
    struct sl_error err = {};
    lim.max_tokens = b.tiny ? 128 : 2048;
    lim.max_spans = lim.max_logits = b.tiny ? 8 : 300;
    lim.max_context = b.tiny ? 512 : 131072;
    lim.block_size = ATTN_BLOCK;
    lim.max_table = lim.max_spans * (lim.max_context / ATTN_BLOCK);
    lim.n_kinds = 4;
    lim.heads[0] = {d.n_heads, d.n_kv, d.hd, d.hd, 0, 0};
    const struct latent_dims l = latent_dims_of(128);
    lim.heads[1] = {l.n_heads, 1, l.rank + l.rope, l.rank, 1, 0};
    const struct chosen_dims x = chosen_dims_of();
    lim.heads[2] = {x.heads.n_heads, x.heads.n_kv, x.heads.hd, x.heads.hd, 0, x.n_top * x.block};
    lim.heads[3] = {d.n_heads, d.n_kv, d.hd, d.hd, 0, lim.max_context};
    CHECK(b.be->vt->device->steps_init(b.be, &lim, &err) == 0, "%s", err.msg);
}

int main(int argc, char **argv)
{
    struct args a = {nullptr, "bf16,q8_0,q4_k", nullptr, nullptr, 0};
    struct sl_error err = {};
    parse(argc, argv, &a);
    std::vector<enum sl_dtype> formats = parse_formats(a.formats);
    struct sl_cuda_config cfg = {a.device, 0, false};
    if (sl_cuda_create(&cfg, &b.be, &err) != 0) {
        fprintf(stderr, "bench_ops: %s\n", err.msg);
        return 2;
    }
    b.cu = sl_cuda(b.be);
    take_workspace();
    uint64_t start = sl_now_ns();
    printf("device    %s, %d SMs\n", b.cu->name, b.cu->n_sms);
    lt_load(a.cublas);
    run_ceilings();
    if (wanted(&a, "linear"))
        run_linear(formats);
    if (wanted(&a, "layers"))
        run_layers(a.model);
    if (wanted(&a, "experts"))
        run_experts(a.model);
    if (wanted(&a, "attention"))
        run_attention();
    if (wanted(&a, "latent"))
        run_latent();
    if (wanted(&a, "sparse"))
        run_sparse();
    if (wanted(&a, "chosen"))
        run_chosen();
    if (wanted(&a, "compressed"))
        run_compressed();
    if (wanted(&a, "decode"))
        run_decode();
    if (wanted(&a, "verify"))
        run_verify();
    if (a.only != nullptr && wanted(&a, "choice"))
        run_choice();
    if (a.only != nullptr && wanted(&a, "formats"))
        run_formats();
    if (wanted(&a, "few"))
        run_few(formats);
    if (wanted(&a, "widths"))
        run_step(formats, step_widths);
    if (wanted(&a, "state"))
        run_state();
    if (wanted(&a, "prompts"))
        run_prompts();
    if (wanted(&a, "rows"))
        run_rows();
    if (wanted(&a, "sample"))
        run_sample();
    if (wanted(&a, "step"))
        run_step(formats);
    wait_all();
    b.be->vt->destroy(b.be);
    printf("\n%.1f s\n", static_cast<double>(sl_now_ns() - start) * 1e-9);
    return 0;
}
