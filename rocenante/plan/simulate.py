"""A discrete-event model of a fabric of 2 to 64 nodes.

A message waits for the proxy that posts it, then for its NIC's send queue, is serialised onto the
link, and on a switch waits in the output queue of the port it leaves by (cut-through: a free port
adds no serialisation of its own). Nodes start at their own times. Without jitter and contention
the closed forms of `costs` are met exactly, which tests check.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from functools import partial

from rocenante.plan.costs import Costs
from rocenante.plan.fabric import Fabric

Done = Callable[[float], None]
NodeDone = Callable[[int, float], None]


class Network:
    """Nodes, their NICs and the switch between them. Times in microseconds."""

    def __init__(self, nodes: int, fabric: Fabric, hop_us: float) -> None:
        self._hop_us = hop_us if fabric is Fabric.SWITCH else 0.0
        self._switched = fabric is Fabric.SWITCH
        self._events: list[tuple[float, int, Done]] = []
        # Simultaneous events run in the order of their creation, so a run repeats exactly.
        self._order = itertools.count()
        self._proxy_free = [0.0] * nodes
        self._nic_free = [0.0] * nodes
        self._port_free = [0.0] * nodes

    def at(self, time: float, action: Done) -> None:
        """Call `action(time)` when the clock gets there."""
        heapq.heappush(self._events, (time, next(self._order), action))

    def send(
        self, now: float, source: int, target: int, wire_us: float, post_us: float, done: Done
    ) -> None:
        """Send a message that occupies a link for `wire_us`; call `done` when its tail is there."""
        posted = max(now, self._proxy_free[source]) + post_us
        self._proxy_free[source] = posted
        start = max(posted, self._nic_free[source])
        self._nic_free[source] = start + wire_us
        if not self._switched:
            self.at(start + wire_us, done)
            return

        def reach_port(head: float) -> None:
            leaves = max(head, self._port_free[target]) + wire_us
            self._port_free[target] = leaves
            self.at(leaves, done)

        self.at(start + self._hop_us, reach_port)

    def run(self) -> None:
        """Handle events until none is left."""
        while self._events:
            time, _, action = heapq.heappop(self._events)
            action(time)


class _Exchange:
    """Every node sends to every other; `arrived(node, time)` once a node has all and is ready."""

    def __init__(
        self,
        network: Network,
        nodes: int,
        wire_us: float,
        post_us: float,
        arrived: NodeDone,
        same_first_peer: bool = False,
    ) -> None:
        self._network = network
        self._nodes = nodes
        self._wire_us = wire_us
        self._post_us = post_us
        self._arrived = arrived
        self._same_first_peer = same_first_peer
        # A node waits for the others' messages and for its own readiness.
        self._missing = [nodes] * nodes

    def publish(self, node: int, time: float) -> None:
        if self._same_first_peer:
            peers = [peer for peer in range(self._nodes) if peer != node]
        else:
            peers = [(node + k) % self._nodes for k in range(1, self._nodes)]
        for peer in peers:
            self._network.send(
                time, node, peer, self._wire_us, self._post_us, partial(self._count, peer)
            )
        self._count(node, time)

    def _count(self, node: int, time: float) -> None:
        self._missing[node] -= 1
        if self._missing[node] == 0:
            self._arrived(node, time)


def one_shot(
    costs: Costs,
    nodes: int,
    size: float,
    fabric: Fabric,
    starts: Sequence[float],
    same_first_peer: bool = False,
) -> float:
    """Time at which the last node has its result; `starts` are the nodes' arrival times.

    `same_first_peer` makes every node post in rank order instead of starting behind itself, which
    sends all first messages to one port.
    """
    network = Network(nodes, fabric, costs.hop_us)
    traffic = size * costs.memory_us_per_byte
    ends = [0.0] * nodes

    def arrived(node: int, time: float) -> None:
        ends[node] = time + costs.exchange_us + (nodes + 1) * traffic

    exchange = _Exchange(
        network, nodes, size * costs.wire_us_per_byte, costs.post_us, arrived, same_first_peer
    )
    for node, start in enumerate(starts):
        network.at(start + costs.launch_us + 2 * traffic, partial(exchange.publish, node))
    network.run()
    return max(ends)


def two_shot(
    costs: Costs, nodes: int, size: float, fabric: Fabric, starts: Sequence[float]
) -> float:
    """As `one_shot`, for a direct reduce-scatter followed by a direct all-gather."""
    network = Network(nodes, fabric, costs.hop_us)
    traffic = size * costs.memory_us_per_byte
    wire = size / nodes * costs.wire_us_per_byte
    ends = [0.0] * nodes

    def gathered(node: int, time: float) -> None:
        ends[node] = time + costs.exchange_us + 2 * traffic

    def scattered(node: int, time: float) -> None:
        reduced = time + costs.exchange_us + (nodes + 1) * traffic / nodes
        network.at(reduced, partial(gather.publish, node))

    gather = _Exchange(network, nodes, wire, costs.post_us, gathered)
    scatter = _Exchange(network, nodes, wire, costs.post_us, scattered)
    for node, start in enumerate(starts):
        network.at(start + costs.launch_us + 2 * traffic, partial(scatter.publish, node))
    network.run()
    return max(ends)


def ring(costs: Costs, nodes: int, size: float, fabric: Fabric, starts: Sequence[float]) -> float:
    """As `one_shot`, for 2(n-1) steps in each of which a node passes one part on."""
    network = Network(nodes, fabric, costs.hop_us)
    wire = size / nodes * costs.bulk(nodes)
    steps = 2 * (nodes - 1)
    received = [0] * nodes
    ends = [0.0] * nodes

    def pass_on(node: int, time: float) -> None:
        target = (node + 1) % nodes
        network.send(time, node, target, wire, 0.0, partial(receive, target))

    def receive(node: int, time: float) -> None:
        received[node] += 1
        handled = max(time, starts[node]) + costs.step_us
        if received[node] < steps:
            network.at(handled, partial(pass_on, node))
        else:
            ends[node] = handled

    for node, start in enumerate(starts):
        network.at(start, partial(pass_on, node))
    network.run()
    return max(ends)


def tree(costs: Costs, nodes: int, size: float, fabric: Fabric, starts: Sequence[float]) -> float:
    """As `one_shot`, for a binomial reduce to rank 0 and a binomial broadcast from it."""
    network = Network(nodes, fabric, costs.hop_us)
    wire = size * costs.bulk(nodes)
    children = [
        [
            node + bit
            for bit in _powers_of_two(nodes)
            if node % (2 * bit) == 0 and node + bit < nodes
        ]
        for node in range(nodes)
    ]
    # A node waits for its children's sums and for its own input.
    missing = [len(own) + 1 for own in children]
    ends = [0.0] * nodes

    def send(time: float, source: int, target: int, action: NodeDone) -> None:
        def handle(arrival: float) -> None:
            network.at(arrival + costs.step_us, partial(action, target))

        network.send(time, source, target, wire, 0.0, handle)

    def ready(node: int, time: float) -> None:
        missing[node] -= 1
        if missing[node]:
            return
        if node == 0:
            broadcast(node, time)
        else:
            send(time, node, node & (node - 1), ready)

    def broadcast(node: int, time: float) -> None:
        ends[node] = time
        for child in reversed(children[node]):
            send(time, node, child, broadcast)

    for node, start in enumerate(starts):
        network.at(start, partial(ready, node))
    network.run()
    return max(ends)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << bit for bit in range(max(1, (limit - 1).bit_length()))]
