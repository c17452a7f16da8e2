"""A file that is written whole or not at all: what was there before stays until all of the new is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vdisagg.errors import Failure


def ready(path: Path) -> None:
    """Whether `write_whole` could write there: tries it with nothing. Raises Failure naming the path."""
    why = ""
    try:
        if path.is_dir():
            why = "it is a folder"
        elif path.exists() and not path.is_file():
            why = "it is no ordinary file"
        else:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
    except OSError as exc:
        why = exc.strerror or str(exc)
    if why:
        raise Failure(
            f"{path}: can't be written: {why}; next: name a file in a folder that exists and is yours"
        )


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` into the file, for anybody to read. Raises Failure naming the path."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            half = Path(file.name)
            try:
                file.write(data)
                file.flush()
                half.chmod(0o644)
                half.replace(path)
            except BaseException:
                half.unlink(missing_ok=True)
                raise
    except OSError as exc:
        raise Failure(f"{path}: can't be written: {exc.strerror or exc}") from exc
