import numpy as np
import pytest
import torch

from gc25d.errors import UserError
from gc25d.model.semantic import (
    OUTSIDE,
    cell_occupancy,
    class_count,
    class_lut,
    count_cells_numpy,
    count_cells_torch,
)
from gc25d.model.zoo import build_model


def test_parts_are_twenty_classes_in_order():
    lut = class_lut("parts")
    known = [*range(7), *range(10, 22), 255]
    assert [lut[identifier] for identifier in known] == list(range(20))
    assert all(lut[i] == OUTSIDE for i in range(256) if i not in known)
    assert class_count("parts") == 20


def test_ids_collapse_parts_to_player_and_boss():
    lut = class_lut("ids")
    assert [lut[i] for i in range(7)] == list(range(7))
    assert {lut[i] for i in (7, *range(10, 16))} == {7}
    assert {lut[i] for i in (8, *range(16, 22))} == {8}
    assert lut[255] == 9
    assert class_count("ids") == 10


def naive_occupancy(sem_ids, lut, classes):
    """Pixel by pixel, straight from the definition."""
    batch, _, height, width = sem_ids.shape
    padded = np.concatenate([sem_ids[:, :1].repeat(3, 1), sem_ids], axis=1)
    f, rows, columns = padded.shape[1] // 4, height // 32, width // 32
    out = np.zeros((batch, f, rows, columns, 4, 8, 8, classes))
    for b, t, y, x in np.ndindex(padded.shape):
        cell = (b, t // 4, y // 32, x // 32, t % 4, y % 32 // 4, x % 32 // 4)
        out[(*cell, lut[padded[b, t, y, x]])] += 1 / 16
    return out.reshape(batch, f * rows * columns, -1)


@pytest.mark.parametrize("vocab", ["parts", "ids"])
def test_occupancy_equals_counting_pixels(inputs, vocab):
    sem_ids = inputs["sem_ids"][:, :5, :64, :64]
    lut, classes = class_lut(vocab), class_count(vocab)
    expected = naive_occupancy(sem_ids.numpy(), lut, classes)
    for dtype in (torch.float32, torch.bfloat16):
        ours = cell_occupancy(sem_ids, lut, classes, dtype)
        assert ours.dtype == dtype
        assert torch.equal(ours.double(), torch.from_numpy(expected))


@pytest.mark.parametrize("vocab", ["parts", "ids"])
@pytest.mark.parametrize("shape", [(9, 64, 96), (5, 320, 352)])  # in one piece, in three
def test_both_devices_count_alike(vocab, shape):
    lut, classes = class_lut(vocab), class_count(vocab)
    known = np.array([i for i in range(256) if lut[i] != OUTSIDE], dtype=np.uint8)
    frames = np.random.default_rng(0).choice(known, shape)
    ours = count_cells_numpy(frames, lut, classes)
    theirs = count_cells_torch(torch.from_numpy(frames), lut, classes)
    assert torch.equal(theirs, torch.from_numpy(ours))
    assert (ours.sum(-1) == 16).all()


def test_a_cell_of_one_class_is_full():
    sem_ids = torch.full((1, 1, 32, 32), 21, dtype=torch.uint8)
    occupancy = cell_occupancy(sem_ids, class_lut("parts"), 20).view(4 * 64, 20)
    assert torch.equal(occupancy[:, 18], torch.ones(256))
    assert occupancy.sum() == 256


def test_an_id_outside_the_vocabulary_is_named():
    sem_ids = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    sem_ids[0, 0, 3, 4] = 7
    with pytest.raises(UserError, match=r"semantic ids \[7\] are outside"):
        cell_occupancy(sem_ids, class_lut("parts"), 20)
    assert cell_occupancy(sem_ids, class_lut("ids"), 10).sum() == 256


def test_the_zero_condition_changes_nothing_bit_for_bit(small_config, base_model, inputs):
    model = build_model(small_config, seed=1)
    model.load_state_dict(base_model.state_dict(), strict=False)
    assert not model.gc_sem_cond.proj_out.weight.any()
    for dtype in (torch.float32, torch.bfloat16):
        ours, plain = model.to(dtype)(**inputs), base_model.to(dtype)(**inputs)
        assert torch.equal(ours.prediction, plain.prediction)
        assert ours.stats["sem_rms"] == 0


def test_the_condition_reaches_the_token_it_belongs_to(small_model, inputs):
    changed = inputs["sem_ids"].clone()
    changed[1, 5:9, 32:64, 64:96] = 255  # frame 2 of sample 1, last row, last column
    before = small_model.gc_sem_cond(inputs["sem_ids"])
    after = small_model.gc_sem_cond(changed)
    differs = (before != after).any(-1)
    assert differs.nonzero().tolist() == [[1, 2 * 6 + 1 * 3 + 2]]
