import hashlib

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gc25d.errors import UserError
from gc25d.prep.store import (
    digest_tensor,
    pack_ids,
    read_tensor,
    tensor_names,
    unpack_ids,
)
from gc25d.tensors import write_tensors


@given(hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 9)] * 3)))
def test_ids_survive_packing(ids):
    packed = pack_ids(ids)
    assert packed.dtype == torch.uint8
    back = unpack_ids(packed, ids.shape)
    assert np.array_equal(back, ids)
    assert back.flags.writeable


def test_packed_ids_are_one_plain_zstd_frame():
    """Any reader of zstd gets the bytes; packing again gives the same ones."""
    ids = np.random.default_rng(0).integers(0, 22, (5, 32, 64)).astype(np.uint8)
    packed = bytes(pack_ids(ids).tolist())
    assert zstandard.decompress(packed) == ids.tobytes()
    assert packed == bytes(pack_ids(ids.copy()).tolist())
    view = np.asfortranarray(ids)
    assert packed == bytes(pack_ids(view).tolist())


def test_damaged_ids_are_refused():
    packed = pack_ids(np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8))
    with pytest.raises(ValueError, match="expected 128"):
        unpack_ids(packed, (2, 8, 8))
    with pytest.raises(ValueError, match="expected 256"):
        unpack_ids(packed, (4, 8, 8))
    with pytest.raises(ValueError, match=r"hold .* expected 192|damaged"):
        unpack_ids(packed[: len(packed) // 2], (3, 8, 8))
    with pytest.raises(ValueError, match="damaged zstd frame"):
        unpack_ids(torch.zeros(8, dtype=torch.uint8), (3, 8, 8))


def test_tensors_survive_the_file(tmp_path):
    path = tmp_path / "run.safetensors"
    value = torch.arange(6.0).reshape(2, 3).bfloat16()
    write_tensors(path, {"b": value, "a": torch.tensor([1], dtype=torch.uint8)}, {})
    assert torch.equal(read_tensor(path, "b"), value)
    assert tensor_names(path) == {"a", "b"}
    with pytest.raises(UserError, match=r"run\.safetensors"):
        read_tensor(path, "c")


def test_a_file_without_tensors_is_valid(tmp_path):
    write_tensors(tmp_path / "empty.safetensors", {}, {})
    assert tensor_names(tmp_path / "empty.safetensors") == frozenset()


def test_missing_and_cut_files_are_named(tmp_path):
    path = tmp_path / "run.safetensors"
    with pytest.raises(UserError, match=r"run\.safetensors"):
        read_tensor(path, "a")
    write_tensors(path, {"a": torch.zeros(100)}, {})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"run\.safetensors"):
        read_tensor(path, "a")
    with pytest.raises(UserError, match=r"run\.safetensors"):
        tensor_names(path)


def test_digests_are_of_the_bytes():
    values = np.array([[1.5, -2.0]], np.float64)
    expected = hashlib.sha256(values.tobytes()).hexdigest()
    assert digest_tensor(torch.from_numpy(values)) == expected
    assert digest_tensor(torch.from_numpy(values.T.copy()).T) == expected
    assert digest_tensor(torch.zeros(0)) == hashlib.sha256(b"").hexdigest()
