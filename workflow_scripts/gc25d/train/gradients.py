"""Gradients that are not finite: what becomes of them before clipping, and who is told."""

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def sanitize(gradients: Iterable[Tensor]) -> None:
    """Put 0 in place of every value that is not finite."""
    for gradient in gradients:
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def sanitized_norm(
    role: str, iteration: int, allowed: Iterable[Tensor], gradients: list[Tensor], found: Tensor
) -> Tensor:
    """The norm of a role's `gradients` once those `allowed` are sanitized; `found` was it before.

    `found` again if nothing but zeros is left.
    """
    sanitize(allowed)
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm if tell_sanitized(role, iteration, float(found), float(norm)) else found


def tell_sanitized(role: str, iteration: int, found: float, left: float) -> bool:
    """Whether the norm that is `left` makes a step; warns if so."""
    usable = left > 0
    if usable:
        logger.warning(
            "step %d: the gradient norm of role %s is %s; what is not finite in its gradients was "
            "set to 0, which leaves %.6g",
            *(iteration + 1, role, found, left),
        )
    return usable
