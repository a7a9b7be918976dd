import pytest
import torch

from gc25d.errors import UserError
from gc25d.regression import devices
from gc25d.regression.devices import KEYS, device_key, torch_device_for


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA L40S", "L40S"),
        ("nvidia l40s", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("CPU", "CPU"),
        ("cpu", "CPU"),
    ],
)
def test_names_as_drivers_give_them(name, key):
    assert device_key(name) == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H2000", "H2000"),
        ("NVIDIA XH100", "XH100"),
        ("NVIDIA L40SX", "L40SX"),
        ("NVIDIA A1000", "A1000"),
        ("NVIDIA GeForce RTX 4090", "GEFORCE-RTX-4090"),
        ("NVIDIA GeForce RTX 4090 D", "GEFORCE-RTX-4090-D"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-ADA-GENERATION"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "RTX-PRO-6000-BLACKWELL-SERVER-EDITION",
        ),
        ("AMD Instinct MI300X", "AMD-INSTINCT-MI300X"),
        ("NVIDIA", "NVIDIA"),
        ("Some/../odd name", "SOME-ODD-NAME"),
    ],
)
def test_unknown_names_get_a_key_of_their_own(name, key):
    assert device_key(name) == key
    assert key not in KEYS.values()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM4-80GB-MIG-1G-10GB"),
        ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", "A100-SXM4-80GB-MIG-2G-20GB"),
        ("NVIDIA H200 MIG 1g.18gb", "H200-MIG-1G-18GB"),
        ("GRID A100-10C", "GRID-A100-10C"),
        ("NVIDIA L40S-24Q", "L40S-24Q"),
        ("NVIDIA A100-1-5CME", "A100-1-5CME"),
        ("GRID T4-2B4", "GRID-T4-2B4"),
    ],
)
def test_a_share_of_a_gpu_is_not_the_gpu(name, key):
    assert device_key(name) == key
    assert device_key(key) == key


@pytest.mark.parametrize("name", ["", "  ", "/..", "\n"])
def test_a_name_without_letters_is_an_error(name):
    with pytest.raises(UserError, match="expected one such as"):
        device_key(name)


def test_keys_are_their_own_keys():
    for key in set(KEYS.values()):
        assert device_key(key) == key


def test_the_cpu_is_on_every_machine(monkeypatch):
    monkeypatch.setattr(devices, "current_device_name", lambda: "NVIDIA H200")
    assert torch_device_for("CPU") == torch.device("cpu")


def test_another_device_than_asked_for_is_named(monkeypatch):
    monkeypatch.setattr(devices, "current_device_name", lambda: "NVIDIA GH200 480GB")
    with pytest.raises(UserError) as caught:
        torch_device_for("H200")
    message = str(caught.value)
    assert "NVIDIA GH200 480GB" in message
    assert "key GH200" in message
    assert "H200" in message
    assert "\n" not in message
    assert torch_device_for("GH200") == torch.device("cuda")


@pytest.mark.parametrize(("asked", "key"), [("B200", "GB200"), ("l40s", "L40S"), ("cpu", "CPU")])
def test_a_key_is_asked_for_as_it_is_spelled(asked, key):
    with pytest.raises(UserError, match=f"{asked} is no device key: it stands under {key}"):
        torch_device_for(asked)
