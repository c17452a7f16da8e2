"""The shell script that looks for a fit Python on a node, whatever that is wanted for."""

from __future__ import annotations

LOOP = """\
for python do
  case $python in "~/"*) python=$HOME/${python#"~/"} ;; esac
  if ! command -v "$python" >/dev/null 2>&1; then
    echo "$python: not found"
  elif @FIT@; then
    @THEN@
  else
    echo "$python: $("$python" --version 2>&1 </dev/null | head -n 1)"
  fi
done
exit @NONE@
"""
NONE_FIT = 3
"""The exit code where none is; a line for each that was tried is then on stdout."""


def script(*, fit: str, then: str) -> str:
    """For `sh -c SCRIPT sh PYTHON…`.

    `fit`: a command that asks "$python" whether it is; `then`: what is done with the first that is.
    """
    return LOOP.replace("@NONE@", str(NONE_FIT)).replace("@FIT@", fit).replace("@THEN@", then)


def candidates(named: str | None) -> tuple[str, ...]:
    """What is tried, in this order; `named`: the node's own, by the topology."""
    return ("python3", *((named,) if named else ()), "python")
