"""Two models at once, in replicas, behind a router.

    torchrun --nproc-per-node 9 examples/replica_groups.py

Ranks 0 to 5 hold three replicas of a large model, each split over two ranks; ranks 6 and 7 a
replica of a small one each; rank 8 is the router. It sends each request to the replica of the right
model that has the fewest requests under way, and takes answers as they come.
"""

from __future__ import annotations

from collections import Counter, deque

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32
HIDDEN = {"large": 512, "small": 64}
REPLICAS = [("large", [0, 1]), ("large", [2, 3]), ("large", [4, 5]), ("small", [6]), ("small", [7])]
ROUTER = 8
REQUESTS = 40
STOP = -1.0


def weights(model: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(HIDDEN[model])
    up = torch.randn(WIDTH, HIDDEN[model], generator=generator) / WIDTH**0.5
    return up, torch.randn(HIDDEN[model], WIDTH, generator=generator) / HIDDEN[model] ** 0.5


def serve(model: str, ranks: list[int], group: dist.ProcessGroup) -> None:
    """A rank of a replica: its share of the columns and rows, one all_reduce to a request."""
    part = ranks.index(dist.get_rank())
    up, down = (w.chunk(len(ranks), d)[part] for w, d in zip(weights(model), (1, 0), strict=True))
    message = torch.empty(1 + WIDTH)  # number of the request, then what it asks
    while True:
        if part == 0:
            dist.recv(message, ROUTER)
        dist.broadcast(message, ranks[0], group=group)
        if message[0] == STOP:
            return
        answer = nn.functional.gelu(message[1:] @ up) @ down
        dist.all_reduce(answer, group=group)
        if part == 0:
            dist.send(torch.cat([message[:1], answer]), ROUTER)


def route() -> None:
    generator = torch.Generator().manual_seed(1)
    requests = [torch.randn(WIDTH, generator=generator) for _ in range(REQUESTS)]
    models = ["small" if number % 4 else "large" for number in range(REQUESTS)]
    waiting = deque(range(REQUESTS))
    leaders = {ranks[0]: model for model, ranks in REPLICAS}
    under_way, served = Counter(dict.fromkeys(leaders, 0)), Counter(dict.fromkeys(leaders, 0))
    worst = 0.0
    message = torch.empty(1 + WIDTH)
    while waiting or sum(under_way.values()):
        if waiting:
            number = waiting[0]
            fitting = [leader for leader, model in leaders.items() if model == models[number]]
            leader = min(fitting, key=lambda r: (under_way[r], served[r]))
            if under_way[leader] < 2:
                dist.send(torch.cat([torch.tensor([float(number)]), requests[number]]), leader)
                under_way[leader] += 1
                waiting.popleft()
                continue
        leader = dist.recv(message)  # from whichever is ready first
        under_way[leader] -= 1
        served[leader] += 1
        number = int(message[0])
        up, down = weights(models[number])
        alone = nn.functional.gelu(requests[number] @ up) @ down
        worst = max(worst, (message[1:] - alone).abs().max().item())
    for leader, model in leaders.items():
        dist.send(torch.full((1 + WIDTH,), STOP), leader)
        print(f"{model} replica led by rank {leader}: {served[leader]} requests")
    print(f"{sum(served.values())} answers; they differ from one process's by {worst:.1e} at most")


def main() -> None:
    dist.init_process_group("rocenante")
    assert dist.get_world_size() == 1 + sum(len(ranks) for _, ranks in REPLICAS), __doc__
    # Every rank takes part in making every group, in the same order.
    groups = [dist.new_group(ranks) for _, ranks in REPLICAS]
    if dist.get_rank() == ROUTER:
        route()
    for (model, ranks), group in zip(REPLICAS, groups, strict=True):
        if dist.get_rank() in ranks:
            serve(model, ranks, group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
