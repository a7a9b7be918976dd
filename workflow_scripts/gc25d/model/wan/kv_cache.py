"""Keys and values of a video's past frames, so that later frames need not compute them again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gc25d.model.attention import attend


@dataclass(eq=False)
class PastView:
    """New tokens see those of the past and each other; their keys and values are noted.

    Concatenation copies, so that a backward pass does not depend on what the cache holds by then,
    unless it computes the block again: then the cached frames must still be there.
    """

    past_key: Tensor
    """[B, M, heads, d], already rotated."""
    past_value: Tensor
    """[B, M, heads, d]."""
    key: Tensor | None = None
    """What `attend` was given last, detached."""
    value: Tensor | None = None
    """What `attend` was given last, detached."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, N, heads, d] each, queries and keys rotated → [B, N, heads · d]."""
        self.key, self.value = key.detach(), value.detach()
        seen_keys = torch.cat([self.past_key.to(key.dtype), key], dim=1)
        seen_values = torch.cat([self.past_value.to(value.dtype), value], dim=1)
        return attend(query, seen_keys, seen_values)


class KvCache:
    """Self-attention's keys and values of the first frames of B videos, for every block.

    Room for the whole videos is allocated at once. Nothing in it requires gradients.
    """

    def __init__(
        self,
        blocks: int,
        shape: tuple[int, int, int, int, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Allocate an empty cache.

        Args:
            blocks: transformer blocks.
            shape: (videos B, latent frames, tokens of a frame, heads, width of a head).
            device: of the model.
            dtype: of the keys and values, as attention gets them.
        """
        batch, self.capacity, self.frame_tokens, *head = shape
        room = (batch, self.capacity * self.frame_tokens, *head)
        self._keys = [torch.zeros(room, device=device, dtype=dtype) for _ in range(blocks)]
        self._values = [torch.zeros(room, device=device, dtype=dtype) for _ in range(blocks)]
        self.frames = 0
        """Latent frames held, the position of the next one."""

    def views(self) -> list[PastView]:
        """What each block's new tokens see; `append` takes them after the forward pass."""
        past = slice(0, self.frames * self.frame_tokens)
        pairs = zip(self._keys, self._values, strict=True)
        return [PastView(key[:, past], value[:, past]) for key, value in pairs]

    def append(self, views: Sequence[PastView]) -> None:
        """Add the frames whose keys and values these views noted.

        Raises:
            ValueError: the views noted nothing, or more than there is room for.
        """
        start = self.frames * self.frame_tokens
        stop = start
        for view, keys, values in zip(views, self._keys, self._values, strict=True):
            if view.key is None or view.value is None:
                raise ValueError("these views have seen no forward pass")
            stop = start + view.key.shape[1]
            if stop > keys.shape[1]:
                raise ValueError(f"the cache has room for {self.capacity} latent frames")
            keys[:, start:stop] = view.key
            values[:, start:stop] = view.value
        self.frames = stop // self.frame_tokens

    def clear(self) -> None:
        """Forget all frames; the room stays."""
        self.frames = 0
