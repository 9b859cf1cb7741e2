"""DistributedDataParallel: what ranks learn together is what one process learns on all rows."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from harness import Transport, groups, run_ranks
from models import (
    FEATURES,
    HIDDEN,
    LIMIT,
    RATE,
    assert_same,
    batch,
    loss_of,
    mlp,
    part,
    train_alone,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

ROWS, STEPS = 4, 3


def train(model: DistributedDataParallel, rank: int, world: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *part(step, rank, world, ROWS)).backward()
        optimizer.step()


def same_on_all_ranks(model: nn.Module) -> None:
    """To the bit."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(mine, other) for other in everyones)


def buckets(rank: int, world: int) -> None:
    """One bucket, and one for nearly each parameter; ranks start with different weights."""
    expected = train_alone(mlp(seed=0), STEPS, ROWS * world)
    for bucket_mb in (25, 0.0003):
        for view in (False, True):
            model = DistributedDataParallel(
                mlp(seed=rank), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=view
            )
            train(model, rank, world)
            assert_same(model.parameters(), expected.parameters())
            same_on_all_ranks(model)


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(FEATURES, HIDDEN) for _ in range(2))
        self.head = nn.Linear(HIDDEN, 8)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.head(self.layers[branch](x))


def unused_parameters(rank: int, world: int) -> None:
    """Ranks use different layers in the same step, and in one step none uses the second."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    alone = Branches()
    for step in range(STEPS):
        model.zero_grad()
        alone.zero_grad()
        for r in range(world):
            inputs, targets = part(step, r, world, ROWS)
            branch = (r + step) % 2 if step < 2 else 0
            loss = nn.functional.mse_loss(alone(inputs, branch), targets) / world
            loss.backward()
            if r == rank:
                nn.functional.mse_loss(model(inputs, branch), targets).backward()
        for ours, expected in zip(model.module.parameters(), alone.parameters(), strict=True):
            if expected.grad is None:
                assert ours.grad is None or not ours.grad.any()
            else:
                torch.testing.assert_close(ours.grad, expected.grad)


class Checkpointed(nn.Module):
    """Recomputes its middle in backward, twice: DDP must count on it (static_graph)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner[0](x)
        for _ in range(2):
            x = checkpoint(self.inner[1:3], x, use_reentrant=True)
        return self.inner[3:](x)


def static_graph(rank: int, world: int) -> None:
    model = DistributedDataParallel(Checkpointed(), static_graph=True)
    train(model, rank, world)
    expected = train_alone(Checkpointed(), STEPS, ROWS * world)
    assert_same(model.parameters(), expected.parameters())


def accumulation(rank: int, world: int) -> None:
    """no_sync keeps gradients local; the backward after it sums them all up."""
    model = DistributedDataParallel(mlp())
    alone = mlp()
    for micro in range(3):
        loss_of(alone, *batch(micro, ROWS * world)).backward()
        if micro < 2:
            with model.no_sync():
                loss_of(model, *part(micro, rank, world, ROWS)).backward()
        else:
            loss_of(model, *part(micro, rank, world, ROWS)).backward()
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


def hooks(rank: int, world: int) -> None:
    """Compressed gradients agree on all ranks and are near the uncompressed ones."""
    expected = train_alone(mlp(), STEPS, ROWS * world)
    chosen: list[tuple[Callable[..., object], float]] = [
        (default_hooks.fp16_compress_hook, 2e-3),
        (default_hooks.bf16_compress_hook, 2e-2),
    ]
    for hook, tolerance in chosen:
        model = DistributedDataParallel(mlp(), bucket_cap_mb=0.0003)
        model.register_comm_hook(None, hook)
        train(model, rank, world)
        same_on_all_ranks(model)
        assert_same(model.parameters(), expected.parameters(), rtol=tolerance, atol=tolerance)


def power_sgd(rank: int, world: int) -> None:
    """A hook whose callbacks wait for further collectives. At full rank it compresses nothing."""
    model = DistributedDataParallel(mlp())
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=16,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
        use_error_feedback=True,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, rank, world)
    same_on_all_ranks(model)
    expected = train_alone(mlp(), STEPS, ROWS * world)
    assert_same(model.parameters(), expected.parameters(), rtol=1e-3, atol=1e-4)


def uneven_inputs(rank: int, world: int) -> None:
    """Rank r has r + 1 batches; those that have run out take part with zeros."""
    model = DistributedDataParallel(mlp())
    alone = mlp()
    with Join([model]):
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for step in range(rank + 1):
            optimizer.zero_grad()
            loss_of(model, *part(step, rank, world, ROWS)).backward()
            optimizer.step()
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(world):
        optimizer.zero_grad()
        for r in range(step, world):  # those that have a batch of this number
            (loss_of(alone, *part(step, r, world, ROWS)) / world).backward()
        optimizer.step()
    assert_same(model.parameters(), alone.parameters())


def buffers(rank: int, world: int) -> None:
    """Rank 0's buffers are everyone's, as each forward begins."""
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN))
    ddp = DistributedDataParallel(model)
    ddp.train()
    for step in range(2):
        ddp(part(step, rank, world, ROWS)[0]).sum().backward()
    ddp.eval()
    with torch.no_grad():
        seen: list[torch.Tensor] = []
        model.register_forward_pre_hook(lambda m, _: seen.append(m[1].running_mean.clone()))
        ddp.train()
        ddp(part(2, rank, world, ROWS)[0])
    gathered = [torch.empty_like(seen[0]) for _ in range(world)]
    dist.all_gather(gathered, seen[0])
    assert all(torch.equal(other, gathered[0]) for other in gathered)
    assert gathered[0].any()


def sync_batch_norm(rank: int, world: int) -> None:
    """On CPU torch has it in evaluation only, and refuses training, whatever the backend."""
    plain = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN))
    plain(batch(0, ROWS)[0])
    model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert isinstance(model[1], nn.SyncBatchNorm)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
        model(batch(1, ROWS)[0])
    inputs = batch(1, ROWS)[0]
    assert torch.equal(model.eval()(inputs), plain.eval()(inputs))
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        DistributedDataParallel(model)


CASES = [
    buckets,
    unused_parameters,
    static_graph,
    accumulation,
    hooks,
    power_sgd,
    uneven_inputs,
    buffers,
    sync_batch_norm,
]


@groups(shm=[2, 4], verbs=[2], mixed=[])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ddp(case: Callable[[int, int], None], transport: Transport, world: int) -> None:
    run_ranks(case, world, transport=transport, timeout=LIMIT)
