"""Data-parallel training: torchrun --nproc-per-node 2 examples/ddp.py

Each rank learns the same function from its own part of every batch.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS = 64, 200


def main() -> None:
    dist.init_process_group("rocenante")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        points = torch.rand(BATCH, 2, generator=torch.Generator().manual_seed(step))
        mine = points[rank::world]
        loss = nn.functional.mse_loss(ddp(mine), mine.prod(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
    if rank == 0:
        print(f"{world} ranks, {STEPS} steps: loss {loss.item():.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
