#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/drafts/<name>/: tiny random models, drafters that read their hidden rows, and what others say.

Models with a module of MTP hold it among their tensors; an EAGLE-3 drafter has a folder of its own, and reads rows of
the model in `llama`. draft.bin (little endian) has int32 n, n_taps, target_hidden, n_draft_vocab, n_more; int32
taps[n_taps] (layers that rows enter, -1: behind the final norm, -2: all streams behind the last layer); int32 ids[n]; float32 rows[n][n_taps][target_hidden]
of the model; float32 logits[n - 1][n_draft_vocab] of the drafter, entry p of row p and token p + 1; int32
drafts[n_more], the tokens that it says from the last entry on, each the argmax; float32 logits[n_more][n_draft_vocab] of
the entries made of those tokens and of its own rows.

Drafters that make a block of drafts in one step have block.bin instead: int32 n, n_taps, target_hidden, n_draft_vocab,
block, n_anchors; int32 taps[n_taps], ids[n], anchors[n_anchors]; float32 rows as above; float32
logits[n_anchors][block][n_draft_vocab] of the block behind each anchor, a token of the text, and the rows before it
(P-EAGLE: of the last entry of the text, row a - 1 and token a, and of masks). Where a draft depends on the one before
it, chain.bin has int32 n_anchors, n; int32 drafts[n_anchors][n]; float32 logits[n_anchors][n][n_draft_vocab] and
odds[n_anchors][n], 0 where the drafter does not say any.

Oracles, in float32 on the CPU: transformers' MtpModel (glm4_moe, deepseek_v3 and v32); the package speculators, its layers of MTP (qwen3_5,
qwen3_next) and EAGLE-3, whose own forward() must say the same first drafts, P-EAGLE with the package's mask, and DFlash, of which the windows of rows are z-lab's; for MiMo-7B and DeepSeek V4, which neither has, the
formula around transformers' layer of Qwen 2 and V4. speculators wants transformers < 5.20, which has no MtpModel, so that
there are two environments. `same` is a MiMo that says its last token for ever, and its module and `eagle3_same` say so too: all of
their drafts are right if each is made from the rows of its own text; `deepseek_v4_same` does so with V4's module.
So are those of `dflash_copy` and `peagle_copy` for `copy`. Models have a tokenizer of a character a token.

Gemma 4's assistants (transformers' Gemma4AssistantForCausalLM) read the keys that their model, `gemma4`, keeps: entry p
of draft.bin is made at position p + 1 with the keys up to p, those of the drafts at the last entry's position. Of
transformers 5.23 the config says that such a model, all of whose layers share keys, is none: this is patched here.
`gemma4_copy_window` and `gemma4_copy_full` say for `gemma4_copy` the token whose value a layer of that kind reads at the
position before its own.

    pip install torch transformers==5.23 safetensors && tools/gen_golden_drafts.py glm4_moe mimo same deepseek_v4 deepseek_v4_same \
        gemma4 gemma4_assistant gemma4_assistant_ordered gemma4_copy
    pip install torch transformers==5.19 speculators==0.9 safetensors && tools/gen_golden_drafts.py \
        llama qwen3_5 qwen3_next eagle3 eagle3_nested eagle3_speculators eagle3_fc_norm \
        dflash dflash_windows dflash_speculators copy peagle peagle_speculators dspark dspark_gated dspark_rnn
"""
import json
import pathlib
import struct
import sys
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gen_golden  # noqa: E402
from gen_golden import plain  # noqa: E402

OUT = pathlib.Path("tests/golden/drafts")
N, MORE = 24, 3
NORMED = -1
STREAMS = -2  # all of a model of hyper-connections, as they leave the last layer
SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=40,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)


def rounded(module, generator, one=1):
    """Random weights that BF16 holds; norms at `one`."""
    gen_golden.randomise(module, generator)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if one == 0 and p.dim() == 1 and "norm" in name and "linear_attn" not in name and p.mean() > 0.5:
                p.sub_(1)
            p.copy_(p.to(torch.bfloat16).float())
    return module.eval()


def as_stored(module):
    bf16 = {k: v.to(torch.bfloat16).contiguous() for k, v in module.state_dict().items()
            if not k.endswith("e_score_correction_bias")}
    bias = {k: v for k, v in module.state_dict().items() if k.endswith("e_score_correction_bias")}
    return gen_golden.one_by_one(bf16) | bias


def rows_of(model, ids, taps):
    """The model's hidden rows [n, len(taps), H]: the stream that enters a layer."""
    decoder = model.model
    kept, hooks = {}, []
    for i, layer in enumerate(decoder.layers):
        hooks.append(layer.register_forward_hook(
            lambda _, args, out, i=i: kept.__setitem__(i + 1, out[0] if isinstance(out, tuple) else out)))
    with torch.no_grad():
        kept[NORMED] = decoder(ids, use_cache=False).last_hidden_state
        kept[0] = decoder.embed_tokens(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack([kept[t][0].float() for t in taps], 1)


def mask_of(n):
    return torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]


def write(folder, taps, ids, rows, run, to_target):
    """run(rows, own, tokens): logits and hidden rows of entries, of the model's rows and then of its own."""
    with torch.no_grad():
        logits, hidden = run(rows[:-1], [], ids[0, 1:])
        first, own, drafts, more = logits, [], [], []
        for _ in range(MORE):
            drafts.append(to_target(int(logits[-1].argmax())))
            own.append(hidden[-1])
            logits, hidden = run(rows[:-1], own, torch.cat([ids[0, 1:], torch.tensor(drafts)]))
            more.append(logits[-1])
    top = torch.stack([first[-1], *more]).topk(2, dim=-1).values
    assert (top[:, 0] - top[:, 1]).min() > 1e-3, "a near tie: take another seed"
    with open(folder / "draft.bin", "wb") as f:
        f.write(struct.pack("<5i", N, len(taps), rows.shape[-1], first.shape[-1], MORE))
        f.write(struct.pack(f"<{len(taps)}i", *taps))
        f.write(ids[0].to(torch.int32).numpy().tobytes())
        f.write(rows.float().contiguous().numpy().tobytes())
        f.write(first.float().contiguous().numpy().tobytes())
        f.write(struct.pack(f"<{MORE}i", *drafts))
        f.write(torch.stack(more).float().contiguous().numpy().tobytes())
    print(f"{folder.name}: {sum(p.stat().st_size for p in folder.iterdir())} bytes, drafts {drafts}")


def save(folder, stored, config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def tokenizer(folder):
    """A token for each printable character, behind one that ends a text."""
    characters = {"<eos>": 0} | {"\u0120" if c == 32 else chr(c): c - 31 for c in range(32, 127)}
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    end = dict(id=0, content="<eos>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    (folder / "tokenizer.json").write_text(json.dumps(dict(
        version="1.0", truncation=None, padding=None, added_tokens=[end], normalizer=None, pre_tokenizer=level,
        post_processor=None, decoder=level,
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                   fuse_unk=False, byte_fallback=False, vocab=characters, merges=[]))) + "\n")


def with_own(rows, own):
    """The model's rows of one tap, then the drafter's."""
    return torch.cat([rows[:, 0], torch.stack(own)]) if own else rows[:, 0]


def config_of(config, spelling="old"):
    config.torch_dtype = torch.bfloat16
    return json.loads(gen_golden.config_json(config, spelling))


# ---------------------------------------------------------------- MTP


def glm4_moe(name, generator):
    config = transformers.Glm4MoeConfig(
        **SMALL, num_hidden_layers=2, head_dim=16, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=12, first_k_dense_replace=1, routed_scaling_factor=1.5, attention_bias=True,
        use_qk_norm=True, num_nextn_predict_layers=1, rope_parameters=dict(plain(500.0), partial_rotary_factor=0.5))
    numbered_module(name, config, "Glm4MoeForCausalLM", generator)


def deepseek_v3(name, generator):
    config = transformers.DeepseekV3Config(
        **SMALL | dict(num_key_value_heads=SMALL["num_attention_heads"]), num_hidden_layers=2, q_lora_rank=16,
        kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=8,
        num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=8, first_k_dense_replace=1, n_group=4,
        topk_group=2, num_nextn_predict_layers=1, rope_parameters=plain(500.0))
    numbered_module(name, config, "DeepseekV3ForCausalLM", generator)


def deepseek_v32(name, generator):  # whose module has an index of its own
    config = transformers.DeepseekV32Config(
        **SMALL | dict(num_key_value_heads=SMALL["num_attention_heads"]), num_hidden_layers=2, q_lora_rank=16,
        kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=8,
        num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=8, first_k_dense_replace=1, n_group=4,
        topk_group=2, index_n_heads=16, index_head_dim=20, index_topk=11, num_nextn_predict_layers=1,
        rope_parameters=plain(500.0))
    config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]  # of masks; the class says none
    config.mtp_mlp_layer_types = ["sparse"]
    numbered_module(name, config, "DeepseekV32ForCausalLM", generator)


def v4_and_module(more, generator):
    """Config, model, the layer of its module, and what the module has beside that."""
    import gen_golden_v4 as v4
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as classes

    args = dict(v4.TINY, vocab_size=SMALL["vocab_size"], moe_intermediate_size=8) | more
    n = args["num_hidden_layers"]
    behind = dict(num_hidden_layers=n + 1, layer_types=args["layer_types"] + [v4.SLIDING],
                  mlp_layer_types=args["mlp_layer_types"] + ["moe"])
    config, inner = (transformers.DeepseekV4Config(**(args | x), rope_parameters=dict(v4.YARN)) for x in ({}, behind))
    config.architectures = ["DeepseekV4ForCausalLM"]
    config._attn_implementation = inner._attn_implementation = "eager"
    model = transformers.DeepseekV4ForCausalLM(config)
    h = config.hidden_size
    layer = classes.DeepseekV4DecoderLayer(inner, n)
    end = torch.nn.ModuleDict(dict(
        hc_head=classes.DeepseekV4HyperHead(inner), e_proj=torch.nn.Linear(h, h, bias=False),
        h_proj=torch.nn.Linear(h, h, bias=False)) | {
            k: classes.DeepseekV4RMSNorm(h, eps=inner.rms_norm_eps) for k in ("enorm", "hnorm", "norm")})
    for part in (model, layer, end):
        v4.randomise(part, generator)
        with torch.no_grad():
            for p in part.parameters():
                p.copy_(p.to(torch.bfloat16).float())
        part.eval()
    return config, model, layer, end


def v4_save(name, config, model, layer, end):
    import gen_golden_v4 as v4

    exact, own = ("tid2eid", "e_score_correction_bias"), f"layers.{config.num_hidden_layers}."
    tensors = dict(model.state_dict()) | {"model." + own + k: v for k, v in layer.state_dict().items()}
    stored = v4.hub_tensors({k: v if k.endswith(exact) else v.to(torch.bfloat16) for k, v in tensors.items()})
    stored = {("mtp.0." + k[len(own):] if k.startswith(own) else k): v.contiguous() for k, v in stored.items()}
    for k, v in end.state_dict().items():
        stored["mtp.0." + k.replace("hc_head.hc_", "hc_head_")] = v.to(torch.bfloat16)
    save(OUT / name, stored, json.loads(v4.hub_config(config)))
    tokenizer(OUT / name)


def deepseek_v4(name, generator):
    """The module reads all streams of the model, and makes each of its own of a product of the embedding and one of
    the model's stream; its layer and its end are as the model's, with a window alone."""
    import gen_golden_v4 as v4

    config, model, layer, end = v4_and_module(dict(
        num_hidden_layers=2, index_topk=3, hc_mult=3, layer_types=[v4.SLIDING, v4.SPARSE],
        mlp_layer_types=["hash_moe", "moe"], n_routed_experts=3), generator)
    v4_save(name, config, model, layer, end)
    ids = torch.randint(0, config.vocab_size, (1, N), generator=generator)
    streams = []
    hook = model.model.layers[-1].register_forward_hook(lambda _, args, out: streams.append(out))
    gap, n_rows = v4.choice_gap(model, ids, config.index_topk, N // 4)
    hook.remove()
    assert n_rows > 0 and gap > 1e-3, "a near choice: take another seed"
    rows = streams[0][0].float().reshape(N, 1, -1)

    def run(rows, own, tokens):
        x = with_own(rows, own).reshape(1, -1, config.hc_mult, config.hidden_size)
        e = end["e_proj"](end["enorm"](model.model.embed_tokens(tokens[None])))
        x = e[:, :, None] + end["h_proj"](end["hnorm"](x))
        at = torch.arange(len(tokens))[None]
        near = at[0][:, None] - at[0] < config.sliding_window
        mask = mask_of(len(tokens)).masked_fill(~near, torch.finfo(torch.float32).min)
        angles = {k: model.model.rotary_emb(e, position_ids=at, layer_type=k) for k in ("main", "compress")}
        x = layer(x, position_embeddings=angles, position_ids=at, attention_mask=mask, input_ids=tokens[None])
        return model.lm_head(end["norm"](end["hc_head"](x)))[0], x.flatten(2)[0]

    write(OUT / name, [STREAMS], ids, rows, run, lambda i: i)


def deepseek_v4_same(name, generator):
    """As `same`: layers add nothing, and the module's streams begin as those of the model alone."""
    import gen_golden_v4 as v4

    config, model, layer, end = v4_and_module(dict(
        num_hidden_layers=1, index_topk=3, hc_mult=2, layer_types=[v4.SPARSE], mlp_layer_types=["hash_moe"],
        n_routed_experts=2), generator)
    with torch.no_grad():
        e = torch.nn.functional.normalize(torch.randn(model.lm_head.weight.shape, generator=generator), dim=-1)
        for p in (model.model.embed_tokens, model.lm_head):
            p.weight.copy_(e.to(torch.bfloat16).float())
        for x in (model.model.layers[0], layer):
            for p in (x.self_attn.o_b_proj.weight, x.mlp.experts.down_proj, x.mlp.shared_experts.down_proj.weight):
                p.zero_()
        for p in (model.model.norm, end["norm"], end["hnorm"]):
            p.weight.fill_(1)
        end["e_proj"].weight.zero_()
        end["h_proj"].weight.copy_(torch.eye(config.hidden_size))
        ids = torch.arange(config.vocab_size)[None]
        assert (model(ids, use_cache=False).logits.argmax(-1) == ids).all()
    v4_save(name, config, model, layer, end)
    print(f"{name}: {sum(p.stat().st_size for p in (OUT / name).iterdir())} bytes")


def numbered_module(name, config, model_class, generator):
    """The layer behind the last one."""
    from transformers.modeling_layers import MtpModel

    config.architectures = [model_class]
    config._attn_implementation = "eager"
    model = rounded(getattr(transformers, model_class)(config), generator)
    mtp = MtpModel(model, 1)
    rounded(mtp.layers, generator)
    mtp.eval()
    module = {}
    for k, v in as_stored(mtp.layers[0]).items():
        k = k.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
        module[f"model.layers.{config.num_hidden_layers}.{k}"] = v
    stored = as_stored(model)
    end = f"model.layers.{config.num_hidden_layers}."  # copies, as the hub's files have them
    module[end + "embed_tokens.weight"] = stored["model.embed_tokens.weight"].clone()
    module[end + "shared_head.head.weight"] = stored["lm_head.weight"].clone()
    save(OUT / name, stored | module, config_of(config))
    tokenizer(OUT / name)
    ids = torch.randint(0, config.vocab_size, (1, N), generator=generator)
    rows = rows_of(model, ids, [NORMED])

    def run(rows, own, tokens):
        h = with_own(rows, own)[None]
        at = torch.arange(1, len(tokens) + 1)[None]
        h = mtp.forward_layer(0, h, at, None, input_ids=tokens[None])
        return model.lm_head(h)[0], h[0]

    write(OUT / name, [NORMED], ids, rows, run, lambda i: i)


def qwen_mtp(name, config, model_class, generator):
    from speculators.models.mtp.model_definitions import mtp_model_classes

    config.architectures = [model_class]
    config._attn_implementation = "eager"
    model = rounded(getattr(transformers, model_class)(config), generator)
    classes = mtp_model_classes[config.model_type]
    layer = rounded(classes.first_layer_class(config, layer_idx=0), generator, 0)
    stored = as_stored(model)
    names = {"input_proj.": "fc.", "final_layernorm.": "norm.", "hidden_layernorm.": "pre_fc_norm_hidden.",
             "token_layernorm.": "pre_fc_norm_embedding."}
    for k, v in as_stored(layer).items():
        own = next((k.replace(a, b) for a, b in names.items() if k.startswith(a)), "layers.0." + k)
        stored["mtp." + own] = v
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    save(OUT / name, stored, config_of(config) | dict(mtp_num_hidden_layers=1))
    tokenizer(OUT / name)
    ids = torch.randint(0, config.vocab_size, (1, N), generator=generator)
    rows = rows_of(model, ids, [NORMED])
    rotary = classes.rotary_emb_class(config)

    def run(rows, own, tokens):
        h = with_own(rows, own)[None]
        at = torch.arange(len(tokens))[None]
        three = at[None].expand(3, -1, -1) if config.model_type.startswith("qwen3_5") else at
        h = layer(h, model.model.embed_tokens(tokens[None]), attention_mask=mask_of(len(tokens)),
                  position_ids=at, position_embeddings=rotary(h, three))
        return model.lm_head(h)[0], h[0]

    write(OUT / name, [NORMED], ids, rows, run, lambda i: i)


QWEN = dict(
    SMALL, head_dim=16, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=8,
    rope_parameters=dict(plain(1000.0), partial_rotary_factor=0.25))


def qwen3_5(name, generator):
    config = transformers.Qwen3_5TextConfig(**QWEN, tie_word_embeddings=True)
    qwen_mtp(name, config, "Qwen3_5ForCausalLM", generator)


def qwen3_next(name, generator):
    config = transformers.Qwen3NextConfig(
        **QWEN, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24)
    qwen_mtp(name, config, "Qwen3NextForCausalLM", generator)


MIMO = dict(architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)


def same(name, generator):
    """Layers that add nothing; the module's input and what the drafter joins is the hidden row alone."""
    h, n = SMALL["hidden_size"], SMALL["vocab_size"]
    config = transformers.Qwen2Config(**SMALL, num_hidden_layers=2, tie_word_embeddings=True,
                                      rope_parameters=plain(1000.0))
    model = rounded(transformers.Qwen2ForCausalLM(config), generator)
    stored = {k: v for k, v in as_stored(model).items() if k != "lm_head.weight"}
    embedding = torch.nn.functional.normalize(torch.randn(n, h, generator=generator), dim=-1)
    stored["model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    layer = {k[len("model.layers.0."):]: v.clone() for k, v in stored.items() if ".layers.0." in k}
    stored |= {"model.mtp_layers.0." + k: v for k, v in layer.items()}
    drafter = {"midlayer." + k: v.clone() for k, v in layer.items() if not k.endswith("bias")}
    for k in list(drafter):
        if k.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            drafter[k] = torch.cat([drafter[k], drafter[k]], 1)
    one = torch.ones(h, dtype=torch.bfloat16)
    eye, none = torch.eye(h, dtype=torch.bfloat16), torch.zeros(h, h, dtype=torch.bfloat16)
    for k in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        stored[f"model.mtp_layers.0.{k}.weight"] = one.clone()
    stored["model.mtp_layers.0.input_proj.weight"] = torch.cat([eye, none], 1)
    drafter |= {"midlayer.hidden_norm.weight": one.clone(), "norm.weight": one.clone(),
                "fc.weight": torch.cat([none, none, eye], 1)}
    for tensors in (stored, drafter):
        for k in tensors:
            if k.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[k] = torch.zeros_like(tensors[k])
    stored["model.norm.weight"] = one.clone()
    save(OUT / name, stored, config_of(config) | MIMO)
    tokenizer(OUT / name)
    inner = transformers.LlamaConfig(**SMALL, num_hidden_layers=1, rope_parameters=plain(1000.0))
    more = dict(architectures=["LlamaForCausalLMEagle3"], eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    save(OUT / "eagle3_same", drafter, config_of(inner) | more)
    e = stored["model.embed_tokens.weight"].float()
    assert ((e @ e.T).argmax(1) == torch.arange(n)).all()


def mimo(name, generator):
    """XiaomiMiMo/MiMo-7B: a Qwen 2 whose module reads [hidden, embedding]."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

    config = transformers.Qwen2Config(**SMALL, num_hidden_layers=2, rope_parameters=plain(1000.0))
    config._attn_implementation = "eager"
    model = rounded(transformers.Qwen2ForCausalLM(config), generator)
    layer = Qwen2DecoderLayer(config, 0)
    layer.token_layernorm, layer.hidden_layernorm, layer.final_layernorm = (
        Qwen2RMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3))
    layer.input_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    rounded(layer, generator)
    stored = as_stored(model) | {"model.mtp_layers.0." + k: v for k, v in as_stored(layer).items()}
    save(OUT / name, stored, config_of(config) | MIMO)
    tokenizer(OUT / name)
    ids = torch.randint(0, config.vocab_size, (1, N), generator=generator)
    rows = rows_of(model, ids, [NORMED])

    def run(rows, own, tokens):
        h = layer.hidden_layernorm(with_own(rows, own)[None])
        e = layer.token_layernorm(model.model.embed_tokens(tokens[None]))
        at = torch.arange(len(tokens))[None]
        h = layer(layer.input_proj(torch.cat([h, e], -1)), attention_mask=mask_of(len(tokens)), position_ids=at,
                  position_embeddings=model.model.rotary_emb(h, at))
        h = layer.final_layernorm(h)
        return model.lm_head(h)[0], h[0]

    write(OUT / name, [NORMED], ids, rows, run, lambda i: i)


# ---------------------------------------------------------------- EAGLE-3

TARGET = dict(SMALL, intermediate_size=24, num_hidden_layers=7, rope_parameters=plain(700.0))


def llama(name, generator):
    """What the EAGLE-3 drafters are for."""
    config = transformers.LlamaConfig(**TARGET)
    config.architectures = ["LlamaForCausalLM"]
    save(OUT / name, as_stored(rounded(transformers.LlamaForCausalLM(config), generator)), config_of(config))
    tokenizer(OUT / name)


def eagle3(name, generator):
    """How each is made: its layers' config, its options, the rows it reads, and what its files look like."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layers = dict(SMALL, intermediate_size=48, num_hidden_layers=1, rope_parameters=plain(300.0))
    kind, options, taps, n_draft = {
        "eagle3": ("Llama", dict(), [2, 3, 4], 40),
        "eagle3_nested": ("Llama", dict(norm_before_fc=True), [2, 4, 5], 96),
        "eagle3_speculators": ("Qwen3", dict(norm_before_residual=True), [1, 4, 7], 40),
        "eagle3_fc_norm": ("Llama", dict(fc_norm=True, norm_output=True), [0, 5], 40),
    }[name]
    if kind == "Qwen3":
        layers |= dict(head_dim=16, num_hidden_layers=2)
    inner = getattr(transformers, kind + "Config")(**layers)
    inner._attn_implementation = "eager"
    target = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TARGET)).eval()
    weights = load_file(OUT / "llama" / "model.safetensors")
    target.load_state_dict({k: v.float() for k, v in weights.items()})
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=inner, draft_vocab_size=n_draft, eagle_aux_hidden_state_layer_ids=taps, **options,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=MORE)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))
    model = rounded(Eagle3DraftModel(config), generator).float()
    own_embedding = name in ("eagle3_nested", "eagle3_speculators")
    with torch.no_grad():
        if not own_embedding:
            model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
    said = None
    if n_draft < inner.vocab_size:
        said = torch.randperm(inner.vocab_size, generator=generator)[:n_draft].sort().values
        model.d2t.copy_(said - torch.arange(n_draft))
        model.t2d[said] = True
    stored = {k: v.to(torch.bfloat16).contiguous() if v.is_floating_point() else v
              for k, v in model.state_dict().items()
              if not k.startswith("verifier_") and (own_embedding or k != "embed_tokens.weight")}
    if "speculators" in name or "fc_norm" in name:
        text = json.loads(config.to_json_string())
        text["transformer_layer_config"] |= dict(vocab_size=inner.vocab_size, hidden_size=inner.hidden_size)
    else:
        stored = {k.replace("layers.0.", "midlayer."): v for k, v in stored.items()}
        text = config_of(inner) | dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=n_draft)
    if name == "eagle3_nested":  # with the layers that rows leave
        text["eagle_config"] = dict(eagle_aux_hidden_state_layer_ids=[t - 1 for t in taps], use_aux_hidden_state=True)
        text["norm_before_fc"] = True
    save(OUT / name, stored, text)
    ids = torch.randint(0, inner.vocab_size, (1, N), generator=generator)
    rows = rows_of(target, ids, taps)

    def joined(rows):
        h = rows.flatten(1)
        if model.input_norm is not None:
            h = model.input_norm(h)
        if model.fc_norm is not None:
            h = torch.cat([norm(x) for norm, x in zip(model.fc_norm, h.chunk(len(taps), -1))], -1)
        return model.fc(h)

    def run(rows, own, tokens):
        h = joined(rows)
        h = torch.cat([h, torch.stack(own)]) if own else h
        h = torch.cat([model.embed_tokens(tokens), h], -1)[None]
        at = torch.arange(1, len(tokens) + 1)[None]
        turns = model.rotary_emb(h, at)
        for layer in model.layers:
            h = layer(h, attention_mask=mask_of(len(tokens)), position_ids=at, position_embeddings=turns)
            h = h[0] if isinstance(h, tuple) else h
        normed = model.norm(h)
        return model.lm_head(normed)[0], (normed if config.norm_output else h)[0]

    with torch.no_grad():  # the package's own forward
        theirs = model(rows[:-1].flatten(1)[None], ids[:, 1:], torch.zeros(1, N - 1, dtype=torch.long), ttt_steps=1)
        assert (theirs[0][0] == run(rows[:-1], [], ids[0, 1:])[0].argmax(-1)).all()
    write(OUT / name, taps, ids, rows, run, lambda i: i if said is None else int(said[i]))


def peagle(name, generator):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.attention import create_float_mask
    from speculators.models.peagle.attention import create_peagle_mask_mod
    from speculators.models.peagle.config import PEagleSpeculatorConfig
    from speculators.models.peagle.core import PEagleDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    anchors, block = [1, 8, 15], 5
    kind, options, taps, n_draft = {
        "peagle": ("Llama", dict(), [2, 3, 4], 96),
        "peagle_speculators": ("Qwen3", dict(norm_before_residual=True, fc_norm=True), [1, 6], 40),
    }[name]
    layers = dict(SMALL, intermediate_size=48, num_hidden_layers=2, rope_parameters=plain(300.0))
    if kind == "Qwen3":
        layers |= dict(head_dim=16)
    inner = getattr(transformers, kind + "Config")(**layers)
    inner._attn_implementation = "eager"
    target = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TARGET)).eval()
    weights = load_file(OUT / "llama" / "model.safetensors")
    target.load_state_dict({k: v.float() for k, v in weights.items()})
    config = PEagleSpeculatorConfig(
        transformer_layer_config=inner, draft_vocab_size=n_draft, eagle_aux_hidden_state_layer_ids=taps,
        mask_token_id=94, **options, speculators_config=SpeculatorsConfig(
            algorithm="peagle", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=block)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))
    model = rounded(PEagleDraftModel(config), generator).float()
    with torch.no_grad():
        model.mask_hidden.copy_(torch.randn(model.mask_hidden.shape, generator=generator).to(torch.bfloat16).float())
        if n_draft < inner.vocab_size:
            said = torch.randperm(inner.vocab_size, generator=generator)[:n_draft].sort().values
            model.d2t.copy_(said - torch.arange(n_draft))
            model.t2d[said] = True
    stored = {k: v.to(torch.bfloat16).contiguous() if v.is_floating_point() else v
              for k, v in model.state_dict().items() if not k.startswith("verifier_")}
    if name == "peagle_speculators":
        text = json.loads(config.to_json_string())
        text["transformer_layer_config"] |= dict(vocab_size=inner.vocab_size, hidden_size=inner.hidden_size)
    else:  # as vLLM has it of files that are not of speculators
        stored = {k: v for k, v in stored.items() if k not in ("d2t", "t2d")}
        stored["mask_hidden"] = stored["mask_hidden"][0]
        text = config_of(inner) | dict(architectures=["PeagleLlamaForCausalLM"], ptd_token_id=94,
                                       eagle_aux_hidden_state_layer_ids=taps, parallel_drafting=True)
    save(OUT / name, stored, text)
    ids = torch.randint(0, inner.vocab_size, (1, N), generator=generator)
    rows = rows_of(target, ids, taps)
    logits = []
    for a in anchors:
        anchor = torch.tensor([*range(a), *[a - 1] * (block - 1)])
        depth = torch.tensor([*[0] * a, *range(1, block)])
        tokens = torch.tensor([*ids[0, 1:a + 1].tolist(), *[94] * (block - 1)])
        with torch.no_grad():
            h = torch.cat([rows[:a].flatten(1), model.mask_hidden[0].expand(block - 1, -1)])
            if model.fc_norm is not None:
                h = torch.cat([norm(x) for norm, x in zip(model.fc_norm, h.chunk(len(taps), -1))], -1)
            h = torch.cat([model.embed_tokens(tokens), model.fc(h)], -1)[None]
            mask = create_float_mask(create_peagle_mask_mod(anchor, depth, torch.zeros(N, dtype=torch.long)),
                                     Q_LEN=len(anchor), KV_LEN=len(anchor), dtype=torch.float32, device="cpu")
            at = (anchor + depth)[None]
            turns = model.rotary_emb(h, at)
            for layer in model.layers:
                h = layer(h, attention_mask=mask, position_ids=at, position_embeddings=turns)
                h = h[0] if isinstance(h, tuple) else h
            logits.append(model.lm_head(model.norm(h))[0, a - 1:])
    write_block(OUT / name, taps, ids, rows, block, anchors, torch.stack(logits))


# ---------------------------------------------------------------- DFlash


def write_block(folder, taps, ids, rows, block, anchors, logits):
    top = logits.topk(2, dim=-1).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-4, "a near tie: take another seed"
    with open(folder / "block.bin", "wb") as f:
        f.write(struct.pack("<6i", N, len(taps), rows.shape[-1], logits.shape[-1], block, len(anchors)))
        f.write(struct.pack(f"<{len(taps) + N + len(anchors)}i", *taps, *ids[0].tolist(), *anchors))
        f.write(rows.float().contiguous().numpy().tobytes())
        f.write(logits.float().contiguous().numpy().tobytes())
    print(f"{folder.name}: {sum(p.stat().st_size for p in folder.iterdir())} bytes, says {logits.argmax(-1).tolist()}")


def window_of_rows(anchors, block, window, both_ways):
    """z-lab's mask: a row sees keys of its text and block that are less than a window before it (or behind it)."""
    key_at = torch.tensor([*range(N), *(a + k for a in anchors for k in range(block))])
    mask = torch.full((len(anchors) * block, len(key_at)), float("-inf"))
    for i, a in enumerate(anchors):
        own = torch.zeros(len(key_at), dtype=torch.bool)
        own[:a] = True
        own[N + i * block:N + (i + 1) * block] = True
        for k in range(block):
            behind = key_at - (a + k)
            sees = own & (-behind < window) & (behind < (window if both_ways else 1))
            mask[i * block + k][sees] = 0
    return mask[None, None]


def dflash(name, generator):
    """How each is made: options of speculators' config, kinds of its layers, and what its files look like."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    anchors, block, window = [1, 7, 14], 6, 4
    full, sliding = "full_attention", "sliding_attention"
    options, kinds, taps, n_draft, more = {
        "dflash": (dict(), [full, full], [2, 4, 6], 96, dict()),
        "dflash_windows": (dict(), [sliding, full, sliding], [1, 7], 96, dict(
            input_embedding_scale=0.75, output_multiplier=0.25, final_logit_softcapping=2.0)),
        "dflash_speculators": (dict(sample_from_anchor=True, sliding_window_non_causal=True), [full, sliding],
                               [0, 3, 5, 6], 40, dict()),
        "dspark": (dict(markov_rank=8), [full, full], [2, 6], 96, dict()),
        "dspark_gated": (dict(markov_rank=12, markov_head_type="gated", sample_from_anchor=False,
                              confidence_head_with_markov=False), [full], [3], 40, dict()),
        "dspark_rnn": (dict(markov_rank=8, markov_head_type="rnn", enable_confidence_head=False), [sliding, full],
                       [1, 4], 96, dict()),
    }[name]
    spark = name.startswith("dspark")
    inner = transformers.Qwen3Config(
        **SMALL | dict(intermediate_size=48), head_dim=16, num_hidden_layers=len(kinds), layer_types=kinds,
        use_sliding_window=sliding in kinds, sliding_window=window if sliding in kinds else None,
        rope_parameters=plain(300.0))
    inner._attn_implementation = "eager"
    target = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TARGET)).eval()
    weights = load_file(OUT / "llama" / "model.safetensors")
    target.load_state_dict({k: v.float() for k, v in weights.items()})
    config = (DSparkSpeculatorConfig if spark else DFlashSpeculatorConfig)(
        transformer_layer_config=inner, draft_vocab_size=n_draft, aux_hidden_state_layer_ids=taps, block_size=block,
        mask_token_id=95, **options,
        speculators_config=SpeculatorsConfig(
            algorithm="dspark" if spark else "dflash", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=block - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])))
    model = rounded((DSparkDraftModel if spark else DFlashDraftModel)(config), generator).float()
    theirs = model._create_attention_mask
    model._create_attention_mask = lambda sliding_window, **rest: (
        theirs(sliding_window=None, **rest) if sliding_window is None else
        window_of_rows(anchors, block, window, config.sliding_window_non_causal))
    scale = more.get("input_embedding_scale", 1)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.model.embed_tokens.weight * scale)
        if n_draft == inner.vocab_size:
            model.lm_head.weight.copy_(target.lm_head.weight)
        else:
            said = torch.randperm(inner.vocab_size, generator=generator)[:n_draft].sort().values
            model.d2t.copy_(said - torch.arange(n_draft))
            model.t2d[said] = True
    stored = {k: v.to(torch.bfloat16).contiguous() if v.is_floating_point() else v
              for k, v in model.state_dict().items() if not k.startswith("verifier_") and k != "embed_tokens.weight"}
    if spark or name == "dflash_speculators":
        if n_draft == inner.vocab_size:
            stored = {k: v for k, v in stored.items() if k not in ("lm_head.weight", "d2t", "t2d")}
        text = json.loads(config.to_json_string())
    else:
        stored = {k: v for k, v in stored.items() if k not in ("lm_head.weight", "d2t", "t2d")}
        text = config_of(inner) | dict(architectures=["DFlashDraftModel"], dflash_config=dict(
            mask_token_id=95, target_layer_ids=[t - 1 for t in taps], **more))
        (text["dflash_config"] if more else text)["block_size"] = block  # older files have it at the top
    save(OUT / name, stored, text)
    ids = torch.randint(0, inner.vocab_size, (1, N), generator=generator)
    rows = rows_of(target, ids, taps)
    chosen = torch.zeros(1, N)
    chosen[0, anchors] = 1
    with torch.no_grad():
        hidden, logits, *_ = model._backbone_forward(
            rows.flatten(1)[None], ids, chosen, torch.zeros(1, N, inner.hidden_size),
            torch.zeros(1, N, dtype=torch.long), max_anchors=len(anchors))
    logits = logits * more.get("output_multiplier", 1)
    if more:
        cap = more["final_logit_softcapping"]
        logits = torch.tanh(logits / cap) * cap
    logits = logits.view(len(anchors), block, n_draft)
    write_block(OUT / name, taps, ids, rows, block, anchors, logits)
    if spark:
        to_target = list(range(n_draft)) if n_draft == inner.vocab_size else said.tolist()
        write_chain(name, model, config, ids[0, anchors], hidden.view(len(anchors), block, -1), logits, to_target)


def write_chain(name, model, config, anchors, hidden, logits, to_target):
    """DSpark's drafts from left to right: what a slot is given is the token before it in the block."""
    first = 0 if config.sample_from_anchor else 1
    prev = anchors[:, None].repeat(1, hidden.shape[1])
    drafts, rows, odds = [], [], []
    with torch.no_grad():
        for k in range(first, hidden.shape[1]):
            e = model.markov_head.prev_embeddings(prev)
            bias = model.markov_head.block_bias(prev_token_ids=prev, hidden_states=hidden, prev_emb=e)
            rows.append(logits[:, k] + bias[:, k])
            said = torch.tensor([to_target[int(i)] for i in rows[-1].argmax(-1)])
            drafts.append(said)
            if config.enable_confidence_head:
                seen = torch.cat([hidden, e], -1) if config.confidence_head_with_markov else hidden
                odds.append(model.confidence_head(seen)[:, k].sigmoid())
            else:
                odds.append(torch.zeros(len(anchors)))
            if k + 1 < hidden.shape[1]:
                prev[:, k + 1] = said
    top = torch.stack(rows).topk(2, dim=-1).values
    assert (top[..., 0] - top[..., 1]).min() > 1e-4, "a near tie: take another seed"
    with open(OUT / name / "chain.bin", "wb") as f:
        f.write(struct.pack("<2i", len(anchors), len(rows)))
        f.write(torch.stack(drafts, 1).to(torch.int32).numpy().tobytes())
        f.write(torch.stack(rows, 1).float().contiguous().numpy().tobytes())
        f.write(torch.stack(odds, 1).float().contiguous().numpy().tobytes())
    print(f"{name}: drafts {torch.stack(drafts, 1).tolist()}")


def copy(name, generator):
    """A model that says its last token for ever, and a drafter that reads it in the row before the last token.

    Rows of the block hold nothing but where they are; the keys of the text do not differ, so that where they are is
    all that the attention of a mask goes by, and 2 before it is what it looks for."""
    h, n, dim = SMALL["hidden_size"], SMALL["vocab_size"], 16
    config = transformers.LlamaConfig(**SMALL, num_hidden_layers=2, tie_word_embeddings=True,
                                      rope_parameters=plain(1000.0))
    stored = as_stored(rounded(transformers.LlamaForCausalLM(config), generator))
    stored.pop("lm_head.weight", None)
    embedding = torch.nn.functional.normalize(torch.randn(n, h, generator=generator), dim=-1)
    embedding[:, 0], embedding[:, 1] = 0.5, 0
    stored["model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    for k in stored:
        if k.endswith(("o_proj.weight", "down_proj.weight")):
            stored[k] = torch.zeros_like(stored[k])
    stored["model.norm.weight"] = torch.ones(h, dtype=torch.bfloat16)
    config.architectures = ["LlamaForCausalLM"]
    save(OUT / name, stored, config_of(config))
    tokenizer(OUT / name)
    e = stored["model.embed_tokens.weight"].float()
    assert ((e @ e.T).argmax(1) == torch.arange(n)).all()
    q_heads, kv_heads = SMALL["num_attention_heads"], SMALL["num_key_value_heads"]
    inner = transformers.Qwen3Config(**SMALL, head_dim=dim, num_hidden_layers=1, rope_parameters=plain(1000.0))
    freq = 1000.0 ** (-torch.arange(0, dim, 2) / dim)
    turn = torch.cat([(2 * freq).cos() + (2 * freq).sin(), (2 * freq).cos() - (2 * freq).sin()])  # as seen 2 behind
    q, k = torch.zeros(q_heads * dim, h), torch.zeros(kv_heads * dim, h)
    q[:, 1] = turn.repeat(q_heads)
    k[:, 0] = 1
    v, o = torch.zeros(kv_heads * dim, h), torch.zeros(h, q_heads * dim)
    for i in range(2, h):  # a value of the row is one of a head, and from there it goes back to its place
        v[i, i] = 1
        o[i, i // dim * (q_heads // kv_heads) * dim + i % dim] = 64
    alike = torch.zeros(n, h)
    alike[:, 1] = 1
    one = torch.ones(h)
    drafter = {"embed_tokens.weight": alike, "fc.weight": torch.eye(h), "hidden_norm.weight": one.clone(),
               "norm.weight": one.clone()}
    drafter |= {"layers.0." + a: b for a, b in {
        "input_layernorm.weight": one.clone(), "post_attention_layernorm.weight": one.clone(),
        "self_attn.q_proj.weight": q, "self_attn.k_proj.weight": k, "self_attn.v_proj.weight": v,
        "self_attn.o_proj.weight": o, "self_attn.q_norm.weight": torch.full((dim,), 8.0),
        "self_attn.k_norm.weight": torch.full((dim,), 8.0),
        "mlp.gate_proj.weight": torch.zeros(inner.intermediate_size, h),
        "mlp.up_proj.weight": torch.zeros(inner.intermediate_size, h),
        "mlp.down_proj.weight": torch.zeros(h, inner.intermediate_size)}.items()}
    more = dict(architectures=["DFlashDraftModel"], block_size=2, mask_token_id=95, target_layer_ids=[0])
    save(OUT / "dflash_copy", {k: v.to(torch.bfloat16) for k, v in drafter.items()}, config_of(inner) | more)
    # P-EAGLE: the first draft is the row itself; a mask reads the token of the entry before it
    inner = transformers.LlamaConfig(**SMALL, head_dim=dim, num_hidden_layers=1, rope_parameters=plain(1000.0))
    turn = torch.cat([freq.cos() + freq.sin(), freq.cos() - freq.sin()])
    wide = torch.zeros(h, h)
    q, k = torch.zeros(q_heads * dim, 2 * h), torch.zeros(kv_heads * dim, 2 * h)
    q[:, 0] = q[:, 1] = 8 * turn.repeat(q_heads)
    k[:, 0] = 8
    own = e.clone()
    own[94] = alike[0]
    layer = "layers.0."
    drafter = {"embed_tokens.weight": own, "mask_hidden": torch.zeros(1, 1, h), "fc.weight": torch.eye(h),
               "norm.weight": one.clone(), layer + "hidden_norm.weight": one.clone(),
               layer + "self_attn.q_proj.weight": q, layer + "self_attn.k_proj.weight": k,
               layer + "self_attn.v_proj.weight": torch.cat([v, wide], 1)} | {
        k: b for k, b in drafter.items() if k.startswith(layer) and ("mlp" in k or "layernorm" in k or "o_proj" in k)}
    more = dict(architectures=["PeagleLlamaForCausalLM"], mask_token_id=94, eagle_aux_hidden_state_layer_ids=[0])
    save(OUT / "peagle_copy", {k: v.to(torch.bfloat16).contiguous() for k, v in drafter.items()},
         config_of(inner) | more)


# ---------------------------------------------------------------- Gemma 4's assistant


GEMMA4 = dict(
    SMALL, num_hidden_layers=4, head_dim=16, global_head_dim=24, sliding_window=9, pad_token_id=0,
    tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2,
    rope_parameters=dict(
        full_attention=dict(rope_type="proportional", rope_theta=3000.0, partial_rotary_factor=0.5, factor=2.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0)))


def gemma4(name, generator):
    config = transformers.Gemma4TextConfig(
        **GEMMA4 | dict(intermediate_size=24), hidden_size_per_layer_input=12, vocab_size_per_layer_input=96,
        num_kv_shared_layers=2, use_double_wide_mlp=True)
    config.architectures = ["Gemma4ForCausalLM"]
    model = rounded(transformers.Gemma4ForCausalLM(config), generator)
    stored = {k: v for k, v in as_stored(model).items() if k != "lm_head.weight"}
    save(OUT / name, stored, config_of(config, "hub"))
    tokenizer(OUT / name)


def assistant_class():
    """The class, whose layers all share keys: the list of which do is an error in 5.23."""
    from transformers.models.gemma4 import configuration_gemma4

    text = configuration_gemma4.Gemma4TextConfig
    if not hasattr(text, "some_kv_sharing_modes"):
        text.some_kv_sharing_modes = text.kv_sharing_modes
        text.kv_sharing_modes = property(
            lambda c: ["reuse"] * c.num_hidden_layers if c.num_kv_shared_layers == c.num_hidden_layers
            else c.some_kv_sharing_modes)
    return transformers.Gemma4AssistantForCausalLM


def assistant_config(inner, **more):
    plain_text = dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
                      num_kv_shared_layers=inner["num_hidden_layers"])
    text = transformers.Gemma4TextConfig(**GEMMA4 | inner | plain_text)
    text._attn_implementation = "eager"
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=SMALL["hidden_size"], **more)
    config.architectures = ["Gemma4AssistantForCausalLM"]
    config._attn_implementation = "eager"
    return config


def assistant_json(config):
    text = config_of(config.text_config, "new")
    top = {k: v for k, v in config.to_dict().items() if k not in ("text_config", "transformers_version", "dtype")}
    return top | dict(text_config=text)


def gemma4_assistant(name, generator):
    inner, more = {
        "gemma4_assistant": (dict(num_hidden_layers=3, hidden_size=24,
                                  layer_types=["full_attention", "sliding_attention", "full_attention"]), dict()),
        "gemma4_assistant_ordered": (dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2,
                                          layer_types=["sliding_attention", "full_attention"]),
                                     dict(use_ordered_embeddings=True, num_centroids=12,
                                          centroid_intermediate_top_k=3)),
    }[name]
    text = json.loads((OUT / "gemma4" / "config.json").read_text())["text_config"]
    target_config = transformers.Gemma4TextConfig(**text)
    target_config._attn_implementation = "eager"
    target = transformers.Gemma4ForCausalLM(target_config).eval()
    weights = {k: v.float() for k, v in load_file(OUT / "gemma4" / "model.safetensors").items()}
    target.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    for embedding in (target.model.embed_tokens, target.model.embed_tokens_per_layer):  # as in BF16
        embedding.embed_scale.copy_(embedding.embed_scale.to(torch.bfloat16).float())
    model_class = assistant_class()
    config = assistant_config(inner, **more)
    model = rounded(model_class(config), generator)
    for layer in model.model.layers:
        layer.layer_scalar.copy_(layer.layer_scalar.to(torch.bfloat16).float())
    if more:
        model.masked_embedding.token_ordering.copy_(torch.randperm(SMALL["vocab_size"], generator=generator))
    stored = {k: v for k, v in as_stored(model).items() if k != "lm_head.weight"}
    if more:
        stored["masked_embedding.token_ordering"] = model.masked_embedding.token_ordering.clone()
    save(OUT / name, stored, assistant_json(config))
    ids = torch.randint(0, SMALL["vocab_size"], (1, N), generator=generator)
    with torch.no_grad():
        seen = target.model(ids, use_cache=False, return_shared_kv_states=True)
    rows = rows_of(target, ids, [NORMED])
    assert torch.equal(rows[:, 0], seen.last_hidden_state[0])

    def entry(token, row, p):
        keys = {kind: (k[:, :, :p + 1], v[:, :, :p + 1]) for kind, (k, v) in seen.shared_kv_states.items()}
        embedding = target.model.embed_tokens(token[None, None])
        out = model(inputs_embeds=torch.cat([embedding, row[None, None]], -1), attention_mask=None,
                    position_ids=torch.tensor([[p + 1]]), shared_kv_states=keys)
        return out.logits[0, 0], out.last_hidden_state[0, 0]

    def run(rows, own, tokens):
        h = [*rows[:, 0], *own]
        done = [entry(t, h[i], min(i, N - 2)) for i, t in enumerate(tokens)]
        return torch.stack([d[0] for d in done]), torch.stack([d[1] for d in done])

    write(OUT / name, [NORMED], ids, rows, run, lambda i: i)


def gemma4_copy(name, generator):
    """A model that says its last token for ever; its keys are alike, but for their positions."""
    h, n = SMALL["hidden_size"], SMALL["vocab_size"]
    dims = [16, 32]  # of heads of the windowed layer, of the full one
    kinds = ["sliding_attention", "full_attention"]
    ropes = {k: dict(rope_type="default", rope_theta=100.0) for k in kinds}
    text = GEMMA4 | dict(global_head_dim=dims[1], layer_types=kinds, rope_parameters=ropes, intermediate_size=24,
                         num_hidden_layers=2)
    config = transformers.Gemma4TextConfig(**text, hidden_size_per_layer_input=0, vocab_size_per_layer_input=96)
    config.architectures = ["Gemma4ForCausalLM"]
    embedding = torch.nn.functional.normalize(torch.randn(n, h, generator=generator), dim=-1)
    embedding[:, 0], embedding[:, 1] = 0.5, 0
    e = embedding.to(torch.bfloat16).float()
    assert ((e @ e.T).argmax(1) == torch.arange(n)).all()
    places = [(i, i // 16, i % 16) for i in range(2, h)]  # of a token's values: which head's, and where there

    def filled(model, special):
        stored = {a: b.clone() for a, b in model.state_dict().items() if a != "lm_head.weight"}
        for a in stored:
            if a.endswith("embed_tokens.weight"):
                stored[a] = embedding
            elif a.endswith(("o_proj.weight", "down_proj.weight")):
                stored[a] = torch.zeros_like(stored[a])
            elif a.endswith(("norm.weight", "layer_scalar")):
                stored[a] = torch.ones_like(stored[a])
        return {a: b.to(torch.bfloat16).contiguous() for a, b in (stored | special).items()}

    special = {}
    for i, dim in enumerate(dims):
        k, v = torch.zeros(2 * dim, h), torch.zeros(2 * dim, h)
        k[:, 0] = 1
        for at, head, j in places:
            v[head * dim + j, at] = 1
        special |= {f"model.layers.{i}.self_attn.k_proj.weight": k, f"model.layers.{i}.self_attn.v_proj.weight": v}
    model = transformers.Gemma4ForCausalLM(config)
    save(OUT / name, filled(model, special), config_of(config, "hub"))
    tokenizer(OUT / name)
    # the assistants: the second value of the stream is constant, and what it looks for is 1 before it
    heads = SMALL["num_attention_heads"]
    join = torch.zeros(h, 2 * h)
    join[1, 0] = 1
    for one, kind in enumerate(("window", "full")):
        config = assistant_config(text)
        special = {"pre_projection.weight": join, "post_projection.weight": torch.eye(h)}
        for i, dim in enumerate(dims):
            freq = 100.0 ** (-torch.arange(0, dim, 2) / dim)
            turn = torch.cat([freq.cos() + freq.sin(), freq.cos() - freq.sin()])
            q, o = torch.zeros(heads * dim, h), torch.zeros(h, heads * dim)
            q[:, 1] = turn.repeat(heads)
            for at, head, j in places:
                o[at, head * (heads // 2) * dim + j] = float(i == one)
            layer = f"model.layers.{i}.self_attn."
            special |= {layer + "q_proj.weight": q, layer + "o_proj.weight": o,
                        layer + "q_norm.weight": torch.full((dim,), 8.0)}
        save(OUT / f"{name}_{kind}", filled(assistant_class()(config), special), assistant_json(config))


def main():
    known = dict(deepseek_v4=deepseek_v4, deepseek_v4_same=deepseek_v4_same)
    known |= dict(deepseek_v3=deepseek_v3, deepseek_v32=deepseek_v32, glm4_moe=glm4_moe, mimo=mimo, same=same, llama=llama, qwen3_5=qwen3_5, qwen3_next=qwen3_next)
    known |= dict(gemma4=gemma4, gemma4_assistant=gemma4_assistant, gemma4_assistant_ordered=gemma4_assistant,
                  gemma4_copy=gemma4_copy)
    known |= {f"eagle3{kind}": eagle3 for kind in ("", "_nested", "_speculators", "_fc_norm")}
    known |= dict(dflash=dflash, dflash_windows=dflash, dflash_speculators=dflash, copy=copy,
                  peagle=peagle, peagle_speculators=peagle, dspark=dflash, dspark_gated=dflash, dspark_rnn=dflash)
    names = sys.argv[1:]
    if not names or not set(names) <= set(known):
        sys.exit(f"name some of {', '.join(known)}")
    for name in names:
        known[name](name, torch.Generator().manual_seed(zlib.crc32(name.encode())))


if __name__ == "__main__":
    main()
