"""What the command line accepts, and the sentences with which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocenante.bench import options
from rocenante.bench.options import OptionError, Options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("64K", 65536),
        ("64k", 65536),
        ("1.5M", 3 << 19),
        ("2GiB", 2 << 30),
        (" 16 MB ", 16 << 20),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert options.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-8", "8T", "x", "1.3", "8K8", "nan", "1e3"])
def test_bad_sizes_are_refused_with_the_option_named(text: str) -> None:
    with pytest.raises(OptionError) as refusal:
        options.parse_size(text, "-b")
    assert refusal.value.option == "-b"
    assert repr(text) in str(refusal.value)


def test_sweep_multiplies_up_to_and_including_the_end() -> None:
    assert options.sweep("8", "64", None, None) == (8, 16, 32, 64)
    assert options.sweep("8", "63", 4, None) == (8, 32)
    assert len(options.sweep("8", "16M", 2, None)) == 22


def test_sweep_adds_a_step() -> None:
    assert options.sweep("8", "20", None, "6") == (8, 14, 20)


def test_a_factor_near_one_still_ends() -> None:
    assert options.sweep("1", "4", 1.01, None) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("begin", "end", "factor"), [("64", "8", 2.0), ("8", "64", 1.0), ("8", "64", 0.5)]
)
def test_impossible_sweeps_are_refused(begin: str, end: str, factor: float) -> None:
    with pytest.raises(OptionError):
        options.sweep(begin, end, factor, None)


def test_ranks_keep_their_order_and_lose_duplicates() -> None:
    assert options.parse_ranks("4,2,4") == (4, 2)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "2,,x", "65", "1.5"])
def test_bad_ranks_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as refusal:
        options.parse_ranks(text)
    assert refusal.value.option == "--ranks"


def test_sizes_keep_their_order_and_lose_duplicates() -> None:
    assert options.size_list("1M, 8,8,10K") == (1 << 20, 8, 10 << 10)
    with pytest.raises(OptionError, match="'' is not a size"):
        options.size_list("8,,4")


def test_mpis_have_names_of_their_own(tmp_path: Path) -> None:
    assert options.parse_mpi([]) == (("mpi", None),)
    assert options.parse_mpi([str(tmp_path)]) == (("mpi", tmp_path),)
    several = options.parse_mpi([f"impi={tmp_path}", f"openmpi={tmp_path}"])
    assert several == (("impi", tmp_path), ("openmpi", tmp_path))
    assert options.with_each_mpi(("gloo", "mpi"), several) == ("gloo", "impi", "openmpi")
    for bad, sentence in (
        ([f"gloo={tmp_path}"], "can't name an MPI"),
        ([f"={tmp_path}"], "can't name an MPI"),
        ([f"a={tmp_path}", f"a={tmp_path}"], "two of the name a"),
        (["a=/nonexistent"], "/nonexistent does not exist"),
    ):
        with pytest.raises(OptionError, match=sentence) as refusal:
            options.parse_mpi(bad)
        assert refusal.value.option == "--mpi-python"


def test_names_are_normalised_and_near_misses_suggested() -> None:
    assert options.parse_collectives("all-reduce,ALL_GATHER") == ("all_reduce", "all_gather")
    assert len(options.parse_collectives("all")) == 10
    assert options.parse_dtype("half") == "float16"
    assert options.parse_op("prod") == "product"
    with pytest.raises(OptionError, match="Did you mean all_reduce"):
        options.parse_collectives("allreduce")
    with pytest.raises(OptionError, match="Did you mean gloo"):
        options.parse_backends("rocenante,glo")


def request(**changes: object) -> Options:
    base: dict[str, object] = {
        "collectives": ("all_reduce",),
        "backends": ("gloo",),
        "ranks": (2,),
        "sizes": (8,),
    }
    return Options(**{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"dtype": "float32", "op": "band"}, "--op"),
        ({"dtype": "int32", "op": "avg"}, "--op"),
        ({"dtype": "bool", "op": "avg"}, "--op"),
        ({"dtype": "complex64", "op": "max"}, "--op"),
        ({"collectives": ("broadcast",), "root": 2}, "--root"),
        ({"collectives": ("gather",), "root": -1}, "--root"),
        ({"iterations": 0}, "-n"),
        ({"warmups": -1}, "-w"),
        ({"timeout": 0.0}, "--timeout"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(
    changes: dict[str, object], option: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        options.check(request(**changes))
    assert refusal.value.option == option


def test_options_that_do_not_matter_are_not_checked() -> None:
    options.check(request(collectives=("all_gather",), dtype="float32", op="band", root=7))
