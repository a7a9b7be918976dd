"""`matrixgame2`: the causal Wan transformer with Matrix-Game 2.0's action modules in its blocks.

Unlike the published model, which sees CLIP's features of the first image, its cross-attention reads
one prompt a latent frame, as all Wan models here do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from gc25d.dataset.actions import Actions, ActionWindows, action_windows
from gc25d.errors import UserError
from gc25d.model.config import PATCH, MatrixGameConfig
from gc25d.model.interface import LATENT_FRAMES, ModelOutput
from gc25d.model.text import TextContext
from gc25d.model.wan.actions import ActionModule, GameView
from gc25d.model.wan.blocks import View, WanBlock
from gc25d.model.wan.causal import CausalWanModel, ChunkLoop
from gc25d.model.wan.kv_cache import KvCache, PastView
from gc25d.shapes import ContextIds, Latents, Prompts, Tokens


@dataclass(eq=False, kw_only=True)
class GamePast(PastView):
    """What a block's new tokens see of cached frames, and what its mouse attention sees."""

    mouse: PastView


class GameCache(KvCache):
    """A cache that also holds the mouse attention's keys and values of every place."""

    def __init__(
        self,
        blocks: int,
        shape: tuple[int, int, int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        mouse: KvCache,
    ) -> None:
        """Allocate an empty cache as `KvCache` does, beside the mouse attention's."""
        super().__init__(blocks, shape, device, dtype)
        self.mouse = mouse

    def views(self) -> list[PastView]:
        """What each block's new tokens see; blocks without an action module see no mouse."""
        views = super().views()
        for index, mouse in enumerate(self.mouse.views()):
            past = views[index]
            views[index] = GamePast(past.past_key, past.past_value, mouse=mouse)
        return views

    def append(self, views: Sequence[PastView]) -> None:
        """Add the frames whose keys and values these views kept."""
        super().append(views)
        self.mouse.append([view.mouse for view in views if isinstance(view, GamePast)])

    def clear(self) -> None:
        """Forget all frames; the room stays."""
        super().clear()
        self.mouse.clear()


class ActionBlock(WanBlock):
    """A block whose tokens read the actions after their prompt."""

    def __init__(self, config: MatrixGameConfig) -> None:
        super().__init__(config)
        self.action_model = ActionModule(config)

    def read_conditions(self, tokens: Tensor, text: TextContext, view: View | None) -> Tensor:
        """Tokens [B, N, D] plus what they read of their prompt, the mouse and the keyboard."""
        tokens = super().read_conditions(tokens, text, view)
        if text.actions is None or not isinstance(view, GameView | GamePast):
            raise TypeError("an action block needs actions and a view of them")
        frames = text.frames // tokens.shape[0]
        acted: Tensor = self.action_model(tokens, text.actions, frames, view.mouse)
        return acted


class MatrixGameModel(CausalWanModel):
    """`CausalWanModel`'s parameters and those of the action modules, `blocks.i.action_model.*`."""

    config: MatrixGameConfig

    def __init__(self, config: MatrixGameConfig) -> None:
        super().__init__(config, config.chunk_frames)
        for index in range(config.action_blocks):
            self.blocks[index] = ActionBlock(config)

    def forward(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None = None,
        actions: Actions | None = None,
    ) -> ModelOutput:
        """Predict the velocity of noisy latents, given the actions (arguments: `VideoModel`).

        Raises:
            UserError: no actions, or sizes that do not fit each other or the model.
        """
        self.check_sizes(latents, prompts, sem_ids)
        windows = self.windows(actions, latents.shape[2])
        text = self.embed_text(prompts, prompt_lengths, context_ids)._replace(actions=windows)
        return self.predict(latents, timestep, text, sem_ids)

    def forward_chunk(
        self,
        latents: Latents,
        timestep: Float[Tensor, "B F"],
        prompts: Prompts,
        prompt_lengths: Int[Tensor, " P"],
        context_ids: ContextIds,
        sem_ids: UInt8[Tensor, "B T H W"] | None,
        cache: KvCache,
        *,
        write: bool,
        actions: Actions | None = None,
    ) -> ModelOutput:
        """`CausalWanModel.forward_chunk`, given the actions from the video's start on.

        Raises:
            UserError: no actions, or sizes that do not fit each other or the model.
            ValueError: frames that are no whole chunk after the cached ones, or too many.
        """
        self.check_sizes(latents, prompts, sem_ids, cache.frames)
        windows = self.windows(actions, cache.frames + latents.shape[2])
        text = self.embed_text(prompts, prompt_lengths, context_ids)._replace(actions=windows)
        return self.predict_chunk(latents, timestep, text, sem_ids, cache, write=write)

    def new_cache(
        self,
        batch: int,
        size: Sequence[int],
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> GameCache:
        """An empty cache for `forward_chunk` (arguments: `CausalWanModel.new_cache`)."""
        config, kind = self.config, self.cache_kind(device, dtype)
        places = (size[1] // PATCH[1]) * (size[2] // PATCH[2])
        shape = (batch, size[0], places, config.num_heads, config.head_dim)
        head = (config.action_heads, config.action_dim // config.action_heads)
        mouse = KvCache(config.action_blocks, (batch * places, size[0], 1, *head), *kind)
        return GameCache(config.num_layers, shape, *kind, mouse)

    def run_blocks(
        self,
        tokens: Tokens,
        modulation: Tensor,
        text: TextContext,
        grid: tuple[int, int, int],
        first_frame: int = 0,
        views: Sequence[View] | None = None,
    ) -> Tokens:
        """As in `CausalWanModel`; a place's mouse attention sees as far as its tokens do."""
        if views is None:
            causal = grid[0] > self.chunk_frames
            shown = (
                self._view(tokens.shape[1], grid[1] * grid[2], tokens.device) if causal else None
            )
            views = [GameView(shown, ChunkLoop(self.chunk_frames))] * len(self.blocks)
        return super().run_blocks(tokens, modulation, text, grid, first_frame, views)

    def windows(self, actions: Actions | None, frames: int) -> ActionWindows:
        """What each of the first `frames` latent frames sees of the actions.

        Raises:
            UserError: there are none, too few, or of another keyboard.
        """
        if actions is None:
            raise UserError(
                "matrixgame2 needs the actions of each frame and this data set has none "
                "(docs/models.md): choose another model.name"
            )
        found = tuple(actions.keyboard.shape[1:]), tuple(actions.mouse.shape[1:])
        needed = LATENT_FRAMES * (frames - 1) + 1
        keys = self.config.keys
        if found[0][1:] != (keys,) or found[1][1:] != (2,) or min(f[0] for f in found) < needed:
            raise UserError(
                f"actions are keyboard {found[0]} and mouse {found[1]}, expected "
                f"({needed}, {keys}) and ({needed}, 2): record them for every frame"
            )
        return action_windows(actions, frames, self.config.window)
