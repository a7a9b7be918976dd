"""`dmd2`: a few-step bidirectional student (gc25d/methods/distill.py has the losses)."""

import torch

from gc25d.dataset.batch import Batch
from gc25d.methods.distill import DistillMethod, Rollout
from gc25d.methods.roles import STUDENT
from gc25d.sampling import flow
from gc25d.sampling.predict import predict


class Dmd2Method(DistillMethod):
    """The student's inputs are those it will meet when sampling (DMD2, section 4.5).

    From pure noise it denoises and is noised again, level by level, down to a level drawn for the
    step; the last estimate is the sample, and the gradient goes through that pass alone.
    """

    def roll_out(self, batch: Batch, iteration: int) -> Rollout:
        """x_k = (1 − σ_k)·x̂0 + σ_k·ε_k from σ_0 = 1 on; x0 is the estimate at the exit level."""
        (leave,) = self.draw_exits(iteration, 1)
        noises = self.draw_noises(batch)
        given = batch.latents.float()
        enabled = torch.is_grad_enabled()
        made, stats = given, {}
        for step in range(leave + 1):
            timestep = self.denoising_timesteps[step].to(given.device).expand(len(batch))
            noisy = flow.add_noise(made, noises[step], timestep[:, None, None, None, None])
            inputs, per_frame = flow.condition_first_frame(noisy, given, timestep)
            with torch.set_grad_enabled(enabled and step == leave):
                output = predict(self.roles[STUDENT], inputs, per_frame, batch)
                made = flow.clean_estimate(
                    inputs, output.prediction, per_frame[:, None, :, None, None]
                )
            stats = dict(output.stats)
        return Rollout(made, stats)
