"""Training states on disk: written beside, fsynced, renamed; checked against a manifest on load.

A state `step-<n>/` holds fp32 master weights and AdamW moments, both keyed by parameter name, and
a manifest with sizes and digests. Everything else (data position, draws, rates) is arithmetic.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gc25d.errors import UserError
from gc25d.records import digest_file, fsync, read_json, write_json
from gc25d.tensors import read_tensors, write_tensors

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"
KEPT_STATES = 2
_PREFIX = "step-"
_MANIFEST_KEYS = {"step", "checkpoint", "binding", "files"}


@dataclass(frozen=True)
class StoredState:
    """A state on disk whose manifest was checked."""

    folder: Path
    step: int
    binding: str


def save_state(
    root: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    binding: str,
    checkpoint: bool,
) -> Path:
    """Write `root/step-<n>` whole or not at all.

    Args:
        root: folder of the states.
        step: optimizer steps behind it.
        model: its named parameters are written in fp32.
        optimizer: AdamW over them.
        binding: digest of the settings and data that the state belongs to.
        checkpoint: whether it is a segment's end.
    """
    folder = root / f"{_PREFIX}{step:07d}"
    building = root / f".{folder.name}.{os.getpid()}.tmp"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    write_tensors(building / MODEL, dict(model.named_parameters()), {})
    write_tensors(building / OPTIMIZER, optimizer_tensors(model, optimizer), {})
    files = {
        name: {"size": path.stat().st_size, "sha256": digest_file(path)}
        for name, path in ((name, building / name) for name in (MODEL, OPTIMIZER))
    }
    manifest = {"step": step, "checkpoint": checkpoint, "binding": binding, "files": files}
    write_json(building / MANIFEST, manifest)
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    fsync(root)
    return folder


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """`<parameter name>:<moment>` → tensor."""
    return {
        f"{name}:{moment}": value
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def newest_state(root: Path, until: int) -> StoredState | None:
    """The newest valid state at or before step `until`; damaged ones are named and passed over.

    Returns:
        None when no state that old was ever written here.

    Raises:
        UserError: there are states, but none is whole.
    """
    candidates = [folder for folder in _folders(root) if _step_of(folder) <= until]
    for folder in reversed(candidates):
        fault = _fault(folder)
        if fault is None:
            manifest = read_json(folder / MANIFEST)
            return StoredState(folder, manifest["step"], manifest["binding"])
        logger.warning("%s is damaged (%s): passed over for an older state", folder, fault)
    if candidates:
        raise UserError(
            f"{root}: none of its {len(candidates)} states is whole: restore one, or set the run "
            "aside with `python -m gc25d.steps.restart`; training never starts over by itself"
        )
    return None


def newest_step(root: Path) -> int:
    """The step of the newest state on disk, whole or not; 0 when there is none."""
    return max((_step_of(folder) for folder in _folders(root)), default=0)


def load_state(state: StoredState, model: nn.Module, optimizer: Optimizer) -> None:
    """Put a state's weights and moments into a model and its optimizer.

    Raises:
        UserError: a parameter or moment is missing, left over or misshapen; named.
    """
    weights = read_tensors(state.folder / MODEL)
    parameters = dict(model.named_parameters())
    _check_names(state.folder / MODEL, parameters, weights)
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    for key, tensor in read_tensors(state.folder / OPTIMIZER).items():
        name, _, moment = key.rpartition(":")
        moments.setdefault(name, {})[moment] = tensor.clone()
    _check_moments(state.folder / OPTIMIZER, parameters, moments)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
            optimizer.state[parameter] = {
                moment: value if value.ndim == 0 else value.to(parameter.device)
                for moment, value in moments[name].items()
            }


def prune_states(root: Path) -> None:
    """Keep the newest two states and the newest segment end; remove what a kill left half-built."""
    for leftover in root.glob(f".{_PREFIX}*.tmp"):
        shutil.rmtree(leftover)
    manifests = {folder: manifest for folder in _folders(root) if (manifest := _manifest(folder))}
    ends = [folder for folder, manifest in manifests.items() if manifest["checkpoint"]]
    kept = {*list(manifests)[-KEPT_STATES:], *ends[-1:]}
    for folder in _folders(root):
        if folder not in kept:
            shutil.rmtree(folder)


def _folders(root: Path) -> list[Path]:
    """The states' folders by step; what else lies there is left alone."""
    named = (path for path in root.glob(f"{_PREFIX}*") if _step_digits(path).isdigit())
    return sorted(named, key=_step_of)


def _step_digits(folder: Path) -> str:
    return folder.name.removeprefix(_PREFIX)


def _step_of(folder: Path) -> int:
    return int(_step_digits(folder))


def _manifest(folder: Path) -> dict[str, Any] | None:
    """A state's manifest, or None when it is missing, cut or incomplete."""
    try:
        manifest = read_json(folder / MANIFEST)
        return manifest if manifest.keys() >= _MANIFEST_KEYS else None
    except (UserError, AttributeError):
        return None


def _fault(folder: Path) -> str | None:
    """What is wrong with a state's files, or None."""
    manifest = _manifest(folder)
    if manifest is None:
        return f"{MANIFEST} is missing or cut"
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != expected["size"]:
            return f"{name} has {size} bytes, expected {expected['size']}"
        if digest_file(path) != expected["sha256"]:
            return f"{name} does not match its digest"
    return None


def _check_names(
    path: Path, parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> None:
    missing, extra = sorted(parameters.keys() - weights), sorted(weights.keys() - parameters)
    misshapen = [n for n in parameters.keys() & weights if parameters[n].shape != weights[n].shape]
    if missing or extra or misshapen:
        raise UserError(
            f"{path}: missing {missing[:5]}, unexpected {extra[:5]}, misshapen {misshapen[:5]}: "
            "it belongs to another model"
        )


def _check_moments(
    path: Path, parameters: Mapping[str, Tensor], moments: Mapping[str, Mapping[str, Tensor]]
) -> None:
    extra = sorted(moments.keys() - parameters)
    incomplete = [n for n in parameters if set(moments[n]) != {"step", "exp_avg", "exp_avg_sq"}]
    misshapen = [
        name
        for name in parameters
        if name not in incomplete and moments[name]["exp_avg"].shape != parameters[name].shape
    ]
    if extra or incomplete or misshapen:
        raise UserError(
            f"{path}: moments incomplete for {incomplete[:5]}, unexpected for {extra[:5]}, "
            f"misshapen for {misshapen[:5]}: it belongs to another model"
        )
