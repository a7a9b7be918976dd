"""What a run was prepared from, compared with what is there now."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import read_json
from gc25d.workflow.raw_record import is_made_from, states, write_record


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("frames.tar", "meta.json")]
    for path in found:
        path.write_text(path.name)
    write_record(tmp_path / "record", found, states(found))
    return found


def same(files: Sequence[Path], *, all_there: bool = True) -> tuple[bool | None, list[str]]:
    """The answer, and which files were read for it."""
    asked: list[str] = []

    def digests(paths: Sequence[Path]) -> Mapping[Path, str]:
        asked.extend(path.name for path in paths)
        return {path: digest_file(path) for path in paths}

    answer = is_made_from(files[0].with_name("record"), files, digests, all_there=all_there)
    return answer, asked


def test_files_as_they_were_are_not_read(files: list[Path]) -> None:
    assert same(files) == (True, [])


def test_a_file_of_another_time_is_read_and_its_content_decides(files: list[Path]) -> None:
    os.utime(files[0], (10**9, 10**9))
    assert same(files) == (True, ["frames.tar"])
    files[0].write_text("FRAMES.TAR")  # of the same length
    os.utime(files[0], (10**9, 10**9))
    assert same(files) == (False, ["frames.tar"])


def test_a_file_of_another_size_is_not_read(files: list[Path]) -> None:
    files[1].write_text("other")
    assert same(files) == (False, [])


def test_a_file_that_came_is_a_difference_and_one_that_went_may_be(files: list[Path]) -> None:
    assert same(files[:1])[0] is False
    assert same(files[:1], all_there=False)[0] is True
    new = files[0].with_name("frames-1.tar")
    new.touch()
    assert same([*files, new], all_there=False)[0] is False


@pytest.mark.parametrize("content", ["", "[]", '{"frames.tar": [1]}', None])
def test_a_record_that_is_none_tells_nothing(files: list[Path], content: str | None) -> None:
    record = files[0].with_name("record")
    record.unlink() if content is None else record.write_text(content)
    assert same(files) == (None, [])


def test_captures_that_change_while_they_are_read_are_refused(files: list[Path]) -> None:
    before = states(files)
    files[0].write_text("longer than before")
    record = files[0].with_name("new record")
    with pytest.raises(UserError, match=r"frames\.tar of this run changed while it was prepared"):
        write_record(record, files, before)
    assert not record.exists()


def test_the_record_holds_size_time_and_digest(files: list[Path]) -> None:
    stat = files[1].stat()
    expected = [len("meta.json"), stat.st_mtime_ns, digest_file(files[1])]
    assert read_json(files[0].with_name("record"))["meta.json"] == expected
