"""The arithmetic that training fixes so that it can be repeated."""

from collections.abc import Iterator

import pytest
import torch
from torch._inductor import config

from gc25d.train.engine import fix_arithmetic


@pytest.fixture
def arithmetic_as_before() -> Iterator[None]:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with config.patch(deterministic=False):
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.mark.usefixtures("arithmetic_as_before")
@pytest.mark.parametrize("exact", [True, False])
def test_on_gpus_exact_training_leaves_no_kernel_to_timing(
    monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fix_arithmetic(1, gpu=True, exact=exact)
    assert torch.are_deterministic_algorithms_enabled() is exact
    assert config.deterministic is exact


@pytest.mark.usefixtures("arithmetic_as_before")
def test_on_the_cpu_arithmetic_is_fixed_whatever_was_asked() -> None:
    fix_arithmetic(2, gpu=False, exact=False)
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
