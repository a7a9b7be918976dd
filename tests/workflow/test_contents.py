"""Digests of the files that settings name: what counts, and that they are taken once."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from gc25d import digest_cache
from gc25d.digest_cache import file_digests
from gc25d.settings.contents import named_contents, read_files
from gc25d.settings.loading import load_settings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put(folder: str, *names: str) -> None:
    for name in names:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"what is in {name}")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def contents(**config: object) -> dict[str, dict[str, str]]:
    return named_contents(load_settings({"cache_root": "cache", **config}), print)[0]


ALL = {
    "prep": {
        "codec": "wan_vae",
        "codec_dir": "pipeline",
        "text": {"encoder": "umt5", "dir": "pipeline"},
    },
    "model": {"init_dir": "pipeline"},
    "train": {"method": "dmd2", "teacher": {"weights": "teacher.safetensors"}},
    "regression": {"init_from": "shards"},
}
READ = {
    "prep.codec_dir": {"vae/config.json", "vae/diffusion_pytorch_model.safetensors"},
    "prep.text.dir": {
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/tokenizer.json",
        "tokenizer/spiece.model",
    },
    "model.init_dir": {"transformer/a.safetensors", "transformer/a.safetensors.index.json"},
    "train.teacher.weights": {"teacher.safetensors"},
    "regression.init_from": {"b-1.safetensors", "b-2.safetensors", "gc_sem_cond.safetensors"},
}


def put_all() -> None:
    for setting, folder in (("prep.codec_dir", "pipeline"), ("regression.init_from", "shards")):
        put(folder, *READ[setting])
    put("pipeline", *READ["prep.text.dir"], *READ["model.init_dir"])
    put("pipeline", "README.md", ".git/HEAD", "vae/.cache/x.json", "vae/config.json.bak")
    put("pipeline", "transformer/.hidden.safetensors", "text_encoder/pytorch_model.bin")
    put("shards", "config.json")
    put(".", "teacher.safetensors")


def test_the_files_that_are_read_count_and_no_others() -> None:
    put_all()
    expected = {
        setting: {name: sha(f"what is in {name}") for name in names}
        for setting, names in READ.items()
    }
    assert contents(**ALL) == expected
    flat = {**ALL, "prep": {**ALL["prep"], "text": {"encoder": "umt5", "dir": "flat"}}}
    put("flat", "config.json", "model.safetensors", "spiece.model", "README.md")
    assert contents(**flat)["prep.text.dir"].keys() == {
        *("config.json", "model.safetensors", "spiece.model")
    }


def test_files_that_are_not_in_use_do_not_count_nor_need_exist() -> None:
    unused = {
        "prep": {"codec": "dct", "codec_dir": "none", "text": {"encoder": "bytes", "dir": "none"}},
        "train": {"method": "finetune", "teacher": {"weights": "none"}},
    }
    assert contents(**unused) == contents() == {}
    assert list(Path().iterdir()) == []


def test_weights_that_the_model_reads_are_those_that_count() -> None:
    """The reader's own choice of files, which needs torch, against the one made at parse time."""
    torch = pytest.importorskip("torch")
    from gc25d.model.weights.files import base_files
    from gc25d.tensors import write_tensors

    def shards(folder: str) -> None:
        for name in ("m-00001-of-00002", "m-00002-of-00002"):
            write_tensors(Path(folder) / f"{name}.safetensors", {name: torch.zeros(1)}, {})
        weight_map = {f"m-0000{n}-of-00002": f"m-0000{n}-of-00002.safetensors" for n in (1, 2)}
        Path(folder, "m.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        write_tensors(Path(folder) / "gc_sem_cond.safetensors", {"x": torch.zeros(1)}, {})

    shards("native")
    shards("diffusers/transformer")
    for folder in ("native", "diffusers"):
        read = {path.resolve() for path in base_files(Path(folder))}
        counted = {p.resolve() for p in read_files("model.init_dir", Path(folder)).values()}
        assert counted == read | {next(iter(read)).with_name("m.safetensors.index.json")}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read to take a digest, in order."""
    names: list[str] = []
    real = digest_cache.digest_file

    def spy(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(digest_cache, "digest_file", spy)
    return names


CACHE = Path("cache/digests.json")


def ask(*names: str, remember: bool = True) -> list[str]:
    found, fresh = file_digests([Path(name) for name in names], CACHE, print)
    if remember:
        digest_cache.remember(CACHE, fresh)
    assert list(found) == [Path(name) for name in names]
    return list(found.values())


def test_a_file_is_read_once_and_again_when_it_changes(taken: list[str]) -> None:
    put(".", "a", "b")
    expected = [sha("what is in a"), sha("what is in b")]
    assert ask("a", "b") == ask("a", "b") == expected
    assert sorted(taken) == ["a", "b"]
    assert ask(str(Path("a").resolve())) == expected[:1]
    assert len(taken) == 2
    Path("a").write_text("what is in B")  # the same size
    assert ask("a", "b") == [sha("what is in B"), expected[1]]
    assert taken[2:] == ["a"]
    shutil.copy("b", "c")
    os.replace("c", "b")  # noqa: PTH105
    assert ask("b") == [expected[1]]
    assert taken[3:] == ["b"]


def test_links_are_followed(taken: list[str]) -> None:
    put(".", "a", "b")
    Path("link").symlink_to("a")
    assert ask("link") == ask("link") == [sha("what is in a")]
    Path("link").unlink()
    Path("link").symlink_to("b")
    assert ask("link") == [sha("what is in b")]
    Path("b").write_text("what is in c")
    assert ask("link") == [sha("what is in c")]
    assert taken == ["link"] * 3


def test_a_change_that_hides_behind_the_old_time_is_seen() -> None:
    put(".", "a")
    ask("a")
    before = Path("a").stat()
    Path("a").write_text("what is in A")
    os.utime("a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask("a") == [sha("what is in A")]


def test_looking_writes_nothing(taken: list[str]) -> None:
    put(".", "a")
    assert ask("a", remember=False) == [sha("what is in a")]
    assert [path.name for path in Path().iterdir()] == ["a"]
    ask("a")
    assert ask("a", remember=False) == [sha("what is in a")]
    assert taken == ["a", "a"]


def test_much_reading_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    put(".", "a")
    monkeypatch.setattr(digest_cache, "_LARGE", 5)
    told: list[str] = []
    _, fresh = file_digests([Path("a")], CACHE, told.append)
    assert len(told) == 1
    assert "kept in cache/digests.json" in told[0]
    digest_cache.remember(CACHE, fresh)
    file_digests([Path("a")], CACHE, told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", "null", '{"a": 1}', '{"ABS": [1, 2, 3, 4, "short"]}'),
        '{"ABS": [1, 2, 3, 4, 5]}',
        '{"ABS": []}',
    ],
)
def test_a_damaged_cache_is_as_good_as_none(damage: str) -> None:
    put(".", "a")
    ask("a")
    CACHE.write_text(damage.replace("ABS", str(Path("a").resolve())))
    assert ask("a") == [sha("what is in a")]
    found = json.loads(CACHE.read_text())
    assert found[str(Path("a").resolve())][-1] == sha("what is in a")


def test_a_cache_that_cannot_be_written_stops_nobody() -> None:
    put(".", "a", "cache")
    assert ask("a") == [sha("what is in a")]
