"""`self_forcing`: distribution matching of a causal student on its own roll-outs.

Huang et al., "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion"
(arXiv:2506.08009), algorithm 1: a clip is made chunk by chunk on a cache of keys and values of the
chunks before, as it is when the model is used. gc25d/methods/distill.py has the losses.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.methods.distill import DistillConfig, DistillMethod, Rollout
from gc25d.methods.roles import OptimizerConfig
from gc25d.model.interface import ModelOutput
from gc25d.model.semantic import video_frames
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.wan.kv_cache import KvCache
from gc25d.sampling import flow


@dataclass(frozen=True)
class _Chunk:
    """Consecutive latent frames of a batch."""

    batch: Batch
    start: int
    stop: int

    @property
    def given(self) -> Tensor:
        """The real latents of these frames, float32 [B, C, f, h, w]."""
        return self.batch.latents[:, :, self.start : self.stop].float()

    def timesteps(self, timestep: Tensor) -> Tensor:
        """One timestep for all frames [B, f], but 0 for the clip's clean first frame."""
        count = self.stop - self.start
        per_frame = timestep.to(self.batch.latents.device).expand(len(self.batch), count).clone()
        if self.start == 0:
            per_frame[:, 0] = 0
        return per_frame

    def with_given_frame(self, latents: Tensor) -> Tensor:
        """The latents of these frames with the clip's first frame, if among them, clean."""
        if self.start > 0:
            return latents
        return torch.cat([self.given[:, :, :1], latents[:, :, 1:]], dim=2)


class SelfForcingMethod(DistillMethod):
    """In each chunk the student denoises down to a level drawn for the step and this chunk.

    Gradients go through that pass of each chunk; earlier passes and the cache carry none. A
    finished chunk enters the cache by one more pass, clean and at timestep 0.
    """

    def __init__(
        self,
        student: CausalWanModel,
        teacher: nn.Module,
        critic: nn.Module,
        *,
        seed: int,
        config: DistillConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        critic_optimizer: OptimizerConfig | None = None,
        base_paths: tuple[str, str] = ("", ""),
    ) -> None:
        super().__init__(
            student,
            teacher,
            critic,
            seed=seed,
            config=config,
            optimizer=optimizer,
            critic_optimizer=critic_optimizer,
            base_paths=base_paths,
        )
        # An engine's wrapper has no `forward_chunk`; the module inside is this very one.
        self.causal = student

    def roll_out(self, batch: Batch, iteration: int) -> Rollout:
        """Sample all chunks of the clips, one after another."""
        frames, size = batch.latents.shape[2], self.causal.chunk_frames
        chunks = [_Chunk(batch, i, min(i + size, frames)) for i in range(0, frames, size)]
        exits = self.draw_exits(iteration, len(chunks))
        noises = self.draw_noises(batch)
        made = []
        with self.autocast():
            cache = self.causal.new_cache(len(batch), (frames, *batch.latents.shape[3:]))
            for chunk, leave in zip(chunks, exits, strict=True):
                part, stats = self._sample_chunk(chunk, leave, noises, cache)
                made.append(part)
                if chunk.stop < frames:
                    self._remember(chunk, part.detach(), cache)
        return Rollout(torch.cat(made, dim=2), stats)

    def _sample_chunk(
        self, chunk: _Chunk, leave: int, noises: Tensor, cache: KvCache
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """x̂0 of a chunk at denoising step `leave`, float32 [B, C, f, h, w]; reads the cache."""
        enabled = torch.is_grad_enabled()
        made = chunk.given
        stats: Mapping[str, Tensor] = {}
        for step in range(leave + 1):
            with torch.set_grad_enabled(enabled and step == leave):
                noise = noises[step][:, :, chunk.start : chunk.stop]
                made, stats = self._estimate(chunk, made, step, noise, cache)
        return made, stats

    def _remember(self, chunk: _Chunk, made: Tensor, cache: KvCache) -> None:
        """Add finished frames to the cache."""
        with torch.no_grad():
            self._forward(chunk, made, chunk.timesteps(torch.zeros(())), cache, write=True)

    def _estimate(
        self, chunk: _Chunk, before: Tensor, step: int, noise: Tensor, cache: KvCache
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Noise the estimate before to the level of `step` and denoise it."""
        timestep = self.denoising_timesteps[step].to(before.device)
        noisy = chunk.with_given_frame(flow.add_noise(before, noise, timestep))
        per_frame = chunk.timesteps(timestep)
        output = self._forward(chunk, noisy, per_frame, cache, write=False)
        across = per_frame[:, None, :, None, None]
        return flow.clean_estimate(noisy, output.prediction, across), output.stats

    def _forward(
        self, chunk: _Chunk, latents: Tensor, timestep: Tensor, cache: KvCache, *, write: bool
    ) -> ModelOutput:
        batch, start, stop = chunk.batch, chunk.start, chunk.stop
        return self.causal.forward_chunk(
            latents,
            timestep,
            batch.prompts,
            batch.prompt_lengths,
            batch.context_ids[:, start:stop],
            batch.sem_ids[:, video_frames(start, stop - start)],
            cache,
            write=write,
        )
