"""The (model, method) pairs that are guarded: every legal one, small, and some at real width."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gc25d.dataset.draws import torch_seed
from gc25d.model.weights.files import base_shapes
from gc25d.model.zoo import SIZES, config_from_tensors
from gc25d.regression.synthetic import BatchShape
from gc25d.settings.cells import LEGAL, TAUGHT

CHUNK_FRAMES = 2  # the last of three latent frames is a shorter chunk of its own
ARGUMENTS: dict[str, dict[str, Any]] = {
    "finetune": {},
    "dfsft": {"chunk_frames": CHUNK_FRAMES},
    "kd": {"teacher_steps": 4, "denoising_steps": 2, "shift": 5.0, "cfg": 3.0, "sem_cfg": 3.0},
    "dmd2": {"denoising_steps": 2, "shift": 5.0, "cfg": 5.0, "sem_cfg": 5.0},
    "self_forcing": {"denoising_steps": 2, "shift": 5.0, "cfg": 5.0, "sem_cfg": 5.0},
}
"""What each method is given in its cells."""
KEYS = 6
REAL_SHAPE = BatchShape(batch=1, text_len=64, prompt_std=0.2)


@dataclass(frozen=True)
class Cell:
    """One (model, method) pair. `rtol` None takes the configured tolerance."""

    model: str
    method: str
    size: str = "tiny"
    shape: BatchShape = field(default_factory=BatchShape)
    rtol: float | None = None
    weights: str = ""
    """Folder of base weights; "" draws them."""
    base: str = ""
    """Digest of the files in it, "" where it is not known."""
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    """Of the method."""

    @property
    def name(self) -> str:
        """`<model>/<method>`, with weights `<model>@<size>/<method>`: the key in the references."""
        return f"{self.model}{f'@{self.size}' if self.weights else ''}/{self.method}"

    @property
    def seed(self) -> int:
        """A function of the cell's name alone."""
        return torch_seed(0, f"gradnorm {self.name}")


def small_cell(model: str, method: str) -> Cell:
    """A pair on a tiny model with drawn weights."""
    arguments = ARGUMENTS[method]
    if model == "matrixgame2":  # more parts share the norm, each moves it less
        return Cell(model, method, shape=BatchShape(keys=KEYS), rtol=0.05, arguments=arguments)
    return Cell(model, method, arguments=arguments)


CELLS: tuple[Cell, ...] = tuple(
    small_cell(model, method) for model, methods in LEGAL.items() for method in methods
)
"""Every pair that can be trained."""


def measured_cells(init_from: str, base: str = "") -> tuple[Cell, ...]:
    """The cells to measure: all small ones and, with a folder of base weights, those on it.

    The latter are Wan's pairs without a teacher, which would need the weights three times.

    Args:
        init_from: the folder, or "".
        base: digest of the files in it.

    Raises:
        UserError: the folder holds no Wan weights.
    """
    if not init_from:
        return CELLS
    config = config_from_tensors(base_shapes(Path(init_from)))
    (size,) = (name for name, known in SIZES.items() if known.dim == config.dim)
    shape = dataclasses.replace(REAL_SHAPE, text_dim=config.text_dim, channels=config.in_channels)
    return CELLS + tuple(
        Cell(model, method, size, shape, weights=init_from, base=base, arguments=ARGUMENTS[method])
        for model in ("wan", "wan_causal")
        for method in LEGAL[model]
        if method not in TAUGHT
    )
