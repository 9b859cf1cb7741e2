"""Groups of several backends, subgroups of another backend, and groups split off."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import make_store, run_ranks
from torch.distributed.device_mesh import init_device_mesh

CPU = torch.device("cpu", 0)


def backend_of(group: dist.ProcessGroup | None, device: torch.device = CPU) -> str:
    return (group or dist.group.WORLD)._get_backend(device).name()


def check_sum(group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    tensor = torch.full((3000,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full_like(tensor, float(sum(ranks))))
    got = [torch.empty(5) for _ in ranks]
    dist.all_gather(got, torch.full((5,), float(dist.get_rank())), group=group)
    assert [int(g[0]) for g in got] == ranks


def gloo_beside(rank: int, world: int) -> None:
    """Groups of both backends on the same ranks, used in turns and at once."""
    everyone = list(range(world))
    gloo, ours = dist.new_group(backend="gloo"), dist.new_group()
    assert backend_of(gloo) == "gloo"
    assert backend_of(ours) == backend_of(None) == "rocenante"
    for _ in range(3):
        for group in (gloo, ours, None):
            check_sum(group, everyone)
    tensors = [torch.full((70_000,), float(rank)) for _ in range(6)]
    groups = [gloo, ours, None] * 2
    works = [
        dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups, strict=True)
    ]
    for work in reversed(works):
        work.wait()
    assert all(int(t[0]) == sum(everyone) for t in tensors)
    dist.destroy_process_group(gloo)
    check_sum(ours, everyone)


def ours_beside_gloo(rank: int, world: int, folder: str) -> None:
    """The default group is gloo's; ours is a subgroup, of a device mesh too."""
    dist.init_process_group(
        "gloo", store=make_store("file", folder, rank, world), rank=rank, world_size=world
    )
    ours = dist.new_group(backend="rocenante")
    assert backend_of(ours) == "rocenante"
    assert backend_of(None) == "gloo"
    check_sum(ours, list(range(world)))
    check_sum(None, list(range(world)))
    pair = dist.new_group([0, world - 1], backend="rocenante", timeout=timedelta(seconds=20))
    if rank in (0, world - 1):
        check_sum(pair, [0, world - 1])
    dist.destroy_process_group()


def devices(rank: int, world: int, folder: str, names: str, expected: str) -> None:
    """A backend for each device; a machine without GPU never makes the CUDA one."""
    dist.init_process_group(
        names, store=make_store("file", folder, rank, world), rank=rank, world_size=world
    )
    assert backend_of(None) == expected
    check_sum(None, list(range(world)))
    check_sum(dist.new_group(), list(range(world)))
    dist.destroy_process_group()


def local_synchronization(rank: int, world: int) -> None:
    """Only a group's own ranks take part in making it; the others never hear of it."""
    if rank == world - 1:
        dist.barrier()
        return
    ranks = list(range(world - 1))
    first = dist.new_group(ranks, use_local_synchronization=True)
    again = dist.new_group(ranks, use_local_synchronization=True)
    check_sum(first, ranks)
    check_sum(again, ranks)
    dist.barrier()


def split_by_group(rank: int, world: int) -> None:
    """ProcessGroup.split_group, on which torch.distributed.split_group rests."""
    everyone = dist.group.WORLD
    everyone.bound_device_id = CPU
    halves = [list(range(0, world, 2)), list(range(1, world, 2))]
    mine = halves[rank % 2]
    half = everyone.split_group(
        mine, timeout=timedelta(seconds=15), opts=None, group_name=f"half{rank % 2}"
    )
    assert half is not None
    assert (half.rank(), half.size()) == (mine.index(rank), len(mine))
    tensor = torch.full((4,), float(rank))
    half.allreduce([tensor]).wait()
    assert tensor.tolist() == [float(sum(mine))] * 4
    check_sum(None, list(range(world)))


def split_by_torch(rank: int, world: int) -> None:
    """torch.distributed.split_group wants an accelerator: here CPU is made to pass for one."""
    torch.accelerator.is_available = lambda: True  # only in this process
    torch.accelerator.current_accelerator = lambda: CPU
    dist.group.WORLD.bound_device_id = CPU
    halves = [list(range(0, world, 2)), list(range(1, world, 2))]
    half = dist.split_group(split_ranks=halves)
    check_sum(half, halves[rank % 2])
    first = dist.split_group(split_ranks=[halves[0]], group_desc="only some")
    if rank % 2 == 0:
        check_sum(first, halves[0])
    else:
        assert first is dist.GroupMember.NON_GROUP_MEMBER
    check_sum(None, list(range(world)))


def meshes(rank: int, world: int) -> None:
    """Each dimension of a mesh has groups, as has the mesh flattened."""
    shape = (2, world // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("rows", "columns"))
    row, column = divmod(rank, shape[1])
    check_sum(mesh.get_group("columns"), [row * shape[1] + c for c in range(shape[1])])
    check_sum(mesh.get_group("rows"), [r * shape[1] + column for r in range(2)])
    check_sum(mesh._flatten().get_group(), list(range(world)))
    for group in mesh.get_all_groups():
        assert backend_of(group) == "rocenante"


CASES = [gloo_beside, local_synchronization, split_by_group, split_by_torch, meshes]


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_groups(case: Callable[[int, int], None], world: int) -> None:
    run_ranks(case, world)


@pytest.mark.parametrize("world", [2, 4])
def test_default_gloo(world: int, tmp_path: object) -> None:
    run_ranks(ours_beside_gloo, world, str(tmp_path), backend=None)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("cpu:gloo,cuda:rocenante", "gloo"),
        pytest.param(
            "cpu:rocenante,cuda:nccl",
            "rocenante",
            marks=pytest.mark.skipif(
                not torch.cuda.is_available(), reason="torch makes NCCL's group only with a GPU"
            ),
        ),
        ("cpu:rocenante,cuda:gloo", "rocenante"),
    ],
)
def test_devices(names: str, expected: str, tmp_path: object) -> None:
    run_ranks(devices, 2, str(tmp_path), names, expected, backend=None)
