"""Safetensors whose bytes repeat, and faults that are named."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gc25d.errors import UserError
from gc25d.tensors import digest_tensors, read_metadata, read_tensors, write_tensors

METADATA = {key: key * 2 for key in ("vocab", "arm", "step", "data", "seed", "lr", "format")}


def test_bytes_repeat_across_processes(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, torch\n"
        "from gc25d.tensors import write_tensors\n"
        "tensors = {f'b.{i}': torch.arange(6.0).reshape(2, 3) + i for i in range(5)}\n"
        f"write_tensors(pathlib.Path(sys.argv[1]), tensors, {METADATA!r})\n"
    )
    digests = set()
    for number in range(3):
        path = tmp_path / f"{number}.safetensors"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    # The library itself still reads what was rewritten.
    assert torch.equal(load_file(path)["b.4"], torch.arange(6.0).reshape(2, 3) + 4)
    assert read_metadata(path) == METADATA


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    write_tensors(path, {"a": torch.ones(8)}, {})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"cut\.safetensors"):
        read_tensors(path)
    with pytest.raises(UserError, match="not found"):
        read_tensors(tmp_path / "none.safetensors")


ROW = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
SAME_BYTES = '{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (f'{{"a":{ROW},"a":{SAME_BYTES}}}', "'a' stands twice"),
        (f'{{"__metadata__":{{"vocab":"ids","vocab":"parts"}},"a":{ROW}}}', "'vocab' stands twice"),
        (f'{{"a":{ROW},"\\u0061":{SAME_BYTES}}}', "'a' stands twice"),
        (f"[{ROW}]", "no JSON object"),
    ],
)
def test_a_header_of_which_the_library_would_lose_a_part_is_refused(
    tmp_path: Path, header: str, message: str
) -> None:
    path = tmp_path / "twice.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    for read in (read_tensors, read_metadata):
        with pytest.raises(UserError, match=rf"twice\.safetensors: .*{message}"):
            read(path)


def test_a_header_that_claims_any_length_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    for length, message in ((2**63, "expected at most"), (2**20, "cut after 2 of 1048576")):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(UserError, match=rf"long\.safetensors: .*{message}"):
            read_tensors(path)


def test_digest_sees_names_shapes_dtypes_and_values() -> None:
    base = {"a": torch.ones(2, 3), "b": torch.zeros(1)}
    others = [
        {"a": torch.ones(3, 2), "b": torch.zeros(1)},
        {"c": torch.ones(2, 3), "b": torch.zeros(1)},
        {"a": torch.ones(2, 3).double(), "b": torch.zeros(1)},
        {"a": torch.ones(2, 3), "b": -torch.zeros(1)},
    ]
    digests = {digest_tensors(tensors) for tensors in [base, *others]}
    assert len(digests) == 5
    assert digest_tensors(dict(reversed(base.items()))) == digest_tensors(base)
