"""The two tensor files of a prepared run, and how semantic ids are packed.

`latents/<run_id>.safetensors` holds `<clip_id>` bf16 [48, F, h, w].
`ids/<run_id>.safetensors` holds `<clip_id>.ids` uint8 [bytes], the zstd frame of the uint8 ids
[T, H, W], and `<clip_id>.world_to_clip` float64 [T, 4, 4] at the clip's resolution.
Readers map the files, so that reading one clip does not read its whole run.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
import zstandard
from safetensors import SafetensorError
from torch import Tensor

from gc25d.errors import UserError
from gc25d.shapes import SemIds
from gc25d.tensors import open_tensors

# Fixed: the packed bytes are part of the data fingerprint. Measured on ids of 81×480×832 from
# ViZDoom, one core: level 3 packs to 156 kB in 14 ms and unpacks in 3.5 ms, level 9 to 114 kB in
# 63 ms and 2.7 ms. A checksum in the frame would add 2.3 ms to what the digest already covers.
_LEVEL = 9


def latents_file(run_id: str) -> str:
    """Path of a run's latents below the data folder."""
    return f"latents/{run_id}.safetensors"


def ids_file(run_id: str) -> str:
    """Path of a run's ids and cameras below the data folder."""
    return f"ids/{run_id}.safetensors"


def pack_ids(sem_ids: SemIds) -> Tensor:
    """Ids → their zstd frame as a uint8 tensor; the frame carries its size."""
    packer = zstandard.ZstdCompressor(level=_LEVEL, threads=0)
    packed = packer.compress(np.ascontiguousarray(sem_ids, dtype=np.uint8).data)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def unpack_ids(packed: Tensor, shape: tuple[int, int, int]) -> SemIds:
    """The zstd frame of `pack_ids` → writable uint8 ids of `shape` [T, H, W].

    Raises:
        ValueError: the frame is damaged, cut, or holds another number of ids.
    """
    sem_ids = np.empty(shape, dtype=np.uint8)
    target = sem_ids.reshape(-1).data
    filled = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed.numpy().data) as reader:
            while filled < len(target) and (count := reader.readinto(target[filled:])):
                filled += count
            surplus = reader.read(1)
    except zstandard.ZstdError as error:
        raise ValueError(f"damaged zstd frame: {error}") from None
    if filled != len(target) or surplus:
        raise ValueError(f"packed ids hold {filled} bytes or more, expected {len(target)}")
    return sem_ids


def digest_tensor(tensor: Tensor) -> str:
    """SHA-256 in hex of a tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest()


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file, mapped, not read ahead; compare it with its digest.

    Raises:
        UserError: the file is missing, cut or damaged, or holds no such tensor.
    """
    with open_tensors(path, indexed=True) as file:
        try:
            tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: {error}") from None
        return tensor


def tensor_names(path: Path) -> frozenset[str]:
    """Names of a file's tensors, from its header; checks the file's length too.

    Raises:
        UserError: the file is missing, cut or damaged.
    """
    with open_tensors(path) as file:
        return frozenset(file.keys())


def clip_error(clip_id: str, error: Exception) -> UserError:
    """What to tell a user whose prepared clip is damaged."""
    return UserError(
        f"clip {clip_id} is damaged: {error}. Delete the file named and rerun: its run is built "
        "again"
    )
