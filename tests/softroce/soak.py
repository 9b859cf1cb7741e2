"""Checked all-reduces of random sizes over Soft-RoCE, by the hundred thousand.

Every element of every result is checked on every rank (guest/verbs_ranks.cc). A run can be ended at
any time: each boot's part is written to the result at once, and the next run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.bed import HERE, Bed, Layout

ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from rocenante.bench import machine  # noqa: E402

RANKS = Path("build/tests/tests/softroce/guest/verbs_ranks")
RESULT = Path("benchmarks/results/softroce_soak.json")
MOST_BYTES = 4 << 20
_BOOT_LIMIT_S = 3600.0
# 0.27 s before a packet is sent again, not 0.07: all ranks share one processor, which on a busy
# machine is late with acknowledgements. Packets that were not lost would be sent again and again.
_IB_TIMEOUT = 16


@dataclass(frozen=True)
class Configuration:
    """A world size, a device for each rank, and what the links do to packets."""

    ranks: int
    netem: str


CONFIGURATIONS = [Configuration(n, netem) for netem in ("", "loss 1%") for n in (2, 4, 8)]


def command(program: Path, configuration: Configuration, ops: int, seed: int) -> list[str]:
    """What runs in the guest."""
    words = ["--ranks", configuration.ranks, "--ops", ops, "--bytes", MOST_BYTES, "--seed", seed]
    variables = ["ROCENANTE_TRANSPORT=verbs", f"ROCENANTE_IB_TIMEOUT={_IB_TIMEOUT}"]
    return ["env", *variables, str(program), "soak", *map(str, words)]


def part(program: Path, configuration: Configuration, ops: int, seed: int) -> dict[str, Any]:
    """One boot: seed, ops, bytes (of the messages, per rank), wrong (elements), seconds, revision.

    Raises RuntimeError with what was said if a rank failed without a wrong element.
    """
    layout = Layout(devices=configuration.ranks, netem=configuration.netem, timeout=_BOOT_LIMIT_S)
    done = Bed().run(command(program, configuration, ops, seed), layout, directory=ROOT)
    pattern = r"rank (\d+): soak ranks=\d+ ops=(\d+) bytes=(\d+) wrong=(\d+) seconds=([\d.]+)"
    told = re.findall(pattern, done.stdout)
    wrong = sum(int(found[3]) for found in told)
    if not wrong and (done.returncode or len(told) != 1 or int(told[0][1]) != ops):
        raise RuntimeError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    _, count, size, _, seconds = told[0]
    return {
        "seed": seed,
        "ops": int(count),
        "bytes": int(size),
        "wrong": wrong,
        "seconds": float(seconds),
        "revision": machine.git_revision(),
    }


def total(configuration: Configuration, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A configuration's entry in the result."""
    sums = {key: sum(p[key] for p in parts) for key in ("ops", "bytes", "wrong")}
    seconds = round(sum(p["seconds"] for p in parts), 1)
    return {**asdict(configuration), **sums, "seconds": seconds, "parts": parts}


def work(
    args: argparse.Namespace, program: Path, result: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Runs what is missing of the result; yields each configuration's entry when it has grown."""
    ending = time.monotonic() + args.seconds
    entries = {}
    for configuration in CONFIGURATIONS:
        if configuration.ranks in args.ranks:
            mine = [
                e for e in result["runs"] if Configuration(e["ranks"], e["netem"]) == configuration
            ]
            entries[configuration] = mine[0] if mine else total(configuration, [])
            result["runs"] += [] if mine else [entries[configuration]]
    while time.monotonic() < ending:
        missing = {c: e for c, e in entries.items() if e["ops"] < args.ops and not e["wrong"]}
        if not missing:
            return
        # Wherever a run is ended, all configurations have come about as far.
        configuration, entry = min(missing.items(), key=lambda item: item[1]["ops"])
        count = min(args.part, args.ops - entry["ops"])
        new = part(program, configuration, count, len(entry["parts"]) + 1)
        entry.update(total(configuration, [*entry["parts"], new]))
        yield entry


def main() -> int:
    """Returns 0 if every configuration asked for is complete and right, 1 if one is wrong, 2 if the
    time ran out first."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--ops", type=int, default=100_000, help="of each configuration (default 100000)")
    add("--part", type=int, default=2000, help="operations of one boot (default 2000)")
    add("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8])
    add("--seconds", type=float, default=float("inf"), help="start no boot after these")
    add("--result", type=Path, default=ROOT / RESULT)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "format": "rocenante-softroce-soak",
        "start_time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(command(RANKS, Configuration(2, ""), args.part, 1)),
        "bytes_of_one": [4, MOST_BYTES],
        "machine": machine.describe(),
        "versions": machine.versions(),
        "revision": machine.git_revision(),
        "runs": [],
    }
    if args.result.exists():
        result["runs"] = json.loads(args.result.read_text())["runs"]
    with tempfile.TemporaryDirectory() as folder:  # a build meanwhile does no harm
        program = Path(shutil.copy(ROOT / RANKS, folder))
        for entry in work(args, program, result):
            new = args.result.with_suffix(".new")
            new.write_text(json.dumps(result, indent=1) + "\n")
            new.rename(args.result)
            rate = 1e3 * entry["seconds"] / max(entry["ops"], 1)
            said = f"{entry['ranks']} ranks, {entry['netem'] or 'no loss'}: {entry['ops']} of "
            said += f"{args.ops} operations, {entry['wrong']} wrong elements, {rate:.2f} ms each"
            print(said, flush=True)
    mine = [e for e in result["runs"] if e["ranks"] in args.ranks]
    if any(e["wrong"] for e in mine):
        return 1
    complete = len(mine) == 2 * len(args.ranks) and all(e["ops"] >= args.ops for e in mine)
    return 0 if complete else 2


if __name__ == "__main__":
    sys.exit(main())
