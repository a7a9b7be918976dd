"""UMT5 text embeddings through transformers, from a local directory, imported late."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gc25d.errors import UserError


@dataclass(frozen=True)
class Umt5Encoder:
    """transformers' `UMT5EncoderModel` and its tokenizer."""

    model: Any
    tokenizer: Any
    length: int

    @classmethod
    def load(cls, directory: Path, length: int, dim: int) -> Self:
        """Load from `directory` without network, in bf16 on a GPU where there is one.

        The directory is a plain checkpoint with its tokenizer, or a diffusers pipeline with
        `text_encoder/` and `tokenizer/`.

        Raises:
            UserError: the directory is no such checkpoint, or its width is not `dim`.
        """
        from transformers import AutoTokenizer, UMT5EncoderModel

        weights, words = directory / "text_encoder", directory / "tokenizer"
        try:
            model = UMT5EncoderModel.from_pretrained(
                weights if weights.is_dir() else directory,
                local_files_only=True,
                dtype=torch.bfloat16,
            )
            tokenizer = AutoTokenizer.from_pretrained(
                words if words.is_dir() else directory, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"prep.text.dir is {str(directory)!r}, expected a directory with UMT5 weights and "
                f"tokenizer ({str(error).splitlines()[0]})"
            ) from None
        if model.config.d_model != dim:
            raise UserError(
                f"{directory}: UMT5 of width {model.config.d_model}, but prep.text.dim is {dim}: "
                f"set prep.text.dim to {model.config.d_model}"
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device).eval(), tokenizer, length)

    @torch.no_grad()
    def encode(self, prompt: str) -> Tensor:
        """bf16 [n, dim] on the CPU; n counts the closing token and is cut to `length`."""
        tokens = self.tokenizer(
            prompt, max_length=self.length, truncation=True, return_tensors="pt"
        ).to(self.model.device)
        states = self.model(tokens.input_ids, attention_mask=tokens.attention_mask)
        hidden: Tensor = states.last_hidden_state[0]
        return hidden.cpu()
