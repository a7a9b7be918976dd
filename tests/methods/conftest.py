"""Networks small enough to work out by hand, and batches for them."""

import pytest
import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.model.config import WanConfig
from gc25d.model.interface import ModelOutput
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.wan.transformer import WanModel
from gc25d.model.zoo import build_model

CHANNELS, FRAMES = 2, 3


class Toy(nn.Module):
    """v = a·x + b·(mean of the frame's prompt) + c·(first id is unknown)."""

    def __init__(self, a: float, b: float = 0.0, c: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))
        self.b, self.c = b, c
        self.calls: list[tuple[Tensor, Tensor, bool]] = []

    def forward(
        self,
        latents: Tensor,
        timestep: Tensor,
        prompts: Tensor,
        prompt_lengths: Tensor,
        context_ids: Tensor,
        sem_ids: Tensor,
    ) -> ModelOutput:
        self.calls.append((latents.detach(), timestep, torch.is_grad_enabled()))
        text = prompts.mean((1, 2))[context_ids][:, None, :, None, None]
        unknown = (sem_ids[:, 0, 0, 0] == 255).float()[:, None, None, None, None]
        zero = torch.zeros(())
        prediction = self.a * latents + self.b * text + self.c * unknown
        return ModelOutput(prediction, {"x_rms": zero, "sem_rms": zero})


@pytest.fixture(scope="session")
def toy():
    """Builds a network from its three coefficients."""
    return Toy


@pytest.fixture(scope="session")
def toy_batch():
    """Builds a batch of the samples with these indices."""
    return _toy_batch


def _toy_batch(indices: list[int], epoch: int = 0) -> Batch:
    n = len(indices)
    latents = [
        torch.randn(CHANNELS, FRAMES, 2, 2, generator=torch.Generator().manual_seed(i))
        for i in indices
    ]
    return Batch(
        latents=torch.stack(latents),
        prompts=torch.tensor([[[2.0, 4.0]], [[0.0, 0.0]]]),
        prompt_lengths=torch.tensor([1, 0]),
        context_ids=torch.tensor([[0, 0, 1]] * n),
        sem_ids=torch.zeros(n, 9, 32, 32, dtype=torch.uint8),
        clip_ids=[f"clip{i}" for i in indices],
        epochs=[epoch] * n,
        indices=indices,
        dropped=[{"text": False, "cond": False, "mask": 0.0}] * n,
    )


SMALL = WanConfig(
    dim=48,
    ffn_dim=32,
    num_heads=2,
    num_layers=2,
    text_dim=20,
    vocab="parts",
    cond_dim=16,
    in_channels=8,
    out_channels=8,
    freq_dim=16,
)


@pytest.fixture
def causal():
    """Builds a small block-causal transformer whose output layers are not zero."""

    def build(chunk_frames: int, seed: int = 1) -> CausalWanModel:
        model = CausalWanModel(SMALL, chunk_frames)
        model.load_state_dict(small_model(seed).state_dict())
        return model

    return build


def small_model(seed: int) -> WanModel:
    model = build_model(SMALL, seed, zero_head=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.gc_sem_cond.proj_out.weight.normal_(std=0.1, generator=generator)
    return model


@pytest.fixture
def bidirectional():
    """Builds a small bidirectional transformer with the weights of `causal`."""
    return lambda seed=1: small_model(seed)


@pytest.fixture(scope="session")
def clips_batch():
    """Builds a batch of 5-frame clips for these networks."""

    def build(indices: list[int], epoch: int = 0) -> Batch:
        n, generator = len(indices), torch.Generator().manual_seed(0)
        prompts = torch.zeros(3, 12, 20)
        for row, length in enumerate((4, 12)):
            prompts[row, :length] = torch.randn(length, 20, generator=generator)
        drawn = [torch.Generator().manual_seed(i) for i in indices]
        return Batch(
            latents=torch.stack([torch.randn(8, 5, 2, 4, generator=g) for g in drawn]),
            prompts=prompts,
            prompt_lengths=torch.tensor([4, 12, 0]),
            context_ids=torch.tensor([[0, 0, 1, 2, 1]] * n),
            sem_ids=torch.stack(
                [torch.randint(0, 7, (17, 32, 64), generator=g).to(torch.uint8) for g in drawn]
            ),
            clip_ids=[f"clip{i}" for i in indices],
            epochs=[epoch] * n,
            indices=indices,
            dropped=[{"text": False, "cond": False, "mask": 0.0}] * n,
        )

    return build
