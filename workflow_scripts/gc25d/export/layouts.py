"""An export as other programs read it: Wan's native shards or diffusers' `transformer/` folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import Tensor

from gc25d.errors import UserError
from gc25d.files import atomic_folder
from gc25d.model.config import MatrixGameConfig, WanConfig
from gc25d.model.weights.shards import save_diffusers, save_native_shards
from gc25d.model.zoo import AnyConfig

Layout = Literal["native", "diffusers"]
LAYOUTS: tuple[Layout, ...] = ("native", "diffusers")


def write_layout(
    layout: Layout,
    tensors: Mapping[str, Tensor],
    config: AnyConfig,
    folder: Path,
    text_length: int,
) -> None:
    """Write the folder whole or not at all, in place of an older one.

    Args:
        layout: whose names and files.
        tensors: bf16, by native name.
        config: of the model.
        folder: to be written.
        text_length: rows to which Wan's own code pads a prompt.

    Raises:
        UserError: the model has tensors that the layout has no place for.
    """
    if not isinstance(config, WanConfig) or isinstance(config, MatrixGameConfig):
        raise UserError(
            f"{folder}: Wan's and diffusers' layouts hold wan and wan_causal, not this model "
            f"({type(config).__name__}): use its .safetensors"
        )
    with atomic_folder(folder) as building:
        if layout == "native":
            save_native_shards(tensors, config, building, text_len=text_length)
        else:
            save_diffusers(tensors, config, building)
