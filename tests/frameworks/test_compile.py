"""torch.compile with collectives inside one graph, against the same function uncompiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import run_ranks
from models import assert_same, loss_of, mlp, part
from torch.nn.parallel import DistributedDataParallel


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Row-parallel, then what a sequence-parallel layer does: scatter, work on shards, gather."""
    group = dist.group.WORLD
    y = functional.all_reduce(torch.relu(x) @ weight, "sum", group)
    shard = functional.reduce_scatter_tensor(y, "sum", 0, group) * 2
    return functional.all_gather_tensor(shard, 0, group).sin()


def in_place(x: torch.Tensor) -> torch.Tensor:
    """The calls of torch.distributed itself, which the compiler rewrites."""
    y = x * 2
    dist.all_reduce(y)
    out = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, y + 1)
    return out.cos()


def collectives(rank: int, world: int, backend: str) -> None:
    torch.manual_seed(rank)
    x, weight = torch.randn(2 * world, 6), torch.randn(6, 4)
    for function, arguments in ((layer, (x, weight)), (in_place, (x,))):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(*arguments), function(*arguments))


def ddp(rank: int, world: int, backend: str) -> None:
    """DDP splits a compiled model's graph at its buckets."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 300  # several graphs, of one bucket each
    compiled = DistributedDataParallel(mlp(), bucket_cap_mb=0.0004)
    plain = DistributedDataParallel(mlp())
    inputs, targets = part(0, rank, world, 4)
    loss_of(torch.compile(compiled, backend=backend), inputs, targets).backward()
    loss_of(plain, inputs, targets).backward()
    assert_same(
        [p.grad for p in compiled.parameters() if p.grad is not None],
        [p.grad for p in plain.parameters() if p.grad is not None],
    )


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """Before ranks are forked: the compiler's modules take long to import."""
    import torch._inductor.compile_fx

    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))
    torch._dynamo.reset()


LONG = pytest.mark.long  # inductor runs g++ for minutes


@pytest.mark.parametrize(
    ("case", "backend", "world"),
    [
        (collectives, "aot_eager", 2),
        pytest.param(collectives, "aot_eager", 4, marks=LONG),
        pytest.param(collectives, "inductor", 2, marks=LONG),
        pytest.param(collectives, "inductor", 4, marks=LONG),
        (ddp, "aot_eager", 2),
        pytest.param(ddp, "aot_eager", 4, marks=LONG),
        pytest.param(ddp, "inductor", 2, marks=LONG),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_compile(
    case: Callable[[int, int, str], None],
    backend: str,
    world: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tmp_path}/inductor")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    run_ranks(case, world, backend, timeout=600)
