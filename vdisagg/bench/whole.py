"""A file that is written whole or not at all: what was there before stays until all of the new is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vdisagg.errors import Failure


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
