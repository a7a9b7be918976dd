"""The prepared clips of one split, with their dropouts and mask.

Every draw is a pure function of (seed, epoch, index): see `gc25d.dataset.draws`.
"""

import difflib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict

import numpy as np
import torch
from jaxtyping import BFloat16, Int64, UInt8
from torch import Tensor

from gc25d.dataset.draws import uniforms
from gc25d.dataset.masks import Coverage, HalfPlane, draw_planes, mask_ids
from gc25d.errors import UserError
from gc25d.prep.parts import UNKNOWN
from gc25d.prep.rows import Digests, IndexRow, Split, read_index
from gc25d.prep.store import clip_error, digest_tensor, read_tensor, unpack_ids
from gc25d.prep.text import TABLE, TextTable, read_table
from gc25d.records import read_json

_PLANE_UNIFORMS = 5


class Dropped(TypedDict):
    """What was taken from a sample."""

    text: bool
    """All prompts became the empty prompt."""
    cond: bool
    """All semantic ids became unknown."""
    mask: float
    """Share of all pixels that the UNKNOWN mask hid."""


@dataclass(frozen=True)
class Sample:
    """One clip as the trainer sees it."""

    input_latents: BFloat16[Tensor, "C F h w"]
    context_ids: Int64[Tensor, " F"]
    """The prompt of each latent frame, as a row of the text table."""
    sem_ids: UInt8[Tensor, "T H W"]
    clip_id: str
    dropped: Dropped
    epoch: int
    index: int

    def context(self, table: TextTable) -> BFloat16[Tensor, "F L dim"]:
        """The prompt embeddings of each latent frame."""
        return table.embeddings[self.context_ids]


@dataclass(frozen=True)
class ClipRow:
    """A usable clip of the index."""

    clip_id: str
    run: str
    text_keys: tuple[str, ...]
    latents: str
    """Path of its run's latents below the data folder."""
    ids: str
    """Path of its run's ids and cameras below the data folder."""
    digests: Digests
    """SHA-256 of `latents`, `ids` and `world_to_clip`."""
    ground_z: float | None
    """Height of the ground plane, cm."""

    @classmethod
    def parse(cls, row: IndexRow) -> Self:
        """From a row of index/clips.jsonl."""
        return cls(
            row["clip_id"],
            row["run"],
            tuple(row["text_keys"]),
            row["paths"]["latents"],
            row["paths"]["ids"],
            row["digests"],
            row["ground_z"],
        )


@dataclass(frozen=True)
class Draw:
    """What is taken from a sample: the draws of (seed, epoch, index)."""

    text: bool
    cond: bool
    planes: tuple[HalfPlane, ...]


NOTHING = Draw(text=False, cond=False, planes=())


@dataclass(frozen=True)
class Rates:
    """Probabilities of the dropouts and of the mask."""

    text: float
    cond: float
    mask: float

    def draw(self, seed: int, epoch: int, index: int) -> Draw:
        """Three uniforms first (text, condition, mask), then the five of the mask's planes."""
        values = uniforms(seed, "sample", epoch, index, count=3 + _PLANE_UNIFORMS)
        text, cond, mask = (values[:3] < (self.text, self.cond, self.mask)).tolist()
        return Draw(text, cond, draw_planes(values[3:]) if mask and not cond else ())


class ClipDataset:
    """The usable clips of a split, sorted by clip id; a sample's index is its place there.

    Holds no open file and no generator: any number of threads may read from it at once.
    """

    def __init__(
        self,
        root: Path,
        split: Split,
        seed: int = 0,
        text_dropout: float = 0.0,
        cond_dropout: float = 0.0,
        mask_p: float = 0.0,
        coverage: Coverage = "first_frame",
    ) -> None:
        """Open the data set in folder `root`; on `val` all three probabilities are 0.

        Raises:
            UserError: the data set is missing or unfinished, or has no usable clip in `split`.
        """
        self.root, self.split, self.seed, self.coverage = root, split, seed, coverage
        train = split == "train"
        self.rates = Rates(text_dropout, cond_dropout, mask_p) if train else Rates(0.0, 0.0, 0.0)
        geometry = read_json(root / "READY")["geometry"]
        self.shape: tuple[int, int, int] = (
            geometry["frames"],
            geometry["height"],
            geometry["width"],
        )
        self.rows = _usable(root / "index/clips.jsonl", split)
        self.table = read_table(root / TABLE)
        self._key_to_id = self.table.key_to_id
        self._index_of = {row.clip_id: index for index, row in enumerate(self.rows)}

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, epoch: int, index: int) -> Sample:
        """Clip `index` with the draws of `epoch`.

        Raises:
            UserError: a file of the clip is missing or damaged; names the clip.
        """
        return self._build(epoch, index, self.rates.draw(self.seed, epoch, index))

    def clip(self, clip_id: str) -> Sample:
        """The clip as it was prepared, nothing dropped or masked.

        Raises:
            UserError: no usable clip of this split has that id, or its files are damaged.
        """
        if clip_id not in self._index_of:
            close = difflib.get_close_matches(clip_id, self._index_of) or [self.rows[0].clip_id]
            raise UserError(
                f"clip {clip_id!r} is not among the {len(self)} usable {self.split} clips of "
                f"{self.root}; there are: {', '.join(close)}"
            )
        return self._build(0, self._index_of[clip_id], NOTHING)

    def round_robin(self, n: int, setting: str) -> list[int]:
        """Indices of the `n` clips that `setting` asks for: each run's first, then its second.

        Raises:
            UserError: there are fewer; says how many.
        """
        if n > len(self):
            raise UserError(
                f"{setting} is {n}, but {self.root} has {len(self)} usable {self.split} clips: "
                f"use {len(self)} or fewer"
            )
        turn: Counter[str] = Counter()
        turns = []
        for index, row in enumerate(self.rows):
            turns.append((turn[row.run], row.run, index))
            turn[row.run] += 1
        return [index for _, _, index in sorted(turns)[:n]]

    def _build(self, epoch: int, index: int, draw: Draw) -> Sample:
        row = self.rows[index]
        try:
            latents = _verified(self.root / row.latents, row.clip_id, row.digests["latents"])
            sem_ids, hidden = self._sem_ids(row, draw)
        except (UserError, ValueError) as error:
            raise clip_error(row.clip_id, error) from None
        return Sample(
            latents,
            self._context_ids(row, draw.text),
            torch.from_numpy(sem_ids),
            row.clip_id,
            {"text": draw.text, "cond": draw.cond, "mask": hidden},
            epoch,
            index,
        )

    def _context_ids(self, row: ClipRow, dropped: bool) -> Tensor:
        if dropped:
            return torch.full((len(row.text_keys),), self.table.null_id, dtype=torch.int64)
        return torch.tensor([self._key_to_id[key] for key in row.text_keys], dtype=torch.int64)

    def _sem_ids(self, row: ClipRow, draw: Draw) -> tuple[np.ndarray, float]:
        """Ids uint8 [T, H, W] and the masked share; a dropped condition reads no file."""
        if draw.cond:
            return np.full(self.shape, UNKNOWN, dtype=np.uint8), 0.0
        path = self.root / row.ids
        packed = _verified(path, f"{row.clip_id}.ids", row.digests["ids"])
        sem_ids = unpack_ids(packed, self.shape)
        if not draw.planes:
            return sem_ids, 0.0
        name = f"{row.clip_id}.world_to_clip"
        cameras = _verified(path, name, row.digests["world_to_clip"]).numpy()
        return mask_ids(sem_ids, cameras, row.ground_z, draw.planes, self.coverage, out=sem_ids)


def _usable(path: Path, split: Split) -> tuple[ClipRow, ...]:
    if not path.exists():
        raise UserError(f"{path}: not found: build the data set first")
    rows = [
        ClipRow.parse(row) for row in read_index(path) if row["split"] == split and not row["drop"]
    ]
    if not rows:
        raise UserError(f"{path}: no usable clip in the {split} split")
    return tuple(sorted(rows, key=lambda row: row.clip_id))


def _verified(path: Path, name: str, digest: str) -> Tensor:
    """A tensor whose bytes are those that the index was built from.

    Raises:
        UserError: the file is missing or cut.
        ValueError: the bytes differ.
    """
    tensor = read_tensor(path, name)
    if digest_tensor(tensor) != digest:
        raise ValueError(f"{path}: tensor {name} is not the one that was indexed")
    return tensor
