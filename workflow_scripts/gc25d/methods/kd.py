"""`kd`: knowledge distillation by regression to cached teacher paths.

Luhman and Luhman, "Knowledge Distillation in Iterative Generative Models" (arXiv:2101.02388), with
CausVid's choice of points (arXiv:2412.07772, section 4.3): from any point of the teacher's path at
the student's noise levels, the student is to see the path's end.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, OptimizerConfig, trainable_role
from gc25d.sampling import flow
from gc25d.sampling.predict import predict


class PathSource(Protocol):
    """Where paths come from: an `OdeCache`, or anything that reads like one."""

    def read(self, index: int) -> Tensor:
        """The path of training clip `index`, [K + 1, C, F, h, w]; its last point is the end."""
        ...


class KdMethod(TrainingMethod):
    """Loss = mean over frames f ≥ 1 of (x̂0 − x_end)², x̂0 = x_k − σ_k·v̂(x_k, σ_k).

    The level k is drawn for each sample; with `chunk_frames`, for each chunk (causal students).
    """

    def __init__(
        self,
        model: nn.Module,
        paths: PathSource,
        timesteps: Tensor,
        *,
        seed: int,
        chunk_frames: int | None = None,
        optimizer: OptimizerConfig | None = None,
        base_path: str = "",
    ) -> None:
        """Take the paths of all training clips and the timesteps [K] of their points."""
        role = trainable_role(model, optimizer or OptimizerConfig(), base_path)
        super().__init__(seed, {STUDENT: role})
        self.paths, self.timesteps, self.chunk_frames = paths, timesteps, chunk_frames

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Take each sample's path at a drawn level and regress its end."""
        levels = self.draw(batch).to(batch.latents.device)
        points, end = self._paths(batch, levels)
        timestep = self.timesteps.to(levels.device)[levels]
        inputs, per_frame = flow.clean_first_frame(points, batch.latents.float(), timestep)
        output = predict(self.roles[STUDENT], inputs, per_frame, batch)
        across = per_frame[:, None, :, None, None]
        estimate = flow.clean_estimate(inputs, output.prediction, across)
        loss = flow.squared_error(estimate, end).mean()
        metrics = {
            "loss": loss.detach(),
            "mse": loss.detach(),
            "timestep": timestep[:, 1:].mean(),
            **output.stats,
        }
        return {TOTAL_LOSS: loss}, {"prediction": output.prediction}, metrics

    def draw(self, batch: Batch) -> Tensor:
        """Level k of each frame, int64 [B, F], from (seed, epoch, index)."""
        frames = batch.latents.shape[2]
        size = self.chunk_frames or frames
        levels = []
        for epoch, index in zip(batch.epochs, batch.indices, strict=True):
            generator = self.sample_generator("path level", epoch, index)
            drawn = torch.randint(len(self.timesteps), (-(-frames // size),), generator=generator)
            levels.append(drawn.repeat_interleave(size)[:frames])
        return torch.stack(levels)

    def _paths(self, batch: Batch, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Each frame at its level, and the path's end: float32 [B, C, F, h, w] both."""
        stored = torch.stack([self.paths.read(index) for index in batch.indices])
        paths = stored.to(batch.latents.device).float()
        chosen = levels[:, None, None, :, None, None].expand(-1, -1, *paths.shape[2:])
        return paths.gather(1, chosen).squeeze(1), paths[:, -1]
