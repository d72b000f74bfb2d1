"""Judge an exported folder through transformers: held-out perplexity and samples."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

CONTEXT, STRIDE = 1024, 512


@torch.no_grad()
def perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, held: Path) -> str:
    """Over whole held-out sections; every token is predicted from 512 to 1023 tokens where there are so many."""
    total, n_tokens, n_bytes = 0.0, 0, 0
    for line in open(held):
        text = json.loads(line)["text"]
        ids = tokenizer(text, return_tensors="pt").input_ids.to(model.device)
        done = 1  # <|endoftext|> in front is given, not predicted
        for start in range(0, ids.shape[1], STRIDE):
            window = ids[:, start:start + CONTEXT]
            fresh = start + window.shape[1] - done  # tokens that no window before has scored
            logits = model(window).logits[0, -fresh - 1:-1].float()
            total += F.cross_entropy(logits, window[0, -fresh:], reduction="sum").item()
            done += fresh
            if done == ids.shape[1]:
                break
        n_tokens += ids.shape[1] - 1
        n_bytes += len(text.encode())
    return (f"held-out: {n_tokens} tokens, {n_bytes} bytes; perplexity {math.exp(total / n_tokens):.3f} per token, "
            f"{math.exp(total / n_bytes):.4f} per byte ({total / n_bytes / math.log(2):.4f} bits)")


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, ids: torch.Tensor, options: argparse.Namespace) -> str:
    torch.manual_seed(options.seed)
    out = model.generate(ids.to(model.device), do_sample=True, top_k=0, temperature=options.temperature,
                         top_p=options.top_p, repetition_penalty=options.repetition_penalty,
                         max_new_tokens=options.tokens,
                         attention_mask=torch.ones_like(ids).to(model.device))
    return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("folder", type=Path)
    args.add_argument("--held", type=Path, help="held.jsonl from prepare.py: measure perplexity")
    args.add_argument("--prompt", action="append", default=[], help="continue this text")
    args.add_argument("--chat", action="append", default=[], help="answer this request")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--temperature", type=float, default=0.7)
    args.add_argument("--top-p", type=float, default=0.9)
    args.add_argument("--repetition-penalty", type=float, default=1.0)
    args.add_argument("--tokens", type=int, default=300)
    args.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = args.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=getattr(torch, options.dtype)).eval()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    if options.held:
        print(perplexity(model, tokenizer, options.held))
    for prompt in options.prompt:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        print(f"\n=== {prompt}\n{prompt}{generate(model, tokenizer, ids, options)}")
    for request in options.chat:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": request}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True).input_ids
        print(f"\n=== user: {request}\n{generate(model, tokenizer, ids, options)}")


if __name__ == "__main__":
    main()
