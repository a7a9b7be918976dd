import dataclasses
import warnings

import pytest
import torch
from torch import nn

from gc25d.dataset.actions import random_actions
from gc25d.errors import UserError
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.wan.matrixgame import MatrixGameModel
from gc25d.model.wan.transformer import WanModel
from gc25d.model.zoo import (
    FAMILIES,
    SIZES,
    build_model,
    config_from_tensors,
    construct,
    named_config,
    wan_config,
)
from gc25d.settings import cells
from gc25d.settings.loading import load_settings
from gc25d.settings.training import Model


def meta_shapes(config):
    with torch.device("meta"):
        return {n: tuple(t.shape) for n, t in WanModel(config).state_dict().items()}


def count(shapes):
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def test_5b_has_wans_tensors_and_parameters():
    base = meta_shapes(wan_config("5b", None, 4096))
    assert len(base) == 825
    assert count(base) == 4_999_787_712
    full = meta_shapes(wan_config("5b", "parts", 4096))
    assert len(full) == 831
    added = set(full) - set(base)
    kinds = ("proj_in", "proj_mid", "proj_out")
    assert added == {f"gc_sem_cond.{k}.{part}" for k in kinds for part in ("weight", "bias")}
    assert full["gc_sem_cond.proj_in.weight"] == (1024, 4 * 8 * 8 * 20)
    assert 2 * count(full) == pytest.approx(10.02e9, rel=1e-3)  # bytes in bf16


def test_native_names_of_a_block_and_of_the_rest():
    names = set(meta_shapes(wan_config("tiny", None, 64)))
    linear = [f"{a}.{p}" for a in ("self_attn", "cross_attn") for p in "qkvo"] + ["ffn.0", "ffn.2"]
    block = {f"{n}.{part}" for n in (*linear, "norm3") for part in ("weight", "bias")}
    block |= {f"{a}.norm_{x}.weight" for a in ("self_attn", "cross_attn") for x in "qk"}
    block.add("modulation")
    assert len(block) == 27
    assert {n.removeprefix("blocks.3.") for n in names if n.startswith("blocks.3.")} == block
    outer = ["patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0"]
    outer += ["time_embedding.2", "time_projection.1", "head.head"]
    expected = {f"{n}.{part}" for n in outer for part in ("weight", "bias")} | {"head.modulation"}
    assert {n for n in names if not n.startswith("blocks.")} == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocab", ["parts", "ids", None])
def test_a_configuration_is_recovered_from_shapes(size, vocab):
    config = wan_config(size, vocab, 96)
    assert config_from_tensors(meta_shapes(config)) == config


def test_shapes_of_no_known_size_are_refused():
    shapes = meta_shapes(wan_config("tiny", "parts", 64))
    cut = {n: s for n, s in shapes.items() if not n.startswith("blocks.5.")}
    with pytest.raises(UserError, match="192 wide and has 5 blocks"):
        config_from_tensors(cut)
    with pytest.raises(UserError, match="patch_embedding"):
        config_from_tensors({"conv.weight": (1, 2)})
    wrong = shapes | {"gc_sem_cond.proj_in.weight": (128, 999)}
    with pytest.raises(UserError, match="fits no vocabulary"):
        config_from_tensors(wrong)
    with pytest.raises(UserError, match=r"'7b' is unknown: choose one of tiny, 1\.3b, 5b"):
        wan_config("7b", None, 64)


def test_weights_are_a_function_of_the_seed_alone():
    config = dataclasses.replace(SIZES["tiny"], vocab="parts", text_dim=64, num_layers=1)
    before = torch.get_rng_state()
    first, again, other = (build_model(config, seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "blocks.0.ffn.0.weight"
    assert not torch.equal(first[name], other[name])
    base = build_model(dataclasses.replace(config, vocab=None), 5).state_dict()
    assert all(torch.equal(first[name], base[name]) for name in base)


def test_initialisation_is_wans():
    config = dataclasses.replace(SIZES["tiny"], vocab="parts", text_dim=64, num_layers=1)
    state = build_model(config, 0).state_dict()
    assert not any(t.any() for n, t in state.items() if n.endswith(".bias"))
    assert not state["head.head.weight"].any()
    assert not state["gc_sem_cond.proj_out.weight"].any()
    assert state["gc_sem_cond.proj_in.weight"].any()
    assert all((t == 1).all() for n, t in state.items() if "norm" in n and n.endswith("weight"))
    bound = (6 / (192 + 512)) ** 0.5
    weight = state["blocks.0.ffn.0.weight"]
    assert weight.abs().max() <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.01)
    patch = (6 / (192 + 48 * 4)) ** 0.5
    assert float(state["patch_embedding.weight"].std()) == pytest.approx(patch / 3**0.5, rel=0.01)
    assert float(state["text_embedding.0.weight"].std()) == pytest.approx(0.02, rel=0.03)
    assert float(state["blocks.0.modulation"].std()) == pytest.approx(192**-0.5, rel=0.1)
    assert build_model(config, 0, zero_head=False).head.head.weight.any()


def test_the_first_prediction_of_a_new_model_is_zero(small_config, inputs):
    assert not build_model(small_config, 0)(**inputs).prediction.any()


NAMED = [(name, size) for name, sizes in FAMILIES.items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), NAMED)
def test_every_named_model_can_be_built_and_says_what_it_is(name, size):
    config = named_config(name, size, "ids", 24, 2)
    assert (config.text_dim, config.vocab, config.in_channels) == (24, "ids", 48)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers' own, at its import
        model = construct(config)
    assert model.config == config
    assert isinstance(model.blocks, nn.ModuleList)
    assert not list(model.buffers())
    kinds = {"wan": WanModel, "wan_causal": CausalWanModel, "matrixgame2": MatrixGameModel}
    assert type(model) is kinds.get(name, type(model))
    if name in ("wan_causal", "matrixgame2"):
        assert model.chunk_frames == 2


def test_real_sizes_are_the_published_ones():
    """Widths and depths of HunyuanVideo-I2V, Cosmos-Predict2 Video2World and Matrix-Game 2.0."""
    hunyuan = named_config("hunyuan", "13b", None, 4096, 1)
    assert (hunyuan.dim, hunyuan.num_layers, hunyuan.num_single_layers) == (3072, 20, 40)
    assert hunyuan.rope_dims == (16, 56, 56)
    two, fourteen = (named_config("cosmos", size, None, 1024, 1) for size in ("2b", "14b"))
    assert (two.dim, two.num_layers, two.rope_scale) == (2048, 28, (1.0, 3.0, 3.0))
    assert (fourteen.dim, fourteen.num_layers) == (5120, 36)
    game = named_config("matrixgame2", "1.3b", None, 4096, 3)
    assert (game.action_blocks, game.action_dim, game.action_heads) == (15, 1024, 16)
    assert (game.key_dim, game.window) == (128, 3)


@pytest.mark.parametrize("name", ["hunyuan", "cosmos", "matrixgame2"])
def test_other_models_are_a_function_of_the_seed_and_predict_nothing_at_first(name):
    config = named_config(name, "tiny", "parts", 16, 2)
    before = torch.get_rng_state()
    model, again, other = (build_model(config, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    states = model.state_dict(), again.state_dict(), other.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert all(t.isfinite().all() for t in states[0].values())
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])
    inputs = [
        torch.randn(1, 48, 2, 2, 2),
        torch.tensor([[0.0, 500.0]]),
        torch.randn(1, 8, 16),
        torch.tensor([8]),
        torch.zeros(1, 2, dtype=torch.int64),
        torch.zeros(1, 5, 32, 32, dtype=torch.uint8),
    ]
    if name == "matrixgame2":
        inputs.append(random_actions(1, 5, config.keys, torch.Generator()))
    assert not model(*inputs).prediction.any()


def test_the_settings_know_the_same_sizes():
    assert {name: tuple(sizes) for name, sizes in FAMILIES.items()} == cells.SIZES
    offered = {size for sizes in cells.SIZES.values() for size in sizes}
    assert offered == set(Model.model_fields["size"].annotation.__args__)


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        ({"name": "wan", "size": "13b"}, "finetune", "13b is none of wan's: use tiny or 1.3b or"),
        ({"name": "cosmos", "size": "5b"}, "finetune", "5b is none of cosmos's: use tiny or 2b"),
        ({"name": "hunyuan", "init_dir": "weights"}, "finetune", "another autoencoder's latents"),
        ({"name": "matrixgame2"}, "dfsft", "captures record none"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_before_a_job_starts(model, method, said):
    with pytest.raises(UserError, match=said):
        load_settings({"model": model, "train": {"method": method}})


def test_what_cannot_be_had_says_why():
    with pytest.raises(UserError, match=r"longcat is not available: .* in no well-kept library"):
        named_config("longcat", "tiny", None, 8, 1)
    with pytest.raises(UserError, match="'lumiere' is unknown: choose one of wan, wan_causal"):
        named_config("lumiere", "tiny", None, 8, 1)
    with pytest.raises(UserError, match="'5b' is unknown: choose one of tiny, 13b for hunyuan"):
        named_config("hunyuan", "5b", None, 8, 1)
