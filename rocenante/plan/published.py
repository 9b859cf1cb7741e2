"""The published tables that the model is fitted to and checked against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rocenante.plan.fabric import Fabric


@dataclass(frozen=True)
class DecodeRow:
    """One measured configuration; rates in tokens per second, None where not published."""

    id: str
    nodes: int
    fabric: Fabric
    backend: str
    decode_tps: float
    prefill_tps: float | None


@dataclass(frozen=True)
class Published:
    """All tables of the report."""

    source: str
    model: str
    precision: str
    input_tokens: int
    output_tokens: int
    conditions: str
    decode: tuple[DecodeRow, ...]
    training_parameters: float
    training_tokens: int
    training: tuple[tuple[int, float], ...]
    """(nodes, tokens per second)"""
    routing_groups: str
    routing: tuple[tuple[float, float], ...]
    """(share of requests that go to the large model, throughput against large only)"""
    memory_model: str
    memory_nodes: int
    memory_gb: float
    """Memory of one node in 1e9 bytes."""

    def row(self, row_id: str) -> DecodeRow:
        """Return the decode row of that id."""
        return next(row for row in self.decode if row.id == row_id)


def read_data(name: str) -> dict[str, Any]:
    """Return one of the JSON files in data/."""
    text = (resources.files("rocenante.plan") / "data" / name).read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def load_published() -> Published:
    """Return the published tables.

    The report gives decoding over NCCL on a switch as a scaling factor; it becomes a rate here.
    """
    data = read_data("published.json")
    decode = data["decode"]
    rows = [
        DecodeRow(
            row["id"],
            row["nodes"],
            Fabric(row["fabric"]),
            row["backend"],
            row["decode_tps"],
            row["prefill_tps"],
        )
        for row in decode["rows"]
    ]
    single = next(row.decode_tps for row in rows if row.nodes == 1)
    rows += [
        DecodeRow(
            row["id"],
            row["nodes"],
            Fabric(row["fabric"]),
            row["backend"],
            row["decode_scaling"] * single,
            None,
        )
        for row in decode["scaling_without"]
    ]
    return Published(
        source=data["source"],
        model=decode["model"],
        precision=decode["precision"],
        input_tokens=decode["input_tokens"],
        output_tokens=decode["output_tokens"],
        conditions=decode["conditions"],
        decode=tuple(rows),
        training_parameters=data["training"]["parameters"],
        training_tokens=data["training"]["tokens_per_step"],
        training=tuple((row["nodes"], row["tps"]) for row in data["training"]["rows"]),
        routing_groups=data["routing"]["groups"],
        routing=tuple((row["share"], row["throughput"]) for row in data["routing"]["rows"]),
        memory_model=data["memory"]["model"],
        memory_nodes=data["memory"]["nodes"],
        memory_gb=data["node"]["memory_gb"],
    )
