"""Our model under its training method, as the benchmarks run it."""

from collections.abc import Callable

import torch

from bench.common.micro import Size, choose_kernels, fill_model, per_frame
from gc25d.dataset.batch import Batch
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.execution import compile_blocks, set_recompute
from gc25d.model.memory import Recompute
from gc25d.model.wan.transformer import WanModel


class Ours:
    """`WanModel` under the `finetune` method, parameters and gradients in bf16."""

    def __init__(self, size: Size, device: torch.device) -> None:
        """The method, which wants fp32 masters, is built first; then bf16 takes their place.

        So does ZeRO-2: the masters live in its optimizer, and forward and backward see bf16.
        """
        with torch.device("meta"):
            self.model = WanModel(size.config)
        self.method = FinetuneMethod(self.model, seed=0)
        fill_model(self.model, device, torch.bfloat16)

    def compile(self) -> None:
        """Compile each block, as training does."""
        compile_blocks(self.model)

    def mode(
        self, recompute: Recompute = "none", *, deterministic: bool = False
    ) -> Callable[[], None]:
        """Set which blocks compute their activations again in the backward pass, and kernels."""

        def prepare() -> None:
            choose_kernels(deterministic=deterministic)
            set_recompute(self.model, recompute)

        return prepare

    def train(self, batch: Batch) -> Callable[[], None]:
        """One micro-batch, forward and backward; its draws are made ahead, as the feed does."""
        drawn = self.method.draw_ahead(batch).to(batch.latents.device, batch.latents.dtype)

        def run() -> None:
            losses, outputs, _ = self.method.single_train_step(drawn, 0)
            self.method.backward(losses, outputs, 1)

        return run

    def sample(self, batch: Batch) -> Callable[[], None]:
        """One forward pass of sampling."""
        timestep = per_frame(batch)

        @torch.inference_mode()
        def run() -> None:
            self.model(
                batch.latents,
                timestep,
                batch.prompts,
                batch.prompt_lengths,
                batch.context_ids,
                batch.sem_ids,
            )

        return run
