"""Stateless randomness: every draw is a pure function of (seed, purpose, integers).

No generator is ever carried from one sample, step, worker or process to the next, so a resumed or
redistributed run draws what the uninterrupted one would have drawn. Streams of different purposes
are independent: the whole tuple is hashed into the seed of its own Philox or torch stream.
"""

import hashlib

import numpy as np


def _entropy(seed: int, purpose: str, integers: tuple[int, ...]) -> np.random.SeedSequence:
    name = "/".join([str(int(seed)), purpose.replace("/", "//"), *(str(int(i)) for i in integers)])
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.SeedSequence([int(word) for word in np.frombuffer(digest, "<u4")])


def generator(seed: int, purpose: str, *integers: int) -> np.random.Generator:
    """A fresh Philox generator for `purpose` at `integers` (usually epoch and index).

    Use `.bit_generator.random_raw(n)` where the values must not depend on numpy's version: numpy
    guarantees the raw words of Philox, not the algorithms of `Generator`.
    """
    return np.random.Generator(np.random.Philox(_entropy(seed, purpose, integers)))


def uniforms(seed: int, purpose: str, *integers: int, count: int) -> np.ndarray:
    """`count` float64 values in [0, 1), 53 bits each, made from raw words."""
    words = generator(seed, purpose, *integers).bit_generator.random_raw(count)
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def torch_seed(seed: int, purpose: str, *integers: int) -> int:
    """A seed in 0 ≤ s < 2⁶³ for `torch.Generator.manual_seed`."""
    (word,) = _entropy(seed, purpose, integers).generate_state(1, np.uint64)
    return int(word) >> 1
