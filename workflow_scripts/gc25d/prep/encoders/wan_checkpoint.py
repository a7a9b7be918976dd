"""Reads Wan2.2's autoencoder from a directory; config and tensors are checked before any is loaded.

diffusers' own loader starts missing tensors at random values with a warning; this one refuses.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.records import read_json
from gc25d.tensors import open_tensors

CHANNELS = 48
_SPACE, _TIME = 16, 4  # pixels and frames of a latent cell
_CLASS = "AutoencoderKLWan"
_FILE = "diffusion_pytorch_model.safetensors"


def load_autoencoder(directory: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The model on `device` in `dtype`, for inference; `directory` or its `vae/` holds it.

    Raises:
        UserError: files are missing or cut, or they are not this autoencoder's.
    """
    inner = directory / "vae"
    folder = inner if inner.is_dir() else directory
    for name in ("config.json", _FILE):
        if not (folder / name).is_file():
            raise UserError(
                f"prep.codec_dir: {folder / name} not found: expected the directory of "
                "Wan2.2-TI2V-5B's autoencoder in diffusers' format (its vae/)"
            )
    model = _empty_model(folder / "config.json")
    state = _read_state(folder / _FILE, model.state_dict(), device, dtype)
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def _empty_model(path: Path) -> Any:
    """The model that the config describes, without memory for its tensors."""
    from diffusers import AutoencoderKLWan

    config = read_json(path)
    _check_config(path, config)
    try:
        with torch.device("meta"):
            return AutoencoderKLWan.from_config(config)
    except (TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path}: no valid {_CLASS} ({error}): copy the file again") from None


def _check_config(path: Path, config: Any) -> None:
    """Refuse whatever is no 48-channel autoencoder of 4×16×16 cells."""
    found = config.get("_class_name") if isinstance(config, dict) else None
    if found != _CLASS:
        raise UserError(
            f"{path}: _class_name is {found!r}, expected {_CLASS!r}: use the vae/ of Wan2.2-TI2V-5B"
        )
    mean, std = config.get("latents_mean") or (), config.get("latents_std") or ()
    if not config.get("z_dim") == len(mean) == len(std) == CHANNELS:
        raise UserError(
            f"{path}: {config.get('z_dim')} channels with {len(mean)} means and {len(std)} "
            f"deviations, expected {CHANNELS} of each: use the autoencoder of Wan2.2-TI2V-5B"
        )
    if not all(math.isfinite(m) and 0 < s < math.inf for m, s in zip(mean, std, strict=True)):
        raise UserError(
            f"{path}: latents_mean or latents_std is not finite, or a deviation is not above 0: "
            "copy the file again"
        )
    space = (config.get("patch_size") or 1) * 2 ** (len(config.get("dim_mult") or ()) - 1)
    time = 2 ** sum(config.get("temperal_downsample") or ())
    if (space, time) != (_SPACE, _TIME):
        raise UserError(
            f"{path}: latent cells of {time} frames and {space} by {space} pixels, expected "
            f"{_TIME} and {_SPACE} by {_SPACE}: use the autoencoder of Wan2.2-TI2V-5B"
        )


def _read_state(
    path: Path, expected: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """All tensors of the file, after their names and shapes were compared with the model's."""
    with open_tensors(path) as file:
        found = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        _check_shapes(path, found, {name: list(t.shape) for name, t in expected.items()})
        return {name: file.get_tensor(name).to(device, dtype) for name in sorted(found)}


def _check_shapes(
    path: Path, found: Mapping[str, list[int]], expected: Mapping[str, list[int]]
) -> None:
    remedy = "copy the file again, or use the config.json that belongs to it"
    for kind, names in (
        ("lacks", sorted(expected.keys() - found.keys())),
        ("has an unknown", sorted(found.keys() - expected.keys())),
    ):
        if names:
            raise UserError(f"{path}: {kind} tensor {names[0]} ({len(names)} in all): {remedy}")
    for name in sorted(expected):
        if found[name] != expected[name]:
            raise UserError(
                f"{path}: {name} is {found[name]}, config.json makes it {expected[name]}: {remedy}"
            )
