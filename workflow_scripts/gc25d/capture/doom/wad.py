"""The plan of a Doom map, from the UDMF text inside a WAD: sectors, textures and edges.

The game tells a sector's heights but neither its textures (which sky and liquids are known by) nor
which lines truly bound it.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int

from gc25d.errors import UserError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BLOCK = re.compile(r"(\w+)\s*\{([^}]*)\}")
_FIELD = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|([^;\s]+))\s*;')
_ENTRY = struct.Struct("<ii8s")  # offset, size, name


@dataclass(frozen=True)
class MapPlan:
    """A map seen from above, in map units."""

    floors: tuple[str, ...]
    """Floor texture of each sector, upper case."""
    ceilings: tuple[str, ...]
    """Ceiling texture of each sector, upper case."""
    edges: Float64[np.ndarray, "E 4"]
    """Lines x0, y0, x1, y1 that separate two sectors, or a sector from the void."""
    edge_sectors: Int[np.ndarray, "E 2"]
    """Sectors on both sides of each edge; -1 is the void."""


def read_plan(wad: Path, map_name: str) -> MapPlan:
    """Read a map's plan.

    Raises:
        UserError: no WAD, or it has no UDMF map of that name.
    """
    text = _lump_after(wad, map_name.upper(), "TEXTMAP").decode("latin-1")
    blocks: dict[str, list[dict[str, str]]] = {}
    for kind, body in _BLOCK.findall(_COMMENT.sub("", text)):
        fields = {key.lower(): quoted or plain for key, quoted, plain in _FIELD.findall(body)}
        blocks.setdefault(kind.lower(), []).append(fields)
    sectors = blocks.get("sector", [])
    edges, sides = _edges(blocks)
    return MapPlan(
        tuple(sector.get("texturefloor", "").upper() for sector in sectors),
        tuple(sector.get("textureceiling", "").upper() for sector in sectors),
        edges,
        sides,
    )


def _edges(blocks: dict[str, list[dict[str, str]]]) -> tuple[np.ndarray, np.ndarray]:
    vertices = [(float(v["x"]), float(v["y"])) for v in blocks.get("vertex", [])]
    sectors = [int(side["sector"]) for side in blocks.get("sidedef", [])]
    edges, sides = [], []
    for line in blocks.get("linedef", []):
        front, back = (int(line.get(side, "-1")) for side in ("sidefront", "sideback"))
        pair = tuple(sectors[side] if side >= 0 else -1 for side in (front, back))
        if pair[0] != pair[1]:  # a line inside one sector bounds nothing
            edges.append((*vertices[int(line["v1"])], *vertices[int(line["v2"])]))
            sides.append(pair)
    return np.array(edges, np.float64).reshape(-1, 4), np.array(sides, np.int64).reshape(-1, 2)


def _lump_after(wad: Path, marker: str, name: str) -> bytes:
    """The first lump `name` after the lump `marker`."""
    try:
        data = wad.read_bytes()
        kind, count, offset = struct.unpack_from("<4sii", data)
        entries = [_ENTRY.unpack_from(data, offset + _ENTRY.size * n) for n in range(count)]
    except (OSError, struct.error) as error:
        raise UserError(f"{wad}: not readable as a WAD ({error})") from None
    names = [raw.rstrip(b"\0").decode("latin-1").upper() for _, _, raw in entries]
    if kind not in (b"PWAD", b"IWAD") or marker not in names:
        raise UserError(f"{wad}: holds no map {marker}: choose another scene")
    start = names.index(marker)
    if names[start + 1 : start + 2] != [name]:
        raise UserError(f"{wad}: map {marker} is no UDMF map (no {name}): choose another scene")
    at, size, _ = entries[start + 1]
    return data[at : at + size]
