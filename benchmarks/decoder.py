"""A decoder in the shape of Qwen3, split over ranks by hand; random weights, greedy decoding.

RMS norms, grouped-query attention with normed queries and keys, rotary positions, SwiGLU: see the
Qwen3 technical report, https://arxiv.org/abs/2505.09388. Heads, intermediate columns and vocabulary
are split; a layer takes two all_reduces, a token one all_gather of a number and an index.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn import functional as f


@dataclass(frozen=True)
class Shape:
    hidden: int = 1024
    layers: int = 28
    vocab: int = 8192
    heads: int = 16
    kv_heads: int = 8

    @property
    def head(self) -> int:
        """Elements of a head; as in Qwen3-0.6B, heads together are twice as wide as the model."""
        return 2 * self.hidden // self.heads

    @property
    def intermediate(self) -> int:
        return 3 * self.hidden


@dataclass
class Calls:
    """Collectives so far, and the seconds spent in them, waiting for other ranks included."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Layer:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass
class Decoder:
    """One rank's part. `group` may be exchanged between decodings; None: one process alone."""

    shape: Shape
    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    calls: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        s = self.shape
        if s.kv_heads % self.ranks or s.vocab % self.ranks:
            raise ValueError(
                f"{s.kv_heads} key heads, {s.vocab} tokens: can't be split over {self.ranks} ranks"
            )
        self.embedding = self._weight(0, s.vocab, s.hidden, scale=1.0)
        self.logits = self._columns(1, s.hidden, s.vocab)
        wide, narrow = s.heads * s.head, s.kv_heads * s.head
        self.layers = [
            Layer(
                self._columns(10 * i + 2, s.hidden, wide),
                self._columns(10 * i + 3, s.hidden, narrow),
                self._columns(10 * i + 4, s.hidden, narrow),
                self._rows(10 * i + 5, wide, s.hidden),
                self._columns(10 * i + 6, s.hidden, s.intermediate),
                self._columns(10 * i + 7, s.hidden, s.intermediate),
                self._rows(10 * i + 8, s.intermediate, s.hidden),
            )
            for i in range(s.layers)
        ]

    @staticmethod
    def _weight(seed: int, rows: int, columns: int, scale: float | None = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(rows, columns, generator=generator) * (scale or rows**-0.5)

    def _columns(self, seed: int, rows: int, columns: int) -> torch.Tensor:
        """Transposed, so that a product with a vector reads memory in order."""
        part = self._weight(seed, rows, columns).chunk(self.ranks, 1)[self.rank]
        return part.t().contiguous()

    def _rows(self, seed: int, rows: int, columns: int) -> torch.Tensor:
        part = self._weight(seed, rows, columns).chunk(self.ranks, 0)[self.rank]
        return part.t().contiguous()

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            start = time.perf_counter()
            dist.all_reduce(tensor, group=self.group)
            self.calls.seconds += time.perf_counter() - start
            self.calls.count += 1
        return tensor

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return f.rms_norm(x, x.shape[-1:])

    def _rotate(self, x: torch.Tensor, position: int) -> torch.Tensor:
        half = self.shape.head // 2
        angles = position * 1e6 ** (-torch.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _attend(self, x: torch.Tensor, layer: Layer, cache: list[torch.Tensor]) -> torch.Tensor:
        head, position = self.shape.head, cache[0].shape[1] if cache else 0
        q = self._rotate(self._norm(f.linear(x, layer.q).view(-1, head)), position)
        k = self._rotate(self._norm(f.linear(x, layer.k).view(-1, head)), position)
        v = f.linear(x, layer.v).view(-1, head)
        new = [k.unsqueeze(1), v.unsqueeze(1)]  # [heads, positions, head]
        cache[:] = [torch.cat(pair, 1) for pair in zip(cache, new, strict=True)] if cache else new
        keys, values = cache
        q = q.view(keys.shape[0], -1, head)
        mixed = f.scaled_dot_product_attention(q, keys, values)
        return self._sum(f.linear(mixed.reshape(-1), layer.o))

    def step(self, token: int, caches: list[list[torch.Tensor]]) -> torch.Tensor:
        """This rank's part of the next token's logits."""
        x = self.embedding[token]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = x + self._attend(self._norm(x), layer, cache)
            y = self._norm(x)
            y = f.silu(f.linear(y, layer.gate)) * f.linear(y, layer.up)
            x = x + self._sum(f.linear(y, layer.down))
        return f.linear(self._norm(x), self.logits)

    def best(self, logits: torch.Tensor) -> int:
        """The token of the largest logit; of equal ones the first."""
        value, index = logits.max(0)
        mine = torch.stack([value.double(), (index + self.rank * logits.numel()).double()])
        if self.group is None:
            return int(mine[1])
        everyones = torch.empty(2 * self.ranks, dtype=torch.float64)
        start = time.perf_counter()
        dist.all_gather_into_tensor(everyones, mine, group=self.group)
        self.calls.seconds += time.perf_counter() - start
        self.calls.count += 1
        values, tokens = everyones.view(-1, 2).unbind(1)
        return int(tokens[values.argmax()])

    @torch.inference_mode()
    def decode(self, first: int, count: int) -> tuple[list[int], torch.Tensor]:
        """`count` tokens after `first`, and this rank's part of the last logits."""
        tokens, caches = [first], [[] for _ in self.layers]
        for _ in range(count):
            logits = self.step(tokens[-1], caches)
            tokens.append(self.best(logits))
        return tokens[1:], logits
