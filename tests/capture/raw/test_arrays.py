"""npz files of any exporter: nothing is unpacked before its header has been checked."""

import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from gc25d.capture.raw import arrays
from gc25d.capture.raw.format import read_cameras, read_skeletons
from gc25d.errors import UserError
from gc25d.geometry.camera import look, perspective, rotator_axes


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path


def peak_bytes(act):
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def write_member(path, header, data, copies=1):
    """An npz whose array `world_to_clip` has this npy header, word for word, and these bytes."""
    text = (header + "\n").encode()
    begin = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w", 8) as archive:
        for _ in range(copies):
            archive.writestr("world_to_clip.npy", begin + data)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(8388608,)", r"is float64 \[8388608\], expected numbers \[any, 4, 4\]"),
        ("(524288, 4, 2)", r"is float64 \[524288, 4, 2\], expected numbers"),
        ("(524288, 4, 4)", "67108864 bytes, its header says|67108864 bytes, expected at most"),
    ],
)
def test_an_array_is_refused_before_it_is_unpacked(run_dir, monkeypatch, shape, message):
    """64 MB of zeros in 64 kB."""
    path = run_dir / "cameras.npz"
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
    write_member(path, header, bytes(8 * 8388608))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(arrays, "LARGEST", 1 << 25, raising=False)

    def refused():
        with pytest.raises(UserError, match=message):
            read_cameras(run_dir)

    assert peak_bytes(refused) < 4 << 20


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("(1, 4, 4)", bytes(1 << 20)),  # more than its header says
        ("(2, 4, 4)", bytes(128)),  # less
        ("(-1, 4, 4)", bytes(128)),
        ("(True, 4, 4)", b""),
        ("(1, 4, " + "(" * 3000, b""),
        ("(10**9, 4, 4)", b""),
    ],
)
def test_npy_headers_that_lie(run_dir, shape, data):
    path = run_dir / "cameras.npz"
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
    write_member(path, header, data)
    with pytest.raises(UserError, match=r"cameras\.npz: not readable as npz"):
        read_cameras(run_dir)


def test_an_array_that_is_there_twice_is_refused(run_dir):
    path = run_dir / "cameras.npz"
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (5, 4, 4)}"
    write_member(path, header, bytes(5 * 128), copies=2)
    with pytest.raises(UserError, match=r"cameras\.npz: has 2 arrays 'world_to_clip'"):
        read_cameras(run_dir)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">i2"])
def test_arrays_of_other_writers_are_read(run_dir, order, dtype):
    # Whole numbers, so that every type holds them.
    clip = perspective(90.0, 1.0, near=1.0)
    places = [np.array([t, 2.0 * t, 100.0]) for t in range(5)]
    cameras = np.rint([look(place, rotator_axes(0.0, 0.0, 0.0)) @ clip for place in places])
    for save in (np.savez, np.savez_compressed):
        save(run_dir / "cameras.npz", world_to_clip=np.asarray(cameras, dtype, order=order))
        found = read_cameras(run_dir)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, cameras)


def test_no_capsules_at_all_are_read(run_dir):
    np.savez(
        run_dir / "skeletons.npz",
        capsules=np.zeros((5, 0, 7), np.float32),
        part=np.zeros(0, np.uint8),
    )
    assert read_skeletons(run_dir).capsules.shape == (5, 0, 7)


@pytest.mark.parametrize("part", [np.array([266]), np.array([10.5]), np.array([-246]), [np.nan]])
def test_a_part_that_no_byte_holds_is_refused(run_dir, part):
    np.savez(run_dir / "skeletons.npz", capsules=np.zeros((5, 1, 7), np.float32), part=part)
    with pytest.raises(UserError, match=rf"skeletons\.npz: part holds {part[0]}, expected uint8"):
        read_skeletons(run_dir)


def test_a_capsule_beyond_what_a_float32_holds_is_refused(run_dir):
    capsules = np.zeros((5, 1, 7))
    capsules[3] = 1e300
    np.savez(run_dir / "skeletons.npz", capsules=capsules, part=np.array([10], np.uint8))
    with pytest.raises(UserError, match="a capsule of frame 3 holds an infinity"):
        read_skeletons(run_dir)
