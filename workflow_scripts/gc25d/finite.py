"""What is not finite is an error by name, wherever tensors come from models and other weights."""

from torch import Tensor

from gc25d.errors import UserError


def check_finite(tensor: Tensor, what: str, remedy: str) -> None:
    """Refuse NaN and infinities.

    Args:
        tensor: floats of any shape, on any device.
        what: names the clip or tensor; starts the message.
        remedy: ends it.

    Raises:
        UserError: says how many of the values are not finite.
    """
    finite = tensor.isfinite()
    if not finite.all():
        bad, count = tensor.numel() - int(finite.sum()), tensor.numel()
        raise UserError(f"{what}: {bad} of {count} values are NaN or an infinity: {remedy}")
