"""Checks what no linter does: files stay short, and name no machine's own paths."""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 400
CODE = {".cc", ".cmake", ".cu", ".h", ".py", ".pyi", ".sh"}
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|root|home)/\w")


def problems(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:  # a picture
        return []
    found = [
        f"{path}:{number}: a path of one machine: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if MACHINE_PATH.search(line)
    ]
    if path.suffix in CODE and len(lines) > MAX_LINES:
        found.append(f"{path}: {len(lines)} lines; at most {MAX_LINES}, one idea to a file")
    return found


def main() -> int:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = sorted(Path(name) for name in names if name and Path(name).is_file())
    found = [problem for path in paths for problem in problems(path)]
    print("\n".join(found) or f"{len(paths)} files are in order")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
