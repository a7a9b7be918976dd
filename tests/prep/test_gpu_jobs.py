"""Which prep steps claim a GPU, and that they work on the one they got."""

import contextlib
from argparse import Namespace
from pathlib import Path

import pytest

from gc25d.prep.encoders.dct import DctCodec
from gc25d.prep.text import ByteEncoder
from gc25d.records import read_jsonl, write_json, write_jsonl
from gc25d.steps import encode_text, prep_run

GEOMETRY = {"frames": 5, "height": 32, "width": 32}


@pytest.fixture
def claims(monkeypatch):
    """Pretends that `cuda:3` is free; lists what was claimed, given back and loaded, in order."""
    events = []

    @contextlib.contextmanager
    def claimed_device():
        events.append("claimed cuda:3")
        yield "cuda:3"
        events.append("given back")

    @contextlib.contextmanager
    def shared_device(needed):
        assert needed > 9 << 30
        events.append("shared cuda:3")
        yield "cuda:3"
        events.append("given back")

    def codec_for(name, directory, device):
        events.append(f"{name} on {device}")
        return DctCodec()

    def encoder_for(name, length, dim, directory, device):
        events.append(f"{name} on {device}")
        return ByteEncoder(length, dim)

    monkeypatch.setattr(prep_run, "shared_device", shared_device)
    monkeypatch.setattr(encode_text, "claimed_device", claimed_device)
    monkeypatch.setattr(prep_run, "codec_for", codec_for)
    monkeypatch.setattr(encode_text, "encoder_for", encoder_for)
    return events


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("dct", ["dct on cpu"]),
        ("wan_vae", ["shared cuda:3", "wan_vae on cuda:3", "given back"]),
    ],
)
def test_only_the_autoencoder_claims_a_gpu(tmp_path, raw_run, claims, codec, expected):
    write_json(
        tmp_path / "prep.json", {"geometry": GEOMETRY, "codec": codec, "codec_dir": "weights"}
    )
    prep_run.main(
        Namespace(
            settings=tmp_path / "prep.json",
            raw=raw_run(tmp_path / "raw"),
            run_id="maze__run-000",
            workers=0,
            latents=tmp_path / "latents",
            ids=tmp_path / "ids",
            rows=tmp_path / "rows",
            record=tmp_path / "record",
        )
    )
    assert claims == expected
    assert [row["drop"] for row in read_jsonl(tmp_path / "rows")] == [False, False]


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ("bytes", ["bytes on cpu"]),
        ("umt5", ["claimed cuda:3", "umt5 on cuda:3", "given back"]),
    ],
)
def test_only_the_large_text_encoder_claims_a_gpu(tmp_path, claims, encoder, expected):
    text = {"encoder": encoder, "dir": "weights", "length": 8, "dim": 4}
    write_json(tmp_path / "text.json", {"text": text})
    write_jsonl(tmp_path / "rows", [{"run": "maze__run-000", "drop": True, "reason": "none"}])
    table = tmp_path / "table"
    encode_text.main(
        Namespace(settings=tmp_path / "text.json", rows=[tmp_path / "rows"], out=table)
    )
    assert claims == expected
    assert Path(table).exists()
