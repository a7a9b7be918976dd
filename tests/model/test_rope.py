import torch

from gc25d.model.rope import apply_rope, rope_table, split_head


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
