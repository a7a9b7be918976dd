"""DeepSpeed's sums of gradients over processes, beside the training instead of before it.

With the same buckets the sums keep every bit. DeepSpeed 0.19 converts each sum to fp32 before it
adds it, and at the end of every backward pass holds the process until the device is idle, so that
the device then waits for the next micro-batch to be prepared. Here it adds in one pass, and the
stream of the sums runs on into the next forward pass; only the step's last backward pass makes
later work wait for it.

These are private methods, of DeepSpeed 0.19.8. Where their sources, or those of what takes their
place calls, are others, DeepSpeed is left as it is.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

REPLACED = (
    "_add_to_grad_partition_buffer",
    "average_tensor",
    "independent_gradient_partition_epilogue",
)
CALLED = (
    "_add_full_reduction_to_compact_grad_partition",
    "_clear_param_grad_only",
    "_get_compact_grad_partition_buffer",
    "_release_ipg_buffers",
    "_use_compact_grad_partition_buffer",
    "is_gradient_accumulation_boundary",
    "reduce_ipg_grads",
)
DIGEST = "6a340cd76b2248dd9f26d7b9bfa30c4a113038acaccb116a8c9d20743eaecbcc"
"""SHA-256 of the sources of both, in 0.19.8."""


def digest_of_sources(optimizer: type) -> str:
    """SHA-256 of the sources of what is replaced and called; empty where one is not there."""
    try:
        sources = [inspect.getsource(getattr(optimizer, name)) for name in (*REPLACED, *CALLED)]
    except (AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256("".join(sources).encode()).hexdigest()


def sum_beside_training(zero: Any) -> bool:
    """Change DeepSpeed's ZeRO-2 optimizer so, where it adds bf16 gradients up in fp32.

    With fp32 gradients it keeps them otherwise, and stays as it is.

    Returns:
        False where DeepSpeed is not the one that this was written for, and is left alone.
    """
    if digest_of_sources(type(zero)) != DIGEST:
        return False
    if not all(zero._use_compact_grad_partition_buffer(i) for i in range(len(zero.bit16_groups))):
        return True
    zero._add_to_grad_partition_buffer = _add
    zero.average_tensor = functools.partial(_sum_bucket, zero, zero.average_tensor)
    zero.independent_gradient_partition_epilogue = functools.partial(_finish_backward, zero)
    return True


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
