"""Corpus -> tokenizer and token files.

Two splits: the held-out books, and all the others for training. Writes to --out:
tokenizer.json; text.{train,held}.bin, one stream of uint16 ids in which <|endoftext|> opens
every section; chat.{train,held}.bin, rows of ROW ids that each begin with a conversation. In
the chat files the top bit marks the ids whose loss counts (the answers). held.jsonl keeps the
held-out sections as text, for sample.py.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import chat
import clean

VOCAB_SIZE = 4096
ROW = 1025  # 1024 inputs and their 1024 targets
LOSS_BIT = 0x8000
SPECIAL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
# Llama 3's split: contractions, words with their space, digits by threes, punctuation, newlines.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

HELD_OUT = {
    "Dorothy and the Wizard in Oz", "The King of the Golden River", "The Canterville Ghost",
    "The Adventure of the Blue Carbuncle", "Maiwa's Revenge",
}


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    bos = SPECIAL[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)])
    return tokenizer


def encode_text(tokenizer: Tokenizer, sections: list[clean.Section]) -> np.ndarray:
    """Every section with <|endoftext|> before it, end to end."""
    batch = tokenizer.encode_batch_fast([s.text for s in sections])
    return np.concatenate([np.array(e.ids, np.uint16) for e in batch])


def encode_chat(tokenizer: Tokenizer, talks: list[list[chat.Message]]) -> np.ndarray:
    """Conversations packed into rows; the last one of a row is cut where the row ends."""
    pieces: list[str] = []
    for messages in talks:  # a head and a body for every message, as in chat.TEMPLATE
        for message in messages:
            pieces += [f"<|{message['role']}|>\n", f"{message['content']}<|end|>"]
    ids = iter([e.ids for e in tokenizer.encode_batch_fast(pieces, add_special_tokens=False)])
    newline = tokenizer.encode("\n", add_special_tokens=False).ids
    rows: list[np.ndarray] = []
    row: list[int] = []
    for messages in talks:
        row.append(0)  # <|endoftext|>
        for message in messages:
            mark = LOSS_BIT if message["role"] == "assistant" else 0
            row += next(ids) + [i | mark for i in next(ids)] + newline
        if len(row) >= ROW:
            rows.append(np.array(row[:ROW], np.uint16))
            row = []
    return np.stack(rows)


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--corpus", type=Path, required=True, help="books.jsonl.xz")
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--seed", type=int, default=1)
    options = args.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)

    texts: dict[str, list[clean.Section]] = {"train": [], "held": []}
    talks: dict[str, list[list[chat.Message]]] = {"train": [], "held": []}
    with lzma.open(options.corpus, "rt") as lines:
        for line in lines:
            book = json.loads(line)
            if book["title"] in clean.EXCLUDED:
                continue
            split = "held" if book["title"] in HELD_OUT else "train"
            sections = clean.sections(book["text"])
            texts[split] += sections
            talks[split] += chat.conversations(book["title"], sections, rng)
    talks["train"] += chat.small_talk(len(talks["train"]) // 40, rng)
    for split in talks:
        rng.shuffle(talks[split])

    tokenizer = train_tokenizer([s.text for s in texts["train"]])
    tokenizer.save(str(options.out / "tokenizer.json"), pretty=False)
    for split in texts:
        stream, rows = encode_text(tokenizer, texts[split]), encode_chat(tokenizer, talks[split])
        stream.tofile(options.out / f"text.{split}.bin")
        rows.tofile(options.out / f"chat.{split}.bin")
        n_bytes = sum(len(s.text.encode()) for s in texts[split])
        print(f"{split}: {len(texts[split])} sections, {n_bytes} bytes, {len(stream)} tokens "
              f"({n_bytes / len(stream):.2f} bytes each); {len(talks[split])} conversations in "
              f"{len(rows)} rows, {np.mean(rows >= LOSS_BIT):.0%} of them answers")
    with open(options.out / "held.jsonl", "w") as out:
        out.writelines(json.dumps({"text": s.text}) + "\n" for s in texts["held"])


if __name__ == "__main__":
    main()
