"""The rows of a data set's JSON Lines files: of each prepared run, and of the index.

`prep_run` writes a run's rows to index/runs/<run_id>.jsonl, `build_index` joins all runs' rows into
index/clips.jsonl. docs/dataset.md shows examples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast, final

from gc25d.records import read_jsonl

Split: TypeAlias = Literal["train", "val"]


class Digests(TypedDict, total=False):
    """SHA-256 of a clip's tensors; a dropped clip has none."""

    latents: str
    ids: str
    """Of the packed ids."""
    world_to_clip: str


class Paths(TypedDict):
    """Files that hold a clip's tensors, seen from the data folder."""

    latents: str
    ids: str
    """Of the packed ids and the cameras."""


class Findings(TypedDict, total=False):
    """What was found in reading a clip."""

    faults: list[str]
    """What is odd in how it is listed and costs it nothing; earlier versions did not say."""
    static_share: float
    """Share of the pixels with a static id, 0..1; a dropped clip has none."""
    character_share: float
    """Of the other pixels."""


class Clip(Findings):
    """What both rows of a clip hold."""

    clip_id: str
    """`<scene>__<run>__<start>`."""
    run: str
    """`<scene>__<run>`."""
    start: int
    """First frame."""
    drop: bool
    """Whether the clip cannot be used."""
    reason: str
    """Why it is dropped, or ""."""
    flags: list[str]
    """The capture's own remarks."""
    text_keys: list[str]
    """One for each latent frame."""
    digests: Digests
    ground_z: float | None
    """Height of the ground plane, cm."""


@final
class PreparedClip(Clip):
    """A row of index/runs/<run_id>.jsonl."""

    shape: list[int]
    """Frames, height, width."""
    pictures: NotRequired[str]
    """How the run's pictures were cropped and scaled; earlier versions did not say."""
    prompts: NotRequired[dict[str, str]]
    """Text key → prompt; `build_index` reads the rows without."""


@final
class UnreadRun(TypedDict):
    """The one row of a run that could not be read at all."""

    run: str
    """`<scene>__<run>`."""
    drop: bool
    """True."""
    reason: str


RunRow: TypeAlias = PreparedClip | UnreadRun


class IndexRow(Clip):
    """A row of index/clips.jsonl."""

    split: Split
    paths: Paths


def read_run_rows(path: Path) -> Iterator[RunRow]:
    """The rows that `prep_run` wrote.

    Raises:
        UserError: the file is missing or no JSON Lines file.
    """
    return cast(Iterator[RunRow], read_jsonl(path))


def read_index(path: Path) -> Iterator[IndexRow]:
    """The rows that `build_index` wrote.

    Raises:
        UserError: the file is missing or no JSON Lines file.
    """
    return cast(Iterator[IndexRow], read_jsonl(path))
