"""The Llama architecture in PyTorch, with the tensor names of the published checkpoints.

Attribute names are chosen so that `state_dict()` keys are the names that go into
model.safetensors; nothing is renamed on export.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    dropout: float
    vocab: int = 4096
    context: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5


SHAPES = {
    # 8.1M parameters: what 16 MiB of bf16 hold beside the tokenizer
    "storyteller": Shape(256, 10, 8, 4, 32, 672, dropout=0.0),
    # 41M parameters: two of them, averaged, are what the small one learns from
    "teacher": Shape(512, 12, 8, 8, 64, 1408, dropout=0.2),
}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves (not neighbours) paired; x is [B, H, T, D]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

        q, k = rotate(split(self.q_proj(x)), cos, sin), rotate(split(self.k_proj(x)), cos, sin)
        v = split(self.v_proj(x))
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.dropout = nn.Dropout(shape.dropout)
        angles = torch.outer(
            torch.arange(shape.context).float(),
            shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        x = self.dropout(self.embed_tokens(ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """ids [B, T] -> logits [B, T, V]; the output matrix is the embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, p in self.named_parameters():
            if p.dim() == 2:  # what writes into the residual stream starts smaller
                scale = (2 * shape.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(p, std=0.02 * scale)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.model(ids), self.model.embed_tokens.weight)
