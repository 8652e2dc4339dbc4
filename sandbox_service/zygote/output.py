"""What a snippet writes: the head and the tail are kept, whatever the amount."""

import codecs


class OutputBuffer:
    """Keeps at most `limit` bytes of a stream: its first three quarters and its last quarter."""

    def __init__(self, limit: int):
        self._head_limit = limit - limit // 4
        self._tail_limit = limit // 4
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def write(self, data: bytes):
        """Takes in the next bytes of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - self._tail_limit)]

    @property
    def truncated(self) -> bool:
        """Whether something between head and tail was dropped."""
        return self.total > len(self._head) + len(self._tail)

    def text(self) -> str:
        """Head and tail as text; bytes that are not UTF-8 become U+FFFD."""
        if not self.truncated:
            return (self._head + self._tail).decode("utf-8", "replace")
        dropped = self.total - len(self._head) - len(self._tail)
        return f"{self._decoded_head()}\n[{dropped} bytes left out]\n{self._decoded_tail()}"

    def _decoded_head(self) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._head))  # a character cut at the end is held back

    def _decoded_tail(self) -> str:
        start = 0
        while start < min(3, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
            start += 1  # the rest of a character cut at the start
        return self._tail[start:].decode("utf-8", "replace")
