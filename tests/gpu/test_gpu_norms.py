"""The Triton kernels against formulas in float64: outputs, gradients, the same bits twice."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gc25d.model.gpu import norms
from gc25d.model.rope import rope_table
from gc25d.model.wan.blocks import LayerNorm, RmsNorm

pytestmark = pytest.mark.gpu

EPS = 1e-6
GRID = (3, 5, 7)  # frames, rows, columns: no part of it a power of two
TOKENS = GRID[0] * GRID[1] * GRID[2]
DTYPES = [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)]
WIDTHS = [(2, 16), (3, 24), (24, 128)]


def rotated(table: tuple[Tensor, Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """Complex numbers x[2i] + i·x[2i+1] of the normed values, turned."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    pairs = torch.view_as_complex(normed.reshape(*x.shape[:2], -1, table[0].shape[-1] // 2, 2))
    turn = torch.complex(table[0][..., ::2].double(), table[1][..., 1::2].double())
    return torch.view_as_real(pairs * turn).reshape(x.shape)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Each frame's tokens by themselves."""
    frames = x.split(TOKENS // GRID[0], 1)
    normed = [functional.layer_norm(frame, x.shape[-1:], eps=EPS) for frame in frames]
    parts = zip(normed, shift.unbind(1), scale.unbind(1), strict=True)
    return torch.cat([n * (1 + b[:, None]) + a[:, None] for n, a, b in parts], 1)


def check(
    ours: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    bound: float,
) -> None:
    """Relative errors of the output and of every gradient."""
    given = torch.randn_like(inputs[0])

    def results(function: Callable[..., Tensor], dtype: torch.dtype | None) -> list[Tensor]:
        own = [part.detach().to(dtype or part.dtype).requires_grad_() for part in inputs]
        output = function(*own)
        return [output, *torch.autograd.grad(output, own, given.to(output.dtype))]

    found, again = results(ours, None), results(ours, None)
    expected = results(reference, torch.float64)
    for one, other, right in zip(found, again, expected, strict=True):
        assert torch.equal(one, other)
        assert one.shape == right.shape
        error = (one.double() - right).norm() / right.norm()
        assert float(error.detach()) < bound


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
@pytest.mark.parametrize(("heads", "head"), WIDTHS)
def test_norm_and_rotation(heads: int, head: int, dtype: torch.dtype, bound: float) -> None:
    table = rope_table(GRID, head, torch.device("cuda"))
    x = torch.randn(2, TOKENS, heads * head, device="cuda").to(dtype)
    weight = torch.randn(heads * head, device="cuda").to(dtype)
    ours = functools.partial(norms.norm_rope, table=table, eps=EPS)
    check(ours, functools.partial(rotated, table), (x, weight), bound)


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
@pytest.mark.parametrize("width", [32, 72, 3072])
def test_norm_and_modulation(width: int, dtype: torch.dtype, bound: float) -> None:
    x = (3 * torch.randn(2, TOKENS, width, device="cuda") + 1).to(dtype)
    shift, scale = torch.randn(2, GRID[0], 6, width, device="cuda").unbind(2)[1:3]
    ours = functools.partial(norms.norm_modulate, eps=EPS)
    check(ours, modulated, (x, shift, scale), bound)


@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
@pytest.mark.parametrize("shape", [(TOKENS,), (2, TOKENS), (2, 3, 5)])
def test_affine_norm(shape: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    x = (3 * torch.randn(*shape, 72, device="cuda") + 1).to(dtype)
    weight, bias = torch.randn(2, 72, device="cuda").unbind()
    weight = weight * 10.0 ** torch.linspace(-9, 0, 72, device="cuda")  # small ones count too
    ours = functools.partial(norms.norm_affine, eps=EPS)

    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (72,), weight, bias, EPS)

    check(ours, reference, (x, weight, bias), bound)


def test_blocks_use_them_on_a_gpu_and_agree_with_the_cpu() -> None:
    """The same modules, with and without the kernels."""
    x = torch.randn(2, TOKENS, 72)
    for module in (LayerNorm(72, EPS), RmsNorm(72, EPS)):
        torch.nn.init.normal_(module.weight)
        here = module(x)
        there = module.cuda()(x.cuda()).cpu()
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)
    assert norms.fits(x.cuda())
    assert not norms.fits(x)
    assert not norms.fits(x.cuda().transpose(0, 1))
    assert not norms.fits(x[:0].cuda())


def test_more_rows_than_a_grid_has_along_its_second_axis() -> None:
    """65,535 programs there, 4 rows each."""
    x = torch.randn(4 * 65_536 + 3, 8, device="cuda")
    weight, bias = torch.randn(2, 8, device="cuda").unbind()
    found = norms.norm_affine(x, weight, bias, EPS)
    torch.testing.assert_close(found, functional.layer_norm(x, (8,), weight, bias, EPS))
