"""What the driver says of GPUs, asked of libraries made up for it; real ones: tests/gpu."""

import uuid

import pytest

from gc25d import gpus
from gc25d.errors import UserError
from gc25d.gpus import Gpu, free_memory, visible_gpus

SERIALS = ("11111111-2222-3333-4444-555555555555", "aaaaaaaa-bbbb-5ccc-dddd-eeeeeeeeeeee")
NO_DEVICE, NOT_FOUND = 100, 6


class Driver:
    """libcuda, which knows devices 0 and 1 as 10 and 11."""

    status = 0

    def cuInit(self, flags):
        assert flags == 0
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(SERIALS)
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = 10 + index
        return 0

    def cuDeviceGetUuid_v2(self, serial, device):
        serial._obj[:] = uuid.UUID(SERIALS[device.value - 10]).bytes
        return 0

    def cuDeviceTotalMem_v2(self, memory, device):
        memory._obj.value = device.value << 33  # more than 32 bits hold
        return 0


class Management:
    """NVML: the first serial number is a GPU's, the second an instance's of a divided one."""

    known = (f"GPU-{SERIALS[0]}", f"MIG-{SERIALS[1]}")

    def __init__(self):
        self.starts = 0

    def nvmlInit_v2(self):
        self.starts += 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        if name.decode() not in self.known:
            return NOT_FOUND
        handle._obj.value = 70 + self.known.index(name.decode())
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        found = memory._obj
        found.total, found.free, found.used = 1 << 40, handle.value << 33, 5
        return 0


@pytest.fixture
def libraries(monkeypatch):
    """By name; the tests take them away."""
    there = {"libcuda.so.1": Driver(), "libnvidia-ml.so.1": Management()}
    monkeypatch.setattr(gpus, "_load", there.get)
    gpus._management.cache_clear()
    yield there
    gpus._management.cache_clear()


def test_gpus_stand_in_the_order_of_the_driver(libraries):
    assert visible_gpus() == [Gpu(SERIALS[0], 10 << 33), Gpu(SERIALS[1], 11 << 33)]


def test_free_memory_is_asked_by_serial_number_of_gpus_and_of_their_instances(libraries):
    assert [free_memory(gpu) for gpu in visible_gpus()] == [70 << 33, 71 << 33]
    assert free_memory(Gpu("0" * 8, 1)) is None
    assert libraries["libnvidia-ml.so.1"].starts == 1


def test_without_the_management_library_nobody_knows(libraries):
    del libraries["libnvidia-ml.so.1"]
    assert free_memory(visible_gpus()[0]) is None


def test_a_driver_that_is_missing_or_refuses_is_named(libraries):
    libraries["libcuda.so.1"].status = NO_DEVICE
    with pytest.raises(UserError, match=r"cannot list the GPUs \(cuInit: error 100\)"):
        visible_gpus()
    del libraries["libcuda.so.1"]
    with pytest.raises(UserError, match=r"libcuda.so.1 cannot be loaded"):
        visible_gpus()


def test_a_library_that_is_not_there_is_none():
    assert gpus._load("libgc25d-of-nobody.so.1") is None
