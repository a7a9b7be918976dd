import struct

import numpy as np
import pytest

from gc25d.capture.doom.floorplan import draw_floorplan, wall_distances
from gc25d.capture.doom.wad import read_plan
from gc25d.errors import UserError

# A room of 100 × 60 with a pool of 20 × 20 in it; line 8 crosses the room without parting anything.
TEXT = """
namespace = "zdoom"; // a comment { with a brace
thing { x = 1.0; y = 2.0; type = 1; }
vertex { x = 0.0; y = 0.0; } vertex { x = 100; y = 0; } vertex { x = 100; y = 60; }
vertex // 3
{ x = 0; y = 60.0; }
vertex { x = 40; y = 20; } vertex { x = 60; y = 20; } vertex { x = 60; y = 40; }
vertex { x = 40; y = 40; }
linedef { v1 = 0; v2 = 1; sidefront = 0; blocking = true; }
linedef { v1 = 1; v2 = 2; sidefront = 0; } linedef { v1 = 2; v2 = 3; sidefront = 0; }
linedef { v1 = 3; v2 = 0; sidefront = 0; }
linedef { v1 = 4; v2 = 5; sidefront = 0; sideback = 1; twosided = true; }
linedef { v1 = 5; v2 = 6; sidefront = 0; sideback = 1; }
linedef { v1 = 6; v2 = 7; sidefront = 1; sideback = 0; }
linedef { v1 = 7; v2 = 4; sidefront = 0; sideback = 1; }
linedef { v1 = 0; v2 = 2; sidefront = 0; sideback = 0; }
sidedef { sector = 0; texturemiddle = "BRICK9"; } sidedef { sector = 1; }
sector { texturefloor = "FLOOR0_1"; textureceiling = "F_SKY1"; heightceiling = 104; }
sector { texturefloor = "nukage1"; textureceiling = "FLAT4"; heightfloor = -8; }
"""


def write_wad(path, lumps, kind=b"PWAD"):
    data, entries = b"", b""
    for name, content in lumps:
        entries += struct.pack("<ii8s", 12 + len(data), len(content), name.encode())
        data += content
    path.write_bytes(struct.pack("<4sii", kind, len(lumps), 12 + len(data)) + data + entries)
    return path


@pytest.fixture
def plan(tmp_path):
    lumps = [("TEXTMAP", b"sector {}"), ("MAP01", b""), ("TEXTMAP", TEXT.encode())]
    return read_plan(write_wad(tmp_path / "map.wad", lumps), "map01")


def test_plan(plan):
    assert plan.floors == ("FLOOR0_1", "NUKAGE1")
    assert plan.ceilings == ("F_SKY1", "FLAT4")
    assert plan.edges.shape == (8, 4)  # the crossing line bounds nothing
    assert plan.edges[0].tolist() == [0, 0, 100, 0]
    assert plan.edge_sectors[0].tolist() == [0, -1]
    assert plan.edge_sectors[6].tolist() == [1, 0]


def test_floorplan(plan):
    floorplan = draw_floorplan(plan)
    points = np.array([[5.0, 5], [50, 30], [41, 21], [39, 30], [61, 30], [99, 59], [-0.5, 30]])
    assert floorplan.sector_at(points).tolist() == [0, 1, 1, 0, 0, 0, -1]
    assert floorplan.sector_at(np.array([[1e9, 0], [-1e9, 5e8]])).tolist() == [-1, -1]
    areas = [(floorplan.sectors == sector).sum() for sector in (0, 1)]
    assert areas == [100 * 60 - 20 * 20, 20 * 20]


def test_wall_distances(plan):
    found = wall_distances(plan, (10.0, 30), np.array([0.0, 90, 180, -90, 45]))
    np.testing.assert_allclose(found, [90, 30, 10, 30, 30 * np.sqrt(2)])  # the pool is no wall
    assert np.isinf(wall_distances(plan, (-10.0, 30), np.array([180.0]))).all()


def test_faults_of_a_wad(tmp_path):
    with pytest.raises(UserError, match=r"none\.wad: not readable as a WAD"):
        read_plan(tmp_path / "none.wad", "map01")
    other = write_wad(tmp_path / "other.wad", [("MAP02", b"")])
    with pytest.raises(UserError, match="holds no map MAP01"):
        read_plan(other, "map01")
    old = write_wad(tmp_path / "old.wad", [("MAP01", b""), ("THINGS", b"")])
    with pytest.raises(UserError, match="MAP01 is no UDMF map"):
        read_plan(old, "map01")
