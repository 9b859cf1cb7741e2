"""`rocenante plan` as a user meets it: tables, JSON, plot, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rocenante.plan import command
from rocenante.plan.command import plan

app = typer.Typer()
app.command()(plan)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def as_json(*arguments: str) -> dict[str, Any]:
    code, output, _ = invoke(*arguments, "--json")
    assert code == 0
    value: dict[str, Any] = json.loads(output)
    return value


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--model", "glm-5.3", "--nodes", "2,4,8,16", "--concurrency", "100"),
        ("--fabric", "ring", "--model", "llama-3-70b", "--nodes", "2,4,8"),
        ("--fabric", "direct"),
        ("--route-to", "qwen3-4b", "--share", "1,0.5,0.25,0.001"),
        ("--published",),
    ],
)
def test_tables_fit_into_eighty_columns(arguments: tuple[str, ...]) -> None:
    code, output, _ = invoke(*arguments)
    assert code == 0
    assert max(len(line) for line in output.splitlines()) <= 80
    assert "…" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--route-to", "qwen3-4b", "--share", "2"),
        ("--route-to", "qwen3-4b", "--groups", "1"),
        ("--route-to", "nonsense"),
        ("--simulate", "--nodes", "2", "--plot", "no/such/folder.png"),
    ],
)
def test_nothing_is_printed_before_a_refusal(arguments: tuple[str, ...]) -> None:
    code, output, error = invoke(*arguments)
    assert code == 2
    assert output == ""
    assert error.startswith("rocenante plan: ")


def test_predictions_of_the_published_model() -> None:
    result = as_json("--nodes", "2,4,8")
    assert result["schema"] == command.SCHEMA
    assert (result["model"], result["precision"]) == ("qwen3.8-27b", "nvfp4")
    rows = {row["nodes"]: row for row in result["predictions"]}
    assert list(rows) == [2, 4, 8]
    # The report's 8 nodes on a switch: 52.58, and 3.05 times one node without.
    assert rows[8]["decode_one_shot_tps"] == pytest.approx(52.58, rel=0.07)
    assert rows[8]["scaling_one_shot"] == pytest.approx(4.43, rel=0.07)
    for row in rows.values():
        assert row["decode_one_shot_tps"] > row["decode_nccl_tps"]
        assert row["memory"]["fits"]
    # Four KV heads: eight nodes hold no less of the cache than four.
    assert rows[2]["memory"]["kv_gb"] == pytest.approx(8192 * 65536 / 2 / 1e9)
    assert rows[8]["memory"]["kv_gb"] == pytest.approx(8192 * 65536 / 4 / 1e9)
    assert rows[4]["one_shot_until_nccl"] > rows[8]["one_shot_until_nccl"] > row["message_bytes"]
    origins = {parameter["origin"] for parameter in result["parameters"]}
    assert origins == {"fitted", "published", "assumed"}


def test_a_ring_has_no_one_shot() -> None:
    rows = as_json("--fabric", "ring", "--nodes", "2,3,4")["predictions"]
    assert [row["fabric"] for row in rows] == ["direct", "direct", "ring"]
    assert [row["decode_one_shot_tps"] is None for row in rows] == [False, False, True]
    assert rows[2]["one_shot_until_nccl"] is None
    assert rows[2]["decode_nccl_tps"] == pytest.approx(32.82, rel=0.07)


def test_precision_and_memory_reasons() -> None:
    (row,) = as_json("--model", "llama-3-70b", "--precision", "bf16", "--nodes", "1")["predictions"]
    assert not row["memory"]["fits"]
    assert row["memory"]["weights_gb"] == pytest.approx(141.2)
    (odd,) = as_json("--model", "minicpm-2b", "--nodes", "8")["predictions"]
    assert odd["memory"]["reason"] == "36 attention heads do not divide by 8"


def test_routing_of_named_models() -> None:
    routing = as_json("--route-to", "qwen3-4b")["routing"]
    half, quarter = routing["rows"]
    assert half["gain"] == pytest.approx(1.5)
    assert half["bottleneck"] == "large"
    assert quarter["bottleneck"] == "small"
    assert quarter["gain"] < 3


def test_published_prints_each_rows_error() -> None:
    code, output, _ = invoke("--published")
    assert code == 0
    for words in (
        ("8-switch", "52.58", "+1.0 %", "predicted"),
        ("4-ring", "32.82", "+4.0 %", "predicted"),
        ("4-switch", "36.34", "+0.0 %", "fitted"),
        ("8-switch-without", "36.17", "+10.8 %", "predicted"),
    ):
        assert any(all(word in line for word in words) for line in output.splitlines()), words
    checks = as_json("--published")["published"]
    assert {check["table"] for check in checks} == {"decode", "prefill", "training", "routing"}


def test_simulation_writes_a_plot_and_json(tmp_path: Path) -> None:
    image = tmp_path / "out.png"
    result = as_json("--simulate", "--nodes", "2,8", "--plot", str(image))["simulation"]
    assert image.read_bytes().startswith(b"\x89PNG")
    assert len(result["points"]) == 2 * 13
    assert result["break_even"]["2"] is None
    assert 200_000 < result["break_even"]["8"] < 1_000_000


def bench_file(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    results = [
        {"size": size, "out_of_place": {"p50_us": 10 + size * 2e-4}} for size in (8, 1024, 65536)
    ]
    config = {"backend": "rocenante", "nranks": 4}
    path.write_text(json.dumps({"runs": [{"config": config, "results": results}]}))
    return path


def test_fit_changes_the_prediction_and_validates_the_simulator(tmp_path: Path) -> None:
    path = str(bench_file(tmp_path))
    built_in = as_json("--nodes", "4")
    fitted = as_json("--nodes", "4", "--fit", path)
    assert max(abs(point["error"]) for point in fitted["fit"]["points"]) < 0.05
    # 10 us of fixed time where the built-in calibration has more.
    faster = fitted["predictions"][0]["decode_one_shot_tps"]
    assert faster > built_in["predictions"][0]["decode_one_shot_tps"]
    image = str(tmp_path / "fit.png")
    simulated = as_json("--simulate", "--nodes", "4", "--fit", path, "--plot", image)
    for point in simulated["simulation"]["bench"]:
        assert point["simulated_us"] == pytest.approx(point["us"], rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "qwen3.8-72b"), "known: glm-5.3.*Did you mean 'qwen3.8-27b'"),
        (("--model", "/absent/model.json"), "cannot read"),
        (("--fabric", "swich"), "unknown fabric 'swich'.*Did you mean 'switch'"),
        (("--fabric", "none"), "unknown fabric 'none'"),
        (("--fabric", "direct", "--nodes", "2,4"), "direct cables join 3 nodes at most.*not 4"),
        (("--nodes", "0"), "starts at 1; 0 is not"),
        (("--nodes", "-2"), "starts at 1; -2 is not"),
        (("--nodes", "2,x"), "whole numbers such as 2,4,8; 'x' is not one"),
        (("--nodes", "2.5"), "'2.5' is not one"),
        (("--nodes", "65"), "ends at 64"),
        (("--nodes", "2,"), "'' is not one"),
        (("--precision", "int4"), "unknown precision 'int4'"),
        (("--context", "0"), "--context is a number from 1"),
        (("--concurrency", "-1"), "--concurrency is a number from 1"),
        (("--concurrency", "9" * 400), "--concurrency is a number from 1"),
        (("--route-to", "nothing"), "unknown model 'nothing'"),
        (("--route-to", "qwen3-4b", "--groups", "3x2"), "--groups takes two groups"),
        (("--route-to", "qwen3-4b", "--groups", "3x0+2x1"), "at least one replica"),
        (("--route-to", "qwen3-4b", "--share", "0"), "above 0 and at most 1, not '0'"),
        (("--route-to", "qwen3-4b", "--share", "nan"), "not 'nan'"),
        (("--fabric", "direct", "--route-to", "qwen3-4b", "--groups", "1x4+1x1"), "not 4"),
        (("--fit", "/absent/results.json"), "cannot read"),
        (("--simulate", "--nodes", "1,2"), "--nodes starts at 2"),
        (("--simulate", "--fabric", "ring", "--nodes", "4"), "joins all pairs"),
        (("--simulate", "--nodes", "2", "--plot", "/absent/x.png"), "cannot write"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_two(
    arguments: tuple[str, ...], message: str
) -> None:
    code, output, errors = invoke(*arguments)
    assert code == 2
    assert errors.startswith("rocenante plan: ")
    assert re.search(message, errors, re.DOTALL), errors
    assert "Traceback" not in output + errors


def test_an_image_type_that_does_not_exist(tmp_path: Path) -> None:
    code, _, errors = invoke("--simulate", "--nodes", "2", "--plot", str(tmp_path / "x.docx"))
    assert code == 2
    assert "cannot write" in errors


def test_published_and_fit_exclude_each_other(tmp_path: Path) -> None:
    code, _, errors = invoke("--published", "--fit", str(bench_file(tmp_path)))
    assert code == 2
    assert "leave out --fit" in errors


def test_module_runs_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import runpy; sys.argv = ['plan', '--nodes', '2', '--json']\n"
        "runpy.run_module('rocenante.plan', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"][0]["nodes"] == 2
