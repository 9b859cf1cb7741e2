"""Model descriptions: what they give and how they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocenante.plan.calibration import Calibration
from rocenante.plan.errors import PlanError
from rocenante.plan.fabric import Fabric
from rocenante.plan.model import known_models, load_model
from rocenante.plan.predict import decode_us, prefill_us

GOOD: dict[str, Any] = {
    "hidden": 1024,
    "layers": 10,
    "heads": 16,
    "vocab": 32000,
    "parameters": 1e9,
    "kv": {"layers": 10, "heads": 4, "head_dim": 64},
}


def write(tmp_path: Path, value: object) -> str:
    path = tmp_path / "mine.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


@pytest.mark.parametrize("name", sorted(known_models()))
def test_every_model_of_the_package_loads_and_names_its_source(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert model.read_bytes(model.precision, 1) <= model.weight_bytes(model.precision)


def test_sizes_of_a_decode_step() -> None:
    model = load_model("qwen3.8-27b")
    assert model.all_reduces == 129
    assert model.message_bytes(1) == 10240
    assert model.kv_bytes_per_token == 16 * 2 * 4 * 256 * 2
    assert load_model("llama-3-70b").message_bytes(1) == 16384
    assert load_model("llama-3-70b").all_reduces == 161


def test_kv_heads_beyond_their_number_are_repeated() -> None:
    model = load_model("qwen3.8-27b")
    assert [model.kv_shards(nodes) for nodes in (1, 2, 3, 4, 8)] == [1, 2, 1, 4, 4]
    assert load_model("glm-5.3").kv_shards(8) == 1


def test_a_batch_touches_more_experts() -> None:
    model = load_model("glm-5.3")
    one, many = model.read_bytes("bf16", 1), model.read_bytes("bf16", 64)
    everything = model.weight_bytes("bf16")
    assert one < many < everything
    assert model.read_bytes("bf16", 100_000) == pytest.approx(
        everything - 2 * model.vocab * model.hidden, rel=1e-6
    )


def test_weights_by_precision(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, GOOD))
    embeddings = 2 * 32000 * 1024
    assert model.weight_bytes("bf16") == pytest.approx(2e9)
    assert model.weight_bytes("fp8") == pytest.approx(1e9 + embeddings)
    assert model.weight_bytes("nvfp4") == pytest.approx(
        (1e9 - embeddings) * 0.5625 + 2 * embeddings
    )


def test_a_users_model_can_be_planned(tmp_path: Path, calibration: Calibration) -> None:
    model = load_model(write(tmp_path, GOOD))
    machine = calibration.machine
    steps = [decode_us(machine, model, "bf16", n, Fabric.SWITCH, "nccl", 100) for n in (1, 2)]
    assert steps[0] > 1.96e9 * machine.read_us_per_byte
    assert prefill_us(machine, model, 2, 100) < prefill_us(machine, model, 1, 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": None}, "lacks 'hidden'"),
        ({"hidden": "big"}, "'hidden' must be a number"),
        ({"hidden": True}, "'hidden' must be a number"),
        ({"hidden": 10.5}, "'hidden' must be a whole number"),
        ({"layers": 0}, "'layers' must be positive"),
        ({"layers": -3}, "'layers' must be positive"),
        ({"parameters": 1e400}, "'parameters' must be positive and below"),
        ({"parameters": float("nan")}, "'parameters' must be positive"),
        ({"parameters": 1e6}, "'active_parameters' must lie between"),
        ({"active_parameters": 2e9}, "'active_parameters' must lie between"),
        ({"kv": 3}, "'kv' must be a JSON object"),
        ({"kv": {"layers": 1, "heads": 1}}, "'kv' lacks 'head_dim'"),
        ({"precision": "fp7"}, "unknown precision 'fp7'.*nvfp4, fp8, bf16.*mean 'fp8'"),
        ({"precision": 8}, "'precision' must be a string"),
        ({"tied_embeddings": "no"}, "'tied_embeddings' must be true or false"),
        ({"checkpoint_gb": {"int4": 3}}, "unknown precision 'int4'"),
        ({"experts": {"total": 2, "active": 3}}, "more active experts than experts"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    value = {key: field for key, field in {**GOOD, **change}.items() if field is not None}
    with pytest.raises(PlanError, match=message):
        load_model(write(tmp_path, value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object, not a list"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load_model(write(tmp_path, text))


def test_binary_missing_and_unknown(tmp_path: Path) -> None:
    binary = tmp_path / "x.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="not UTF-8"):
        load_model(str(binary))
    with pytest.raises(PlanError, match=r"cannot read .*No such file"):
        load_model(str(tmp_path / "absent.json"))
    with pytest.raises(PlanError, match=r"qwen3-32b.*Did you mean 'qwen3.8-27b'"):
        load_model("qwen-3.8-27b")
