"""Reports with known numbers, for tests of tables, files and plots."""

from __future__ import annotations

from rocenante.bench.record import Block, Cell, Report, Row

SIZES = [8 << shift for shift in range(22)]


def report(backends: dict[str, tuple[float, float]], ranks: tuple[int, ...] = (2, 4)) -> Report:
    """all_reduce blocks; a backend is (fixed cost in us, bytes per us)."""
    blocks = []
    for count in ranks:
        for name, (fixed, speed) in backends.items():
            rows = []
            for size in SIZES:
                time = fixed * count + size / speed
                cells = [Cell([time, time * 1.01, time * 0.99, time * 3], 0) for _ in range(2)]
                rows.append(Row(size, size // 4, *cells))
            blocks.append(
                Block("all_reduce", name, f"{name} 1.0", count, "float32", "sum", 0, rows)
            )
    return Report(blocks)


FOUR = {
    "rocenante": (2.0, 4000.0),
    "communicator": (0.3, 4200.0),
    "gloo": (80.0, 1500.0),
    "mpi": (0.5, 6000.0),
}
