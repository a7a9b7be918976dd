"""DeepSpeed's configuration for any number of nodes, GPUs and accumulated micro-batches."""

from typing import Any

REDUCE_BUCKET = 200_000_000
"""Gradients that are summed over processes at a time."""


def zero_config(
    world_size: int, precision: str, global_batch: int, micro_batch: int, *, gpu: bool
) -> dict[str, Any]:
    """ZeRO-2 with fp32 master weights.

    Clipping is the trainer's own, so DeepSpeed's is off. Gradients are added up in fp32 whatever
    the weights' type, and summed over processes, not averaged. On GPUs, communication runs beside
    the backward pass; buckets fill in the order of the backward pass, so sums repeat. A bucket is
    summed as a whole (`reduce_scatter` off): each process then adds its part to what it owns. With
    it on, DeepSpeed sums as many bytes, of copies that it makes of the bucket.

    Args:
        world_size: processes.
        precision: `fp32` or `bf16`, of the forward and backward pass.
        global_batch: samples of an optimizer step over all processes, which divide it.
        micro_batch: samples of a forward pass on one device, at most.
        gpu: whether each process has a GPU.
    """
    share = global_batch // world_size
    micro = min(micro_batch, share)
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": -(-share // micro),
        "gradient_clipping": 0.0,
        "bf16": {"enabled": precision == "bf16", "check_grad_overflow": False},
        "gradient_allreduce_op": "sum",
        "data_types": {"grad_accum_dtype": "fp32"},
        "timers": {"throughput": {"enabled": False}},  # it would wait for the device at every step
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": gpu,
            "contiguous_gradients": True,
            "reduce_scatter": False,
            "reduce_bucket_size": REDUCE_BUCKET,
            "round_robin_gradients": False,
            "compute_grad_norm": False,
        },
    }
