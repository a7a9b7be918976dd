"""Where the arithmetic of training runs: device, precision, backward, clipping."""

import os

import torch
from accelerate import Accelerator

from gc25d.errors import UserError
from gc25d.methods.base import TrainingMethod


class PlainEngine:
    """accelerate without DeepSpeed: one process on one device.

    Master weights are the model's own fp32 parameters; `bf16` autocasts the forward pass.
    """

    def __init__(self, precision: str, cpu_threads: int, *, gpu: bool) -> None:
        """Choose the device.

        Raises:
            UserError: a GPU was asked for and there is none.
        """
        if gpu and not torch.cuda.is_available():
            raise UserError(
                "hardware.gpus_per_node asks for a GPU and torch finds none here: run on a GPU "
                "node, or set hardware.gpus_per_node to 0 to train on the CPU"
            )
        # Sums on the CPU depend on the number of threads: it is a setting, not the machine's.
        torch.set_num_threads(cpu_threads)
        torch.use_deterministic_algorithms(True)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self.accelerator = Accelerator(
            cpu=not gpu,
            mixed_precision="bf16" if precision == "bf16" else "no",
        )

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    def prepare(self, method: TrainingMethod) -> None:
        """Move the method's models to the device and let this engine run its backward passes."""
        optimizers = method.get_optimizers(0)
        for (role, model), optimizer in zip(method.roles.items(), optimizers, strict=True):
            method.replace_role(role, *self.accelerator.prepare(model, optimizer))
        method.run_backward = self.accelerator.backward

    def clip_gradients(self, parameters: list[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
        """Scale gradients down to a global norm of `max_norm`; returns the norm before that."""
        norm: torch.Tensor = self.accelerator.clip_grad_norm_(parameters, max_norm)
        return norm

    def memory_gb(self) -> float:
        """Peak memory of the device; on a CPU the peak resident memory of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e9
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
