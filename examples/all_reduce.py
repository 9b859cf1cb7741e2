"""torchrun --nproc-per-node 4 examples/all_reduce.py"""

import torch
import torch.distributed as dist

dist.init_process_group("rocenante")
x = torch.full((5120,), float(dist.get_rank()), dtype=torch.bfloat16)
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x[0].item()}")
dist.destroy_process_group()
