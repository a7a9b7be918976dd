"""Which training methods train which models, and what is known but not available.

Imports no torch: an illegal pair is refused before a job starts.
"""

from gc25d.errors import UserError

LEGAL: dict[str, tuple[str, ...]] = {
    "wan": ("finetune", "kd", "dmd2"),
    "wan_causal": ("dfsft", "kd", "self_forcing"),
    "matrixgame2": ("dfsft",),
    "hunyuan": ("finetune",),
    "cosmos": ("finetune",),
}
"""Model → its methods. `finetune` and `dmd2` look at whole clips at one timestep, `dfsft` and
`self_forcing` need attention by chunks; `kd` regresses the paths of a `wan` teacher."""

TAUGHT = ("kd", "dmd2", "self_forcing")
"""Methods that need a teacher."""

UNAVAILABLE: dict[str, str] = {
    "longcat": "LongCat-Video is in no well-kept library (diffusers has no transformer of it)",
}
"""Model → why it cannot be trained here."""

WAN_SIZES = ("tiny", "1.3b", "5b")
SIZES: dict[str, tuple[str, ...]] = {
    "wan": WAN_SIZES,
    "wan_causal": WAN_SIZES,
    "matrixgame2": WAN_SIZES,
    "hunyuan": ("tiny", "13b"),
    "cosmos": ("tiny", "2b", "14b"),
}
"""Model → its sizes (gc25d/model/zoo.py has their shapes)."""


def model_fault(model: str, size: str, init_dir: str) -> str | None:
    """What is wrong with these settings of a model, None when nothing is."""
    if size not in SIZES[model]:
        return f"model.size {size} is none of {model}'s: use {' or '.join(SIZES[model])}"
    if init_dir and model in ("hunyuan", "cosmos"):
        return (
            f"model.init_dir is set, but {model}'s published weights are made for another "
            "autoencoder's latents (docs/models.md): leave it empty"
        )
    if model == "matrixgame2":
        return (
            "model.name is matrixgame2, which needs the keyboard and mouse of every frame, and "
            "captures record none (docs/models.md): use another model"
        )
    return None


def cell_fault(model: str, method: str) -> str | None:
    """What is wrong with training `model` by `method`, None when nothing is."""
    if model in UNAVAILABLE:
        return f"model {model} is not available: {UNAVAILABLE[model]}. Legal are: {legal_cells()}"
    if method in LEGAL.get(model, ()):
        return None
    return f"method {method} does not train model {model}. Legal are: {legal_cells()}"


def legal_cells() -> str:
    """Every legal pair in words."""
    return "; ".join(f"{model} with {', '.join(methods)}" for model, methods in LEGAL.items())


def check_cell(model: str, method: str) -> None:
    """Refuse a pair that cannot be trained.

    Raises:
        UserError: lists the pairs that can.
    """
    fault = cell_fault(model, method)
    if fault is not None:
        raise UserError(fault)
