"""The command line: parse, call, exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vdisagg import __version__
from vdisagg.cli.late import LateGroup
from vdisagg.cli.output import close_streams, explain, open_streams, tell
from vdisagg.errors import Error, Failure
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
    open_streams()
    try:
        sys.exit(_run())
    finally:
        close_streams()


def _run() -> int:
    """The exit code of what went wrong. Raises SystemExit with that of what did not."""
    try:
        app()
        return 0
    except Error as error:
        show_error(error)
        return error.exit_code
    except OSError as exc:
        failure = Failure(explain(exc, " ".join(("vdisagg", *sys.argv[1:2]))))
        show_error(failure)
        return failure.exit_code


def _print_version(wanted: bool) -> None:
    if wanted:
        tell(f"vdisagg {__version__}")
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
