"""The key under which a device's gradient norms are recorded.

A name is split into words, and a word must equal an entry of the table: a part of a word never
matches, so GH200 is not H200 and L40S is not L40. A name without any known word gets a key of its
own, made from the whole name; so does a share of a GPU (a MIG slice, a virtual GPU), which computes
with other kernels than the whole card.
"""

import re

import torch

from gc25d.errors import UserError

CPU = "CPU"

KEYS: dict[str, str] = {
    "L40S": "L40S",
    "L40": "L40",
    "L4": "L4",
    "GB300": "GB300",
    "GB200": "GB200",
    "B300": "B300",
    "B200": "GB200",
    "GB10": "GB10",
    "GH200": "GH200",
    "H200": "H200",
    "H100": "H100",
    "H800": "H800",
    "H20": "H20",
    "A100": "A100",
    "A800": "A800",
    "A40": "A40",
    "A30": "A30",
    "A10G": "A10G",
    "A10": "A10",
    "V100": "V100",
    "T4": "T4",
    "CPU": CPU,
}
"""Word of a device's name, compared whole → its key. B200 shares GB200's references."""

# A MIG slice; a virtual GPU's profile, such as 10C, 5CME (with media engines) or 2B4.
_SHARE = re.compile(r"MIG|\d+[ABCQ](ME\d*|4)?")


def device_key(name: str) -> str:
    """The key of the device called `name`: upper-case letters, digits and dashes.

    Raises:
        UserError: the name holds no letter or digit.
    """
    words = [word.upper() for word in re.findall(r"[A-Za-z0-9]+", name)]
    if not words:
        raise UserError(f"device name is {name!r}, expected one such as 'NVIDIA L40S' or 'CPU'")
    if not any(_SHARE.fullmatch(word) for word in words):
        for known, key in KEYS.items():
            if known in words:
                return key
    return "-".join(words[1:] if words[0] == "NVIDIA" and len(words) > 1 else words)


def current_device_name() -> str:
    """The name of the current CUDA device as the driver gives it, "CPU" where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else CPU


def torch_device_for(key: str) -> torch.device:
    """The device of this machine that has `key`. The CPU is one on every machine.

    Raises:
        UserError: no key is spelled like that, or this machine's device has another one; names
            the device found.
    """
    if device_key(key) != key:
        raise UserError(f"{key} is no device key: it stands under {device_key(key)}, ask for that")
    if key == CPU:
        return torch.device("cpu")
    name = current_device_name()
    found = device_key(name)
    if found != key:
        raise UserError(
            f"this machine has {name} (key {found}), asked for was {key}: "
            f"run this on such a device, or ask for {found}; nothing was written"
        )
    return torch.device("cuda")
