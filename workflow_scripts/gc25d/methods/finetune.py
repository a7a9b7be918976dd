"""`finetune`: supervised flow matching with a clean first frame; the gc25d SFT is this on `wan`."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch
from gc25d.dataset.draws import torch_seed
from gc25d.methods import flow
from gc25d.methods.base import TOTAL_LOSS, LossMap, Metrics, Outputs, TrainingMethod
from gc25d.model.names import CONDITION_PREFIX

ROLE = "student"
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then constant rates."""

    lr: float = 1e-5
    cond_lr: float = 1e-4
    weight_decay: float = 0.01
    warmup_steps: int = 500


class FinetuneMethod(TrainingMethod):
    """Flow-matching loss of one model (gc25d/methods/flow.py has its formulas)."""

    def __init__(
        self, model: nn.Module, *, seed: int, optimizer: OptimizerConfig | None = None
    ) -> None:
        super().__init__(seed)
        config = optimizer or OptimizerConfig()
        self.model = model
        self.optimizer: Optimizer = AdamW(parameter_groups(model, config), betas=BETAS)
        self.scheduler = LambdaLR(
            self.optimizer, lambda step: flow.warmup_factor(step, config.warmup_steps)
        )
        self.grid = flow.training_grid()
        self.weights = flow.training_weights(self.grid)

    @property
    def roles(self) -> dict[str, nn.Module]:
        """One trainable role."""
        return {ROLE: self.model}

    def replace_role(self, role: str, model: nn.Module, optimizer: Optimizer) -> None:
        """Put the engine's wrapped model and optimizer in place of the role's own."""
        self.model, self.optimizer = model, optimizer

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """The one AdamW."""
        return [self.optimizer]

    def get_lr_schedulers(self, iteration: int) -> list[LambdaLR]:
        """The one warm-up."""
        return [self.scheduler]

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Noise each sample at its own timestep, predict the velocity, weigh the squared error."""
        index, noise = self.draw(batch)
        timestep = self.grid[index].to(batch.latents.device)
        weight = self.weights[index].to(batch.latents.device)
        clean = batch.latents.float()
        noisy = flow.add_noise(clean, noise, timestep[:, None, None, None, None])
        inputs, per_frame = flow.condition_first_frame(noisy, clean, timestep)
        output = self.model(
            inputs,
            per_frame,
            batch.prompts,
            batch.prompt_lengths,
            batch.context_ids,
            batch.sem_ids,
        )
        error = flow.squared_error(output.prediction, flow.velocity(clean, noise))
        loss = (weight * error).mean()
        metrics = {
            "loss": loss.detach(),
            "mse": error.detach().mean(),
            "timestep": timestep.mean(),
            **output.stats,
        }
        return {TOTAL_LOSS: loss}, {"prediction": output.prediction}, metrics

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Grid index [B] and noise (as the latents, float32) of each sample.

        A pure function of (seed, epoch, index): the same on any rank, device and batch.
        """
        indices, noises = [], []
        for epoch, index in zip(batch.epochs, batch.indices, strict=True):
            self.generator.manual_seed(torch_seed(self.seed, "diffusion", epoch, index))
            indices.append(torch.randint(flow.GRID_POINTS, (), generator=self.generator))
            noises.append(torch.randn(batch.latents.shape[1:], generator=self.generator))
        return torch.stack(indices), torch.stack(noises).to(batch.latents.device)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    """The transformer at `lr`, then the semantic condition (if any) at `cond_lr`."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    base = [p for n, p in trainable if not n.startswith(CONDITION_PREFIX)]
    condition = [p for n, p in trainable if n.startswith(CONDITION_PREFIX)]
    groups = [{"params": base, "lr": config.lr, "name": "dit"}]
    if condition:
        groups.append({"params": condition, "lr": config.cond_lr, "name": "gc_sem_cond"})
    return [{**group, "weight_decay": config.weight_decay} for group in groups]
