"""Prompts → the text table: one embedding per text key, shared by all clips.

`text/table.safetensors` holds `embeddings` bf16 [n, L, dim], zero behind each prompt's tokens,
`lengths` int64 [n] (real tokens), and in its metadata, as JSON, the sorted keys and, if there are
any, how many tokens each cut prompt had. A key's id is its place in sorted order. `NULL_PROMPT`,
the empty prompt, is always there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import BFloat16, Int64
from safetensors import SafetensorError
from torch import Tensor

from gc25d.errors import UserError
from gc25d.finite import check_finite
from gc25d.prep.encoders.umt5 import Umt5Encoder
from gc25d.strict_json import parse_json
from gc25d.tensors import open_tensors, write_tensors

NULL_PROMPT = "NULL_PROMPT"
TABLE = "text/table.safetensors"


class TextEncoder(Protocol):
    """What turns prompts into the embeddings of their tokens."""

    def encode_all(self, prompts: Sequence[str]) -> list[Tensor]:
        """For each prompt the float embeddings [n, dim] of its real tokens, n ≤ L, unpadded."""

    def count_tokens(self, prompt: str) -> int:
        """Tokens of a prompt before it is cut to L."""


@dataclass(frozen=True)
class ByteEncoder:
    """A small weight-free encoder over UTF-8 bytes: one token a byte.

    A token is the sum of three random vectors, of its byte, of its place and of the word that it
    belongs to, scaled to unit variance: prompts that share words share components, and different
    prompts differ. The vectors are uniform with zero mean, from raw Philox words: the same on every
    machine.
    """

    length: int
    dim: int
    seed: int = 0

    def encode_all(self, prompts: Sequence[str]) -> list[Tensor]:
        """`encode` of each prompt."""
        return [self.encode(prompt) for prompt in prompts]

    def count_tokens(self, prompt: str) -> int:
        """The prompt's bytes in UTF-8."""
        return len(prompt.encode())

    def encode(self, prompt: str) -> Tensor:
        """Float32 [n, dim], n = the prompt's bytes, cut to `length`; none for the empty prompt."""
        data = prompt.encode()
        tokens = [
            self._vector(0, byte) + self._vector(1, place) + self._vector(2, word)
            for place, (byte, word) in enumerate(zip(data, _words(data), strict=True))
            if place < self.length
        ]
        if not tokens:
            return torch.zeros(0, self.dim)
        return torch.from_numpy((np.stack(tokens) / np.sqrt(3)).astype(np.float32))

    def _vector(self, kind: int, value: int) -> np.ndarray:
        """Uniform in ±√3 (unit variance), float64 [dim]."""
        seeds = np.random.SeedSequence([self.seed, kind, value])
        words = np.random.Philox(seeds).random_raw(self.dim) >> np.uint64(11)
        return np.asarray((words * 2.0**-53 - 0.5) * np.sqrt(12.0))


def _words(data: bytes) -> list[int]:
    """For each byte the space-separated word around it, as a number; a space belongs to none."""
    numbers: list[int] = []
    for position, word in enumerate(data.split(b" ")):
        numbers += [0] if position else []
        numbers += [int.from_bytes(b"\x01" + word, "little")] * len(word)
    return numbers


def encoder_for(
    name: str, length: int, dim: int, directory: str, device: str = "cpu"
) -> TextEncoder:
    """The text encoder `name`: `bytes`, or `umt5` from a local directory on `device`.

    Raises:
        UserError: unknown name, or the directory does not hold the encoder.
    """
    if name == "bytes":
        return ByteEncoder(length, dim)
    if name == "umt5":
        return Umt5Encoder.load(Path(directory), length, dim, device)
    raise UserError(f"text encoder is {name!r}, expected 'bytes' or 'umt5'")


@dataclass(frozen=True)
class TextTable:
    """All prompts of a data set."""

    embeddings: BFloat16[Tensor, "n L dim"]
    """Zero behind each prompt's real tokens."""
    lengths: Int64[Tensor, " n"]
    """Real tokens of each prompt."""
    keys: tuple[str, ...]
    """Sorted text keys; a key's place is its id."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Keys of the prompts that were cut, with the tokens that they had."""

    @property
    def key_to_id(self) -> dict[str, int]:
        """Text key → row of the table."""
        return {key: number for number, key in enumerate(self.keys)}

    @property
    def null_id(self) -> int:
        """Row of the empty prompt."""
        return self.keys.index(NULL_PROMPT)


def build_table(prompts: Mapping[str, str], encoder: TextEncoder, length: int) -> TextTable:
    """Encode `prompts` (text key → text) and the empty prompt, each distinct text once.

    Raises:
        UserError: the key NULL_PROMPT is given a text, or an embedding is not finite.
    """
    if prompts.get(NULL_PROMPT, ""):
        raise UserError(
            f"text key {NULL_PROMPT} stands for {prompts[NULL_PROMPT]!r}, but it is reserved for "
            "the empty prompt: rename the key in the capture"
        )
    texts = {**prompts, NULL_PROMPT: ""}
    keys = tuple(sorted(texts))
    distinct = sorted(set(texts.values()))
    encoded = dict(zip(distinct, encoder.encode_all(distinct), strict=True))
    dim = encoded[texts[NULL_PROMPT]].shape[1]
    embeddings = torch.zeros(len(keys), length, dim, dtype=torch.bfloat16)
    lengths = torch.zeros(len(keys), dtype=torch.int64)
    for row, key in enumerate(keys):
        tokens = encoded[texts[key]]
        check_finite(tokens, f"embedding of text key {key!r}", "check the encoder's weights")
        embeddings[row, : len(tokens)] = tokens.to(torch.bfloat16)
        lengths[row] = len(tokens)
    counts = {key: encoder.count_tokens(texts[key]) for key in keys}
    cut = {key: count for key, count in counts.items() if count > length}
    return TextTable(embeddings, lengths, keys, cut)


def cut_faults(table: TextTable) -> dict[str, str]:
    """Text key → what is wrong with it: its prompt was cut, and may now equal another's."""
    length = table.embeddings.shape[1]
    return {
        f"text key {key!r}": f"its prompt has {count} tokens and is cut to the first {length}: "
        "raise prep.text.length, or shorten the prompt"
        for key, count in table.cut.items()
    }


def write_table(path: Path, table: TextTable) -> None:
    """Write the table atomically."""
    tensors = {"embeddings": table.embeddings, "lengths": table.lengths}
    metadata = {"keys": json.dumps(table.keys)}
    if table.cut:
        metadata["cut"] = json.dumps(table.cut)
    write_tensors(path, tensors, metadata)


def read_table(path: Path) -> TextTable:
    """Map the table written by `write_table`.

    Raises:
        UserError: the file is missing, cut, or no text table.
    """
    try:
        with open_tensors(path) as file:
            metadata = file.metadata()
            keys = tuple(parse_json(metadata["keys"].encode()))
            cut = parse_json(metadata.get("cut", "{}").encode())
            table = TextTable(file.get_tensor("embeddings"), file.get_tensor("lengths"), keys, cut)
    except (UserError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: no readable text table ({error}): delete it and rerun") from None
    if not len(table.embeddings) == len(table.lengths) == len(keys):
        raise UserError(f"{path}: keys and embeddings differ in number: delete it and rerun")
    return table
