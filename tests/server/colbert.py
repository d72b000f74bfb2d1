# SPDX-License-Identifier: MIT
"""A model with a vector for each token, made of a BERT that mkmodel wrote."""
import json
import math
import shutil
import struct


def make_colbert(source, folder, width):
    """A BERT with one tensor more, the matrix that makes a vector of each token."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    raw = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    tensors, data, hidden = json.loads(raw[8:8 + n]), raw[8 + n:], config["hidden_size"]
    matrix = struct.pack(f"<{width * hidden}f", *(math.sin(i) / 8 for i in range(width * hidden)))
    tensors["linear.weight"] = {"dtype": "F32", "shape": [width, hidden],
                                "data_offsets": [len(data), len(data) + len(matrix)]}
    head = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data + matrix)
    return folder
