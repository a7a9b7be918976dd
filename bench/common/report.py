"""What every benchmark writes: its figures with the date, the device and the versions."""

import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gc25d.records import write_json

RESULTS = Path(__file__).parents[1] / "results"


def write_result(
    name: str,
    device: str,
    packages: Sequence[str],
    figures: Mapping[str, Any],
    folder: Path = RESULTS,
) -> Path:
    """Write `<folder>/<name>-<device>.json` and return its path."""
    path = folder / f"{name}-{device}.json"
    head = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device,
        "processor": processor(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
    }
    write_json(path, head | dict(figures))
    return path


def device_label(device: torch.device) -> str:
    """A device's name as file names carry it: NVIDIA-H200, CPU."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return "".join(c if c.isalnum() else "-" for c in name)


def cuda_versions(device: torch.device) -> dict[str, str]:
    """CUDA and cuDNN of a GPU's torch; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


def processor() -> str:
    """The processor's name as the kernel gives it, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns wide enough for their longest entry; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join([row[0].ljust(widths[0]), *rest]))
