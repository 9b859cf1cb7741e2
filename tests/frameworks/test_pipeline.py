"""Pipeline schedules, whose stages send and receive, against one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks
from models import loss_of
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

WIDTH, MICRO_BATCHES = 10, 8


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(11)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def whole_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(12)
    inputs = torch.randn(2 * MICRO_BATCHES, WIDTH, generator=generator)
    return inputs, torch.randn(2 * MICRO_BATCHES, WIDTH, generator=generator)


def pipeline(rank: int, world: int, schedule: Any, stages_per_rank: int) -> None:
    """One step: outputs, losses and gradients."""
    count = world * stages_per_rank
    mine = list(range(rank, count, world))
    parts = layers(count)
    stages = [PipelineStage(parts[i], i, count, torch.device("cpu")) for i in mine]
    multi = stages_per_rank > 1
    runner = schedule(
        stages if multi else stages[0], n_microbatches=MICRO_BATCHES, loss_fn=nn.functional.mse_loss
    )
    inputs, targets = whole_batch()
    losses: list[torch.Tensor] = []
    arguments = [inputs] if 0 in mine else []
    if count - 1 in mine:
        output = runner.step(*arguments, target=targets, losses=losses)
    else:
        output = runner.step(*arguments)

    alone = layers(count)
    model = nn.Sequential(*alone)
    loss = loss_of(model, inputs, targets)
    loss.backward()
    if count - 1 in mine:
        torch.testing.assert_close(output, model(inputs))
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
    for i in mine:
        for ours, expected in zip(parts[i].parameters(), alone[i].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        (ScheduleGPipe, 1),
        (Schedule1F1B, 1),
        (ScheduleInterleaved1F1B, 2),
        (ScheduleInterleavedZeroBubble, 2),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_pipeline(schedule: Any, stages: int, world: int) -> None:
    run_ranks(pipeline, world, schedule, stages)
