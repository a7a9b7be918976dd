"""Part ids and resampling of a synthetic run, held against what the ray caster saw."""

import dataclasses
import math

import numpy as np
import pytest

from gc25d.capture.raw.format import read_cameras, read_skeletons, read_stencil
from gc25d.capture.raw.run_spec import RunSpec
from gc25d.capture.synthetic.camera import Film
from gc25d.capture.synthetic.capture import capture_run, plan_run
from gc25d.capture.synthetic.caster import FLOOR, cast, meet_floor
from gc25d.capture.synthetic.shading import shade
from gc25d.geometry.camera import project
from gc25d.geometry.resample import fit_crop, resample_cameras, resample_frames, resample_stencil
from gc25d.prep.parts import LAST_STATIC, part_ids

WIDTH, HEIGHT, FRAMES = 320, 240, 17
SIZES = [(240, 320), (96, 160), (96, 64), (256, 448)]  # kept, wider, narrower, enlarged
FINE = 5  # samples a pixel's side; odd, so the middle one is its centre
TILTS = [(0.0, 0.0), (-14.0, 20.0)]  # added pitch and roll, degrees


@pytest.fixture(scope="module", params=["perspective", "orthographic"])
def captured(request, tmp_path_factory):
    """Folder, spec and plan of a run."""
    spec = RunSpec(f"synthetic_{request.param}", 2, 0, FRAMES, 1, WIDTH, HEIGHT, 3)
    folder = tmp_path_factory.mktemp("raw") / "run-002"
    capture_run(folder, spec)
    return folder, spec, plan_run(spec)


def narrowed(camera, share):
    """The lens that sees the middle `share` of the width."""
    if camera.projection == "orthographic":
        return dataclasses.replace(camera, span=camera.span * share)
    half = math.tan(math.radians(camera.span / 2)) * share
    return dataclasses.replace(camera, span=2 * math.degrees(math.atan(half)))


def truth(plan, frame, height, width):
    """Ids that the ray caster sees through the lens of a picture cropped to its aspect."""
    share = min(1.0, (width / height) / (WIDTH / HEIGHT))
    film = Film(narrowed(plan.cameras[frame], share), width, height)
    return cast(film, plan.scene.floor, plan.solids(frame)).sem_ids


def prepared(folder, height, width):
    """Semantic ids and cameras of a run at another size, as prep makes them from its files."""
    crop = fit_crop((HEIGHT, WIDTH), (height, width))
    cameras = resample_cameras(read_cameras(folder), crop)
    posed = read_skeletons(folder)
    stencil = resample_stencil(read_stencil(folder, 0, FRAMES), crop)
    return part_ids(stencil, cameras, posed.capsules, posed.part), cameras


def near_border(pixels, fine):
    """Which of these pixels have different ids at most a pixel away in `fine`."""
    padded = np.pad(fine, FINE, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3 * FINE, 3 * FINE))
    around = windows[::FINE, ::FINE][pixels]
    return around.min(axis=(1, 2)) != around.max(axis=(1, 2))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_parts_are_those_that_the_rays_hit(captured, height, width):
    folder, _, plan = captured
    ids, _ = prepared(folder, height, width)
    same = characters = 0
    for frame in (0, 8, 16):
        fine = truth(plan, frame, FINE * height, FINE * width)
        true = fine[FINE // 2 :: FINE, FINE // 2 :: FINE]
        equal = ids[frame] == true
        assert near_border(~equal, fine).all()
        both = (true > LAST_STATIC) & (ids[frame] > LAST_STATIC)
        same += equal[both].sum()
        characters += both.sum()
        if (height, width) == (HEIGHT, WIDTH):
            static = true <= LAST_STATIC
            assert np.array_equal(ids[frame][static], true[static])
            assert (both == ~static).all()
    assert characters > 100
    assert same >= 0.99 * characters


@pytest.mark.parametrize(("height", "width"), SIZES[1:])
def test_resampled_cameras_project_ground_points_onto_their_pixels(captured, height, width):
    """By the formula of a centred crop, and onto pixels that show what stands there."""
    folder, _, plan = captured
    scale = min(HEIGHT / height, WIDTH / width)  # source pixels of a target pixel
    left, top = (WIDTH - width * scale) / 2, (HEIGHT - height * scale) / 2
    ids, cameras = prepared(folder, height, width)
    for frame in (0, 8, 16):
        film = Film(plan.cameras[frame], WIDTH, HEIGHT)
        seen = cast(film, plan.scene.floor, plan.solids(frame))
        xy, _, _ = meet_floor(film.rays, plan.scene.floor.z)
        floor = (seen.surface == FLOOR) & np.isfinite(seen.depth)
        x, y = xy[:, floor]
        points = np.stack([x, y, np.full_like(x, plan.scene.floor.z)], axis=-1)
        places, _ = project(points, cameras[frame], width, height)
        row, column = np.nonzero(floor)
        expected = np.stack([(column + 0.5 - left) / scale, (row + 0.5 - top) / scale], axis=-1)
        np.testing.assert_allclose(places, expected, atol=1e-5)
        inside = ((places >= 0) & (places < [width, height])).all(axis=-1)
        u, v = np.floor(places[inside]).astype(int).T
        assert inside.sum() > 10_000
        assert np.mean(ids[frame][v, u] == seen.sem_ids[floor][inside]) > 0.98


@pytest.mark.parametrize("tilt", TILTS)
def test_resampled_pictures_are_what_the_resampled_camera_sees(captured, tilt):
    """Of all shifts of the source by a pixel or none, none fits best."""
    _, spec, plan = captured
    height, width, frame = 96, 160, 9
    camera = plan.cameras[frame]
    camera = dataclasses.replace(camera, pitch=camera.pitch + tilt[0], roll=camera.roll + tilt[1])
    solids = plan.solids(frame)

    def picture(size):
        film = Film(camera, *size)
        return shade(film, plan.scene.floor, solids, cast(film, plan.scene.floor, solids), 0.0)

    source = picture((spec.width, spec.height))
    fine = picture((4 * width, 4 * height)).astype(float)
    ideal = fine.reshape(height, 4, width, 4, 3).mean(axis=(1, 3))
    crop = fit_crop((spec.height, spec.width), (height, width))
    errors = {
        (dy, dx): np.abs(
            resample_frames(np.roll(source, (dy, dx), axis=(0, 1))[None], crop)[0] - ideal
        ).mean()
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
    }
    best = errors.pop((0, 0))
    assert best < 0.8 * min(errors.values())
    matrix = resample_cameras(camera.world_to_clip(spec.width, spec.height), crop)
    np.testing.assert_allclose(matrix, camera.world_to_clip(width, height), atol=1e-9)
