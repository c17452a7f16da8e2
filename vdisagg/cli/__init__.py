"""The command line: parse, call, exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vdisagg import __version__
from vdisagg.cli.late import LateGroup
from vdisagg.errors import Error
from vdisagg.view.errors import show_error

app = typer.Typer(
    name="vdisagg",
    cls=LateGroup,
    help="Disaggregated prefill/decode serving of LLMs on plain machines, in one command.",
    epilog="Example: vdisagg up topologies/demo.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point: errors become messages and exit codes, never tracebacks."""
    try:
        app()
    except Error as error:
        show_error(error)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vdisagg {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Disaggregated prefill/decode serving of LLMs on plain machines, in one command."""
