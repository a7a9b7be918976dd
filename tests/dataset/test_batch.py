import pytest
import torch

from gc25d.dataset.batch import collate
from gc25d.dataset.clips import ClipDataset


def test_collate_stacks_in_order_and_keeps_each_prompt_once(data):
    clips = ClipDataset(data, "train")
    plain = [clips.sample(2, index) for index in (3, 0)]
    batch = collate(plain, clips.table)
    assert len(batch) == 2
    assert batch.latents.shape == (2, 48, 2, 2, 4)
    assert batch.sem_ids.shape == (2, 5, 32, 64)
    assert batch.clip_ids == ["maze__run-001__000004", "maze__run-000__000000"]
    assert (batch.epochs, batch.indices) == ([2, 2], [3, 0])
    assert torch.equal(batch.latents[1], plain[1].input_latents)
    assert torch.equal(batch.sem_ids[0], plain[0].sem_ids)
    # Both clips say walk, turn: table rows 1 (turn) and 2 (walk), in table order.
    assert torch.equal(batch.prompts, clips.table.embeddings[[1, 2]])
    assert batch.prompt_lengths.tolist() == [3, 2]
    assert batch.context_ids.tolist() == [[1, 0], [1, 0]]


def test_context_ids_reach_each_sample_s_own_prompts(data):
    clips = ClipDataset(data, "train")
    dropped = ClipDataset(data, "train", text_dropout=1.0).sample(0, 1)
    samples = [clips.sample(0, 0), dropped]
    batch = collate(samples, clips.table)
    assert batch.prompts.shape[0] == 3
    for row, sample in zip(batch.context_ids, samples, strict=True):
        assert torch.equal(batch.prompts[row], sample.context(clips.table))
    assert [dropped["text"] for dropped in batch.dropped] == [False, True]


def test_moving_changes_the_type_of_what_is_arithmetic(data):
    clips = ClipDataset(data, "train")
    batch = collate([clips.sample(0, 0)], clips.table)
    moved = batch.to("cpu", torch.float32)
    assert moved.latents.dtype == moved.prompts.dtype == torch.float32
    assert moved.sem_ids.dtype == torch.uint8
    assert moved.context_ids.dtype == moved.prompt_lengths.dtype == torch.int64
    assert batch.latents.dtype == torch.bfloat16
    assert torch.equal(moved.latents, batch.latents.float())


def test_a_batch_of_one_holds_its_sample_uncopied(data):
    clips = ClipDataset(data, "train")
    sample = clips.sample(0, 0)
    batch = collate([sample], clips.table)
    assert batch.sem_ids.shape == (1, *sample.sem_ids.shape)
    assert torch.equal(batch.sem_ids[0], sample.sem_ids)
    assert batch.sem_ids.data_ptr() == sample.sem_ids.data_ptr()
    assert torch.equal(batch.latents[0], sample.input_latents)


def test_prompt_lengths_stay_on_the_cpu(data):
    clips = ClipDataset(data, "train")
    moved = collate([clips.sample(0, 0)], clips.table).to("meta", torch.bfloat16)
    assert moved.prompt_lengths.tolist() == [3, 2]
    assert {t.device.type for t in (moved.latents, moved.prompts, moved.sem_ids)} == {"meta"}


@pytest.mark.gpu
def test_pinned_batches_are_equal(data):
    clips = ClipDataset(data, "train")
    batch = collate([clips.sample(0, 0)], clips.table)
    pinned = batch.pin_memory()
    assert pinned.latents.is_pinned()
    assert pinned.sem_ids.is_pinned()
    moved = pinned.to("cuda", torch.float32)
    assert torch.equal(moved.latents.cpu(), batch.latents.float())
    assert torch.equal(moved.sem_ids.cpu(), batch.sem_ids)
