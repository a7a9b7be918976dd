from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gc25d.dataset.clips import ClipDataset, Rates
from gc25d.errors import UserError

N = 4000


def rates_of(draws):
    return (
        np.array([draw.text for draw in draws]),
        np.array([draw.cond for draw in draws]),
        np.array([bool(draw.planes) for draw in draws]),
    )


@pytest.fixture(scope="module")
def drawn():
    return rates_of([Rates(0.1, 0.05, 0.5).draw(0, e, i) for e in range(4) for i in range(N // 4)])


def test_rates(drawn):
    """Within 4 standard errors of the settings."""
    text, cond, mask = drawn
    assert abs(text.mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / N)
    assert abs(cond.mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / N)
    kept = N - cond.sum()
    assert abs(mask[~cond].mean() - 0.5) < 4 * np.sqrt(0.25 / kept)
    assert not mask[cond].any()


def test_dropouts_are_independent(drawn):
    """Correlations have a standard error of 1/√N; the bound is 4 of them."""
    text, cond, mask = drawn
    assert abs(np.corrcoef(text, cond)[0, 1]) < 4 / np.sqrt(N)
    assert abs(np.corrcoef(text[~cond], mask[~cond])[0, 1]) < 4 / np.sqrt((~cond).sum())
    assert 0 < (text & cond).sum() < 60  # 20 expected


def test_a_rate_changes_only_its_own_draw():
    base = rates_of([Rates(0.1, 0.05, 0.5).draw(0, 0, i) for i in range(500)])
    other = rates_of([Rates(0.9, 0.05, 0.5).draw(0, 0, i) for i in range(500)])
    assert np.array_equal(base[1], other[1])
    assert np.array_equal(base[2], other[2])
    assert other[0][base[0]].all()


def test_samples_are_what_was_stored(data, expected_ids, expected_latents):
    clips = ClipDataset(data, "train")
    numbers = [0, 2, 3, 4, 5]  # 1 is dropped
    assert [row.clip_id[-6:] for row in clips.rows] == [f"{n:06d}" for n in numbers]
    for index, number in enumerate(numbers):
        sample = clips.sample(0, index)
        assert torch.equal(sample.input_latents, expected_latents(number))
        assert sample.input_latents.dtype == torch.bfloat16
        assert np.array_equal(sample.sem_ids.numpy(), expected_ids(number))
        assert sample.context_ids.tolist() == [2, 1]  # "walk", "turn"
        assert sample.context_ids.dtype == torch.int64
        assert sample.dropped == {"text": False, "cond": False, "mask": 0.0}
        assert (sample.epoch, sample.index) == (0, index)
        assert torch.equal(sample.context(clips.table), clips.table.embeddings[[2, 1]])


def test_text_dropout_makes_every_cell_the_empty_prompt(data):
    sample = ClipDataset(data, "train", text_dropout=1.0).sample(0, 0)
    assert sample.context_ids.tolist() == [0, 0]
    assert sample.dropped == {"text": True, "cond": False, "mask": 0.0}


def test_cond_dropout_reads_no_ids(data):
    for path in (data / "ids").iterdir():
        path.unlink()
    sample = ClipDataset(data, "train", cond_dropout=1.0, mask_p=1.0).sample(0, 0)
    assert sample.sem_ids.shape == (5, 32, 64)
    assert sample.sem_ids.dtype == torch.uint8
    assert (sample.sem_ids == 255).all()
    assert sample.dropped == {"text": False, "cond": True, "mask": 0.0}


def test_mask_hides_static_pixels_only(data, expected_ids):
    clips = ClipDataset(data, "train", mask_p=1.0)
    sample = clips.sample(0, 0)
    stored = expected_ids(0)
    changed = sample.sem_ids.numpy() != stored
    assert changed.any()
    assert (sample.sem_ids.numpy()[changed] == 255).all()
    assert (stored[changed] <= 6).all()
    assert sample.dropped["mask"] == changed.mean()


def same(left, right):
    return (
        torch.equal(left.sem_ids, right.sem_ids)
        and torch.equal(left.context_ids, right.context_ids)
        and left.dropped == right.dropped
    )


def test_draws_depend_on_seed_epoch_and_index_alone(data):
    """Whatever was read before, in whatever copy of the data set."""
    settings = {"text_dropout": 0.5, "cond_dropout": 0.3, "mask_p": 0.7}
    clips = ClipDataset(data, "train", seed=5, **settings)
    places = [(epoch, index) for epoch in range(4) for index in range(len(clips))]
    straight = {place: clips.sample(*place) for place in places}
    with ThreadPoolExecutor(3) as pool:
        backwards = pool.map(lambda place: clips.sample(*place), reversed(places))
        assert all(map(same, backwards, reversed(straight.values())))
    other = ClipDataset(data, "train", seed=6, **settings)
    assert not all(same(other.sample(*place), straight[place]) for place in places)
    assert not all(same(straight[0, i], straight[1, i]) for i in range(len(clips)))


def test_validation_drops_nothing(data, expected_ids):
    clips = ClipDataset(data, "val", text_dropout=1.0, cond_dropout=1.0, mask_p=1.0)
    assert len(clips) == 2
    for index in range(2):
        sample = clips.sample(3, index)
        assert sample.dropped == {"text": False, "cond": False, "mask": 0.0}
        assert np.array_equal(sample.sem_ids.numpy(), expected_ids(6 + index))


def test_clip_by_id_is_undisturbed(data, expected_ids):
    clips = ClipDataset(data, "train", text_dropout=1.0, cond_dropout=1.0)
    sample = clips.clip("maze__run-001__000004")
    assert sample.index == 3
    assert np.array_equal(sample.sem_ids.numpy(), expected_ids(4))
    with pytest.raises(UserError, match=r"maze__run-001__000044.*maze__run-001__000004"):
        clips.clip("maze__run-001__000044")
    with pytest.raises(UserError, match="000001"):
        clips.clip("maze__run-000__000001")  # dropped


def test_round_robin_takes_each_run_in_turn(data):
    clips = ClipDataset(data, "train")  # indices 0, 1 of run-000; 2, 3, 4 of run-001
    assert clips.round_robin(3, "n") == [0, 2, 1]
    assert clips.round_robin(5, "n") == [0, 2, 1, 3, 4]
    with pytest.raises(
        UserError, match=r"evaluation\.n is 6, but .* has 5 usable train clips: use 5"
    ):
        clips.round_robin(6, "evaluation.n")


def test_a_cut_file_names_the_clip(data):
    path = data / "latents/maze__run-000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"clip maze__run-000__000000 .*run-000\.safetensors"):
        ClipDataset(data, "train").sample(0, 0)


@pytest.mark.parametrize("folder", ["latents", "ids"])
def test_a_flipped_bit_names_the_clip(data, folder):
    path = data / f"{folder}/maze__run-000.safetensors"
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    for place in range(8 + header, len(content)):
        content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="clip maze__run-000__000000 is damaged"):
        ClipDataset(data, "train", mask_p=1.0).sample(0, 0)


def test_ids_of_another_size_name_the_clip(data):
    ready = data / "READY"
    ready.write_text(ready.read_text().replace("64", "96"))
    with pytest.raises(UserError, match="clip maze__run-000__000000 is damaged"):
        ClipDataset(data, "train").sample(0, 0)


def test_missing_data_are_user_errors(data):
    index = data / "index/clips.jsonl"
    rows = index.read_text().splitlines(keepends=True)
    index.write_text("".join(row for row in rows if '"val"' not in row))
    with pytest.raises(UserError, match="no usable clip in the val split"):
        ClipDataset(data, "val")
    (data / "text/table.safetensors").write_bytes(b"no table")
    with pytest.raises(UserError, match="no readable text table"):
        ClipDataset(data, "train")
    index.unlink()
    with pytest.raises(UserError, match="build the data set first"):
        ClipDataset(data, "train")
    (data / "READY").unlink()
    with pytest.raises(UserError, match="READY: not found"):
        ClipDataset(data, "train")
