"""Writes the generated parts of README.md: the measured table, from a saved run, and the settings.

python scripts/readme.py           rewrites README.md
python scripts/readme.py --check   exit status 1 if it is not up to date
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
ARMS = {  # backend, and the form of the call that it has: in place through torch.distributed
    "rocenante": ("in_place", "rocenante"),
    "gloo": ("in_place", "gloo"),
    "communicator": ("out_of_place", "`Communicator`"),
    "mpi": ("out_of_place", "MPI"),
}


def human(size: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g} {unit}"
    return f"{size} B"


def results_table(path: str) -> str:
    """p50 in µs of the slowest rank, by ranks, size and backend, with the run's conditions."""
    document = json.loads((ROOT / path).read_text())
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for run in document["runs"]:
        placement = ARMS[run["config"]["backend"]][0]
        for result in run["results"]:
            key = (run["config"]["nranks"], int(result["size"]))
            rows.setdefault(key, {})[run["config"]["backend"]] = result[placement]["p50_us"]
    columns = [name for name in ARMS if any(name in row for row in rows.values())]
    machine = document["machine"]
    versions = {
        run["config"]["backend"]: run["config"]["backend_version"] for run in document["runs"]
    }
    lines = [
        "all_reduce, float32 sum, p50 in µs of the slowest rank, every result checked. "
        f"{machine['cpu']}, "
        f"{machine['usable_cores']} cores, {machine['kernel']}, "
        f"torch {document['versions']['torch']}"
        + (f", {versions['mpi']}" if "mpi" in versions else "")
        + f". Saved run: [{path}]({path}).",
        "",
        "| ranks | size | " + " | ".join(ARMS[c][1] for c in columns) + " | rocenante / gloo |",
        "|--:|--:|" + "--:|" * (len(columns) + 1),
    ]
    for (ranks, size), row in sorted(rows.items()):
        cells = " | ".join(f"{row[c]:.4g}" if c in row else "" for c in columns)
        ratio = f"1/{row['gloo'] / row['rocenante']:.0f}"
        lines.append(f"| {ranks} | {human(size)} | {cells} | {ratio} |")
    lines += [
        "",
        "rocenante and gloo are called through torch.distributed on tensors, `Communicator` and "
        "MPI on numpy arrays. With more ranks than cores a rank's time includes its peers'.",
    ]
    return "\n".join(lines)


def settings_table() -> str:
    import rocenante

    lines = ["| variable | default | meaning | all ranks |", "|---|---|---|---|"]
    for row in rocenante.config():
        agree = "yes" if row.must_agree else ""
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | {default} | {row.meaning} | {agree} |")
    return "\n".join(lines)


def replaced(text: str, begin: str, end: str, content: str) -> str:
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    new, count = pattern.subn(lambda m: f"{m[1]}{content}\n{m[2]}", text)
    if count != 1:
        raise SystemExit(f"README.md has no part between {begin} and {end}")
    return new


def generate(text: str) -> str:
    marker: Any = re.search(r"<!-- results: (\S+) -->", text)
    text = replaced(text, marker[0], "<!-- end of results -->", results_table(marker[1]))
    return replaced(text, "<!-- settings -->", "<!-- end of settings -->", settings_table())


def main() -> int:
    text = README.read_text()
    new = generate(text)
    if "--check" in sys.argv[1:]:
        if new != text:
            print("README.md is not up to date: python scripts/readme.py")
        return new != text
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
