"""A data set written by hand, straight from the documented layout."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from safetensors.torch import save_file

from gc25d.geometry.camera import look, perspective, rotator_axes

FRAMES, HEIGHT, WIDTH = 5, 32, 64
LATENT_FRAMES = 2


def cameras() -> np.ndarray:
    """A camera 170 cm above the ground that walks forward, looking down by 20 degrees."""
    clip = perspective(90, WIDTH / HEIGHT, 10.0)
    return np.stack(
        [
            look(np.array([25.0 * t, 0, 170.0]), rotator_axes(-20, 0, 0)) @ clip
            for t in range(FRAMES)
        ]
    )


def sem_ids(number: int) -> np.ndarray:
    """Static ids 0..6 with a character in the middle; differs by clip."""
    ids = np.random.default_rng(number).integers(0, 7, (FRAMES, HEIGHT, WIDTH)).astype(np.uint8)
    ids[:, 10:20, 20:30] = 12
    return ids


def latents(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(48, LATENT_FRAMES, 2, 4, generator=generator).bfloat16()


def _sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _write_run(root: Path, run: str, split: str, numbers: range) -> list[dict]:
    stored, packed, rows = {}, {}, []
    for number in numbers:
        clip_id = f"{run}__{number:06d}"
        frame = zstandard.ZstdCompressor().compress(sem_ids(number).tobytes())
        tensors = {
            "latents": latents(number),
            "ids": torch.tensor(list(frame), dtype=torch.uint8),
            "world_to_clip": torch.from_numpy(cameras()),
        }
        stored[clip_id] = tensors["latents"]
        packed[f"{clip_id}.ids"] = tensors["ids"]
        packed[f"{clip_id}.world_to_clip"] = tensors["world_to_clip"]
        rows.append(
            {
                "clip_id": clip_id,
                "run": run,
                "split": split,
                "drop": False,
                "reason": "",
                "text_keys": ["walk", "turn"],
                "paths": {
                    "latents": f"latents/{run}.safetensors",
                    "ids": f"ids/{run}.safetensors",
                },
                "digests": {name: _sha(tensor) for name, tensor in tensors.items()},
                "ground_z": 0.0,
            }
        )
    save_file(stored, root / f"latents/{run}.safetensors")
    save_file(packed, root / f"ids/{run}.safetensors")
    return rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six train clips in two runs (one of them dropped), two val clips in one."""
    for folder in ("latents", "ids", "index", "text"):
        (tmp_path / folder).mkdir()
    rows = _write_run(tmp_path, "maze__run-000", "train", range(0, 3))
    rows += _write_run(tmp_path, "maze__run-001", "train", range(3, 6))
    rows += _write_run(tmp_path, "maze__run-002", "val", range(6, 8))
    rows[1] |= {"drop": True, "reason": "buried"}
    rows.reverse()  # readers sort by clip id themselves
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "index/clips.jsonl").write_text("".join(lines))
    geometry = {"frames": FRAMES, "height": HEIGHT, "width": WIDTH}
    (tmp_path / "READY").write_text(json.dumps({"geometry": geometry}))
    embeddings = torch.arange(3 * 4 * 8).reshape(3, 4, 8).bfloat16()
    save_file(
        {"embeddings": embeddings, "lengths": torch.tensor([0, 3, 2])},
        tmp_path / "text/table.safetensors",
        metadata={"keys": json.dumps(["NULL_PROMPT", "turn", "walk"])},
    )
    return tmp_path


@pytest.fixture
def expected_ids():
    """The ids that the fixture stored for a clip number."""
    return sem_ids


@pytest.fixture
def expected_latents():
    """The latents that the fixture stored for a clip number."""
    return latents
