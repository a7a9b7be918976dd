"""Faster stand-ins for two kinds of layers in diffusers' `AutoencoderKLWan`, same mathematics.

The library normalises in some eight passes over memory and pads each convolution's input in a
copy. Here a norm is one kernel (reading channels-last memory as it lies) and the convolution pads
the picture by itself; only the frames before a pass are joined in front. On activations of
gigabytes these passes are a large part of an encode.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_NO_DIVISION_BY_ZERO = 1e-24  # the library clamps the length of a vector to 1e-12


class ChannelNorm(nn.Module):
    """Each position's channels [B, C, …] scaled to a root mean square of `gamma`."""

    def __init__(self, gamma: Tensor) -> None:
        super().__init__()
        self.gamma = nn.Parameter(gamma.detach().flatten(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape; sums in fp32 whatever the type of `x`."""
        shape = self.gamma.shape
        last = F.rms_norm(x.movedim(1, -1), shape, self.gamma, _NO_DIVISION_BY_ZERO)
        return last.movedim(-1, 1)


class CausalConv(nn.Module):
    """3-D convolution that sees no later frame: zeros, or the frames of `cache`, stand before."""

    def __init__(self, conv: nn.Conv3d, before: int, sides: tuple[int, int]) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.stride = conv.stride
        self.before = before
        self.padding = (0, *sides)

    def forward(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        """[B, C, T, H, W] → [B, C', T', H', W']; `cache_x` has at most `before` frames."""
        if self.before:
            parts = [x] if cache_x is None else [cache_x, x]
            missing = self.before - (0 if cache_x is None else cache_x.shape[2])
            if missing:
                parts = [x.new_zeros(()).expand_as(x[:, :, :1])] * missing + parts
            x = torch.cat(parts, dim=2)
        return F.conv3d(x, self.weight, self.bias, self.stride, self.padding)


def use_fast_layers(model: Any) -> None:
    """Replace the norms and causal convolutions below `model` in place; weights are shared."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm

    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, WanRMS_norm):
                setattr(parent, name, ChannelNorm(layer.gamma))
            elif isinstance(layer, WanCausalConv3d):
                across, _, down, _, before, _ = layer._padding
                setattr(parent, name, CausalConv(layer, before, (down, across)))


def use_channels_last(model: nn.Module) -> None:
    """Lay the weights of 2-D and 3-D convolutions out channels-last, in place.

    Tensor cores read this layout directly; activations follow their convolution's weights.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in model.parameters():
        if layout := formats.get(parameter.dim()):
            parameter.data = parameter.data.contiguous(memory_format=layout)
