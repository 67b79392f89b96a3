"""Decodes the Huffman code of HTTP/2's header fields (RFC 7541, 5.2) with 25 KB of tables.

hpack's own automaton is 250 KB of tuples and three times as fast. Few fields are sent in full: the
others are references to what was sent before.
"""

from __future__ import annotations

_END = 256  # the code that nobody may send
_symbols: dict[str, int] = {}  # by their bits
_lengths: list[int] = []  # of their codes, rising: the shorter are the more frequent


def decode_huffman(encoded: bytes | bytearray | memoryview | None) -> bytes:
    """Return the field, as `hpack.huffman_table.decode_huffman` does.

    Raises:
        hpack.exceptions.HPACKDecodingError: it is not one.
    """
    if not encoded:
        return b""
    if not _symbols:
        _fill()
    bits = f"{int.from_bytes(encoded, 'big'):0{8 * len(encoded)}b}"
    found = bytearray()
    at = 0
    while at < len(bits):
        for length in _lengths:
            symbol = _symbols.get(bits[at : at + length])
            if symbol is not None:
                break
        else:
            break
        if symbol == _END:
            raise _error("Invalid Huffman string")
        found.append(symbol)
        at += length
    padding = bits[at:]
    if len(padding) > 7 or "0" in padding:
        raise _error("Incomplete Huffman string")
    return bytes(found)


def _fill() -> None:
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

    codes = zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)
    _lengths.extend(sorted(set(REQUEST_CODES_LENGTH)))
    _symbols.update((f"{code:0{length}b}", n) for n, (code, length) in enumerate(codes))


def _error(text: str) -> Exception:
    from hpack.exceptions import HPACKDecodingError

    return HPACKDecodingError(text)
