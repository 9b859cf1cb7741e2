"""A model split over the ranks: torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py

Each rank holds some columns of the first layer and the matching rows of the second, so that one
all_reduce after the second layer is all the communication that a forward pass takes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def main() -> None:
    dist.init_process_group("rocenante")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(make(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    held = sum(p.to_local().numel() for p in model.parameters())
    whole = make()
    x = torch.randn(8, 64)  # the same on all ranks: they have drawn the same numbers before
    difference = (model(x) - whole(x)).abs().max().item()
    total = sum(p.numel() for p in whole.parameters())
    print(
        f"rank {dist.get_rank()}: {held} of {total} parameters, "
        f"differs from one process's result by {difference:.1e}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
