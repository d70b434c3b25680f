"""Check that a packed work directory is complete, while its bytes arrive."""

from __future__ import annotations

import zlib

from protos.gavel.v1.limits import UNPACKED_BYTES_MAX
from scheduler.model.errors import InvalidSpec

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE_BYTES = 1 << 20
# A tar archive ends with two blocks of zeros.
_END_BYTES = 1024


class Archive:
    """The check of one archive: call `update` with each piece, then `check`.

    A truncated gzip file lacks the checksum at its end, and a truncated tar file lacks the blocks of zeros. Only the
    first bytes of a .tar.zst are checked here; the agent that unpacks it checks the rest.
    """

    def __init__(self) -> None:
        # The first bytes of the archive.
        self._start = b""
        self._decompressor = zlib.decompressobj(wbits=31)
        self._unpacked_bytes = 0
        # The last bytes, unpacked.
        self._end = b""
        self._fault = ""

    def update(self, data: bytes) -> None:
        """Check the next bytes."""
        if len(self._start) < len(_ZSTANDARD):
            self._start = (self._start + data)[: len(_ZSTANDARD)]
        if self._start[: len(_GZIP)] != _GZIP[: len(self._start)]:
            return
        try:
            while data and not self._fault:
                data = self._unpack(data)
        except zlib.error as error:
            self._fault = str(error)

    def _unpack(self, data: bytes) -> bytes:
        """Unpack a piece of bounded size from these bytes, and return the bytes that are left."""
        if self._decompressor.eof:
            # Padding may follow, or another gzip file.
            data = data.lstrip(b"\0")
            if not data:
                return b""
            self._decompressor = zlib.decompressobj(wbits=31)
        piece = self._decompressor.decompress(data, _PIECE_BYTES)
        self._unpacked_bytes += len(piece)
        if self._unpacked_bytes > UNPACKED_BYTES_MAX:
            self._fault = f"unpacked, it has more than {UNPACKED_BYTES_MAX >> 30} GiB"
        self._end = (self._end + piece)[-_END_BYTES:]
        return self._decompressor.unused_data or self._decompressor.unconsumed_tail

    def check(self) -> None:
        """Raise InvalidSpec unless the archive is complete."""
        if self._start == _ZSTANDARD:
            return
        if not self._start.startswith(_GZIP):
            raise InvalidSpec("data", "is neither a .tar.gz nor a .tar.zst")
        if self._fault:
            raise InvalidSpec("data", f"is not a .tar.gz: {self._fault}")
        if not self._decompressor.eof or len(self._end) < _END_BYTES or any(self._end):
            raise InvalidSpec("data", "is a .tar.gz that was cut off: pack it again")
