"""Processes, memory, caches and references of this machine, as the rules need them.

Imports no torch.
"""

from pathlib import Path

from gc25d.settings.processes import choose_engine, processes_per_node
from gc25d.settings.tree import Settings


def training_processes(settings: Settings) -> tuple[str, int]:
    """The training engine, and how many processes a node has."""
    train, hardware = settings.train, settings.hardware
    per_node = processes_per_node(hardware)
    return choose_engine(train.engine, hardware.nodes * per_node), per_node


def training_memory_gb(settings: Settings) -> int:
    """Host memory of a training job on each node, GB."""
    hardware = settings.hardware
    usual = 200 if hardware.gpus_per_node else 4 * processes_per_node(hardware)
    return hardware.train_memory_gb or usual


def references_path(
    settings: Settings, device: str, repository: Path, *, made: bool = False
) -> Path:
    """References to compare with: `regression.refs_root`, else `refs/` here, else the tracked.

    `made`: those here are made before the comparison, and count as there.
    """
    root = settings.regression.refs_root
    here = Path("refs").resolve() / f"{device}.json"
    folders = [Path(root)] if root else [Path("refs"), repository / "refs"]
    paths = [folder.resolve() / f"{device}.json" for folder in folders]
    return next((p for p in paths if p.exists() or (made and p == here)), paths[-1])


def cache_environment(settings: Settings) -> dict[str, str]:
    """Variables that keep every cache and temporary file below `cache_root`, and hubs off.

    ViZDoom loads OpenAL even without sound, and PulseAudio's client then writes into the home
    directory: no driver of OpenAL's is used.
    """
    root = Path(settings.cache_root).resolve()
    folders = {
        "HF_HOME": "huggingface",
        "MPLCONFIGDIR": "matplotlib",
        "TMPDIR": "tmp",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TORCH_EXTENSIONS_DIR": "torch_extensions",
        "TRITON_CACHE_DIR": "triton",
        "XDG_CACHE_HOME": "xdg",
    }
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    silent = {"ALSOFT_DRIVERS": "null"}
    return {name: str(root / folder) for name, folder in folders.items()} | offline | silent
