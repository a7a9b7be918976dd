import torch

from gc25d.model.rope import apply_rope, rope_table, split_head
from gc25d.model.wan.transformer import sinusoidal_embedding


def complex_rope(heads, grid, head_dim):
    """Wan's own formulation: complex numbers in float64, one table an axis."""

    def table(size, width):
        frequencies = 1 / 10000 ** (torch.arange(0, width, 2).double() / width)
        angles = torch.outer(torch.arange(size).double(), frequencies)
        return torch.polar(torch.ones_like(angles), angles)

    f, h, w = grid
    widths = [head_dim - 4 * (head_dim // 6), 2 * (head_dim // 6), 2 * (head_dim // 6)]
    frames, rows, columns = (table(s, m) for s, m in zip(grid, widths, strict=True))
    factors = torch.cat(
        [
            frames.view(f, 1, 1, -1).expand(f, h, w, -1),
            rows.view(1, h, 1, -1).expand(f, h, w, -1),
            columns.view(1, 1, w, -1).expand(f, h, w, -1),
        ],
        dim=-1,
    ).reshape(f * h * w, 1, -1)
    pairs = torch.view_as_complex(heads.double().reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors).flatten(-2).float()


def test_real_rotation_equals_the_complex_one():
    generator = torch.Generator().manual_seed(0)
    for head_dim in (24, 32, 128):
        grid = (5, 3, 4)
        heads = torch.randn(2, 60, 3, head_dim, generator=generator)
        table = rope_table(grid, head_dim, torch.device("cpu"))
        expected = complex_rope(heads, grid, head_dim)
        torch.testing.assert_close(apply_rope(heads, table), expected, rtol=0, atol=1e-6)


def test_a_head_of_128_splits_44_42_42():
    assert split_head(128) == (44, 42, 42)
    assert split_head(32) == (12, 10, 10)


def test_low_precision_in_low_precision_out():
    heads = torch.ones(1, 1, 1, 12, dtype=torch.bfloat16)
    rotated = apply_rope(heads, rope_table((1, 1, 1), 12, torch.device("cpu")))
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, heads)  # position 0 turns nothing


def test_a_table_first_asked_for_without_gradients_serves_training_too():
    """Sampling and validation run in inference mode, whose tensors no backward pass may keep."""
    with torch.inference_mode():
        table = rope_table((2, 3, 5), 20, torch.device("cpu"))
        timestep = torch.tensor([[7.0]])
        sinusoidal_embedding(timestep, 46)
    assert rope_table((2, 3, 5), 20, torch.device("cpu")) is table
    heads = torch.randn(1, 30, 2, 20, requires_grad=True)
    apply_rope(heads, table).square().sum().backward()
    # A rotation changes no length: the gradient of the squares is that of the heads' own.
    torch.testing.assert_close(heads.grad, 2 * heads.detach())
    timestep = torch.tensor([[7.0]], requires_grad=True)
    sinusoidal_embedding(timestep, 46).sum().backward()
    assert timestep.grad is not None
