import pytest

from vdisagg.bench.http1 import Broken, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
STREAM = CHUNKED + b"5\r\nhello\r\n3;x=y\r\n\r\n!\r\n0\r\n\r\n"


def fed(data: bytes, cut: int) -> tuple[Response, bytes]:
    """A response that was read in pieces of `cut` bytes, and its body."""
    response = Response()
    body = b"".join(response.feed(data[at : at + cut]) for at in range(0, len(data), cut))
    return response, body


@pytest.mark.parametrize("cut", range(1, len(STREAM) + 1))
def test_f02_chunks_are_the_same_wherever_the_network_cuts_them(cut: int) -> None:
    response, body = fed(STREAM, cut)
    assert body == b"hello\r\n!"
    assert (response.status, response.whole, response.reusable) == (200, True, True)


def test_each_read_gives_back_what_it_brought_and_nothing_waits() -> None:
    response = Response()
    assert response.feed(CHUNKED) == b""
    assert response.feed(b"a\r\n0123") == b"0123"
    assert response.feed(b"456789\r\n2\r\nab\r\n") == b"456789ab"
    assert not response.whole
    assert response.feed(b"0\r\n\r\n") == b""
    assert response.whole


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_body_of_known_length_ends_by_it(cut: int) -> None:
    response, body = fed(b"HTTP/1.1 404 Not Found\r\ncontent-length:  4 \r\n\r\ngone", cut)
    assert (response.status, body, response.whole) == (404, b"gone", True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    response, body = fed(b"HTTP/1.0 200 OK\r\n\r\nsome", 3)
    assert (body, response.whole) == (b"some", False)
    response.closed()
    assert (response.whole, response.reusable) == (True, False)


@pytest.mark.parametrize("status", [204, 304])
def test_some_responses_have_no_body(status: int) -> None:
    response, body = fed(b"HTTP/1.1 %d X\r\n\r\n" % status, 100)
    assert (body, response.whole) == (b"", True)


def test_a_connection_that_is_said_to_close_carries_nothing_more() -> None:
    response, _ = fed(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", 100)
    assert (response.whole, response.reusable) == (True, False)


def test_an_interim_response_is_read_over() -> None:
    response, body = fed(b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM, 9)
    assert (response.status, body) == (200, b"hello\r\n!")


def test_trailers_are_read_over() -> None:
    response, body = fed(CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n", 5)
    assert (body, response.whole) == (b"x", True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (STREAM + b"more", b"hello\r\n!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc", b"a"),
    ],
)
def test_what_follows_the_end_is_left_out_and_ends_the_connection(data, expected) -> None:
    response, body = fed(data, len(data))
    assert (body, response.whole, response.reusable) == (expected, True, False)


@pytest.mark.parametrize("upto", [0, 20, len(CHUNKED), len(STREAM) - 1])
def test_closing_before_the_end_is_no_end(upto: int) -> None:
    response, _ = fed(STREAM[:upto], 10)
    with pytest.raises(Broken, match="closed the connection"):
        response.closed()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP/1.1 response: SSH-2.0"),
        (b"HTTP/1.1 OK\r\n\r\n", "not an HTTP/1.1 response"),
        (CHUNKED + b"zz\r\n", "chunk's size is zz"),
        (CHUNKED + b"-5\r\n", "chunk's size is -5"),
        (CHUNKED + b"1" * 70_000, "line does not end"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000, "head does not end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "content-length is many"),
    ],
)
def test_what_is_no_http_is_broken_and_says_where(data: bytes, said: str) -> None:
    with pytest.raises(Broken, match=said):
        fed(data, len(data))
