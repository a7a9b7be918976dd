"""JSON, JSON Lines and CSV: strict, whole or not at all, digested."""

import codecs
from pathlib import Path

import pytest

from gc25d import files, records
from gc25d.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    records.write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(path, {"new": float("nan")})

    def write_half(target: Path) -> None:
        with files.atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_half(path)
    assert records.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_stream_of_rows_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_jsonl(path, [{"a": 2}, {"a": float("inf")}])
    assert path.read_text() == '{"a": 1}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_several_files_are_written_all_or_none(tmp_path: Path) -> None:
    old, new, directory = (tmp_path / name for name in ("b", "a", "c"))
    old.write_text("old")
    directory.mkdir()
    (directory / "inside").touch()
    for order in ([old, new, directory], [directory, new, old], [new, directory, old]):
        with pytest.raises(OSError, match="directory"):
            records.write_jsons(dict.fromkeys(order, 1))
        assert names(tmp_path) == ["b", "c"]
        assert old.read_text() == "old"
    records.write_jsons({old: 1, new: 2})
    assert (old.read_text(), new.read_text()) == ("1\n", "2\n")


@pytest.mark.parametrize("fails_at", ["a", "b"])
def test_a_file_that_cannot_take_its_place_brings_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """As in a folder whose sticky bit keeps another user's file."""
    (tmp_path / "a").write_text("old a")
    replace = Path.replace

    def refuse(source: Path, target: Path) -> Path:
        if target.name == fails_at and source.read_text() == "1\n":
            raise PermissionError(1, "Operation not permitted", str(target))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        records.write_jsons({tmp_path / "a": 1, tmp_path / "b": 1})
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old a"


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": 1', "", '{"a": 1, "a": 2}']
)
def test_json_that_is_not_strict_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UserError, match=r"bad\.json"):
        records.read_json(tmp_path / "bad.json")


def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(codecs.BOM_UTF8 + b'{"a": 1}\n{"a": 2}\n')
    assert list(records.read_jsonl(path)) == [{"a": 1}, {"a": 2}]
    path.write_bytes(codecs.BOM_UTF8 + b'{"a": 1}\n')
    assert records.read_json(path) == {"a": 1}
    path.write_bytes(codecs.BOM_UTF8 + b"step,loss\n1,0.5\n")
    assert records.read_csv(path) == [{"step": "1", "loss": "0.5"}]


def test_content_is_compared_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert not records.holds_json(path, {"a": 1})
    records.write_json(path, {"a": 1})
    assert records.holds_json(path, {"a": 1})
    assert not records.holds_json(path, {"a": 2})


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ('{"a": 1}\n{"a"', '{"a": 1}\n'),
        ('{"a": 1}\n{"a"\n', '{"a": 1}\n'),
        ('{"a": 1}\n\0\0\0', '{"a": 1}\n'),
        ('{"a"', ""),
        ('{"a": 1}', '{"a": 1}\n'),
        ('{"a": 1}\n', '{"a": 1}\n'),
        ("", ""),
    ],
)
def test_a_cut_last_line_goes_with_the_next_row(tmp_path: Path, before: str, kept: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(before)
    records.append_jsonl(path, {"a": 2})
    assert path.read_text() == kept + '{"a": 2}\n'
    assert list(records.read_jsonl(path))[-1] == {"a": 2}


def test_digests_are_sha256(tmp_path: Path) -> None:
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180, "abc"
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.digest_bytes(b"abc") == known
    assert files.digest_file(tmp_path / "abc") == known
    assert records.digest_json({"b": 1, "a": 2}) == records.digest_json({"a": 2, "b": 1})


def test_jsonl_names_the_line_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    records.write_jsonl(path, [{"a": 1}, {"a": 2}])
    records.append_jsonl(path, {"a": 3})
    assert [row["a"] for row in records.read_jsonl(path)] == [1, 2, 3]
    for line in (b'{"a"', b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": "\xff"}', b"[1]", b""):
        path.write_bytes(b'{"a": 1}\n' + line + b"\n")
        with pytest.raises(UserError, match="line 2"):
            list(records.read_jsonl(path))
    with pytest.raises(UserError, match=r"none\.jsonl: not found"):
        list(records.read_jsonl(tmp_path / "none.jsonl"))
