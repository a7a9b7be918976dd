import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from gc25d.capture.raw.format import index_frames, read_frames
from gc25d.capture.raw.tars import index_series
from gc25d.errors import UserError
from gc25d.records import write_json

META = {
    "fps": 10,
    "width": 4,
    "height": 4,
    "ground_z": [0],
    "units": "cm",
    "projection": "perspective",
    "source": "test",
    "engine": "1",
}


def jpeg(level):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (level,) * 3).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_tar(path, members, edit=lambda info: info):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(edit(info), io.BytesIO(data))


def levels(run_dir, start, count):
    write_json(run_dir / "meta.json", META)
    return np.rint(read_frames(run_dir, start, count).mean(axis=(1, 2, 3))).astype(int).tolist()


def test_numeric_order_not_lexicographic(tmp_path):
    names = sorted(f"frame{n}.jpg" for n in range(1, 13))  # frame1, frame10, frame11, …
    write_tar(tmp_path / "frames.tar", [(n, jpeg(int(n[5:-4]) * 10)) for n in names])
    assert levels(tmp_path, 0, 12) == [n * 10 for n in range(1, 13)]


def test_a_digit_more_at_10000(tmp_path):
    members = [(f"{n}.jpg", b"") for n in (*range(9990), 9991, 9990, *range(9992, 10002))]
    members[9999:10001] = [("10000.jpg", jpeg(200)), ("9999.jpg", jpeg(100))]
    write_tar(tmp_path / "frames.tar", members)
    assert levels(tmp_path, 9999, 2) == [100, 200]


def test_interleaved_clips_come_apart(tmp_path):
    order = [0, 3, 1, 4, 2, 5]  # two clips of three frames, alternating in the tar
    write_tar(tmp_path / "frames.tar", [(f"{n:06d}.jpg", jpeg(n * 40)) for n in order])
    assert levels(tmp_path, 0, 3) == [0, 40, 80]
    assert levels(tmp_path, 3, 3) == [120, 160, 200]


def test_two_series_in_one_tar_are_refused(tmp_path):
    names = ["a/0.jpg", "b/0.jpg", "a/1.jpg", "b/1.jpg"]
    write_tar(tmp_path / "frames.tar", [(name, b"") for name in names])
    with pytest.raises(UserError, match=r"frame number 0 occurs twice .* \(a/0.jpg and b/0.jpg\)"):
        index_frames(tmp_path)


def test_parts_in_numeric_order(tmp_path):
    for part in range(11):
        write_tar(tmp_path / f"frames-{part:03d}.tar", [(f"{part}.jpg", jpeg(part * 20))])
    assert levels(tmp_path, 0, 11) == [n * 20 for n in range(11)]
    (tmp_path / "frames-004.tar").unlink()
    with pytest.raises(UserError, match=r"frames-004\.tar is missing before frames-005\.tar"):
        index_frames(tmp_path)


def test_whole_beside_parts_and_nothing_at_all(tmp_path):
    with pytest.raises(UserError, match=r"no frames\.tar and no frames-000\.tar"):
        index_frames(tmp_path)
    for name in ("frames.tar", "frames-000.tar"):
        write_tar(tmp_path / name, [("0.jpg", b"")])
    with pytest.raises(UserError, match=r"frames\.tar beside frames-\*\.tar"):
        index_frames(tmp_path)


def test_only_clips_over_a_gap_fail(tmp_path):
    write_tar(tmp_path / "frames.tar", [(f"{n}.jpg", jpeg(n * 40)) for n in (1, 2, 4, 5)])
    assert levels(tmp_path, 0, 2) == [40, 80]
    assert levels(tmp_path, 3, 2) == [160, 200]
    with pytest.raises(UserError, match=r"frame 2 \(number 3\) is missing in frames\.tar"):
        read_frames(tmp_path, 0, 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../0.jpg", "no plain relative file name"),
        ("/etc/0.jpg", "no plain relative file name"),
        ("a\\0.jpg", "no plain relative file name"),
        ("0.txt", r"expected a number and \.jpg or \.jpeg"),
        ("frame.jpg", "expected a number"),
        ("7.jpg", "starts at number 7, expected 0 or 1"),
    ],
)
def test_names_that_are_refused(tmp_path, name, message):
    write_tar(tmp_path / "frames.tar", [(name, b"x")])
    with pytest.raises(UserError, match=message):
        index_frames(tmp_path)


def test_links_are_refused(tmp_path):
    def link(info):
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0
        return info

    write_tar(tmp_path / "frames.tar", [("0.jpg", b"")], link)
    with pytest.raises(UserError, match=r"member '0\.jpg' is a link"):
        index_frames(tmp_path)


def test_folders_inside_are_fine_and_empty_is_not(tmp_path):
    def folder(info):
        info.type = tarfile.DIRTYPE
        return info

    write_tar(tmp_path / "frames.tar", [("frames", b"")], folder)
    with pytest.raises(UserError, match=r"frames\.tar holds no picture"):
        index_frames(tmp_path)


@pytest.mark.parametrize("keep", [100, 512 + 300, 1024 + 512 + 10])
def test_cut_tars_are_named(tmp_path, keep):
    path = tmp_path / "frames.tar"
    write_tar(path, [("0.jpg", b"a" * 512), ("1.jpg", b"b" * 512)])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"frames\.tar: not readable as a tar"):
        index_frames(tmp_path)


def test_only_the_frame_asked_for_is_read(tmp_path):
    path = tmp_path / "frames.tar"
    write_tar(path, [("0.jpg", b"broken"), ("1.jpg", jpeg(50))])
    assert levels(tmp_path, 1, 1) == [50]
    series = index_series(tmp_path, "frames", (".jpg",))
    assert series.read(0) == b"broken"
    path.write_bytes(path.read_bytes()[:514])
    with pytest.raises(UserError, match=r"frame 0 \(0\.jpg\) is cut after 2 of 6 bytes"):
        series.read(0)


def test_a_picture_of_any_length_is_not_read(tmp_path):
    """A file with a hole takes no room on disk, but would take memory."""
    path = tmp_path / "frames.tar"
    info = tarfile.TarInfo("0.jpg")
    info.size = 300 << 20
    with path.open("wb") as file:
        file.write(info.tobuf())
        file.truncate(512 + info.size + 1024)
    series = index_series(tmp_path, "frames", (".jpg",))
    with pytest.raises(UserError, match=r"frame 0 \(0\.jpg\) is of 314572800 bytes, expected at m"):
        series.read(0)


@pytest.mark.parametrize("name", ["a\n/0.jpg", "\udcff0.jpg", "\x1b[31m0.jpg"])
def test_names_that_no_message_can_show_are_refused(tmp_path, name):
    write_tar(tmp_path / "frames.tar", [(name, b"x")])
    with pytest.raises(UserError, match="no plain relative file name") as refused:
        index_frames(tmp_path)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("size", [-512, -1024, -(10**9)])
def test_a_member_before_the_one_before_it_ends_the_reading(tmp_path, size):
    """Python's reader goes round in a circle (CVE-2025-8194)."""

    def backwards(info):
        info.pax_headers = {"size": str(size)}
        return info

    write_tar(tmp_path / "frames.tar", [("0.jpg", b"x" * 512)], backwards)
    with pytest.raises(UserError, match=r"frames\.tar: not readable as a tar"):
        index_frames(tmp_path)
