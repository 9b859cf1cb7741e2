"""Small models and data that every rank can make alone, and one process's training on them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

FEATURES, HIDDEN, CLASSES = 12, 16, 8
RATE = 0.1
LIMIT = 240  # seconds: a guest's one processor runs all ranks, on a machine that may be busy


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.GELU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.GELU(),
        nn.Linear(HIDDEN, CLASSES),
    )


def batch(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [rows, FEATURES], targets [rows, CLASSES] of a training step."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    return inputs, torch.randn(rows, CLASSES, generator=generator)


def part(step: int, rank: int, world: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of a batch of rows * world."""
    inputs, targets = batch(step, rows * world)
    mine = slice(rank * rows, (rank + 1) * rows)
    return inputs[mine], targets[mine]


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs), targets)


def train_alone(model: nn.Module, steps: int, rows: int) -> nn.Module:
    """One process's SGD on whole batches of `rows`: what data-parallel ranks must arrive at."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step, rows)).backward()
        optimizer.step()
    return model


def assert_same(
    ours: Iterable[torch.Tensor],
    expected: Iterable[torch.Tensor],
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol)
