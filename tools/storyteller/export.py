"""Checkpoint + tokenizer -> a model folder that any Llama loader reads."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from chat import TEMPLATE
from model import SHAPES
from prepare import SPECIAL

END_OF_TEXT, END_OF_TURN = SPECIAL.index("<|endoftext|>"), SPECIAL.index("<|end|>")


def config(shape_name: str) -> dict:
    shape = SHAPES[shape_name]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": [END_OF_TEXT, END_OF_TURN],
        "pad_token_id": END_OF_TEXT,
    }


GENERATION = {
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": [END_OF_TEXT, END_OF_TURN],
    "pad_token_id": END_OF_TEXT,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
}

TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": SPECIAL[1:],
    "clean_up_tokenization_spaces": False,
    "add_prefix_space": False,
}


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--checkpoint", type=Path, required=True)
    args.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json from prepare.py")
    args.add_argument("--out", type=Path, required=True)
    options = args.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    state = torch.load(options.checkpoint, map_location="cpu")
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in state["model"].items()}
    save_file(tensors, options.out / "model.safetensors", metadata={"format": "pt"})
    texts = {"config.json": config(state["shape"]), "generation_config.json": GENERATION,
             "tokenizer_config.json": TOKENIZER}
    for name, value in texts.items():
        (options.out / name).write_text(json.dumps(value, indent=2) + "\n")
    (options.out / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copyfile(options.tokenizer, options.out / "tokenizer.json")
    n_params = sum(t.numel() for t in tensors.values())
    n_bytes = sum(f.stat().st_size for f in options.out.iterdir())
    print(f"{n_params} parameters; the folder holds {n_bytes} of 16777216 bytes")


if __name__ == "__main__":
    main()
