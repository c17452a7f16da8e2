"""The client's id out of the front end's."""

from __future__ import annotations

import pytest

from vdisagg.bench.request_ids import client_id


@pytest.mark.parametrize(
    ("front_id", "client"),
    [
        ("cmpl-ABC-0-1a2b3c4d", "ABC"),
        ("cmpl-ABC-12-1a2b3c4d", "ABC"),
        ("cmpl-ABC-0-12345678", "ABC"),
        ("cmpl-bench-7-33-0-deadbeef", "bench-7-33"),
        ("cmpl-cmpl-ABC-0-0-deadbeef", "cmpl-ABC-0"),
        ("chatcmpl-ABC-1a2b3c4d", "ABC"),
        ("chatcmpl-bench-7-33-12345678", "bench-7-33"),
        ("1_cmpl-ABC-0-1a2b3c4d", "ABC"),
        ("3_chatcmpl-ABC-1a2b3c4d", "ABC"),
        ("cmpl-two\nlines-0-1a2b3c4d", "two\nlines"),
        ("cmpl-ABC-0", ""),
        ("cmpl--0-1a2b3c4d", ""),
        ("embd-ABC-0-1a2b3c4d", ""),
        ("p:5:0:cmpl-ABC-0-1a2b3c4d", ""),
        ("", ""),
    ],
)
def test_the_clients_id_is_found_in_the_front_ends(front_id: str, client: str) -> None:
    assert client_id(front_id) == client
