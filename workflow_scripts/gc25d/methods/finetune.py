"""`finetune`: supervised flow matching with a clean first frame; the gc25d SFT is this on `wan`."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gc25d.dataset.batch import Batch, Draws
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, OptimizerConfig, Role, trainable_role
from gc25d.sampling import flow
from gc25d.sampling.predict import predict


class FinetuneMethod(TrainingMethod):
    """Flow-matching loss of one model (gc25d/sampling/flow.py has its formulas)."""

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int,
        optimizer: OptimizerConfig | None = None,
        base_path: str = "",
    ) -> None:
        role = trainable_role(model, optimizer or OptimizerConfig(), base_path)
        super().__init__(seed, {STUDENT: role})
        self.grid = flow.training_grid()
        self.weights = flow.training_weights(self.grid)

    @property
    def student(self) -> Role:
        """The one role, trainable."""
        return self.all_roles[STUDENT]

    @property
    def model(self) -> nn.Module:
        """The student's network."""
        return self.student.model

    @property
    def optimizer(self) -> Optimizer:
        """The student's AdamW."""
        return self.get_optimizers(0)[0]

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Noise each sample at its own timestep, predict the velocity, weigh the squared error."""
        index, noise = self.draw(batch)
        chosen = torch.stack([self.grid[index], self.weights[index]])
        timestep, weight = chosen.to(batch.latents.device, non_blocking=True)
        clean = batch.latents.float()
        noisy = flow.add_noise(clean, noise, timestep[:, None, None, None, None])
        inputs, per_frame = flow.condition_first_frame(noisy, clean, timestep)
        output = predict(self.model, inputs, per_frame, batch)
        error = flow.squared_error(output.prediction, flow.velocity(clean, noise))
        loss = (weight * error).mean()
        metrics = {
            "loss": loss.detach(),
            "mse": error.detach().mean(),
            "timestep": timestep.mean(),
            **output.stats,
        }
        return {TOTAL_LOSS: loss}, {"prediction": output.prediction}, metrics

    def draw_ahead(self, batch: Batch) -> Batch:
        """The batch with its timesteps and noise drawn."""
        return replace(batch, draws=self.drawn(batch))

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Grid index [B] on the CPU and noise (as the latents, float32) of each sample."""
        draws = batch.draws or self.drawn(batch)
        return draws.index, draws.noise.to(batch.latents.device, non_blocking=True)

    def drawn(self, batch: Batch) -> Draws:
        """A pure function of (seed, epoch, index): the same on any rank, device and batch."""
        indices, noises = [], []
        for epoch, index in zip(batch.epochs, batch.indices, strict=True):
            generator = self.fresh_generator("diffusion", epoch, index)
            indices.append(torch.randint(flow.GRID_POINTS, (), generator=generator))
            noises.append(torch.randn(batch.latents.shape[1:], generator=generator))
        return Draws(torch.stack(indices), torch.stack(noises))
