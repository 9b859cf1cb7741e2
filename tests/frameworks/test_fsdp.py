"""FSDP2's fully_shard against one process, and distributed checkpoints of its models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from harness import IN_GUEST, Transport, groups, run_ranks
from models import FEATURES, LIMIT, RATE, assert_same, batch, loss_of, mlp, part, train_alone
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

ROWS, STEPS = 4, 3


def sharded(model: nn.Sequential, **options: object) -> nn.Sequential:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def whole(model: nn.Module) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    assert all(isinstance(p, DTensor) for p in parameters)
    return [p.full_tensor() for p in parameters]


def train(model: nn.Module, rank: int, world: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *part(step, rank, world, ROWS)).backward()
        optimizer.step()


def plain(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    expected = train_alone(mlp(), STEPS, ROWS * world)
    for reshard in (True, False):
        model = sharded(mlp(), mesh=mesh, reshard_after_forward=reshard)
        held = sum(p.to_local().numel() for p in model.parameters())
        total = sum(p.numel() for p in expected.parameters())
        assert held < 0.75 * total
        train(model, rank, world)
        assert_same(whole(model), expected.parameters())


def mixed_precision(rank: int, world: int) -> None:
    """Compute in bfloat16, gradients reduced and weights updated in float32."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    model = sharded(mlp(), mesh=init_device_mesh("cpu", (world,)), mp_policy=policy)
    train(model, rank, world)
    alone = mlp()
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in alone.parameters()]
        for r in range(world):
            inputs, targets = part(step, r, world, ROWS)
            half = copy.deepcopy(alone).bfloat16()
            nn.functional.mse_loss(half(inputs.bfloat16()).float(), targets).backward()
            for total, p in zip(sums, half.parameters(), strict=True):
                assert p.grad is not None
                total += p.grad.float() / world
        with torch.no_grad():
            for p, total in zip(alone.parameters(), sums, strict=True):
                p -= RATE * total
    assert_same(whole(model), alone.parameters(), rtol=1e-4, atol=1e-5)


def replicated_and_sharded(rank: int, world: int) -> None:
    """A 2-D mesh: weights sharded along one dimension and replicated along the other."""
    if world % 2:
        return
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(mlp(), mesh=mesh)
    train(model, rank, world)
    assert_same(whole(model), train_alone(mlp(), STEPS, ROWS * world).parameters())


def accumulation_and_clipping(rank: int, world: int) -> None:
    model = sharded(mlp(), mesh=init_device_mesh("cpu", (world,)))
    alone = mlp()
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)
        loss_of(model, *part(micro, rank, world, ROWS)).backward()
        loss_of(alone, *batch(micro, ROWS * world)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    assert isinstance(norm, DTensor)
    torch.testing.assert_close(norm.full_tensor(), expected)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor)
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, rtol=1e-5, atol=1e-6)


CASES = [plain, mixed_precision, replicated_and_sharded, accumulation_and_clipping]


@groups(shm=[2, 4], verbs=[2], mixed=[])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_fsdp(case: Callable[[int, int], None], transport: Transport, world: int) -> None:
    run_ranks(case, world, transport=transport, timeout=LIMIT)


def _adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), 0.01)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, *batch(step, ROWS)).backward()  # the same rows on every rank
    optimizer.step()


def save(rank: int, world: int, folder: str) -> list[torch.Tensor]:
    """Trains and saves, trains one more step; returns the weights after that."""
    model = sharded(mlp(), mesh=init_device_mesh("cpu", (world,)))
    optimizer = _adam(model)
    for step in range(2):
        _step(model, optimizer, step)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    _step(model, optimizer, 2)
    return [p.detach() for p in whole(model)]


def load(rank: int, world: int, folder: str) -> list[torch.Tensor]:
    """Loads into a model of other weights, in a world of another size, and trains one step."""
    model = sharded(mlp(seed=99), mesh=init_device_mesh("cpu", (world,)))
    optimizer = _adam(model)
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    _step(model, optimizer, 2)
    return [p.detach() for p in whole(model)]


@pytest.mark.parametrize(
    ("transport", "saved", "loaded"),
    [("shm", 2, 2), ("shm", 4, 2), ("shm", 2, 4), pytest.param("verbs", 2, 2, marks=IN_GUEST)],
)
def test_checkpoint(transport: Transport, saved: int, loaded: int, tmp_path: Path) -> None:
    after = run_ranks(save, saved, str(tmp_path), transport=transport, timeout=LIMIT)
    again = run_ranks(load, loaded, str(tmp_path), transport=transport, timeout=LIMIT)
    for weights in again:
        assert_same(weights, after[0])
    assert after[0][0].shape[1] == FEATURES
