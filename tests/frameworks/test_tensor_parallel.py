"""DTensor: tensor parallel layers, sequence parallel, loss parallel, 2-D meshes, redistribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import Transport, groups, run_ranks
from models import FEATURES, HIDDEN, LIMIT, RATE, assert_same, batch, part
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

ROWS = 8


class Block(nn.Module):
    """Norm, two layers, residual: half of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, HIDDEN)
        self.down = nn.Linear(HIDDEN, FEATURES)
        self.head = nn.Linear(FEATURES, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return self.head(x + hidden)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_training(ours: nn.Module, alone: nn.Module) -> None:
    """Gradients, then weights after a step."""
    for a, b in zip(ours.parameters(), alone.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(full(a.grad), b.grad, rtol=1e-5, atol=1e-6)
    for model in (ours, alone):
        torch.optim.SGD(model.parameters(), RATE).step()
    assert_same(map(full, ours.parameters()), alone.parameters())


def colwise_and_rowwise(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,))
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    model, alone = parallelize_module(Block(), mesh, plan), Block()
    assert model.up.weight.to_local().shape == (HIDDEN // world, FEATURES)
    inputs, _ = batch(0, ROWS)
    ours, expected = model(inputs), alone(inputs)
    torch.testing.assert_close(ours, expected)
    ours.square().mean().backward()
    expected.square().mean().backward()
    assert_same_training(model, alone)


def sequence_parallel(rank: int, world: int) -> None:
    """Norms on shards of the rows, gathered for the layers and scattered after them."""
    mesh = init_device_mesh("cpu", (world,))
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "head": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    model, alone = Block(), Block()
    parallelize_module(model, mesh, plan)
    parallelize_module(
        model,
        mesh,
        PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False
        ),
    )
    inputs, _ = batch(0, ROWS)
    ours, expected = model(inputs), alone(inputs)
    torch.testing.assert_close(full(ours), expected)
    full(ours).square().mean().backward()
    expected.square().mean().backward()
    assert_same_training(model, alone)


def parallel_loss(rank: int, world: int) -> None:
    """Cross entropy of logits that stay sharded along the classes."""
    mesh = init_device_mesh("cpu", (world,))
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    model, alone = parallelize_module(Block(), mesh, plan), Block()
    inputs, _ = batch(0, ROWS)
    targets = torch.arange(ROWS) % HIDDEN
    with loss_parallel():
        ours = nn.functional.cross_entropy(model(inputs), targets)
        expected = nn.functional.cross_entropy(alone(inputs), targets)
        torch.testing.assert_close(full(ours), expected)
        ours.backward()
    expected.backward()
    assert_same_training(model, alone)


def two_dimensions(rank: int, world: int) -> None:
    """FSDP along one dimension of the mesh, tensor parallel along the other."""
    if world < 4:
        return
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    data = mesh["data"].get_local_rank()
    model, alone = Block(), Block()
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    inputs, _ = part(0, data, 2, ROWS)
    model(inputs).square().mean().backward()
    alone(batch(0, 2 * ROWS)[0]).square().mean().backward()
    assert_same_training(model, alone)


def redistribution(rank: int, world: int) -> None:
    """Every change of placement, with sizes that don't divide by the world's."""
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(7.0 * 5).reshape(7, 5)
    for source in (Replicate(), Shard(0), Shard(1)):
        for target in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [source]).redistribute(mesh, [target])
            assert tensor.placements == (target,)
            torch.testing.assert_close(tensor.full_tensor(), whole)
    partial = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(
        whole.t().contiguous(), mesh, [Shard(0)]
    )
    assert partial.placements[0].is_partial()
    for target in (Replicate(), Shard(0), Shard(1)):
        result = partial.redistribute(mesh, [target]).full_tensor()
        torch.testing.assert_close(result, whole @ whole.t())


CASES = [colwise_and_rowwise, sequence_parallel, parallel_loss, two_dimensions, redistribution]


@groups(shm=[2, 4], verbs=[2], mixed=[])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_tensor_parallel(
    case: Callable[[int, int], None], transport: Transport, world: int
) -> None:
    run_ranks(case, world, transport=transport, timeout=LIMIT)
