"""Which sector of a map lies under a point: the plan drawn once as a grid of sector numbers."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gc25d.capture.doom.wad import MapPlan

VOID = -1
_MARGIN = 1.0


@dataclass(frozen=True)
class Floorplan:
    """Sector numbers on a square grid; −1 outside the map."""

    origin: tuple[float, float]
    """Map coordinates of the grid's lower left corner."""
    cell: float
    """Side of a cell, map units."""
    sectors: Int[np.ndarray, "rows columns"]

    def sector_at(self, xy: Float[np.ndarray, "*batch 2"]) -> Int[np.ndarray, "*batch"]:
        """Sector under each point (map units)."""
        limit = np.array(self.sectors.shape[::-1]) - 1
        place = np.floor((xy - np.array(self.origin)) / self.cell)
        inside = ((place >= 0) & (place <= limit)).all(axis=-1)
        column, row = np.moveaxis(np.clip(place, 0, limit).astype(np.intp), -1, 0)
        return np.where(inside, self.sectors[row, column], VOID)


def draw_floorplan(plan: MapPlan, cell: float = 1.0) -> Floorplan:
    """Fill each sector by the even-odd rule, sampled at the cells' centres.

    Along a row of cells every edge that is crossed toggles whether the sector has been entered.
    """
    points = plan.edges.reshape(-1, 2)
    low, high = points.min(axis=0) - _MARGIN, points.max(axis=0) + _MARGIN
    columns, rows = (math.ceil(extent / cell) for extent in high - low)
    sectors = np.full((rows, columns), VOID, np.int32)
    for sector in range(len(plan.floors)):
        crossed = np.zeros((rows, columns + 1), np.bool_)
        for edge in plan.edges[(plan.edge_sectors == sector).any(axis=1)]:
            _toggle(crossed, (edge.reshape(2, 2) - low) / cell)
        sectors[np.logical_xor.accumulate(crossed[:, :columns], axis=1)] = sector
    return Floorplan((float(low[0]), float(low[1])), cell, sectors)


def _toggle(crossed: np.ndarray, ends: np.ndarray) -> None:
    """In each row whose centre line the edge crosses, flip the first cell right of it."""
    (x0, y0), (x1, y1) = ends[np.argsort(ends[:, 1])]
    rows = np.arange(math.ceil(y0 - 0.5), math.ceil(y1 - 0.5))
    if len(rows):
        x = x0 + (rows + 0.5 - y0) / (y1 - y0) * (x1 - x0)
        crossed[rows, np.ceil(x - 0.5).astype(np.intp)] ^= True


def wall_distances(
    plan: MapPlan, xy: tuple[float, float], angles: Float[np.ndarray, " A"]
) -> Float[np.ndarray, " A"]:
    """Distance from a point to the outer wall along each direction; infinite where there is none.

    Args:
        plan: the map.
        xy: map units.
        angles: degrees from east to north.
    """
    walls = plan.edges[(plan.edge_sectors == VOID).any(axis=1)].reshape(-1, 2, 2)
    start, along = walls[:, 0] - np.array(xy), walls[:, 1] - walls[:, 0]
    rays = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], axis=-1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # parallel to a wall: no hit
        across = _cross(rays, along)
        distance = _cross(start, along) / across
        place = _cross(start, rays) / across
    hit = (distance > 0) & (place >= 0) & (place <= 1)
    return np.asarray(np.where(hit, distance, np.inf).min(axis=1, initial=np.inf))


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])
