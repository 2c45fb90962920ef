"""Pool files that lie, with checksums that are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polykv.cache import container


def rewrite(path: Path, change: Callable[[dict[str, Any], bytearray], None], *, sign: bool = True) -> None:
    """Change header and data of a saved pool, then make the checksums right again."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + n]), bytearray(raw[8 + n :])
    change(header, data)
    meta = header["__metadata__"]
    if sign:
        sums = {
            k: container._sum(bytes(data[slice(*v["data_offsets"])])) for k, v in header.items() if k != "__metadata__"
        }
        meta["checksums"] = json.dumps(sums)
    meta["header_checksum"] = "0" * 32
    text = json.dumps(header).encode()
    blank = len(text).to_bytes(8, "little") + text
    path.write_bytes(blank.replace(b"0" * 32, container._sum(blank).encode(), 1) + data)


def poke(section: str, index: int | tuple[int, ...], value: int) -> Callable[[dict[str, Any], bytearray], None]:
    """Set int32 values of a section."""

    def change(header: dict[str, Any], data: bytearray) -> None:
        begin = header[section]["data_offsets"][0]
        for i in np.atleast_1d(index).tolist():
            data[begin + 4 * i : begin + 4 * i + 4] = np.int32(value).tobytes()

    return change
