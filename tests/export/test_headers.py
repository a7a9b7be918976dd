"""A file that begins like a `.safetensors` and is none."""

from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.export.verify import verify_file
from gc25d.model.zoo import wan_config

HEADERS = [
    *("[]", "7", '"text"', "null", "[" * 100_000),
    *('{"a": 7}', '{"a": []}', '{"a": null}', '{"a": {}}', '{"__metadata__": 7, "a": "text"}'),
    *('{"a": {"data_offsets": 7}}', '{"a": {"data_offsets": [0]}}', '{"a": {"data_offsets": {}}}'),
    '{"a": {"data_offsets": [0, "x"], "dtype": "BF16", "shape": [1]}}',
    '{"__metadata__": {"step": 7}}',
    '{"__metadata__": []}',
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header[:60])
def test_a_header_that_is_no_object_of_tensors_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(UserError, match=r"bad\.safetensors: .*anew"):
        verify_file(path, {}, wan_config("tiny", "parts", 8), lambda digest: {})
