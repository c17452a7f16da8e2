"""An HTTP/1.1 response out of bytes, however the network has cut them: status, and the body as it comes.

Pure, and quick where it matters: a stream's chunk that came in one read costs a look for its line's end
and a slice. RFC 9112 is what is followed; trailers and chunk extensions are read over.
"""

from __future__ import annotations

MOST_HEAD = 65_536
"""Bytes of a head, or of a chunk's line, that are still waited for."""
UNTIL_CLOSE = -1


class Broken(ValueError):
    """What came is no HTTP/1.1 response."""


class Response:
    """Feed it what was read; it gives back what of the body came with it."""

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is whole."""
        self.whole = False
        self.reusable = False
        """Whether the connection can carry another request, once this response is whole."""
        self._rest = b""
        self._chunked = False
        self._left = 0
        """Bytes that are still to come of the body, or of this chunk and the line end after it."""
        self._last = False
        """The chunk of no bytes was there: trailers follow."""

    def feed(self, read: bytes) -> bytes:
        """The body's bytes that `read` brings. Raises Broken."""
        if self.status == 0:
            read = self._head(self._rest + read)
            if self.status == 0:
                return b""
        if self._chunked:
            return self._chunks(read)
        if self._left == UNTIL_CLOSE:
            return read
        if len(read) > self._left:
            self.reusable = False  # what follows belongs to no request of ours
            read = read[: self._left]
        self._left -= len(read)
        self.whole = self._left == 0
        return read

    def closed(self) -> None:
        """The server has closed the connection. Raises Broken when the response isn't whole."""
        if self.status and not self._chunked and self._left == UNTIL_CLOSE:
            self.whole = True
        if not self.whole:
            raise Broken("the server closed the connection in the midst of its response")

    def _head(self, read: bytes) -> bytes:
        """Takes the head in when it is whole; what follows it."""
        while True:
            head, end, rest = read.partition(b"\r\n\r\n")
            if not end:
                if len(read) > MOST_HEAD:
                    raise Broken("the response's head does not end")
                self._rest = read
                return b""
            first, *lines = head.split(b"\r\n")
            version, _, status = first.partition(b" ")
            if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
                raise Broken(f"not an HTTP/1.1 response: {first[:80].decode(errors='replace')}")
            if int(status[:3]) >= 200:
                break
            read = rest  # an interim response: the real one follows
        fields = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self._rest = b""
        self.status = int(status[:3])
        self._chunked = fields.get(b"transfer-encoding", b"").endswith(b"chunked")
        self.reusable = version == b"HTTP/1.1" and fields.get(b"connection") != b"close"
        if self._chunked:
            return rest
        length = fields.get(b"content-length")
        if self.status in (204, 304):
            self._left = 0
        elif length is None:
            self._left = UNTIL_CLOSE
            self.reusable = False
        elif length.isdigit():
            self._left = int(length)
        else:
            raise Broken(f"content-length is {length.decode(errors='replace')}")
        self.whole = self._left == 0
        return rest

    def _chunks(self, read: bytes) -> bytes:
        """Of a chunked body: a line with the size in hexadecimal, the bytes, a line end."""
        if self._rest:
            read = self._rest + read
            self._rest = b""
        pieces = []
        at = 0
        while at < len(read):
            if self._left:
                end = at + self._left
                # The two bytes of the line end are counted, and are not the body's.
                pieces.append(read[at : max(at, end - 2)])
                self._left = max(end - len(read), 0)
                at = min(end, len(read))
                continue
            end = read.find(b"\r\n", at)
            if end < 0:
                if len(read) - at > MOST_HEAD:
                    raise Broken("a chunk's line does not end")
                self._rest = read[at:]
                break
            line = read[at:end]
            at = end + 2
            if self._last:  # a trailer, or the empty line that ends it all
                if not line:
                    self.whole = True
                    self.reusable = self.reusable and at == len(read)
                    break
                continue
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                size = -1
            if size < 0:
                raise Broken(f"a chunk's size is {line[:40].decode(errors='replace')}")
            end = at + size + 2
            if size == 0:
                self._last = True
            elif end <= len(read):  # nearly all of them: a whole chunk in one read
                pieces.append(read[at : end - 2])
                at = end
            else:
                self._left = size + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
