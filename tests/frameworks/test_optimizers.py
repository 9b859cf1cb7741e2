"""ZeroRedundancyOptimizer, post-local SGD and Join over an optimizer, against one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from models import assert_same, batch, loss_of, mlp, part
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

ROWS, STEPS = 4, 3


def adam_alone(rows: int, steps: int = STEPS) -> torch.nn.Module:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step, rows)).backward()
        optimizer.step()
    return model


def zero(rank: int, world: int) -> None:
    """Each rank keeps the states of its share of the parameters, and rank 0 collects them."""
    expected = adam_alone(ROWS * world)
    for bucket_view in (False, True):
        model = DistributedDataParallel(mlp())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.Adam,
            parameters_as_bucket_view=bucket_view,
            lr=0.01,
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, *part(step, rank, world, ROWS)).backward()
            optimizer.step()
        assert_same(model.parameters(), expected.parameters(), rtol=1e-4, atol=1e-5)
        assert len(optimizer.optim.state) < len(list(model.parameters()))
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def zero_in_hook(rank: int, world: int) -> None:
    """The optimizer's step runs in DDP's hook, per bucket, and broadcasts from there."""
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.0003, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
    )
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    alone = mlp()
    warm_up = 2  # DDP settles its buckets first; the hook skips those steps
    expected = torch.optim.SGD(alone.parameters(), 0.1)
    for step in range(warm_up + STEPS):
        optimizer.zero_grad()
        loss_of(model, *part(step, rank, world, ROWS)).backward()
        optimizer.step()
        if step >= warm_up:
            expected.zero_grad()
            loss_of(alone, *batch(step, ROWS * world)).backward()
            expected.step()
    # The last step's broadcasts end in the next forward.
    loss_of(model, *part(99, rank, world, ROWS))
    assert_same(model.parameters(), alone.parameters(), rtol=1e-4, atol=1e-5)


def zero_join(rank: int, world: int) -> None:
    """Ranks with fewer batches shadow the others' broadcasts."""
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    steps = 0
    with Join([model, optimizer]):
        for step in range(2 + rank):
            optimizer.zero_grad()
            loss_of(model, *part(step, rank, world, ROWS)).backward()
            optimizer.step()
            steps += 1
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(other, mine) for other in everyones)
    assert steps == 2 + rank


def model_averaging(rank: int, world: int) -> None:
    """Ranks learn alone and take the mean of their weights every second step."""
    model = mlp()
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    models = [mlp() for _ in range(world)]
    for step in range(4):
        loss_of(model, *part(step, rank, world, ROWS)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        averager.average_parameters(model.parameters())
        model.zero_grad()
        for r, alone in enumerate(models):
            loss_of(alone, *part(step, r, world, ROWS)).backward()
            with torch.no_grad():
                for p in alone.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        if step % 2 == 0:
            with torch.no_grad():
                for same in zip(*(m.parameters() for m in models), strict=True):
                    mean = torch.stack([p.detach() for p in same]).mean(0)
                    for p in same:
                        p.copy_(mean)
    assert_same(model.parameters(), models[rank].parameters())


CASES = [zero, zero_in_hook, zero_join, model_averaging]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_optimizer(case: Callable[[int, int], None], world: int) -> None:
    run_ranks(case, world)
