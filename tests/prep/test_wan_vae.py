import warnings

import numpy as np
import pytest
import torch

from gc25d.errors import UserError
from gc25d.prep.codec import codec_for

CONFIG = {
    "z_dim": 48, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "is_residual": True,
    "temperal_downsample": [False, True, True], "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "base_dim": 1, "scale_factor_spatial": 16,
}  # fmt: skip


def save(path, **config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import AutoencoderKLWan
    torch.manual_seed(0)
    model = AutoencoderKLWan(**{**CONFIG, **config})
    model.save_pretrained(path)
    return model.eval()


@pytest.mark.parametrize("inner", ["", "vae"])
def test_latents_are_normalised_with_the_models_figures(tmp_path, inner):
    mean, std = [i / 100 for i in range(48)], [0.5 + i / 48 for i in range(48)]
    model = save(tmp_path / inner, latents_mean=mean, latents_std=std)
    codec = codec_for("wan_vae", str(tmp_path))
    frames = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3)).astype(np.uint8)
    latents = codec.encode(frames)
    assert latents.shape == (48, 3, 4, 4)
    assert latents.dtype == torch.float32
    video = torch.from_numpy(frames).permute(3, 0, 1, 2)[None] / 127.5 - 1
    with torch.no_grad():
        posterior = model.encode(video).latent_dist.mean[0]
        decoded = model.decode(posterior[None]).sample[0]
    for channel in (0, 7, 47):
        expected = (posterior[channel] - mean[channel]) / std[channel]
        assert torch.allclose(latents[channel], expected, atol=1e-5)
    pixels = codec.decode(latents)
    assert pixels.dtype == np.uint8
    expected = ((decoded.permute(1, 2, 3, 0) + 1) * 127.5).clamp(0, 255).numpy()
    assert np.abs(pixels - expected).max() <= 0.51


def test_another_autoencoder_is_refused(tmp_path):
    save(tmp_path, z_dim=16)
    with pytest.raises(UserError, match="16 channels"):
        codec_for("wan_vae", str(tmp_path))


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        codec_for("wan_vae", str(tmp_path / "nowhere"))
