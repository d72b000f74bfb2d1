#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/models/xlm_roberta* as tools/gen_golden.py does for models that pool, with another oracle: the
XLM-RoBERTa of mlx-embeddings in float32 on the CPU. A classifier's first layer is that package's pooler (dense, tanh).

Needs mlx[cpu], mlx-embeddings, numpy and safetensors; run from the repository root:
    python3 tools/gen_golden_roberta.py
"""
import json
import pathlib
import struct

import mlx.core as mx
import numpy as np
from mlx_embeddings.models.xlm_roberta import Model, ModelArgs

OUT = pathlib.Path("tests/golden/models")
CONFIG = dict(vocab_size=96, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5, hidden_act="gelu",
              position_embedding_type="absolute", bos_token_id=0, eos_token_id=2, model_type="xlm-roberta")
TEXT_LENGTHS = [1, 2, 17, 40, 5, 64]  # 64: the last position there is
# name -> (architecture, pooling of the folder's files, None: one label)
MODELS = {
    "xlm_roberta": ("XLMRobertaModel", "cls"),
    "xlm_roberta_mean": ("XLMRobertaModel", "mean"),
    "xlm_roberta_classifier": ("XLMRobertaForSequenceClassification", None),
}


def flat(tree, prefix=""):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for k, v in items:
        if isinstance(v, mx.array):
            yield prefix + str(k), v
        else:
            yield from flat(v, f"{prefix}{k}.")


def bf16(x):
    """Rounded to BF16, and its bits."""
    u = x.astype(np.float32).view(np.uint32)
    u = (u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)
    return u.view(np.float32), (u >> 16).astype(np.uint16)


def random_weights(model, rng):
    """Matrices at about 1.3 / sqrt(K), norms near 1, biases large enough to be seen."""
    weights = {}
    for name, p in flat(model.parameters()):
        noise = rng.standard_normal(p.shape)
        if name.endswith("bias"):
            x = noise * 0.3
        elif p.ndim == 1:
            x = 1 + noise * 0.2
        else:
            x = noise * 1.3 / p.shape[1] ** 0.5
        weights[name] = bf16(x)[0]
    return weights


def write_safetensors(path, weights):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in sorted(weights.items()):
        raw = bf16(x)[1].tobytes()
        header[name] = dict(dtype="BF16", shape=list(x.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_modules(folder, mode):
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [dict(idx=i, name=str(i), path=path, type="sentence_transformers.models." + kind)
               for i, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(dict(word_embedding_dimension=CONFIG["hidden_size"], **modes), indent=1) + "\n")


def generate(name, seed):
    architecture, mode = MODELS[name]
    rng = np.random.default_rng(seed)
    model = Model(ModelArgs(**{k: v for k, v in CONFIG.items() if k in ModelArgs.__dataclass_fields__}))
    model.eval()
    weights = random_weights(model, rng)
    model.load_weights([(k, mx.array(v)) for k, v in weights.items()])
    head = bf16(rng.standard_normal((1, CONFIG["hidden_size"])) * 0.3)[0], bf16(rng.standard_normal(1) * 0.3)[0]
    out, width = b"", 1 if mode is None else CONFIG["hidden_size"]
    for n in TEXT_LENGTHS:
        ids = rng.integers(3, CONFIG["vocab_size"], n).astype(np.int32)
        x = mx.array(ids[None])
        rows = model.encoder(model.embeddings(x))[0]
        if mode is None:
            values = np.array(mx.sigmoid(model.pooler(rows) @ mx.array(head[0]).T + mx.array(head[1])))[0]
        else:
            row = rows[0, 0] if mode == "cls" else rows[0].mean(axis=0)
            values = np.array(row / mx.linalg.norm(row))
        second = n // 3 if mode is None and n > 2 else 0
        out += struct.pack("<2i", n, second) + ids.tobytes() + values.astype(np.float32).tobytes()
    stored = {k: v for k, v in weights.items()}
    if mode is None:
        stored = {("roberta." + k).replace("roberta.pooler.dense", "classifier.dense"): v for k, v in stored.items()}
        stored["classifier.out_proj.weight"], stored["classifier.out_proj.bias"] = head
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", stored)
    config = dict(CONFIG, architectures=[architecture])
    if mode is None:
        config["id2label"] = {"0": "LABEL_0"}
    else:
        write_modules(folder, mode)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "golden.bin").write_bytes(struct.pack("<2i", len(TEXT_LENGTHS), width) + out)
    print(f"{name}: {sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())} bytes")


if __name__ == "__main__":
    for i, model_name in enumerate(MODELS):
        generate(model_name, 2000 + i)
