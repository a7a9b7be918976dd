"""`dfsft`: diffusion forcing, supervised flow matching of a model that attends by chunks.

Every chunk of latent frames has a noise level of its own (Chen et al., "Diffusion Forcing",
arXiv:2407.01392, by chunk as in CausVid, arXiv:2412.07772): the model learns to continue frames
that are less noisy, clean ones in particular.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch, Draws
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import STUDENT, OptimizerConfig, trainable_role
from gc25d.sampling import flow
from gc25d.sampling.predict import predict


class DfsftMethod(TrainingMethod):
    """One timestep a chunk; loss = mean over frames f ≥ 1 of w(t_f)·mean((v̂_f − (ε_f − x0_f))²).

    Frame 0 is the clean first frame (TI2V): timestep 0, no loss. It belongs to chunk 0.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int,
        chunk_frames: int,
        optimizer: OptimizerConfig | None = None,
        base_path: str = "",
    ) -> None:
        role = trainable_role(model, optimizer or OptimizerConfig(), base_path)
        super().__init__(seed, {STUDENT: role})
        self.chunk_frames = chunk_frames
        self.grid = flow.training_grid()
        self.weights = flow.training_weights(self.grid)

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Noise each chunk at its own timestep, predict, weigh each frame's squared error."""
        index, noise = self.draw(batch)
        timestep = self.grid[index].to(batch.latents.device, non_blocking=True)
        weight = self.weights[index].to(batch.latents.device, non_blocking=True)
        clean = batch.latents.float()
        noisy = flow.add_noise(clean, noise, timestep[:, None, :, None, None])
        inputs, per_frame = flow.clean_first_frame(noisy, clean, timestep)
        output = predict(self.roles[STUDENT], inputs, per_frame, batch)
        error = flow.frame_errors(output.prediction, flow.velocity(clean, noise))
        loss = (weight[:, 1:] * error).mean()
        metrics = {
            "loss": loss.detach(),
            "mse": error.detach().mean(),
            "timestep": timestep[:, 1:].mean(),
            **output.stats,
        }
        return {TOTAL_LOSS: loss}, {"prediction": output.prediction}, metrics

    def draw_ahead(self, batch: Batch) -> Batch:
        """The batch with its timesteps and noise drawn."""
        return replace(batch, draws=self.drawn(batch))

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Grid index of each frame [B, F], equal within a chunk, and noise (float32) as latents."""
        draws = batch.draws or self.drawn(batch)
        return draws.index, draws.noise.to(batch.latents.device, non_blocking=True)

    def drawn(self, batch: Batch) -> Draws:
        """A pure function of (seed, epoch, index): the same on any rank, device and batch."""
        frames = batch.latents.shape[2]
        chunks = -(-frames // self.chunk_frames)
        indices, noises = [], []
        for epoch, index in zip(batch.epochs, batch.indices, strict=True):
            generator = self.fresh_generator("diffusion", epoch, index)
            drawn = torch.randint(flow.GRID_POINTS, (chunks,), generator=generator)
            indices.append(drawn.repeat_interleave(self.chunk_frames)[:frames])
            noises.append(torch.randn(batch.latents.shape[1:], generator=generator))
        return Draws(torch.stack(indices), torch.stack(noises))
