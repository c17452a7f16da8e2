import pytest

from vdisagg.bench.sse import EventStream

STREAM = (
    b": a comment\n\n"
    b'data: {"text": "gr\xc3\xbc\xc3\x9fe"}\n\n'
    b"event: message\nid: 4\ndata: one\ndata: two\n\n"
    b"data:no space\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"text": "gr\xc3\xbc\xc3\x9fe"}', b"one\ntwo", b"no space", b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_f02_events_come_whole_however_the_reads_are_cut(line_end: bytes, size: int) -> None:
    stream = STREAM.replace(b"\n", line_end) + b"x"  # a lone \r at the very end stays undecided
    events = EventStream()
    found = []
    for at in range(0, len(stream), size):
        found += events.feed(stream[at : at + size])
    assert found == EVENTS


def test_several_events_in_one_read_keep_their_order() -> None:
    assert EventStream().feed(b"data: 1\n\ndata: 2\n\ndata: 3") == [b"1", b"2"]
