"""Losses on fixed held-out clips: does the model use its condition and its text?"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch, collate
from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.draws import torch_seed
from gc25d.prep.parts import UNKNOWN
from gc25d.prep.text import NULL_PROMPT, TextTable
from gc25d.sampling import flow
from gc25d.sampling.predict import predict

Found: TypeAlias = list[tuple[int, list[list[float]]]]
"""Number of a batch and its clips' squared errors [3][B]."""


@dataclass(frozen=True)
class Validation:
    """The fixed clips, timesteps and noise of a run's validations."""

    batches: Sequence[tuple[int, Batch]]
    """Those of this process, with their numbers among all."""
    table: TextTable
    timesteps: Sequence[float]
    seed: int
    gather: Callable[[Found], list[Found]]
    """Every process's item, on every process."""

    def run(self, model: nn.Module, step: int) -> list[dict[str, float | int]]:
        """Rows of val_log.csv, one a timestep: three forwards each, with the same noise.

        They do not depend on the number of processes: batches are formed before they are shared
        out, and errors of single clips are added up exactly.
        """
        grid = flow.training_grid()
        model.eval()
        rows = []
        with torch.inference_mode():
            for wanted in self.timesteps:
                timestep = float(grid[flow.nearest_grid_index(grid, wanted)])
                rows.append({"step": step, "timestep": timestep, **self._row(model, timestep)})
        model.train()
        return rows

    def _row(self, model: nn.Module, timestep: float) -> dict[str, float | int]:
        own = [
            (number, self._errors(model, batch, timestep).double().tolist())
            for number, batch in self.batches
        ]
        found = sorted(itertools.chain(*self.gather(own)))
        variants = [
            list(itertools.chain(*(errors[variant] for _, errors in found))) for variant in range(3)
        ]
        n = len(variants[0])
        mse, uncond, nulltext = (math.fsum(errors) / n for errors in variants)
        return {
            "mse": mse,
            "mse_uncond": uncond,
            "mse_nulltext": nulltext,
            "gap_uncond": uncond - mse,
            "gap_nulltext": nulltext - mse,
            "n": n,
        }

    def _errors(self, model: nn.Module, batch: Batch, timestep: float) -> Tensor:
        """Squared errors [3, B]: conditioned, every id unknown, every prompt empty."""
        noise = self._noise(batch).to(batch.latents.device)
        clean = batch.latents.float()
        times = torch.full((len(batch),), timestep, device=clean.device)
        noisy = flow.add_noise(clean, noise, times[:, None, None, None, None])
        inputs, per_frame = flow.condition_first_frame(noisy, clean, times)
        target = flow.velocity(clean, noise)
        variants = (batch, _unconditioned(batch), null_text(batch, self.table))
        return torch.stack(
            [
                flow.squared_error(predict(model, inputs, per_frame, variant).prediction, target)
                for variant in variants
            ]
        )

    def _noise(self, batch: Batch) -> Tensor:
        generator = torch.Generator("cpu")
        noises = []
        for index in batch.indices:
            generator.manual_seed(torch_seed(self.seed, "validation", index))
            noises.append(torch.randn(batch.latents.shape[1:], generator=generator))
        return torch.stack(noises)


def validation_batches(
    clips: ClipDataset,
    n: int,
    micro_batch: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
) -> list[tuple[int, Batch]]:
    """This process's part of the first `n` validation clips, round-robin over their runs.

    Returns:
        Every `world_size`-th batch with its number, on `device`; only its own clips are read.
    """
    chosen = clips.round_robin(n, "validation.n")
    starts = range(0, len(chosen), micro_batch)
    return [
        (
            number,
            _read(clips, chosen[starts[number] : starts[number] + micro_batch]).to(
                device, torch.float32
            ),
        )
        for number in range(rank, len(starts), world_size)
    ]


def _read(clips: ClipDataset, chosen: Sequence[int]) -> Batch:
    return collate([clips.sample(0, index) for index in chosen], clips.table)


def _unconditioned(batch: Batch) -> Batch:
    return replace(batch, sem_ids=torch.full_like(batch.sem_ids, UNKNOWN))


def null_text(batch: Batch, table: TextTable) -> Batch:
    """The batch with the empty prompt in every latent frame."""
    row = table.key_to_id[NULL_PROMPT]
    return replace(
        batch,
        prompts=table.embeddings[row : row + 1].to(batch.prompts),
        prompt_lengths=table.lengths[row : row + 1].to(batch.prompt_lengths.device),
        context_ids=torch.zeros_like(batch.context_ids),
    )
