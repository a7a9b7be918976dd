"""All runs' rows → the index of the data set, its counts and its fingerprint. Pure functions."""

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from random import Random
from typing import Literal

from gc25d.errors import UserError
from gc25d.prep.rows import Findings, IndexRow, PreparedClip, RunRow, Split
from gc25d.prep.store import ids_file, latents_file
from gc25d.records import canonical_json

_SPLITS: tuple[Split, ...] = ("train", "val")
_FINGERPRINTED: tuple[
    Literal["clip_id", "split", "drop", "text_keys", "digests", "ground_z"], ...
] = ("clip_id", "split", "drop", "text_keys", "digests", "ground_z")


@dataclass(frozen=True)
class Choice:
    """The splits, the buried clips and the limit."""

    val_runs: Collection[str]
    """Runs held out for validation; all others train."""
    buried: Collection[str]
    """Clip ids that stay in the index with `drop` set."""
    limit: int
    """Usable clips kept of each split; 0 keeps all."""
    limit_seed: int


def collect_prompts(rows: Iterable[RunRow]) -> dict[str, str]:
    """Text key → prompt over all clips.

    Raises:
        UserError: one key stands for two texts.
    """
    prompts: dict[str, str] = {}
    owners: dict[str, str] = {}
    for row in prepared_clips(rows):
        for key, text in row.get("prompts", {}).items():
            if prompts.setdefault(key, text) != text:
                raise UserError(
                    f"text key {key!r} stands for {prompts[key]!r} in run {owners[key]} and for "
                    f"{text!r} in run {row['run']}: rename one of them in the captures"
                )
            owners.setdefault(key, row["run"])
    return prompts


def prepared_clips(rows: Iterable[RunRow]) -> Iterator[PreparedClip]:
    """The rows of clips, without those of runs that could not be read."""
    for row in rows:
        if "clip_id" in row:
            yield row


def failed_runs(rows: Iterable[RunRow]) -> dict[str, str]:
    """Run → reason of every run that could not be read at all, sorted."""
    failed = {row["run"]: row["reason"] for row in rows if "clip_id" not in row}
    return dict(sorted(failed.items()))


def picture_crops(rows: Iterable[RunRow]) -> dict[str, str]:
    """Run → what became of its pictures, sorted; rows of earlier versions do not say."""
    clips = prepared_clips(rows)
    crops = {row["run"]: row["pictures"] for row in clips if "pictures" in row}
    return dict(sorted(crops.items()))


def build_rows(
    rows: Sequence[RunRow], choice: Choice, shape: Sequence[int], prepared: str = ""
) -> list[IndexRow]:
    """The rows of index/clips.jsonl, sorted by clip id.

    Args:
        rows: all runs' rows, in any order.
        choice: the splits, the buried clips and the limit.
        shape: frames, height and width that every clip must have.
        prepared: the folder that holds latents/ and ids/, seen from the data folder.

    Raises:
        UserError: a clip occurs twice or has another shape, a named run or clip does not exist, or
            a split that is asked for has no usable clip.
    """
    clips = sorted(prepared_clips(rows), key=lambda row: row["clip_id"])
    failed = failed_runs(rows)
    _check_unique(clips)
    _check_shapes(clips, list(shape))
    _check_named("prep.val_runs", choice.val_runs, {row["run"] for row in rows})
    unread = [clip for clip in choice.buried if clip.rpartition("__")[0] in failed]
    _check_named("prep.buried", choice.buried, {row["clip_id"] for row in clips}, unread)
    indexed = [_indexed(row, choice, PurePosixPath(prepared)) for row in clips]
    for split in _SPLITS:
        _check_usable(split, indexed, failed)
    return _limited(indexed, choice.limit, choice.limit_seed) if choice.limit else indexed


def _indexed(row: PreparedClip, choice: Choice, prepared: PurePosixPath) -> IndexRow:
    buried = row["clip_id"] in choice.buried and not row["drop"]
    return {
        "clip_id": row["clip_id"],
        "run": row["run"],
        "start": row["start"],
        "drop": row["drop"] or buried,
        "reason": "buried" if buried else row["reason"],
        "flags": row["flags"],
        "text_keys": row["text_keys"],
        "digests": row["digests"],
        "ground_z": row["ground_z"],
        **_findings(row),
        "split": "val" if row["run"] in choice.val_runs else "train",
        "paths": {
            "latents": str(prepared / latents_file(row["run"])),
            "ids": str(prepared / ids_file(row["run"])),
        },
    }


def _findings(row: PreparedClip) -> Findings:
    found: Findings = {}
    if "faults" in row:
        found["faults"] = row["faults"]
    if "static_share" in row:
        found["static_share"] = row["static_share"]
    if "character_share" in row:
        found["character_share"] = row["character_share"]
    return found


def _limited(rows: Sequence[IndexRow], limit: int, seed: int) -> list[IndexRow]:
    """The dropped rows, and `limit` usable rows of each split.

    A split is shuffled by `Random(seed)`, cut and sorted again.

    Raises:
        UserError: a split has fewer.
    """
    kept = [row for row in rows if row["drop"]]
    for split in _SPLITS:
        usable = [row for row in rows if row["split"] == split and not row["drop"]]
        if limit > len(usable):
            raise UserError(
                f"prep.limit is {limit}, but {split} has {len(usable)} usable clips: use "
                f"{len(usable)} or fewer"
            )
        Random(seed).shuffle(usable)
        kept += usable[:limit]
    return sorted(kept, key=lambda row: row["clip_id"])


def _check_unique(clips: Iterable[PreparedClip]) -> None:
    twice = [clip for clip, count in Counter(row["clip_id"] for row in clips).items() if count > 1]
    if twice:
        raise UserError(
            f"clip {twice[0]} occurs twice ({len(twice)} such clips): two runs share an id; rename "
            "one run's folder"
        )


def _check_shapes(clips: Iterable[PreparedClip], shape: list[int]) -> None:
    for row in clips:
        if row["shape"] != shape:
            raise UserError(
                f"clip {row['clip_id']} is {row['shape']} (frames, height, width), expected "
                f"{shape}: delete latents/{row['run']}.safetensors and rerun"
            )


def _check_named(
    setting: str, named: Iterable[str], known: Collection[str], also: Collection[str] = ()
) -> None:
    for name in sorted(named):
        if name not in known and name not in also:
            close = difflib.get_close_matches(name, known, cutoff=0.4) or sorted(known)[:3]
            raise UserError(
                f"{setting} names {name!r}, which does not exist among {len(known)}; the nearest: "
                f"{', '.join(close)}"
            )


def _check_usable(split: str, rows: Iterable[IndexRow], failed: Mapping[str, str]) -> None:
    of_split = [row for row in rows if row["split"] == split]
    if all(row["drop"] for row in of_split):
        reasons = [row["reason"] for row in of_split] + list(failed.values())
        why = f"; the first reason: {reasons[0]}" if reasons else ""
        raise UserError(
            f"no usable {split} clip (dropped: {len(of_split)}; unreadable runs: {len(failed)}{why}"
            "): mend the captures, or change prep.val_runs or prep.buried"
        )


def check_split(rows: Iterable[IndexRow]) -> None:
    """Refuse an index in which validation has leaked into training.

    Raises:
        UserError: a run or a clip is in both splits.
    """
    kinds: tuple[Literal["run", "clip_id"], ...] = ("run", "clip_id")
    for kind in kinds:
        split_of: dict[str, str] = {}
        for row in rows:
            if split_of.setdefault(row[kind], row["split"]) != row["split"]:
                raise UserError(
                    f"{kind} {row[kind]} is in the train and in the val split: rebuild the index"
                )


def equal_clips(rows: Iterable[IndexRow]) -> list[tuple[str, str]]:
    """Pairs of a usable train and a usable val clip with the very same latents."""
    usable = [row for row in rows if not row["drop"]]
    train = {row["digests"]["latents"]: row["clip_id"] for row in usable if row["split"] == "train"}
    return [
        (train[digest], row["clip_id"])
        for row in usable
        if row["split"] == "val" and (digest := row["digests"]["latents"]) in train
    ]


def count_clips(rows: Sequence[IndexRow]) -> dict[str, int]:
    """How many clips are in each split, dropped and usable."""
    usable = [row for row in rows if not row["drop"]]
    return {
        "train": sum(row["split"] == "train" for row in rows),
        "val": sum(row["split"] == "val" for row in rows),
        "dropped": len(rows) - len(usable),
        "usable": len(usable),
        "usable_train": sum(row["split"] == "train" for row in usable),
        "usable_val": sum(row["split"] == "val" for row in usable),
    }


def fingerprint(rows: Iterable[IndexRow], geometry: Mapping[str, int], table_digest: str) -> str:
    """Digest of everything that a run trained on this data depends on: content only.

    Neither paths nor times nor reasons enter, so equal data have equal fingerprints anywhere.
    """
    # The canonical JSON of {"clips": […], "geometry": {…}, "text": "…"}, a row at a time.
    digest = hashlib.sha256(b'{"clips":[')
    for number, row in enumerate(rows):
        content = canonical_json({key: row[key] for key in _FINGERPRINTED})
        digest.update(b"," * (number > 0) + content)
    digest.update(b'],"geometry":' + canonical_json(dict(geometry)))
    digest.update(b',"text":' + canonical_json(table_digest) + b"}")
    return digest.hexdigest()
