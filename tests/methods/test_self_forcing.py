"""Self forcing: the roll-out against whole-clip passes, and where its gradient comes from."""

import pytest
import torch

from gc25d.methods.distill import GENERATOR_LOSS, DistillConfig
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.self_forcing import SelfForcingMethod

STEPS = 3


@pytest.fixture
def method(causal, bidirectional):
    def build(chunk_frames: int, seed: int = 0) -> SelfForcingMethod:
        config = DistillConfig(STEPS, 5.0, 2)
        student = causal(chunk_frames)
        return SelfForcingMethod(
            student, bidirectional(2), bidirectional(2), seed=seed, config=config
        )

    return build


def test_one_chunk_of_all_frames_is_dmd2(method, bidirectional, clips_batch) -> None:
    subject, batch = method(5), clips_batch([3, 8])
    plain = Dmd2Method(
        bidirectional(1), bidirectional(2), bidirectional(2), seed=0, config=subject.config
    )
    for iteration in range(0, 8, 2):
        found, expected = (m.single_train_step(batch, iteration) for m in (subject, plain))
        torch.testing.assert_close(
            found[1]["samples"], expected[1]["samples"], rtol=1e-4, atol=1e-5
        )
        for name, loss in expected[0].items():
            assert found[0][name].item() == pytest.approx(loss.item(), rel=1e-3)


@torch.no_grad()
def test_a_chunk_is_made_of_the_clean_chunks_before(method, clips_batch) -> None:
    """Every estimate again by a whole pass over the clean past and the noisy chunk, no cache."""
    subject, batch = method(2), clips_batch([3, 8])
    iteration = next(i for i in range(50) if sorted(subject.draw_exits(i, 3)) == [0, 1, 2])
    exits, noises = subject.draw_exits(iteration, 3), subject.draw_noises(batch)
    made = subject.roll_out(batch, iteration).clean
    past = batch.latents[:, :, :0]
    for (start, stop), leave in zip(((0, 2), (2, 4), (4, 5)), exits, strict=True):
        estimate = batch.latents[:, :, start:stop]
        for step in range(leave + 1):
            sigma = (1.0, 10 / 11, 5 / 7)[step]  # 5σ/(1 + 4σ) of 1, 2/3, 1/3
            x = (1 - sigma) * estimate + sigma * noises[step][:, :, start:stop]
            per_frame = torch.full((2, stop), 1000 * sigma)
            per_frame[:, :start] = 0
            if start == 0:
                x[:, :, 0], per_frame[:, 0] = batch.latents[:, :, 0], 0
            whole = torch.cat([past, x], dim=2)
            text = (batch.prompts, batch.prompt_lengths, batch.context_ids[:, :stop])
            ids = batch.sem_ids[:, : 4 * (stop - 1) + 1]
            v = subject.causal(whole, per_frame, *text, ids).prediction
            estimate = (whole - per_frame[:, None, :, None, None] / 1000 * v)[:, :, start:stop]
        torch.testing.assert_close(made[:, :, start:stop], estimate, rtol=1e-4, atol=1e-4)
        past = torch.cat([past, estimate], dim=2)
    assert torch.equal(made[:, :, 0], batch.latents[:, :, 0])


def test_gradient_passes_through_the_exit_of_each_chunk_alone(
    method, clips_batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, batch = method(2), clips_batch([3])
    exits = subject.draw_exits(0, 3)
    calls = []
    forward = subject.causal.forward_chunk

    def spied(latents, timestep, *rest, write, **kept):
        calls.append((timestep[0, -1].item(), write, torch.is_grad_enabled()))
        return forward(latents, timestep, *rest, write=write, **kept)

    monkeypatch.setattr(subject.causal, "forward_chunk", spied)
    losses, outputs, _ = subject.single_train_step(batch, 0)
    levels = [pytest.approx(t) for t in (1000.0, 10000 / 11, 5000 / 7)]
    expected = []
    for chunk, leave in enumerate(exits):
        expected += [(levels[step], False, step == leave) for step in range(leave + 1)]
        expected += [(0.0, True, False)] * (chunk < 2)  # nothing comes after the last
    assert calls == expected
    subject.backward({GENERATOR_LOSS: losses[GENERATOR_LOSS]}, outputs, 1)
    without = [n for n, p in subject.roles["student"].named_parameters() if p.grad is None]
    assert without == []
    for role in ("teacher", "critic"):
        assert all(p.grad is None for p in subject.roles[role].parameters())


def test_the_critics_iteration_builds_no_graph_of_the_student(method, clips_batch) -> None:
    subject = method(2)
    losses, outputs, _ = subject.single_train_step(clips_batch([3]), 1)
    assert set(losses) == {"critic_loss"}
    subject.backward(losses, outputs, 1)
    assert all(p.grad is None for p in subject.roles["student"].parameters())
    assert all(p.grad is not None for p in subject.roles["critic"].parameters())


def test_a_sample_does_not_depend_on_its_batch(method, clips_batch) -> None:
    together = method(2).single_train_step(clips_batch([3, 8]), 0)[1]["samples"]
    alone = method(2).single_train_step(clips_batch([8]), 0)[1]["samples"]
    torch.testing.assert_close(together[1], alone[0], rtol=1e-4, atol=1e-5)
