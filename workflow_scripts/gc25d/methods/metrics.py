"""Metrics of several micro-batches as one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def mean_metrics(
    found: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]
) -> Mapping[str, Tensor]:
    """Means over samples of micro-batches' metrics, each over those micro-batches that have it."""
    means: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for metrics in found for name in metrics):
        having = [(m[name], n) for m, n in zip(found, sizes, strict=True) if name in m]
        total = sum(n for _, n in having)
        means[name] = torch.stack([torch.as_tensor(v) * (n / total) for v, n in having]).sum(0)
    return means
