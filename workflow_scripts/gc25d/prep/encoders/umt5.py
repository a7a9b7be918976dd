"""UMT5 text embeddings through transformers, from a local directory, imported late."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.records import read_json

_BATCH_TOKENS = 8192  # of a batch, padding included: 16 prompts of the full length of 512


@dataclass(frozen=True)
class Umt5Encoder:
    """transformers' `UMT5EncoderModel` in bf16, and its tokenizer."""

    model: Any
    tokenizer: Any
    length: int

    @classmethod
    def load(cls, directory: Path, length: int, dim: int, device: str = "cpu") -> Self:
        """Load from `directory` onto `device`, without network.

        The directory is a plain checkpoint with its tokenizer, or a diffusers pipeline with
        `text_encoder/` and `tokenizer/`.

        Raises:
            UserError: the directory is no such checkpoint, its width is not `dim`, a tensor is
                missing or misshapen, or the tokenizer has more words than the model.
        """
        weights, words = directory / "text_encoder", directory / "tokenizer"
        weights = weights if weights.is_dir() else directory
        _check_config(weights / "config.json", dim)
        tokenizer = _load_tokenizer(words if words.is_dir() else directory)
        model = _load_model(weights)
        if len(tokenizer) > model.config.vocab_size:
            raise UserError(
                f"prep.text.dir: the tokenizer of {directory} has {len(tokenizer)} words, the "
                f"model {model.config.vocab_size}: use the tokenizer that came with the model"
            )
        return cls(model.to(device).eval(), tokenizer, length)

    def encode_all(self, prompts: Sequence[str]) -> list[Tensor]:
        """bf16 [n, dim] on the CPU for each prompt; n counts the closing token, n ≤ `length`.

        Prompts of like length share a batch. An embedding may differ in its last bit with the
        company that it had in its batch; the same prompts give the same bytes.
        """
        tokens = [self._token_ids(prompt) for prompt in prompts]
        encoded: dict[int, Tensor] = {}
        for batch in _batches([len(ids) for ids in tokens]):
            states = self._states([tokens[number] for number in batch])
            encoded |= dict(zip(batch, states, strict=True))
        return [encoded[number] for number in range(len(prompts))]

    def count_tokens(self, prompt: str) -> int:
        """Tokens of a prompt, the closing one included, before it is cut to `length`."""
        return len(self.tokenizer(prompt).input_ids)

    def _token_ids(self, prompt: str) -> list[int]:
        cut = self.tokenizer(prompt, max_length=self.length, truncation=True)
        return list(cut.input_ids)

    @torch.no_grad()
    def _states(self, tokens: list[list[int]]) -> list[Tensor]:
        """The encoder's last states of each prompt's tokens; padding is masked and cut off."""
        longest = max(map(len, tokens))
        padded = torch.zeros(len(tokens), longest, dtype=torch.int64)
        mask = torch.zeros_like(padded)
        for row, ids in enumerate(tokens):
            padded[row, : len(ids)] = torch.tensor(ids)
            mask[row, : len(ids)] = 1
        device = self.model.device
        states = self.model(padded.to(device), attention_mask=mask.to(device)).last_hidden_state
        return [state[: len(ids)].cpu() for state, ids in zip(states, tokens, strict=True)]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of the prompts of each batch, shortest first, within the budget of tokens."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if batch and (len(batch) + 1) * lengths[number] > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _check_config(path: Path, dim: int) -> None:
    """Refuse another model or width before gigabytes are read."""
    config = read_json(path) if path.is_file() else None
    found = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(config, dict) or found != "umt5":
        raise UserError(
            f"prep.text.dir: {path} {'is of model_type ' + repr(found) if config else 'not found'},"
            " expected UMT5 weights and tokenizer (Wan2.2-TI2V-5B's text_encoder/ and tokenizer/)"
        )
    if config.get("d_model") != dim:
        raise UserError(
            f"{path}: UMT5 of width {config.get('d_model')}, but prep.text.dim is {dim}: "
            f"set prep.text.dim to {config.get('d_model')}"
        )


def _load_tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"prep.text.dir: no tokenizer in {directory} ({_first_line(error)}): copy tokenizer/ "
            "of Wan2.2-TI2V-5B"
        ) from None


def _load_model(directory: Path) -> Any:
    from safetensors import SafetensorError
    from transformers import UMT5EncoderModel

    try:
        model, report = UMT5EncoderModel.from_pretrained(
            directory,
            local_files_only=True,
            dtype=torch.bfloat16,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"prep.text.dir: no whole UMT5 weights in {directory} ({_first_line(error)}): copy "
            "the .safetensors files again"
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"prep.text.dir: the weights in {directory} lack {missing[0]} ({len(missing)} in all): "
            "copy the .safetensors files again"
        )
    return model


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
