"""Axis legend and the array types built from it.

========  =====================================================================
axis      meaning
========  =====================================================================
B         samples in a micro-batch
T         video frames of a clip, T = 4·(F − 1) + 1
F         latent frames: the first frame alone, then groups of 4 frames
C         latent channels (48)
H W       pixels of a frame
h w       latent cells, h = H / 16, w = W / 16
N         tokens of a sample, N = F · h/2 · w/2 (patch size 1 × 2 × 2)
P         distinct prompts
L         text tokens of a prompt, zero-padded
K         semantic classes the model distinguishes (unknown included)
D         width of the model
========  =====================================================================
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

RgbFrames: TypeAlias = UInt8[np.ndarray, "T H W 3"]
Stencil: TypeAlias = UInt8[np.ndarray, "T H W"]
SemIds: TypeAlias = UInt8[np.ndarray, "T H W"]
WorldToClip: TypeAlias = Float64[np.ndarray, "T 4 4"]
Latents: TypeAlias = Float[Tensor, "B C F h w"]
Tokens: TypeAlias = Float[Tensor, "B N D"]
Prompts: TypeAlias = Float[Tensor, "P L D"]
ContextIds: TypeAlias = Int[Tensor, "B F"]
