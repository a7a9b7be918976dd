"""Matrix-Game 2.0's action module: mouse and keyboard steer the tokens of a block.

Mouse: each place of the picture attends over time to itself, with the mouse movement of a window
of frames beside its token. Keyboard: each token attends to the embedded keys of its latent frame
and of those before. Parameter names are the published ones.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from gc25d.dataset.actions import ActionWindows
from gc25d.model.attention import attend
from gc25d.model.config import TOKEN_FRAMES, MatrixGameConfig
from gc25d.model.rope import RopeTable, apply_rope
from gc25d.model.wan.blocks import LayerNorm, RmsNorm, View, by_frame

_THETA = 256.0
_TIME_SHARE = 16  # of a head's component pairs, one in 8 encodes the latent frame: 8 of 64


@dataclass(frozen=True)
class GameView:
    """What the tokens of whole videos see, and what a place's mouse attention sees of them."""

    tokens: View | None
    mouse: View

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Self-attention of the tokens; without a view each sees all."""
        if self.tokens is None:
            return attend(query, key, value)
        return self.tokens.attend(query, key, value)


def frame_rotation(first: int, frames: int, head_dim: int, device: torch.device) -> RopeTable:
    """Rotation by a latent frame's position: cos and ±sin, float32 [frames, 1, head_dim] each.

    The first eighth of a head turns with the frame, at frequencies θ^(−2i/m) with θ = 256; the rest
    belongs to rows and columns, of which a place has one each.
    """
    width = 2 * max(1, head_dim // _TIME_SHARE)
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    positions = torch.arange(first, first + frames, dtype=torch.float64, device=device)
    angles = torch.zeros(frames, head_dim // 2, dtype=torch.float64, device=device)
    angles[:, : width // 2] = torch.outer(positions, _THETA**-exponents)
    cos = angles.cos().repeat_interleave(2, dim=1)
    sin = torch.stack([-angles.sin(), angles.sin()], dim=-1).flatten(1)
    return RopeTable(cos.float().unsqueeze(1), sin.float().unsqueeze(1))


class ActionModule(nn.Module):
    """Adds what mouse and keyboard say to a block's tokens; nothing at a zero start."""

    def __init__(self, config: MatrixGameConfig) -> None:
        super().__init__()
        self.heads, width = config.action_heads, config.action_dim
        self.chunk_frames = config.chunk_frames
        head = width // self.heads
        frames = TOKEN_FRAMES * config.window
        self.mouse_mlp = nn.Sequential(
            nn.Linear(config.dim + 2 * frames, width),
            nn.GELU(approximate="tanh"),
            nn.Linear(width, width),
            LayerNorm(width),
        )
        self.t_qkv = nn.Linear(width, 3 * width, bias=False)
        self.img_attn_q_norm = RmsNorm(head, config.eps)
        self.img_attn_k_norm = RmsNorm(head, config.eps)
        self.proj_mouse = nn.Linear(width, config.dim, bias=False)
        self.keyboard_embed = nn.Sequential(
            nn.Linear(config.keys, config.key_dim),
            nn.SiLU(),
            nn.Linear(config.key_dim, config.key_dim),
        )
        self.mouse_attn_q = nn.Linear(config.dim, width, bias=False)  # the keyboard's query
        self.keyboard_attn_kv = nn.Linear(config.key_dim * frames, 2 * width, bias=False)
        self.key_attn_q_norm = RmsNorm(head, config.eps)
        self.key_attn_k_norm = RmsNorm(head, config.eps)
        self.proj_keyboard = nn.Linear(width, config.dim, bias=False)

    def forward(self, tokens: Tensor, windows: ActionWindows, frames: int, mouse: View) -> Tensor:
        """[B, N, D] → [B, N, D].

        Args:
            tokens: of `frames` latent frames.
            windows: of all latent frames up to and including these.
            frames: latent frames F of the tokens.
            mouse: what a place sees of its own past, [B·places, F, heads, d].
        """
        tokens = tokens + self.read_mouse(tokens, windows, frames, mouse)
        return tokens + self.read_keyboard(tokens, windows, frames)

    def read_mouse(self, tokens: Tensor, windows: ActionWindows, frames: int, view: View) -> Tensor:
        """Attention of each place over time: [B, N, D] → [B, N, D]."""
        places = by_frame(tokens, frames).transpose(1, 2)  # [B, S, F, D]
        moved = windows.mouse[:, -frames:].flatten(2).to(tokens.dtype).unsqueeze(1)
        beside = moved.expand(-1, places.shape[1], -1, -1)
        hidden = self.mouse_mlp(torch.cat([places, beside], dim=-1)).flatten(0, 1)
        query, key, value = self._split(self.t_qkv(hidden)).unbind(2)
        past = windows.mouse.shape[1] - frames
        turn = frame_rotation(past, frames, query.shape[-1], tokens.device)
        query = apply_rope(self.img_attn_q_norm(query), turn)
        key = apply_rope(self.img_attn_k_norm(key), turn)
        update = self.proj_mouse(view.attend(query, key, value))
        return cast(Tensor, update).reshape(places.shape).transpose(1, 2).flatten(1, 2)

    def read_keyboard(self, tokens: Tensor, windows: ActionWindows, frames: int) -> Tensor:
        """Attention of each token to the keys of its chunk's frames and of those before."""
        total, places = windows.keyboard.shape[1], tokens.shape[1] // frames
        embedded = self.keyboard_embed(windows.keyboard.to(tokens.dtype)).flatten(2)
        key, value = self._split(self.keyboard_attn_kv(embedded)).unbind(2)
        query = self._split(self.mouse_attn_q(tokens)).squeeze(2)
        turn = frame_rotation(0, total, key.shape[-1], tokens.device)
        own = RopeTable(*(part[-frames:].repeat_interleave(places, dim=0) for part in turn))
        query = apply_rope(self.key_attn_q_norm(query), own)
        key = apply_rope(self.key_attn_k_norm(key), turn)
        parts = []
        for start in range(0, frames, self.chunk_frames):
            end = min(start + self.chunk_frames, frames)
            seen = total - frames + end
            asked = query[:, start * places : end * places]
            parts.append(attend(asked, key[:, :seen], value[:, :seen]))
        return cast(Tensor, self.proj_keyboard(torch.cat(parts, dim=1)))

    def _split(self, projected: Tensor) -> Tensor:
        """[B, M, k · width] → [B, M, k, heads, d]."""
        width = self.mouse_attn_q.out_features
        return projected.reshape(*projected.shape[:-1], -1, self.heads, width // self.heads)
