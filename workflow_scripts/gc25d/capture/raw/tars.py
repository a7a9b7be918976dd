"""A numbered series of pictures in one or several tars: index, random access, writing.

Nothing is ever extracted to disk; a member is found by its number and read from its offset.
"""

import io
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gc25d.errors import UserError
from gc25d.files import atomic_path

_NUMBER = re.compile(r"(\d{1,12})\D*$")
_PART = re.compile(r"-(\d{1,6})\.tar$")
LARGEST_PICTURE = 1 << 28
"""Most bytes of a file inside a tar: more than a picture of the largest legal size has."""

# What tarfile raises on damaged bytes; the last three on impossible lengths.
_DAMAGED = (
    tarfile.TarError,
    OSError,
    EOFError,
    ValueError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


@dataclass(frozen=True)
class Member:
    """One picture's bytes inside a tar."""

    tar: Path
    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Series:
    """The pictures of a run by frame (0-based); a frame that is missing has no entry."""

    run_dir: Path
    stem: str
    first_number: int
    count: int
    members: dict[int, Member]

    def read(self, frame: int) -> bytes:
        """The bytes of one frame's picture.

        Raises:
            UserError: the frame lies outside the run, is missing, or its tar is cut.
        """
        if not 0 <= frame < self.count:
            raise UserError(
                f"{self.run_dir}: frame {frame} asked of {self.stem}.tar, which holds {self.count}:"
                " shorten the clip, or capture the run again"
            )
        member = self.members.get(frame)
        if member is None:
            raise UserError(
                f"{self.run_dir}: frame {frame} (number {frame + self.first_number}) is missing "
                f"in {self.stem}.tar: capture the run again, or drop the clips that use it"
            )
        if member.size > LARGEST_PICTURE:
            raise UserError(
                f"{member.tar}: frame {frame} ({member.name}) is of {member.size} bytes, expected "
                f"at most {LARGEST_PICTURE}: write the tar again"
            )
        with member.tar.open("rb") as file:
            file.seek(member.offset)
            data = file.read(member.size)
        if len(data) < member.size:
            raise UserError(
                f"{member.tar}: frame {frame} ({member.name}) is cut after {len(data)} of "
                f"{member.size} bytes: copy the tar again"
            )
        return data


def index_series(run_dir: Path, stem: str, suffixes: tuple[str, ...]) -> Series:
    """Index `<stem>.tar`, or `<stem>-000.tar`, `<stem>-001.tar`, …, by the number in each name.

    The last digits of a file name are its number; numbers count up from 0 or from 1 over all parts
    and are ordered as numbers, whatever the order inside the tars.

    Raises:
        UserError: no tar, an unreadable one, a name that is no plain relative one with a number and
            one of `suffixes`, a number that occurs twice, or a start other than 0 or 1.
    """
    numbered: dict[int, Member] = {}
    for member in _all_members(_parts(run_dir, stem)):
        number = _number(member, suffixes)
        if number in numbered:
            other = numbered[number]
            raise UserError(
                f"{run_dir}: frame number {number} occurs twice in {stem}.tar ({other.name} and "
                f"{member.name}): one run holds one series of frames; split or renumber it"
            )
        numbered[number] = member
    if not numbered:
        raise UserError(f"{run_dir}: {stem}.tar holds no picture: capture the run again")
    first = min(numbered)
    if first > 1:
        raise UserError(
            f"{run_dir}: {stem}.tar starts at number {first}, expected 0 or 1: frames are missing, "
            "or renumber them"
        )
    members = {number - first: numbered[number] for number in sorted(numbered)}
    return Series(run_dir, stem, first, max(members) + 1, members)


def _parts(run_dir: Path, stem: str) -> list[Path]:
    whole = run_dir / f"{stem}.tar"
    parts = {
        int(found[1]): path
        for path in run_dir.glob(f"{stem}-*.tar")
        if (found := _PART.search(path.name))
    }
    if parts and whole.exists():
        raise UserError(f"{run_dir}: {stem}.tar beside {stem}-*.tar: keep one of the two")
    if whole.exists():
        return [whole]
    if not parts:
        raise UserError(f"{run_dir}: no {stem}.tar and no {stem}-000.tar: capture the run again")
    for expected, number in enumerate(sorted(parts)):
        if number != expected:
            raise UserError(
                f"{run_dir}: {stem}-{expected:03d}.tar is missing before {parts[number].name}: "
                "copy it"
            )
    return [parts[number] for number in sorted(parts)]


def _all_members(parts: Iterable[Path]) -> Iterator[Member]:
    for path in parts:
        try:
            with tarfile.open(path, "r:") as tar:
                for info in tar:
                    if info.size < 0:  # the next header would be looked for before this one
                        raise ValueError(f"a member of {info.size} bytes")
                    if not info.isdir():
                        _check_plain(path, info)
                        yield Member(path, info.name, info.offset_data, info.size)
        except _DAMAGED as error:
            raise UserError(f"{path}: not readable as a tar ({error}): copy it again") from None


def _check_plain(path: Path, info: tarfile.TarInfo) -> None:
    name = PurePosixPath(info.name)
    odd = "\\" in info.name or not info.name.isprintable()
    if odd or name.is_absolute() or ".." in name.parts:
        raise UserError(
            f"{path}: member {info.name!r} is no plain relative file name: write the tar again"
        )
    if not info.isreg() or info.issparse():
        raise UserError(
            f"{path}: member {info.name!r} is a link, device or sparse file, expected a plain one: "
            "write the tar again"
        )


def _number(member: Member, suffixes: tuple[str, ...]) -> int:
    name = PurePosixPath(member.name)
    found = _NUMBER.search(name.stem)
    if name.suffix.lower() not in suffixes or not found:
        raise UserError(
            f"{member.tar}: member {member.name!r}, expected a number and {' or '.join(suffixes)} "
            "(000000.jpg): remove or rename it"
        )
    return int(found[1])


def write_series(path: Path, suffix: str, pictures: Iterable[bytes]) -> int:
    """Write pictures as 000000`suffix`, … into one tar; equal pictures give equal bytes.

    Returns:
        How many were written.
    """
    count = 0
    with (
        atomic_path(path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for count, data in enumerate(pictures, start=1):
            info = tarfile.TarInfo(f"{count - 1:06d}{suffix}")  # mtime, uid and gid are 0
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return count
