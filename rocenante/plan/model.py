"""Descriptions of language models: what a decode step reads, computes and sends."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rocenante.plan.errors import PlanError, nearest

# NVFP4: 4 bits and one 8-bit scale for each block of 16.
BYTES_PER_WEIGHT = {"nvfp4": 0.5 + 1 / 16, "fp8": 1.0, "bf16": 2.0}
ACTIVATION_BYTES = 2
EMBEDDING_BYTES = 2
# Beyond any model; keeps every product of fields within floating point.
MAX_NUMBER = 1e15


@dataclass(frozen=True)
class Model:
    """A transformer's shape. Parameters are counts, `kv_bytes_per_token` is the whole model's."""

    name: str
    source: str
    hidden: int
    layers: int
    heads: int
    vocab: int
    tied_embeddings: bool
    parameters: float
    active_parameters: float
    experts_total: int
    experts_active: int
    kv_bytes_per_token: int
    kv_heads: int
    precision: str
    checkpoint_gb: dict[str, float]

    @property
    def all_reduces(self) -> int:
        """All-reduces of one step: two a layer and one for the embedding."""
        return 2 * self.layers + 1

    def message_bytes(self, tokens: int) -> int:
        """Bytes of one all-reduce when a step carries `tokens` tokens."""
        return tokens * self.hidden * ACTIVATION_BYTES

    def logits_shard_bytes(self, nodes: int, tokens: int) -> float:
        """Bytes that each rank contributes to the gather of the logits."""
        return tokens * self.vocab / nodes * ACTIVATION_BYTES

    def kv_shards(self, nodes: int) -> int:
        """Over how many nodes the KV cache divides; heads beyond that are repeated."""
        return math.gcd(nodes, self.kv_heads)

    def weight_bytes(self, precision: str) -> float:
        """Bytes of all weights; the embedding and the output head stay in 16 bits."""
        if precision in self.checkpoint_gb:
            return self.checkpoint_gb[precision] * 1e9
        head = self.vocab * self.hidden
        kept = head if self.tied_embeddings else 2 * head
        return (self.parameters - kept) * BYTES_PER_WEIGHT[precision] + kept * EMBEDDING_BYTES

    def read_bytes(self, precision: str, requests: int) -> float:
        """Bytes of weights that one decode step of `requests` tokens reads.

        The embedding is a look-up and costs nothing; the head is read whole. Each token of a
        mixture picks its experts independently, so a batch touches E(1 - (1 - k/E)^requests).
        """
        head = self.vocab * self.hidden
        active = self.active_parameters
        if self.experts_total > self.experts_active:
            expert = (self.parameters - active) / (self.experts_total - self.experts_active)
            untouched = (1 - self.experts_active / self.experts_total) ** requests
            touched = self.experts_total * (1 - untouched)
            active += expert * (touched - self.experts_active)
        body = active - (head if self.tied_embeddings else 2 * head)
        return body * BYTES_PER_WEIGHT[precision] + head * EMBEDDING_BYTES


def known_models() -> dict[str, Path]:
    """Names and files of the models that come with the package."""
    folder = Path(str(resources.files("rocenante.plan") / "models"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_model(name_or_path: str) -> Model:
    """Return a known model by name, or the one described by a JSON file.

    Raises PlanError for an unknown name, an unreadable file, and a missing or wrong field.
    """
    known = known_models()
    path = known.get(name_or_path.lower())
    if path is None:
        path = Path(name_or_path)
        if path.suffix != ".json":
            raise PlanError(
                f"unknown model {name_or_path!r}; known: {', '.join(known)}, or the path of a "
                f".json description.{nearest(name_or_path, known)}"
            )
    return _parse(read_json(path), str(path))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises PlanError if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path} is not JSON: it is not UTF-8 text.") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise PlanError(f"{path} must hold a JSON object, not a {type(value).__name__}.")
    return value


def check_precision(precision: str) -> str:
    """Return `precision` if it is known. Raises PlanError otherwise."""
    if precision not in BYTES_PER_WEIGHT:
        raise PlanError(
            f"unknown precision {precision!r}: one of {', '.join(BYTES_PER_WEIGHT)}."
            f"{nearest(precision, BYTES_PER_WEIGHT)}"
        )
    return precision


class _Fields:
    """Reads typed fields of a description and names file and field when one is wrong."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise PlanError(f"{where} must be a JSON object.")
        self._value = value
        self._where = where

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value.get(name, default)
        if value is None:
            raise PlanError(f"{self._where} lacks {name!r}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PlanError(f"{self._where}: {name!r} must be a number.")
        if not 0 < value < MAX_NUMBER:
            raise PlanError(f"{self._where}: {name!r} must be positive and below {MAX_NUMBER:g}.")
        return float(value)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value):
            raise PlanError(f"{self._where}: {name!r} must be a whole number, not {value}.")
        return int(value)

    def text(self, name: str, default: str) -> str:
        value = self._value.get(name, default)
        if not isinstance(value, str):
            raise PlanError(f"{self._where}: {name!r} must be a string.")
        return value

    def flag(self, name: str) -> bool:
        value = self._value.get(name, False)
        if not isinstance(value, bool):
            raise PlanError(f"{self._where}: {name!r} must be true or false.")
        return value

    def inner(self, name: str, default: object = None) -> _Fields:
        if name not in self._value and default is None:
            raise PlanError(f"{self._where} lacks {name!r}.")
        return _Fields(self._value.get(name, default), f"{self._where}: {name!r}")

    def names(self) -> list[str]:
        return [str(name) for name in self._value]


def _parse(value: dict[str, Any], where: str) -> Model:
    fields = _Fields(value, where)
    kv = fields.inner("kv")
    if "latent" in kv.names():
        kv_width, kv_heads = kv.count("latent"), 1
    else:
        kv_heads = kv.count("heads")
        kv_width = 2 * kv_heads * kv.count("head_dim")
    experts = fields.inner("experts", {"total": 1, "active": 1})
    checkpoints = fields.inner("checkpoint_gb", {})
    model = Model(
        name=fields.text("name", Path(where).stem),
        source=fields.text("source", "the user's description"),
        hidden=fields.count("hidden"),
        layers=fields.count("layers"),
        heads=fields.count("heads"),
        vocab=fields.count("vocab"),
        tied_embeddings=fields.flag("tied_embeddings"),
        parameters=fields.number("parameters"),
        active_parameters=fields.number("active_parameters", fields.number("parameters")),
        experts_total=experts.count("total"),
        experts_active=experts.count("active"),
        kv_bytes_per_token=int(kv.count("layers") * kv_width * kv.number("bytes", 2)),
        kv_heads=kv_heads,
        precision=check_precision(fields.text("precision", "bf16")),
        checkpoint_gb={
            check_precision(name): checkpoints.number(name) for name in checkpoints.names()
        },
    )
    embeddings = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    if not embeddings < model.active_parameters <= model.parameters:
        raise PlanError(
            f"{where}: 'active_parameters' must lie between the embeddings "
            f"({embeddings:.3g}) and 'parameters' ({model.parameters:.3g})."
        )
    if model.experts_active > model.experts_total:
        raise PlanError(f"{where}: more active experts than experts.")
    return model
