import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gc25d.errors import UserError
from gc25d.prep.encoders.dct import codec_for
from gc25d.prep.encoders.wan_vae import Speed, WanVaeCodec, passes

MEAN, STD = [i / 100 for i in range(48)], [0.5 + i / 48 for i in range(48)]
CONFIG = {
    "z_dim": 48, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "is_residual": True,
    "temperal_downsample": [False, True, True], "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "base_dim": 4, "scale_factor_spatial": 16,
    "latents_mean": MEAN, "latents_std": STD,
}  # fmt: skip
NAME = "decoder.conv_in.weight"


def save(path, **config):
    """A randomly initialised autoencoder with the strides of Wan2.2's; norms are not all one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import AutoencoderKLWan
    torch.manual_seed(0)
    model = AutoencoderKLWan(**{**CONFIG, **config})
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(path)
    return model.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("vae")
    return save(path), path


@pytest.fixture
def damaged(saved, tmp_path):
    """A copy to damage."""
    return shutil.copytree(saved[1], tmp_path / "copy")


def clip(frames, height=64, width=96):
    return np.random.default_rng(0).integers(0, 256, (frames, height, width, 3)).astype(np.uint8)


def reference(model, frames):
    """The library's own posterior mean of a clip, normalised by hand."""
    video = torch.from_numpy(frames).permute(3, 0, 1, 2)[None] / 127.5 - 1
    with torch.no_grad():
        mean = model.encode(video).latent_dist.mean[0]
    return torch.stack([(mean[c] - MEAN[c]) / STD[c] for c in range(48)])


@pytest.mark.parametrize("frames", [1, 5, 21])
@pytest.mark.parametrize(
    "speed",
    [
        Speed(),
        Speed(fast_layers=False, channels_last=False, pass_frames=4),
        Speed(fast_layers=False, channels_last=True, pass_frames=8),
        Speed(fast_layers=True, channels_last=False, pass_frames=12),
    ],
)
def test_latents_are_the_librarys_posterior_mean_normalised(saved, speed, frames):
    model, path = saved
    latents = WanVaeCodec.load(path, "cpu", speed).encode(clip(frames))
    assert latents.shape == (48, 1 + (frames - 1) // 4, 4, 6)
    assert latents.dtype == torch.float32
    torch.testing.assert_close(latents, reference(model, clip(frames)), atol=2e-5, rtol=1e-5)


def test_bf16_is_as_near_to_fp32_as_the_librarys_own_bf16(saved):
    """bf16 has 8 bits: fused norms round once where the library rounds four times."""
    model, path = saved
    exact = reference(model, clip(9))
    codec = WanVaeCodec.load(path, "cpu")
    ours = WanVaeCodec(
        codec.model.bfloat16(), codec.encoder, codec.mean, codec.std, codec.speed
    ).encode(clip(9))
    library = reference(save_bf16(path), clip(9))
    assert 0 < (ours - exact).norm() < 1.1 * (library.float() - exact).norm()


def save_bf16(path):
    """The library's model in bf16, fed as it would be: the video rounded to bf16."""
    from diffusers import AutoencoderKLWan

    model = AutoencoderKLWan.from_pretrained(path, torch_dtype=torch.bfloat16).eval()
    plain = model.encode
    model.encode = lambda video: plain(video.bfloat16())
    return model


def test_decoding_is_the_librarys(saved):
    model, path = saved
    codec = codec_for("wan_vae", str(path))
    latents = codec.encode(clip(9))
    pixels = codec.decode(latents)
    assert pixels.shape == (9, 64, 96, 3)
    assert pixels.dtype == np.uint8
    column = torch.tensor(STD).reshape(-1, 1, 1, 1), torch.tensor(MEAN).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        decoded = model.decode((latents * column[0] + column[1])[None]).sample[0]
    expected = ((decoded.permute(1, 2, 3, 0) + 1) * 127.5).clamp(0, 255).numpy()
    assert np.abs(pixels - expected).max() <= 0.51


def test_frames_that_are_not_finite_are_an_error(saved):
    codec = WanVaeCodec.load(saved[1], "cpu")
    latents = torch.zeros(48, 2, 2, 2)
    latents[0, 1, 0, 0] = torch.nan
    with pytest.raises(UserError, match=r"decoded frames: \d+ of 15360 values are NaN"):
        codec.decode(latents)


def test_encoding_twice_gives_equal_bytes_and_clips_do_not_mix(saved):
    codec = codec_for("wan_vae", str(saved[1]))
    once = codec.encode(clip(9))
    codec.encode(clip(5, 32, 32))
    assert torch.equal(codec.encode(clip(9)), once)


def test_passes_cover_the_clip_in_groups_of_four():
    assert list(passes(1, 8)) == [(0, 1)]
    assert list(passes(13, 8)) == [(0, 1), (1, 9), (9, 13)]


def test_the_size_of_a_pass_follows_the_picture(saved):
    codec = WanVaeCodec.load(saved[1], "cpu")
    assert codec._pass_frames(480, 832) == 16
    assert codec._pass_frames(1088, 1920) == 4  # 3.06 frames fit; a group is the least
    assert codec._pass_frames(96, 160) == 416


def test_a_pipelines_directory_is_read(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "vae")
    latents = codec_for("wan_vae", str(tmp_path)).encode(clip(5))
    assert torch.equal(latents, codec_for("wan_vae", str(saved[1])).encode(clip(5)))


def refused(directory, message):
    with pytest.raises(UserError, match=message):
        codec_for("wan_vae", str(directory))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z_dim": 16}, "16 channels with 48 means and 48 deviations, expected 48 of each"),
        ({"latents_std": STD[:16]}, "48 channels with 48 means and 16 deviations"),
        ({"latents_std": [0.0, *STD[1:]]}, "a deviation is not above 0"),
        ({"patch_size": None}, "4 frames and 8 by 8 pixels, expected 4 and 16 by 16"),
        ({"temperal_downsample": [False, False, True]}, "cells of 2 frames and 16 by 16 pixels"),
        ({"_class_name": "AutoencoderKL"}, "_class_name is 'AutoencoderKL', expected"),
        ({"base_dim": 8}, r"is \[.*\], config.json makes it \["),
        ({"num_res_blocks": 2}, r"lacks tensor .*resnets.* in all\)"),
        ({"dim_mult": [1, "two", 1, 1]}, "no valid AutoencoderKLWan"),
    ],
)
def test_another_autoencoder_is_refused(damaged, change, message):
    file = damaged / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    refused(damaged, message)


@pytest.mark.parametrize("name", ["config.json", "diffusion_pytorch_model.safetensors"])
def test_a_missing_file_is_named(damaged, name):
    (damaged / name).unlink()
    refused(damaged, f"{name} not found")


def test_a_missing_directory_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "nowhere")


def change_weights(directory, change):
    file = directory / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_missing_unknown_and_misshapen_tensors_are_named(damaged):
    change_weights(damaged, lambda tensors: tensors.update({NAME: tensors[NAME][:2].clone()}))
    refused(damaged, rf"{NAME} is \[2, 48, 3, 3, 3\], config\.json makes it \[4, 48, 3, 3, 3\]")
    change_weights(damaged, lambda tensors: tensors.pop(NAME))
    refused(damaged, rf"lacks tensor {NAME} \(1 in all\)")
    change_weights(
        damaged, lambda tensors: tensors.update({NAME: torch.zeros(1), "x": torch.zeros(1)})
    )
    refused(damaged, r"has an unknown tensor x \(1 in all\)")


def test_cut_weights_are_refused(damaged):
    file = damaged / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refused(damaged, "not a whole .safetensors file")
