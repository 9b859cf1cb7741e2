"""`rocenante bench`: the command line of the benchmark."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rocenante.bench import options as parsing
from rocenante.bench.options import OptionError, Options
from rocenante.bench.run import Outputs, run
from rocenante.cli import EXTRA

_WHAT, _HOW, _OUT = "What to measure", "How to measure", "Output"


def bench(
    collective: Annotated[
        str,
        typer.Argument(
            help="A collective, several with commas, or [bold]all[/].", metavar="COLLECTIVE"
        ),
    ] = "all_reduce",
    ranks: Annotated[
        str,
        typer.Option(
            "--ranks",
            "-g",
            help="Local ranks to start, one run after the other.",
            rich_help_panel=_WHAT,
        ),
    ] = "2,4",
    backends: Annotated[
        str,
        typer.Option(
            "--backends",
            help="[bold]rocenante[/], [bold]communicator[/] (rocenante without torch.distributed), "
            "[bold]gloo[/], [bold]mpi[/], [bold]nccl[/]; a missing peer is noted and left out. "
            "The first two can have a setting: communicator@ROCENANTE_SLOT_BYTES=1M.",
            rich_help_panel=_WHAT,
        ),
    ] = "rocenante,gloo",
    begin: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size.", rich_help_panel=_WHAT)
    ] = "8",
    end: Annotated[
        str, typer.Option("-e", "--maxbytes", help="Largest size.", rich_help_panel=_WHAT)
    ] = "16M",
    factor: Annotated[
        float | None,
        typer.Option(
            "-f",
            "--stepfactor",
            help="From size to size: times this; 2 if not given.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("-i", "--stepbytes", help="Or: plus this many bytes.", rich_help_panel=_WHAT),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", help="Or: these, such as 8,10K,1M.", rich_help_panel=_WHAT),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            "-d",
            help="Element type, torch's or nccl-tests' name.",
            rich_help_panel=_WHAT,
        ),
    ] = "float32",
    op: Annotated[
        str,
        typer.Option(
            "--op", "-o", help=f"Reduction: {', '.join(parsing.OPS)}.", rich_help_panel=_WHAT
        ),
    ] = "sum",
    root: Annotated[
        int,
        typer.Option(
            "--root",
            "-r",
            help="Root of broadcast, reduce, gather and scatter.",
            rich_help_panel=_WHAT,
        ),
    ] = 0,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="Where tensors are: cpu, or cuda with one GPU per rank.",
            rich_help_panel=_WHAT,
        ),
    ] = "cpu",
    iterations: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--iters",
            help="Measured iterations; without it, adapted to the time taken.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    warmups: Annotated[
        int | None,
        typer.Option(
            "-w",
            "--warmup_iters",
            help="Unmeasured iterations before each block of measured ones.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    check: Annotated[
        int,
        typer.Option(
            "-c",
            "--check",
            min=0,
            max=1,
            help="1: compare every element with the exact answer, before and after.",
            rich_help_panel=_HOW,
        ),
    ] = 1,
    pin: Annotated[
        bool,
        typer.Option(
            "--pin", help="Confine rank i to core i, on every backend.", rich_help_panel=_HOW
        ),
    ] = False,
    mpi_python: Annotated[
        list[str] | None,
        typer.Option(
            "--mpi-python",
            metavar="[NAME=]PYTHON",
            help="Python of another environment that has mpi4py, numpy and mpiexec. With names, "
            "several MPIs take part in one run.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            help="Seconds that a backend may take to start, and for one block.",
            rich_help_panel=_HOW,
        ),
    ] = 120.0,
    spread: Annotated[
        bool,
        typer.Option(
            "-I",
            "--per-iter",
            help="Also print minimum, mean, p99 and maximum.",
            rich_help_panel=_OUT,
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            "-J",
            help="Write everything, with raw samples, in nccl-tests' JSON shape.",
            rich_help_panel=_OUT,
        ),
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", help="Write one line per size and backend.", rich_help_panel=_OUT),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw latency and speed-up (PNG, SVG or PDF).", rich_help_panel=_OUT
        ),
    ] = None,
) -> None:
    """Measure collectives beside gloo, MPI and NCCL, interleaved, with checked results.

    Starts its own ranks on this machine; under [bold]torchrun[/] it uses torchrun's.
    The backends take turns on every size, in reversed order on odd rounds; the
    time of an iteration is its slowest rank's; columns and bandwidths are those
    of nccl-tests. So the backends of one run can be compared; two runs on a
    busy machine cannot.

    Collectives: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast,
    reduce, gather, scatter, barrier, sendrecv. Sizes take K, M and G.

    Exit status: 0; 1 after a failure or a wrong result; 2 for an option that
    cannot be used.

    [bold]Examples[/]

      rocenante bench --plot bench.png

      rocenante bench all_gather -e 1M --ranks 4 --backends rocenante,mpi --pin

      torchrun --nproc-per-node 2 -m rocenante bench --backends rocenante,gloo
    """
    try:
        mpi = parsing.parse_mpi(mpi_python or ())
        request = parsing.check(
            Options(
                collectives=parsing.parse_collectives(collective),
                backends=parsing.with_each_mpi(parsing.parse_backends(backends), mpi),
                ranks=parsing.parse_ranks(ranks),
                sizes=parsing.size_list(sizes)
                if sizes is not None
                else parsing.sweep(begin, end, factor, step),
                dtype=parsing.parse_dtype(dtype),
                op=parsing.parse_op(op),
                root=root,
                iterations=iterations,
                warmups=warmups,
                check=bool(check),
                pin=pin,
                device=parsing.choose(device, ("cpu", "cuda"), "--device", "device"),
                timeout=timeout,
                mpi=mpi,
            )
        )
        for option, target in (("--json", json_file), ("--csv", csv_file), ("--plot", plot_file)):
            if target is not None and not target.absolute().parent.is_dir():
                raise OptionError(option, f"the folder of {target} does not exist.")
        if plot_file is not None and find_spec("matplotlib") is None:
            raise OptionError("--plot", f"matplotlib is not installed: {EXTRA}")
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from error
    raise typer.Exit(run(request, Outputs(spread, json_file, csv_file, plot_file)))
