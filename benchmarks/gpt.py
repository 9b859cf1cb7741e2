"""A small GPT in the shape of nanochat's, https://github.com/karpathy/nanochat: rotary positions,
norms without parameters, normed queries and keys, squared ReLU, untied weights, no biases."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f


def norm(x: torch.Tensor) -> torch.Tensor:
    return f.rms_norm(x, x.shape[-1:])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (norm(rotate(p, cos, sin)) for p in parts[:2])
        mixed = f.scaled_dot_product_attention(q, k, parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(f.relu(self.up(norm(x))).square())


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)


class Gpt(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocab]."""

    def __init__(self, vocab: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)
        self.half = width // heads // 2

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rates = 1e4 ** (-torch.arange(self.half) / self.half)
        angles = torch.arange(tokens.shape[1]).unsqueeze(1) * rates
        cos, sin = angles.cos(), angles.sin()
        x = norm(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(norm(x))
