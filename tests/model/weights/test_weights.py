import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gc25d.errors import UserError
from gc25d.model.config import WanConfig
from gc25d.model.start import model_from_tensors, starting_model
from gc25d.model.weights.files import base_shapes, load_base, load_tensors
from gc25d.model.weights.names import to_diffusers, to_native
from gc25d.model.weights.shards import save_diffusers, save_native_shards
from gc25d.model.zoo import build_model
from gc25d.tensors import write_tensors

INDEX = "diffusion_pytorch_model.safetensors.index.json"


def assert_equal(model, expected, skip=()):
    for name, tensor in model.state_dict().items():
        if not name.startswith(tuple(skip)):
            assert torch.equal(tensor, expected[name]), name


def save_shards(model, config, folder, **options):
    options = {"dtype": torch.float32, "shard_bytes": 40_000} | options
    save_native_shards(model.state_dict(), config, folder, **options)


def test_names_go_both_ways(small_model):
    names = list(small_model.state_dict())
    theirs = [to_diffusers(name) for name in names]
    assert len(set(theirs)) == len(names)
    assert [to_native(name) for name in theirs] == names
    assert [to_native(name) for name in names] == names  # native names pass unchanged
    assert to_diffusers("blocks.17.cross_attn.o.bias") == "blocks.17.attn2.to_out.0.bias"
    assert to_diffusers("blocks.1.norm3.weight") == "blocks.1.norm2.weight"


@pytest.mark.parametrize("save", [save_native_shards, save_diffusers])
@pytest.mark.parametrize("shard_bytes", [40_000, 10**9])
def test_a_directory_gives_back_the_weights(tmp_path, small_model, small_config, save, shard_bytes):
    state = small_model.state_dict()
    save(state, small_config, tmp_path, dtype=torch.float32, shard_bytes=shard_bytes)
    assert (tmp_path / INDEX).exists() == (shard_bytes < 10**9)
    model = build_model(small_config, 0)
    load_base(model, tmp_path)
    assert_equal(model, state)


def test_shards_are_bounded_and_converted(tmp_path, small_model, small_config):
    save_native_shards(small_model.state_dict(), small_config, tmp_path, shard_bytes=40_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    for shard in shards:
        tensors = load_file(shard)
        assert all(t.dtype == torch.bfloat16 for t in tensors.values())
        assert len(tensors) == 1 or sum(2 * t.numel() for t in tensors.values()) <= 40_000
    total = json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"]
    assert total == 2 * sum(p.numel() for p in small_model.parameters())
    assert {p.name for p in tmp_path.iterdir()} == {INDEX, "config.json", *(s.name for s in shards)}


def test_diffusers_reads_what_was_written(tmp_path, small_model, small_config, base_model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diffusers = pytest.importorskip("diffusers")
        save_diffusers(small_model.state_dict(), small_config, tmp_path, dtype=torch.float32)
        peer, report = diffusers.WanTransformer3DModel.from_pretrained(
            tmp_path, output_loading_info=True
        )
    assert not any(report.values())
    theirs = {to_native(name): tensor for name, tensor in peer.state_dict().items()}
    assert_equal(base_model, theirs)
    assert len(theirs) == len(base_model.state_dict())


def test_base_weights_leave_the_condition_as_it_was(
    tmp_path, small_config, small_model, base_model
):
    save_shards(base_model, small_config, tmp_path / "transformer")
    model = build_model(small_config, 0)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    load_base(model, tmp_path)  # a pipeline's directory
    assert_equal(model, base_model.state_dict(), skip=["gc_sem_cond."])
    for name in (n for n in before if n.startswith("gc_sem_cond.")):
        assert torch.equal(model.state_dict()[name], before[name])


def test_a_file_of_all_tensors(tmp_path, small_config, small_model, base_model):
    state = small_model.state_dict()
    save_file({n: t.bfloat16() for n, t in state.items()}, tmp_path / "x.safetensors")
    model = build_model(small_config, 0)
    load_tensors(model, tmp_path / "x.safetensors")
    assert_equal(model, {n: t.bfloat16().float() for n, t in state.items()})
    save_file(base_model.state_dict(), tmp_path / "base.safetensors")
    with pytest.raises(UserError, match=r"missing gc_sem_cond\.proj_in\.bias, .* and 1 more"):
        load_tensors(model, tmp_path / "base.safetensors")
    load_base(model, tmp_path / "base.safetensors")
    assert_equal(model, base_model.state_dict(), skip=["gc_sem_cond."])


@pytest.mark.parametrize("names", [str, to_diffusers])
def test_a_prefix_of_the_whole_is_passed_over(
    tmp_path, small_config, small_model, base_model, names
):
    state = {f"dit.{names(n)}": t for n, t in base_model.state_dict().items()}
    save_file(state, tmp_path / "x.safetensors")
    for source in (tmp_path / "x.safetensors", tmp_path):
        model = build_model(small_config, 0)
        load_base(model, source)
        assert_equal(model, base_model.state_dict(), skip=["gc_sem_cond."])
        assert base_shapes(source) == {
            n: tuple(t.shape) for n, t in base_model.state_dict().items()
        }
    whole = {f"dit.{n}": t for n, t in small_model.state_dict().items()}
    save_file(whole, tmp_path / "x.safetensors")
    load_base(model, tmp_path)
    assert_equal(model, small_model.state_dict())
    twice = {**whole, "head.head.bias": whole["dit.head.head.bias"].clone()}
    save_file(twice, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"head\.head\.bias is also in .*x\.safetensors"):
        load_base(model, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("blocks.1.ffn.2.bias"), r"missing blocks\.1\.ffn\.2\.bias"),
        (lambda s: s.update({"module.x": torch.zeros(1)}), r"extra module\.x"),
        (
            lambda s: s.update({"head.modulation": torch.zeros(1, 2, 47)}),
            r"head\.modulation is \[1, 2, 47\], expected \[1, 2, 48\]",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(
    tmp_path, small_config, small_model, change, message
):
    state = {n: t.clone() for n, t in small_model.state_dict().items()}
    change(state)
    save_file(state, tmp_path / "x.safetensors")
    model = build_model(small_config, 0)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    for load in (load_base, load_tensors):
        with pytest.raises(UserError, match=message):
            load(model, tmp_path / "x.safetensors")
    assert_equal(model, before)


def test_a_tensor_that_the_index_names_but_its_shard_lacks(tmp_path, small_model, small_config):
    save_shards(small_model, small_config, tmp_path)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    victim = "blocks.0.self_attn.norm_k.weight"
    shard = tmp_path / weight_map[victim]
    tensors = load_file(shard)
    del tensors[victim]
    save_file(tensors, shard)
    with pytest.raises(UserError, match=rf"{shard.name}.*missing {victim}"):
        load_base(build_model(small_config, 0), tmp_path)


def test_broken_directories_are_refused(tmp_path, small_model, small_config):
    model = build_model(small_config, 0)
    with pytest.raises(UserError, match="nowhere: not found"):
        load_base(model, tmp_path / "nowhere")
    save_shards(small_model, small_config, tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    shard = tmp_path / index["weight_map"]["head.head.weight"]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(UserError, match=rf"{shard.name}: not a whole"):
        load_base(model, tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match=rf"{shard.name}: not found"):
        load_base(model, tmp_path)
    shard.write_bytes(whole)
    (tmp_path / INDEX).unlink()
    with pytest.raises(UserError, match="0 index files"):
        load_base(model, tmp_path)
    index["weight_map"]["head.head.weight"] = "../stolen.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match="is no file name"):
        load_base(model, tmp_path)


def test_writing_again_leaves_no_stale_shards(tmp_path, small_model, base_model, small_config):
    save_shards(small_model, small_config, tmp_path)
    save_diffusers(small_model.state_dict(), small_config, tmp_path)
    assert (tmp_path / "gc_sem_cond.safetensors").exists()
    save_shards(base_model, small_config, tmp_path, shard_bytes=10**9)
    expected = {"config.json", "diffusion_pytorch_model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    model = build_model(small_config, 0)
    load_base(model, tmp_path)
    assert_equal(model, base_model.state_dict(), skip=["gc_sem_cond."])


def test_a_start_from_base_weights_draws_only_the_condition(tmp_path, base_model, small_config):
    save_shards(base_model, small_config, tmp_path / "base")
    first, again, other = (
        starting_model(small_config, seed, str(tmp_path / "base"), "") for seed in (5, 5, 6)
    )
    assert_equal(first, base_model.state_dict(), skip=["gc_sem_cond."])
    assert_equal(first, again.state_dict())
    condition, others = first.gc_sem_cond, other.gc_sem_cond
    assert not torch.equal(condition.proj_mid.weight, others.proj_mid.weight)
    bound = (6 / (16 + 16)) ** 0.5  # Glorot's, of a 16 x 16 matrix
    assert 0.9 * bound < condition.proj_mid.weight.abs().max() <= bound
    for neutral in (condition.proj_out.weight, condition.proj_out.bias, condition.proj_in.bias):
        assert not neutral.any()


def test_a_warm_start_holds_everything(tmp_path, small_model, small_config):
    file = tmp_path / "warm.safetensors"
    write_tensors(file, small_model.state_dict(), {"vocab": "parts"})
    model = starting_model(small_config, 5, "not read", str(file))
    assert_equal(model, small_model.state_dict())
    for vocab, message in ((None, "names no vocab"), ("ids", "its vocab is ids")):
        write_tensors(file, small_model.state_dict(), {"vocab": vocab} if vocab else {})
        with pytest.raises(UserError, match=message):
            starting_model(small_config, 5, "", str(file))


def test_a_frozen_copy_shares_no_memory(small_model, small_config):
    frozen = model_from_tensors(small_config, small_model.state_dict(), torch.device("cpu"))
    assert_equal(frozen, small_model.state_dict())
    with torch.no_grad():
        small_model.head.head.weight.add_(1)
    assert not torch.equal(frozen.head.head.weight, small_model.head.head.weight)
    assert not any(p.requires_grad for p in frozen.parameters())


LOADER = """
import sys
from gc25d.model.config import WanConfig
from gc25d.model.start import starting_model

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
starting_model(WanConfig(*map(int, sys.argv[2:]), text_dim=64), 0, sys.argv[1], "")
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_loading_takes_the_model_and_one_mapped_shard(tmp_path):
    """161 MB of fp32 files into a model of 161 MB: the files are never held as a whole too."""
    sizes = (512, 2048, 8, 9)
    config = WanConfig(*sizes, text_dim=64)
    model = build_model(config, 0)
    save_shards(model, config, tmp_path, shard_bytes=20_000_000)
    size = sum(4 * p.numel() for p in model.parameters())
    assert sum(p.stat().st_size for p in tmp_path.glob("*.safetensors")) > size
    command = [sys.executable, "-c", LOADER, tmp_path, *sizes]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    assert 0.9 * size < int(done.stdout) < 1.5 * size
