"""``python -m rocenante.plan``: the plan command without the rest of the command line."""

import typer

from rocenante.plan.command import plan

if __name__ == "__main__":
    typer.run(plan)
