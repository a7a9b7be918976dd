"""Overlap DeepSpeed's gradient all-reduce with the next micro-batch.

With the same buckets the reduced gradients keep every bit. DeepSpeed 0.19 converts each bucket to
fp32 before it accumulates it, and blocks the process at the end of every backward pass until the
device is idle, so that the device then waits for the next micro-batch. Here one pass converts and
accumulates, and the all-reduce stream runs on into the next forward pass; only the optimizer step
waits for it.

These are private methods, of DeepSpeed 0.19.8. Another version, or one that was changed, is left as
it is: its results are the same.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import Tensor

PINNED = "DeepSpeed 0.19.8"
DIGEST = "2f6c75eef4a40a803f41a03bf02f6e146aed8cd5f51939d76404a6f4de1239ed"
"""SHA-256 of that version's `FILES`, one after the other."""
FILES = ("zero/stage_1_and_2.py", "base_optimizer.py", "engine.py")
"""Of the package `deepspeed.runtime`: what is replaced, what that calls, and what calls it."""
REPLACED = (
    "_add_to_grad_partition_buffer",
    "average_tensor",
    "independent_gradient_partition_epilogue",
)
_CALLED = (
    "_add_full_reduction_to_compact_grad_partition",
    "_clear_param_grad_only",
    "_get_compact_grad_partition_buffer",
    "_release_ipg_buffers",
    "_use_compact_grad_partition_buffer",
    "gradient_reduction_w_predivide",
    "reduce_independent_p_g_buckets_and_remove_grads",
    "reduce_ipg_grads",
)


def sum_beside_training(zero: Any) -> str:
    """Change DeepSpeed's ZeRO-2 optimizer so, where it adds bf16 gradients up in fp32.

    With fp32 gradients it keeps them otherwise, and stays as it is.

    Returns:
        What DeepSpeed is, where it is not the one that this was written for and is left alone; else
        nothing.
    """
    if digest_of_sources(type(zero)) != DIGEST:
        installed = f"DeepSpeed {_version()}"
        return f"{installed} with changes" if installed == PINNED else installed
    if all(zero._use_compact_grad_partition_buffer(i) for i in range(len(zero.bit16_groups))):
        zero._add_to_grad_partition_buffer = _add
        zero.average_tensor = functools.partial(_sum_bucket, zero, zero.average_tensor)
        zero.independent_gradient_partition_epilogue = functools.partial(_finish_backward, zero)
    return ""


def digest_of_sources(optimizer: type) -> str:
    """SHA-256 of the files that an optimizer's methods stand in and work with.

    Files, not the text of single methods: what that is depends on the version of Python.

    Returns:
        Nothing where a method is missing or from another file, put in its place say, or where a
        file cannot be read.
    """
    methods = [getattr(optimizer, name, None) for name in (*REPLACED, *_CALLED)]
    files = {m.__code__.co_filename for m in methods if isinstance(m, FunctionType)}
    if len(files) != 1 or not all(isinstance(m, FunctionType) for m in methods):
        return ""
    runtime = Path(files.pop()).parents[1]
    try:
        sources = [(runtime / name).read_bytes() for name in FILES]
    except OSError:
        return ""
    return hashlib.sha256(b"".join(sources)).hexdigest()


def _add(output: Tensor | None, source: Tensor) -> None:
    """Add bf16 values to fp32 ones, in fp32."""
    if output is not None:
        output.add_(source)


def _sum_bucket(zero: Any, own: Callable[..., None], bucket: Tensor, dtype: Any) -> None:
    """DeepSpeed's sum; the bucket's memory stays its own until the sum has run."""
    own(bucket, dtype)
    if zero.overlap_comm:
        bucket.record_stream(zero.reduction_stream)


def _finish_backward(zero: Any) -> None:
    """Sum the last bucket and leave nothing behind, without waiting for the device."""
    zero.reduce_ipg_grads()
    zero.params_already_reduced = [False] * len(zero.params_already_reduced)
    if zero.is_gradient_accumulation_boundary():
        if zero.overlap_comm:
            _current_stream().wait_stream(zero.reduction_stream)
        for group in range(len(zero.bit16_groups)):
            zero._get_compact_grad_partition_buffer(group)  # zeros where nothing has a gradient
    zero._release_ipg_buffers()
    zero._clear_param_grad_only()
    zero._epilogue_ran_this_backward = True


def _current_stream() -> Any:
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().current_stream()


def _version() -> str:
    import deepspeed

    return str(deepspeed.__version__)
