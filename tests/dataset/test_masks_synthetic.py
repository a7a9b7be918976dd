"""The UNKNOWN mask held against the ray caster's own ground points, pixel by pixel."""

import dataclasses

import numpy as np
import pytest

from gc25d.capture.raw.run_spec import RunSpec
from gc25d.capture.synthetic.camera import Film
from gc25d.capture.synthetic.capture import plan_run
from gc25d.capture.synthetic.caster import cast, meet_floor
from gc25d.dataset.masks import HalfPlane, mask_ids
from gc25d.prep.parts import LAST_STATIC, UNKNOWN

SPEC = RunSpec("", 1, 0, 17, 1, 320, 240, 4)
FRAMES = (0, 8, 16)
CELL = 4
PLANES = {
    "one": [HalfPlane(0.7, 0.2)],
    "along the path of a camera": [HalfPlane(4.0, 0.38)],
    "two": [HalfPlane(2.2, 0.1), HalfPlane(5.3, 0.3)],
}


@dataclasses.dataclass(frozen=True)
class Scene:
    ids: np.ndarray
    cameras: np.ndarray
    plane_z: float
    xy: np.ndarray
    """Ground points, [T, 2, H, W]."""
    hit: np.ndarray
    """Whether there is one, [T, H, W]."""


def tilted(camera, kept, pitch, roll):
    """The camera turned about a world point, which keeps its place before the camera."""
    turned = dataclasses.replace(camera, pitch=camera.pitch + pitch, roll=camera.roll + roll)
    place = np.stack(camera.axes) @ (kept - np.array(camera.position))
    return dataclasses.replace(turned, position=tuple(kept - place @ np.stack(turned.axes)))


@pytest.fixture(scope="module", params=["perspective", "orthographic"])
def projection(request):
    return request.param


@pytest.fixture(scope="module", params=[(0.0, 0.0), (-12.0, 25.0)], ids=["upright", "tilted"])
def scene(request, projection):
    """Three frames of a run; the tilted camera looks further down and leans."""
    plan = plan_run(dataclasses.replace(SPEC, scene=f"synthetic_{projection}"))
    pitch, roll = request.param
    ids, cameras, points, hits = [], [], [], []
    for frame in FRAMES:
        camera = tilted(plan.cameras[frame], plan.capsules[frame, 0, :3], pitch, roll)
        film = Film(camera, SPEC.width, SPEC.height)
        ids.append(cast(film, plan.scene.floor, plan.solids(frame)).sem_ids)
        xy, hit, _ = meet_floor(film.rays, plan.scene.floor.z)
        cameras.append(camera.world_to_clip(SPEC.width, SPEC.height))
        points.append(xy)
        hits.append(hit)
    z = plan.scene.floor.z
    return Scene(np.stack(ids), np.stack(cameras), z, np.stack(points), np.stack(hits))


def beyond(scene, planes):
    """Pixels whose ground point lies beyond a line, or that have none.

    Lines as documented: the (1 − q) quantile of frame 0's static pixels.
    """
    hidden = ~scene.hit
    static = (scene.ids[0] <= LAST_STATIC) & scene.hit[0]
    for plane in planes:
        along = np.tensordot(scene.xy, [np.cos(plane.theta), np.sin(plane.theta)], (1, 0))
        hidden |= along > np.quantile(along[0][static], 1 - plane.quantile)
    return hidden


def settled(mask):
    """Pixels that agree with all pixels up to more than a cell away, in their own frame."""
    reach = CELL + 1
    padded = np.pad(mask, ((0, 0), (reach, reach), (reach, reach)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * reach + 1,) * 2, axis=(1, 2))
    return windows.all(axis=(-1, -2)) | ~windows.any(axis=(-1, -2))


@pytest.mark.parametrize("name", PLANES)
def test_static_pixels_are_hidden_beyond_the_lines_of_the_world(scene, name):
    planes = PLANES[name]
    masked, share = mask_ids(scene.ids, scene.cameras, scene.plane_z, planes, "first_frame")
    hidden = beyond(scene, planes)
    static = scene.ids <= LAST_STATIC
    checked = static & settled(hidden)
    assert checked.sum() > 0.7 * static.sum()
    assert 0.02 < hidden[checked].mean() < 0.98
    assert np.array_equal(masked[checked], np.where(hidden, UNKNOWN, scene.ids)[checked])
    assert np.array_equal(masked[~static], scene.ids[~static])  # characters
    assert (~static).any()
    assert share == np.mean(masked == UNKNOWN)


def coverage(scene, planes):
    """Hidden share of frame 0's static pixels that show or cover ground."""
    masked, _ = mask_ids(scene.ids, scene.cameras, scene.plane_z, planes, "first_frame")
    static = (scene.ids[0] <= LAST_STATIC) & scene.hit[0]
    return np.mean(masked[0][static] == UNKNOWN)


@pytest.mark.parametrize("quantile", [0.05, 0.17, 0.3, 0.4])
@pytest.mark.parametrize("theta", [0.0, 1.9, 4.4])
def test_one_plane_covers_its_quantile_of_the_first_frame(scene, theta, quantile):
    assert coverage(scene, [HalfPlane(theta, quantile)]) == pytest.approx(quantile, abs=0.01)


@pytest.mark.parametrize(("first", "second"), [((0.2, 0.1), (0.6, 0.35)), ((1, 0.3), (4.1, 0.2))])
def test_two_planes_cover_between_the_larger_quantile_and_the_sum(scene, first, second):
    planes = [HalfPlane(*first), HalfPlane(*second)]
    quantiles = [plane.quantile for plane in planes]
    assert max(quantiles) - 0.01 <= coverage(scene, planes) <= sum(quantiles) + 0.01
