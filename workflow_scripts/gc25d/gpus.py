"""What NVIDIA's libraries say of the visible GPUs without opening a context on any of them.

A context takes hundreds of megabytes of a GPU and makes its process one of those that compute
there; torch opens one to tell a GPU's name, serial number or free memory. A process that only waits
for a GPU asks here.

Which GPUs are visible, and in which order, is for the CUDA driver to say: once in a process it
reads CUDA_VISIBLE_DEVICES (numbers, serial numbers or their beginnings, instances of a divided GPU,
`MIG-…`) and CUDA_DEVICE_ORDER, for torch as well as here. So GPU i of `visible_gpus` is `cuda:i`.
`nvidia-smi` and the management library (NVML) heed neither variable and number the GPUs in an order
of their own: NVML is asked by serial number only.
"""

import ctypes
import functools
import uuid
from dataclasses import dataclass
from typing import Any

from gc25d.errors import UserError

_DRIVER, _MANAGEMENT = "libcuda.so.1", "libnvidia-ml.so.1"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or an instance of a divided one."""

    serial: str
    """Its UUID in hexadecimal digits, as torch gives it: without `GPU-` or `MIG-`."""
    total_memory: int
    """Bytes."""


def visible_gpus() -> list[Gpu]:
    """The GPUs by torch's index.

    Raises:
        UserError: there is no driver, or it cannot list them.
    """
    driver, count = _load(_DRIVER), ctypes.c_int()
    if driver is None:
        raise UserError(
            f"torch finds a GPU and {_DRIVER} cannot be loaded: install NVIDIA's driver, or set "
            "CUDA_VISIBLE_DEVICES to nothing"
        )
    _check("cuInit", driver.cuInit(0))
    _check("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    return [_gpu(driver, index) for index in range(count.value)]


def free_memory(gpu: Gpu) -> int | None:
    """Bytes that no process has taken; None where NVML is not there to say.

    In a container it is there with the driver's `utility` capability.
    """
    management = _management()
    if management is None:
        return None
    handle, memory = ctypes.c_void_p(), _Memory()
    for kind in ("GPU", "MIG"):
        name = f"{kind}-{gpu.serial}".encode()
        if management.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) == 0:
            status = management.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            return None if status else int(memory.free)
    return None


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _gpu(driver: Any, index: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    serial = (ctypes.c_ubyte * 16)()
    _check("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), index))
    # Without _v2 all instances of a divided GPU have its serial number.
    _check("cuDeviceGetUuid", driver.cuDeviceGetUuid_v2(ctypes.byref(serial), device))
    _check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    return Gpu(str(uuid.UUID(bytes=bytes(serial))), memory.value)


def _check(function: str, status: int) -> None:
    """Go on if the driver has done what it was asked for.

    Raises:
        UserError: names the function and the driver's number for what is wrong.
    """
    if status:
        raise UserError(
            f"the CUDA driver cannot list the GPUs ({function}: error {status}): look at "
            "nvidia-smi and CUDA_VISIBLE_DEVICES"
        )


@functools.cache
def _management() -> Any:
    """NVML, ready to be asked for the rest of this process's life; None where it is not there."""
    library = _load(_MANAGEMENT)
    return None if library is None or library.nvmlInit_v2() else library


def _load(name: str) -> Any:
    """A shared library; None where it is not there."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
