"""`matrixgame2`: actions steer a causal Wan model, and nothing looks ahead of its chunk."""

import dataclasses

import pytest
import torch
from torch import nn

from gc25d.dataset.actions import Actions, action_windows, random_actions
from gc25d.errors import UserError
from gc25d.model.config import CausalConfig, MatrixGameConfig
from gc25d.model.rope import apply_rope
from gc25d.model.semantic import video_frames
from gc25d.model.start import starting_model
from gc25d.model.wan.actions import ActionModule, frame_rotation
from gc25d.model.wan.causal import CausalWanModel, ChunkLoop
from gc25d.model.weights.shards import save_native_shards
from gc25d.model.zoo import build_model

TINY = MatrixGameConfig(
    dim=48,
    ffn_dim=80,
    num_heads=2,
    num_layers=3,
    text_dim=20,
    vocab="parts",
    cond_dim=16,
    in_channels=8,
    out_channels=8,
    freq_dim=32,
    chunk_frames=2,
    keys=4,
    action_blocks=2,
    action_dim=64,
    action_heads=2,
    key_dim=8,
)
FRAMES = 17


def loud(config: MatrixGameConfig = TINY) -> nn.Module:
    """Nothing stays at its neutral value."""
    model = build_model(config, 3, zero_head=False)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


@pytest.fixture
def acted(clip) -> dict:
    """Five latent frames and the actions of their 17 video frames."""
    actions = random_actions(2, FRAMES, 4, torch.Generator().manual_seed(2))
    return {**clip, "actions": Actions(actions.keyboard, 10 * actions.mouse)}


def test_windows_by_hand():
    signal = torch.arange(9.0).reshape(1, 9, 1)
    windows = action_windows(Actions(signal, signal.expand(-1, -1, 2)), 3, 2)
    first = [0.0] * 8
    # Latent frame 1 shows video frames 1 to 4 and sees the actions that led there, 0 to 3.
    second = [0.0] * 4 + [0.0, 1.0, 2.0, 3.0]
    third = [float(i) for i in range(8)]
    assert windows.keyboard[0, :, :, 0].tolist() == [first, second, third]
    assert windows.mouse.shape == (1, 3, 8, 2)


def test_a_new_model_equals_the_causal_one(acted):
    model = build_model(TINY, 3, zero_head=False)
    shared = {field.name: getattr(TINY, field.name) for field in dataclasses.fields(CausalConfig)}
    causal = build_model(CausalConfig(**shared), 3, zero_head=False)
    assert isinstance(causal, CausalWanModel)
    assert not isinstance(causal, type(model))
    own = model.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in causal.state_dict().items())
    added = {name for name in own if name not in causal.state_dict()}
    assert all(".action_model." in name for name in added)
    assert {name.split(".")[1] for name in added} == {"0", "1"}
    plain = {name: value for name, value in acted.items() if name != "actions"}
    assert torch.equal(model(**acted).prediction, causal(**plain).prediction)
    other = {**acted, "actions": random_actions(2, FRAMES, 4, torch.Generator())}
    assert torch.equal(model(**other).prediction, causal(**plain).prediction)


def test_it_starts_from_plain_wan_weights(tmp_path, acted):
    shared = {field.name: getattr(TINY, field.name) for field in dataclasses.fields(CausalConfig)}
    base = build_model(CausalConfig(**{**shared, "vocab": None}), 8, zero_head=False)
    save_native_shards(base.state_dict(), base.config, tmp_path, dtype=torch.float32)
    model = starting_model(TINY, 3, str(tmp_path), "")
    own = model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in base.state_dict().items())
    assert own["blocks.0.action_model.t_qkv.weight"].any()
    plain = {name: value for name, value in acted.items() if name not in ("actions", "sem_ids")}
    assert torch.equal(model(**acted).prediction, base(**plain).prediction)


@pytest.mark.parametrize("part", ["keyboard", "mouse"])
@pytest.mark.parametrize(
    ("video_frame", "latents"),
    [
        (16, []),  # leads out of the clip
        (15, [4]),
        (12, [4]),
        (11, [2, 3, 4]),  # leads to frame 12 of latent frame 3, whose chunk begins at 2
        (7, [2, 3, 4]),
        (0, [0, 1, 2, 3, 4]),
    ],
)
def test_an_action_changes_its_chunk_and_later_ones_only(acted, part, video_frame, latents):
    model = loud()
    before = model(**acted).prediction
    actions = acted["actions"]
    changed = getattr(actions, part).clone()
    changed[0, video_frame] += 1
    after = model(**{**acted, "actions": actions._replace(**{part: changed})}).prediction
    moved = (after - before).abs().amax((1, 3, 4)) > 1e-6
    assert moved[0].nonzero().flatten().tolist() == latents
    assert not moved[1].any()


def test_mouse_attention_by_hand():
    """Place by place, frame by frame, in plain loops."""
    module = loud().blocks[0].action_model
    generator = torch.Generator().manual_seed(1)
    frames, places, width, heads = 3, 2, 64, 2
    tokens = torch.randn(1, frames * places, 48, generator=generator)
    actions = random_actions(1, 9, 4, generator)
    windows = action_windows(actions, frames, 3)
    found = module.read_mouse(tokens, windows, frames, ChunkLoop(2))[0]
    norm_q, norm_k = module.img_attn_q_norm, module.img_attn_k_norm
    turn = frame_rotation(0, frames, width // heads, tokens.device)
    for place in range(places):
        rows = []
        for frame in range(frames):
            seen = [actions.mouse[0, max(0, 4 * frame - 12 + i)] for i in range(12)]
            joined = torch.cat([tokens[0, frame * places + place], *seen])
            rows.append(module.t_qkv(module.mouse_mlp(joined)))
        query, key, value = torch.stack(rows).reshape(frames, 3, heads, width // heads).unbind(1)
        query = apply_rope(norm_q(query)[None], turn)[0]
        key = apply_rope(norm_k(key)[None], turn)[0]
        for frame in range(frames):
            end = 2 if frame < 2 else 3
            mixed = []
            for head in range(heads):
                logits = key[:end, head] @ query[frame, head] / (width // heads) ** 0.5
                mixed.append(logits.softmax(0) @ value[:end, head])
            expected = module.proj_mouse(torch.cat(mixed))
            torch.testing.assert_close(
                found[frame * places + place], expected, rtol=1e-4, atol=1e-5
            )


def test_keyboard_attention_by_hand():
    module: ActionModule = loud().blocks[0].action_model
    generator = torch.Generator().manual_seed(1)
    frames, places, width, heads = 3, 2, 64, 2
    tokens = torch.randn(1, frames * places, 48, generator=generator)
    actions = random_actions(1, 9, 4, generator)
    found = module.read_keyboard(tokens, action_windows(actions, frames, 3), frames)[0]
    turn = frame_rotation(0, frames, width // heads, tokens.device)
    rows = []
    for frame in range(frames):
        seen = [actions.keyboard[0, max(0, 4 * frame - 12 + i)] for i in range(12)]
        embedded = torch.cat([module.keyboard_embed(keys) for keys in seen])
        rows.append(module.keyboard_attn_kv(embedded))
    key, value = torch.stack(rows).reshape(frames, 2, heads, width // heads).unbind(1)
    key = apply_rope(module.key_attn_k_norm(key)[None], turn)[0]
    for token in range(frames * places):
        frame = token // places
        asked = module.mouse_attn_q(tokens[0, token]).reshape(heads, -1)
        asked = module.key_attn_q_norm(asked).expand(frames, -1, -1)
        query = apply_rope(asked[None], turn)[0, frame]
        end = 2 if frame < 2 else 3
        mixed = []
        for head in range(heads):
            logits = key[:end, head] @ query[head] / (width // heads) ** 0.5
            mixed.append(logits.softmax(0) @ value[:end, head])
        expected = module.proj_keyboard(torch.cat(mixed))
        torch.testing.assert_close(found[token], expected, rtol=1e-4, atol=1e-5)


def test_an_eighth_of_a_head_turns_with_the_frame():
    """Angles of the published configuration: 8 of 64 components, θ = 256."""
    turn = frame_rotation(3, 2, 64, torch.device("cpu"))
    angles = [4 * 256 ** (-i / 4) for i in range(4)]
    cosines = torch.tensor(angles).cos().repeat_interleave(2)
    torch.testing.assert_close(turn.cos[1, 0, :8], cosines)
    assert (turn.cos[:, :, 8:] == 1).all()
    assert (turn.sin[:, :, 8:] == 0).all()


def test_chunk_by_chunk_equals_the_whole_clip(acted):
    model = loud().eval()
    with torch.no_grad():
        whole = model(**acted).prediction
        cache = model.new_cache(2, (5, *acted["latents"].shape[3:]))
        for start in (0, 2, 4):
            part = slice(start, min(start + 2, 5))
            output = model.forward_chunk(
                acted["latents"][:, :, part],
                acted["timestep"][:, part],
                acted["prompts"],
                acted["prompt_lengths"],
                acted["context_ids"][:, part],
                acted["sem_ids"][:, video_frames(start, part.stop - start)],
                cache,
                write=True,
                actions=acted["actions"],
            )
            torch.testing.assert_close(output.prediction, whole[:, :, part], rtol=1e-4, atol=1e-5)
    assert cache.frames == cache.mouse.frames == 5
    cache.clear()
    assert cache.frames == cache.mouse.frames == 0


def test_every_action_parameter_gets_a_gradient(acted):
    model = loud()
    model(**acted).prediction.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_actions_that_do_not_fit_are_refused(acted):
    model = loud()
    actions = acted["actions"]
    with pytest.raises(UserError, match="needs the actions of each frame"):
        model(**{**acted, "actions": None})
    with pytest.raises(UserError, match=r"\(17, 3\).*expected \(17, 4\)"):
        model(**{**acted, "actions": actions._replace(keyboard=actions.keyboard[..., :3])})
    with pytest.raises(UserError, match=r"mouse \(16, 2\)"):
        model(**{**acted, "actions": actions._replace(mouse=actions.mouse[:, :16])})


def test_low_precision_runs(acted):
    model = loud()
    full = model(**acted).prediction
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(**acted).prediction
    low = model.to(torch.bfloat16)(**acted).prediction
    for other in (mixed, low):
        assert (other - full).square().mean() < 2e-2 * full.square().mean()
