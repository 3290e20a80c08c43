"""Smaller PNG files of the same pixels: the renderer packs its pictures quickly and loosely, with a transparency that they do not use.

Format: the PNG specification (W3C), sections 9 (filters) and 11 (chunks).
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB, INDEXED, RGBA = 2, 3, 6
UNFILTERED, SUB = 0, 1
Pixels = NDArray[np.uint8]


def repacked(png: bytes) -> bytes:
    """The same picture in about a quarter of the bytes: as indexed colours where 256 are enough, otherwise as RGB.

    Only what the renderer makes is understood, 8-bit RGBA with the filter Sub in every row; a picture that is anything else, or not
    opaque, is returned as it is. Raises ValueError for bytes that are no PNG.
    """
    if not png.startswith(SIGNATURE):
        raise ValueError(f"repacking a PNG: got bytes that begin with {png[:8]!r}, expected {SIGNATURE!r}")
    chunks = _chunks(png)
    width, height, *how = struct.unpack(">IIBBBBB", dict(chunks)[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), dtype=np.uint8)
    if how != [8, RGBA, 0, 0, 0]:
        return png
    rows = rows.reshape(height, 1 + 4 * width)
    pixels = np.cumsum(rows[:, 1:].reshape(height, width, 4), axis=1, dtype=np.uint8)  # Sub: bytes add up along the row
    if (rows[:, 0] != SUB).any() or (pixels[..., 3] != 255).any():
        return png
    return _packed(pixels[..., :3], [chunk for chunk in chunks if chunk[0] == b"pHYs"])


def _packed(pixels: Pixels, more: list[tuple[bytes, bytes]]) -> bytes:
    """`height width 3` as a PNG, with these chunks beside its own."""
    height, width, _ = pixels.shape
    colours, index = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    few = len(colours) <= 256
    kept = index.astype(np.uint8).reshape(height, width) if few else pixels.reshape(height, 3 * width)
    rows = np.pad(kept, ((0, 0), (1, 0)), constant_values=UNFILTERED)
    header = struct.pack(">IIBBBBB", width, height, 8, INDEXED if few else RGB, 0, 0, 0)
    palette = [(b"PLTE", colours.tobytes())] if few else []
    body = (b"IDAT", zlib.compress(rows.tobytes(), 9))
    return SIGNATURE + b"".join(
        _written(*chunk) for chunk in [(b"IHDR", header), *more, *palette, body, (b"IEND", b"")]
    )


def _chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], len(SIGNATURE)
    while place < len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        found.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + size]))
        place += size + 12  # length, kind and checksum are four bytes each
    return found


def _written(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
