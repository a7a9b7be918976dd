"""Cached teacher paths: one file a training clip, what they were made of, and COMPLETE at the end.

`metadata.json` is written first and names everything that the paths depend on; a folder that says
otherwise is refused. Each path is written whole or not at all, so that a builder that was stopped
goes on with the missing ones. `COMPLETE` is written when all are there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.records import digest_json, read_json, write_json
from gc25d.tensors import open_tensors, write_tensors

METADATA, COMPLETE, PATHS = "metadata.json", "COMPLETE", "paths"
_TENSOR = "path"


@dataclass(frozen=True)
class OdeCache:
    """A folder of paths. `metadata` is what they are to be made of."""

    folder: Path
    metadata: dict[str, Any]
    """Strict JSON; `clips` is their number and `path_shape` is [K + 1, C, F, h, w]."""

    def claim(self) -> None:
        """Make the folder this cache's, or see that it is.

        Raises:
            UserError: it holds paths of something else; names the first difference.
        """
        path = self.folder / METADATA
        if not path.exists():
            write_json(path, self.metadata)
        found = read_json(path)
        for key in sorted(self.metadata.keys() | found.keys()):
            if found.get(key) != self.metadata.get(key):
                raise UserError(
                    f"{path}: its paths were made with {key} {found.get(key)!r}, this run needs "
                    f"{self.metadata.get(key)!r}: set train.kd.cache to another folder, or delete "
                    "this one"
                )

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Those of `indices` whose path is not there yet."""
        return [index for index in indices if not self._whole(index)]

    def write(self, index: int, path: Tensor) -> None:
        """Store the path of clip `index`, [K + 1, C, F, h, w], as bf16.

        Raises:
            ValueError: another shape than the metadata's.
        """
        if list(path.shape) != self.metadata["path_shape"]:
            raise ValueError(f"a path of {list(path.shape)}, not {self.metadata['path_shape']}")
        write_tensors(self._file(index), {_TENSOR: path.to("cpu", torch.bfloat16)}, {})

    def seal(self) -> bool:
        """Write COMPLETE if every path is there; returns whether."""
        if self.missing(range(self.metadata["clips"])):
            return False
        write_json(self.folder / COMPLETE, self._seal())
        return True

    def check_complete(self) -> None:
        """See that the folder holds all these paths.

        Raises:
            UserError: it is unfinished or holds paths of something else.
        """
        seal = self.folder / COMPLETE
        if not seal.exists():
            raise UserError(
                f"{seal}: not found: build the paths first (snakemake does; by hand: "
                "`python -m gc25d.steps.build_ode_cache --help`)"
            )
        self.claim()
        if read_json(seal) != self._seal():
            raise UserError(f"{seal} is not of these paths: delete it and build them again")

    def read(self, index: int) -> Tensor:
        """The path of clip `index`, bf16 [K + 1, C, F, h, w], memory-mapped.

        Raises:
            UserError: it is missing or damaged.
        """
        with open_tensors(self._file(index)) as file:
            path: Tensor = file.get_tensor(_TENSOR)
        return path

    def _seal(self) -> dict[str, Any]:
        return {"clips": self.metadata["clips"], "metadata_sha256": digest_json(self.metadata)}

    def _file(self, index: int) -> Path:
        return self.folder / PATHS / f"{index:06d}.safetensors"

    def _whole(self, index: int) -> bool:
        """A path's file is there, readable, and of the right shape."""
        try:
            with open_tensors(self._file(index)) as file:
                shape = list(file.get_slice(_TENSOR).get_shape())
        except UserError:
            return False
        return shape == list(self.metadata["path_shape"])
