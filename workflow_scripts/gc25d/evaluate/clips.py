"""Chosen validation clips → sampled clips with their scores, in batches."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gc25d.dataset.batch import collate
from gc25d.dataset.clips import ClipDataset, Sample
from gc25d.errors import UserError
from gc25d.evaluate.metrics import ClipScores, score_clip
from gc25d.evaluate.truth import recorded_frames
from gc25d.finite import check_finite
from gc25d.model.wan.causal import CausalWanModel
from gc25d.prep.encoders.dct import Codec
from gc25d.prep.parts import UNKNOWN
from gc25d.prep.text import TextTable
from gc25d.sampling.rollout import roll_out, rollout_steps
from gc25d.sampling.sample import Conditions, Plan, VelocityModel, sample, starting_noise
from gc25d.shapes import Latents, RgbFrames, SemIds

BATCH_TOKENS = 8192
"""Clips are sampled together as long as they have no more tokens than this in all."""

_REMEDY = "lower evaluation.cfg and evaluation.sem_cfg, or look at the training's curves"

SemMode = Literal["cond", "unknown"]


@dataclass(frozen=True)
class EvaluatedClip:
    """A sampled clip beside the recorded one.

    `sem_ids` are those that the model was given. `ceiling` scores the codec alone: the data set's
    own latents, decoded.
    """

    clip_id: str
    fps: float
    truth: RgbFrames
    generated: RgbFrames
    sem_ids: SemIds
    scores: ClipScores
    ceiling: ClipScores
    sampling_s: float
    """Seconds of sampling, this clip's share of its batch."""


def choose_clips(dataset: ClipDataset, named: Sequence[str], n: int) -> list[str]:
    """The named clips, each once, or else `n`, round-robin over the runs.

    Raises:
        UserError: a named clip does not exist (close names are given), or there are fewer than `n`.
    """
    if not named:
        return [dataset.rows[index].clip_id for index in dataset.round_robin(n, "evaluation.n")]
    return [dataset.clip(clip_id).clip_id for clip_id in dict.fromkeys(named)]


def batches(clip_ids: Sequence[str], tokens: int) -> list[list[str]]:
    """The clips in groups of at most `BATCH_TOKENS` tokens, at least one clip a group."""
    size = max(1, BATCH_TOKENS // tokens)
    return [list(clip_ids[i : i + size]) for i in range(0, len(clip_ids), size)]


@dataclass(frozen=True)
class Evaluator:
    """All that is fixed while clips are evaluated."""

    model: VelocityModel
    codec: Codec
    dataset: ClipDataset
    raw_root: Path
    plan: Plan
    sem_mode: SemMode
    seed: int
    device: torch.device
    threads: int
    """Threads that score frames."""

    def run(
        self, clip_ids: Sequence[str], progress: Callable[[str], None]
    ) -> Iterator[EvaluatedClip]:
        """Sample, decode and score the clips, one after another in the order given.

        Raises:
            UserError: a clip's files are damaged or missing, its sampled latents or decoded frames
                are not finite, or its frames cannot be scored.
        """
        _, height, width = self.dataset.shape
        frames = (self.dataset.shape[0] - 1) // 4 + 1
        groups = batches(clip_ids, frames * (height // 32) * (width // 32))
        for number, group in enumerate(groups, start=1):
            samples = [self.dataset.clip(clip_id) for clip_id in group]
            started = time.perf_counter()
            generated = self._sample(samples, f"batch {number}/{len(groups)}", progress)
            seconds = (time.perf_counter() - started) / len(group)
            for given, latents in zip(samples, generated, strict=True):
                check_finite(latents, f"clip {given.clip_id}: sampled latents", _REMEDY)
                yield self._evaluate(given, latents, seconds)

    def _sample(
        self, samples: Sequence[Sample], title: str, progress: Callable[[str], None]
    ) -> Latents:
        shape = samples[0].input_latents.shape
        model, steps = self.model, self.plan.steps
        if isinstance(model, CausalWanModel):
            steps = rollout_steps(model, shape[1], self.plan)

        def report(done: int) -> None:
            if done % max(1, steps // 10) == 0:
                progress(f"{title}: step {done}/{steps}")

        given = conditions_of(samples, self.dataset.table, self.sem_mode, self.device)
        noise = starting_noise(self.seed, [s.clip_id for s in samples], shape).to(self.device)
        if isinstance(model, CausalWanModel):
            return roll_out(model, given, noise, self.plan, progress=report).cpu()
        return sample(model, given, noise, self.plan, progress=report).cpu()

    def _evaluate(self, given: Sample, latents: Tensor, seconds: float) -> EvaluatedClip:
        truth, fps = recorded_frames(self.raw_root, given.clip_id, self.dataset.shape)
        generated = self._decode(latents, f"clip {given.clip_id}, sampled")
        decoded = self._decode(given.input_latents, f"clip {given.clip_id}, as prepared")
        return EvaluatedClip(
            clip_id=given.clip_id,
            fps=fps,
            truth=truth,
            generated=generated,
            sem_ids=_sem_ids(given, self.sem_mode).numpy(),
            scores=score_clip(generated, truth, given.clip_id, threads=self.threads),
            ceiling=score_clip(decoded, truth, given.clip_id, threads=self.threads),
            sampling_s=seconds,
        )

    def _decode(self, latents: Tensor, what: str) -> RgbFrames:
        try:
            return self.codec.decode(latents)
        except UserError as error:
            raise UserError(f"{what}: {error}") from None


def conditions_of(
    samples: Sequence[Sample], table: TextTable, sem_mode: SemMode, device: torch.device
) -> Conditions:
    """What the model is given of the clips; the empty prompt stands behind their own prompts.

    Prompt lengths stay on the CPU, where the model reads them to leave padding out.
    """
    batch = collate(samples, table)
    null = table.null_id
    prompts = torch.cat([batch.prompts, table.embeddings[null : null + 1]])
    return Conditions(
        first=batch.latents[:, :, :1].to(device, torch.float32),
        prompts=prompts.to(device, torch.float32),
        prompt_lengths=torch.cat([batch.prompt_lengths, table.lengths[null : null + 1]]),
        context_ids=batch.context_ids.to(device),
        null_prompt=len(batch.prompts),
        sem_ids=torch.stack([_sem_ids(s, sem_mode) for s in samples]).to(device),
        actions=batch.actions and batch.actions.to(device, torch.float32),
    )


def _sem_ids(given: Sample, sem_mode: SemMode) -> Tensor:
    return given.sem_ids if sem_mode == "cond" else torch.full_like(given.sem_ids, UNKNOWN)
