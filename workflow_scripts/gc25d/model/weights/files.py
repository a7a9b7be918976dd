"""Read Wan weights: native shards, a diffusers `transformer/` directory, or one `.safetensors`.

Files are memory-mapped and copied tensor by tensor into the model, after all names and shapes have
been checked: an error leaves the model as it was. Only safetensors are read.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.model.weights.names import WRAPPED, is_action, is_condition, to_native
from gc25d.records import read_json
from gc25d.tensors import open_tensors

WEIGHTS_STEM = "diffusion_pytorch_model"
INDEX_SUFFIX = ".safetensors.index.json"
CONDITION_FILE = "gc_sem_cond.safetensors"

_SHOWN = 5  # names an error lists


class _Stored(NamedTuple):
    """Where a tensor lies."""

    path: Path
    name: str
    shape: tuple[int, ...]


def load_base(model: nn.Module, source: Path) -> None:
    """Copy base weights into `model`; the additions that they lack stay as they are.

    Additions are the semantic condition and the action modules.

    Args:
        model: a `WanModel`.
        source: a directory with Wan's shards or diffusers' transformer (its own, or the
            pipeline's with a `transformer/` inside), or one `.safetensors` file; a prefix `dit.`
            of the names is passed over.

    Raises:
        UserError: nothing to load, or tensors missing, extra, misshapen or not where the index
            says; names them.
    """
    found = _locate_base(source)
    own = model.state_dict()
    for is_addition in (is_condition, is_action):
        if not any(map(is_addition, found)):
            own = {name: tensor for name, tensor in own.items() if not is_addition(name)}
    _check(found, own, source)
    _copy(found, own)


def base_shapes(source: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of base weights (as `load_base` finds them), by native name.

    Raises:
        UserError: nothing to load, or tensors are not where the index says.
    """
    return {name: stored.shape for name, stored in _locate_base(source).items()}


def load_tensors(model: nn.Module, path: Path) -> None:
    """Copy a `.safetensors` with exactly the model's tensors, native names, into `model`.

    Raises:
        UserError: the file is broken, or tensors are missing, extra or misshapen; names them.
    """
    found = {stored.name: stored for stored in _tensors_of(path)}
    own = model.state_dict()
    _check(found, own, path)
    _copy(found, own)


def base_files(source: Path) -> list[Path]:
    """The files that `load_base` reads of `source`; all lie in one folder.

    Raises:
        UserError: there are none, or the folder and its index disagree.
    """
    return [source] if source.is_file() else _weight_files(source)


def _locate_base(source: Path) -> dict[str, _Stored]:
    return _locate(base_files(source))


def _weight_files(directory: Path) -> list[Path]:
    """The `.safetensors` files of a directory, by its index if it has one."""
    if not directory.is_dir():
        raise UserError(f"{directory}: not found: set the path of the base weights")
    present = [p for p in sorted(directory.glob("[!.]*.safetensors")) if p.name != CONDITION_FILE]
    indices = sorted(directory.glob(f"[!.]*{INDEX_SUFFIX}"))
    if not present and not indices and (directory / "transformer").is_dir():
        return _weight_files(directory / "transformer")
    if len(indices) == 1:
        files = _indexed_files(indices[0])
    elif not indices and len(present) == 1 and "-of-" not in present[0].name:
        files = present
    else:
        raise UserError(
            f"{directory}: {len(present)} .safetensors and {len(indices)} index files, expected "
            f"one file, or shards and one {WEIGHTS_STEM}{INDEX_SUFFIX}: fetch the weights anew"
        )
    condition = directory / CONDITION_FILE
    return [*files, condition] if condition.exists() else files


def _indexed_files(index: Path) -> list[Path]:
    """The shards of an index; each must hold exactly the tensors that the index puts there."""
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise UserError(f"{index}: no weight_map: fetch the weights anew")
    files = []
    for shard in sorted({str(value) for value in weight_map.values()}):
        path = index.parent / shard
        if Path(shard).name != shard:
            raise UserError(f"{index}: shard {shard!r} is no file name: fetch the weights anew")
        promised = {name for name, value in weight_map.items() if value == shard}
        faults = _differences({stored.name for stored in _tensors_of(path)}, promised)
        if faults:
            raise UserError(f"{path} and {index.name} disagree: {faults}: fetch the weights anew")
        files.append(path)
    return files


def _tensors_of(path: Path) -> list[_Stored]:
    with open_tensors(path) as file:
        return [_Stored(path, n, tuple(file.get_slice(n).get_shape())) for n in sorted(file.keys())]


def _locate(paths: Iterable[Path]) -> dict[str, _Stored]:
    """Every tensor of the files by its native name."""
    found: dict[str, _Stored] = {}
    for path in paths:
        for stored in _tensors_of(path):
            name = to_native(stored.name.removeprefix(WRAPPED))
            if name in found:
                raise UserError(f"{path}: {name} is also in {found[name].path}: remove one")
            found[name] = stored
    return found


def _check(found: Mapping[str, _Stored], own: Mapping[str, Tensor], source: Path) -> None:
    """Refuse files that do not hold exactly the model's tensors."""
    faults = _differences(set(found), set(own))
    if faults:
        raise UserError(f"{source} does not fit the model: {faults}: check model.size and vocab")
    misshapen = [
        f"{name} is {list(found[name].shape)}, expected {list(tensor.shape)}"
        for name, tensor in own.items()
        if found[name].shape != tuple(tensor.shape)
    ]
    if misshapen:
        raise UserError(
            f"{source} does not fit the model: {_listed(misshapen)}: check the model's settings"
        )


def _differences(actual: set[str], expected: set[str]) -> str:
    """Missing and extra names in words, "" when the sets agree."""
    sides = (("missing", expected - actual), ("extra", actual - expected))
    return "; ".join(f"{word} {_listed(sorted(names))}" for word, names in sides if names)


def _listed(items: list[str]) -> str:
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _copy(found: Mapping[str, _Stored], own: Mapping[str, Tensor]) -> None:
    """Copy one tensor at a time, converting dtype and device."""
    for path in sorted({stored.path for stored in found.values()}):
        with open_tensors(path) as file, torch.no_grad():
            for name, stored in found.items():
                if stored.path == path:
                    own[name].copy_(file.get_tensor(stored.name))
