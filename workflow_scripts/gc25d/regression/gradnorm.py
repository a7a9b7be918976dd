"""The gradient norm that guards every (model, method) pair against silent breakage.

Block 0 is the last to receive gradients in a backward pass: whatever breaks on the way, in the
loss, the blocks, the text, the condition or the precision, changes its norm.
"""

import os
import subprocess
import unittest
from pathlib import Path

import torch
from torch import Tensor, nn

from gc25d.records import digest_json
from gc25d.regression.cells import Cell
from gc25d.regression.devices import CPU, current_device_name, device_key
from gc25d.regression.fixtures import build_fixture
from gc25d.regression.refs import (
    Measurement,
    Origin,
    compare,
    read_refs,
    record,
    reference_of,
    utc_now,
)
from gc25d.regression.weights import parameter_shapes

UPDATE_VARIABLE = "GC25D_GRADNORM_UPDATE"
DEFAULT_RTOL = 0.10
"""Of a test that gives none, where none is recorded."""


def grad_norm(parameters: list[nn.Parameter]) -> float:
    """Global L2 norm of the parameters' gradients in float32; 0 where there is none.

    Summed on their device and read back once. Sharded gradients count whole, on every process: all
    of them must call it, with the same parameters.
    """
    gradients = [g for g in map(whole_gradient, parameters) if g is not None]
    if not gradients:
        return 0.0
    norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def whole_gradient(parameter: nn.Parameter) -> Tensor | None:
    """A parameter's gradient, gathered where processes hold parts of it; None without one.

    FSDP2 keeps a DTensor. DeepSpeed's ZeRO-1 and ZeRO-2 keep it from the last backward pass of a
    step to its update, summed over the processes or averaged, as its configuration says.
    """
    gather = getattr(parameter, "get_full_hp_grad", None) or getattr(
        parameter.grad, "full_tensor", None
    )
    return parameter.grad if gather is None else gather()


def block_zero(transformer: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of the transformer's first block, also inside an engine's wrapper.

    Raises:
        ValueError: the model has no `blocks`.
    """
    inner = getattr(transformer, "module", transformer)
    blocks = getattr(inner, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise ValueError(f"{type(inner).__name__} has no blocks to measure")
    return [p for p in blocks[0].parameters() if p.requires_grad]


def measure(cell: Cell, device: torch.device, repeats: int) -> Measurement:
    """Build the cell anew `repeats` times; one training step and its backward pass each."""
    measured = [measure_once(cell, device) for _ in range(repeats)]
    norms, digests = zip(*measured, strict=True)
    return Measurement(cell.name, norms, digests[-1], cell.base)


def measure_once(cell: Cell, device: torch.device) -> tuple[float, str]:
    """The norm of a cell and the digest of its fixture, which is let go before the next is built.

    Raises:
        UserError: base weights are missing or do not fit.
    """
    fixture = build_fixture(cell, device)
    low = fixture.precision != torch.float32
    fixture.method.on_train_start()
    with torch.autocast(device.type, fixture.precision, enabled=low):
        loss_map, outputs, _ = fixture.method.single_train_step(fixture.batch, 0)
    fixture.method.backward(loss_map, outputs, 1)
    return grad_norm(block_zero(fixture.transformer)), fixture.digest


def origin_of(device: torch.device) -> Origin:
    """Device, library versions and time (UTC) of a measurement made now."""
    cuda = device.type == "cuda"
    return Origin(
        device_name=current_device_name() if cuda else CPU,
        torch=torch.__version__,
        cuda=(torch.version.cuda or "") if cuda else "",
        driver=_driver_version() if cuda else "",
        recorded=utc_now(),
    )


def check_grad_norm_regression(
    name: str,
    transformer: nn.Module,
    rtol: float | None = None,
    *,
    refs_root: Path = Path("refs"),
    strict: bool = False,
) -> None:
    """For tests: compare the gradients that `transformer` holds with the recorded norm of `name`.

    Call it after a backward pass. With GC25D_GRADNORM_UPDATE=1 in the environment the norm is
    recorded instead, in `refs_root/<DEVICE>.json` of the device that the model is on.

    Args:
        name: of the cell.
        transformer: a model with `blocks`.
        rtol: the tolerance; None takes the recorded one, 0.10 where there is none.
        refs_root: folder of the references.
        strict: whether nothing comparable is a failure.

    Raises:
        UserError: the norm is NaN, infinite or zero, in both modes.
        AssertionError: it is out of tolerance, or `strict` and nothing comparable is recorded.
        unittest.SkipTest: nothing comparable is recorded, or the norm was recorded just now: in
            both cases nothing was compared (pytest shows a skip and the norm).
    """
    parameters = block_zero(transformer)
    device = parameters[0].device if parameters else torch.device("cpu")
    key = CPU if device.type == "cpu" else device_key(current_device_name())
    path = refs_root / f"{key}.json"
    digest = digest_json({"name": name, "parameters": parameter_shapes(transformer)})
    measured = Measurement(name, (grad_norm(parameters),), digest)
    if os.environ.get(UPDATE_VARIABLE) == "1":
        kept = DEFAULT_RTOL if rtol is None else rtol
        record(path, key, {name: reference_of(measured, kept, origin_of(device))})
        raise unittest.SkipTest(
            f"{name} on {key}: gradient norm {measured.norm:.6g} recorded in {path}, not compared"
        )
    verdict = compare(measured, read_refs(path, key), DEFAULT_RTOL, rtol=rtol)
    found = f"{name} on {key}: gradient norm {verdict.norm:.6g}"
    if verdict.failed(strict):
        raise AssertionError(
            f"{found}, reference {verdict.reference}, rtol {verdict.rtol}: {verdict.outcome}"
        )
    if verdict.outcome != "ok":
        raise unittest.SkipTest(
            f"{found} has a {verdict.outcome} reference in {path}: record it with "
            f"{UPDATE_VARIABLE}=1"
        )


def _driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.split("\n")[0].strip()
