import numpy as np
import pytest
import torch
from scipy.fft import dctn

from gc25d.errors import UserError
from gc25d.prep.encoders.dct import COEFFICIENTS, DctCodec, codec_for, dct_basis


def clip(seed=0, frames=9, height=32, width=64):
    """Smooth moving colours."""
    rng = np.random.default_rng(seed)
    t, y, x = np.mgrid[:frames, :height, :width]
    waves = [
        np.sin(x * a / 20 + y * b / 20 + t * c / 8 + d) for a, b, c, d in rng.uniform(-1, 1, (3, 4))
    ]
    return (np.stack(waves, -1) * 60 + 128).round().astype(np.uint8)


def test_channels_are_distinct_low_frequencies():
    places = {kept[:4] for kept in COEFFICIENTS}
    assert len(places) == 48
    assert all(
        colour < 3 and time < 4 and row < 8 and column < 8 for colour, time, row, column in places
    )
    assert all(kept.std > 0 for kept in COEFFICIENTS)


def test_basis_is_orthonormal():
    basis = dct_basis().double()
    assert torch.allclose(basis @ basis.T, torch.eye(48, dtype=torch.float64), atol=1e-6)


def test_latents_are_scipys_dct_of_each_block():
    frames = clip()
    latents = DctCodec().encode(frames).numpy()
    assert latents.shape == (48, 3, 2, 4)
    assert latents.dtype == np.float32
    scaled = frames / 127.5 - 1
    groups = [np.repeat(scaled[:1], 4, axis=0), scaled[1:5], scaled[5:9]]
    for f, group in enumerate(groups):
        for i in range(2):
            for j in range(4):
                block = group[:, 16 * i : 16 * i + 16, 16 * j : 16 * j + 16]
                spectrum = dctn(block.transpose(3, 0, 1, 2), norm="ortho")
                for channel, kept in enumerate(COEFFICIENTS):
                    expected = (spectrum[kept[:4]] - kept.mean) / (kept.std * 13.0) ** 0.5
                    assert latents[channel, f, i, j] == pytest.approx(expected, abs=2e-4)


def test_decoding_inverts_encoding_up_to_truncation():
    """Frames inside the codec's span come back; a second pass changes a rounding step at most."""
    codec = DctCodec()
    once = codec.decode(codec.encode(clip()))
    twice = codec.decode(codec.encode(once))
    assert once.dtype == np.uint8
    assert once.shape == (9, 32, 64, 3)
    assert np.abs(twice.astype(int) - once).max() <= 1
    latents = codec.encode(once)
    std = torch.tensor([kept.scale for kept in COEFFICIENTS])[:, None, None, None]
    # Rounding moves a coefficient by a few 1/127.5: an orthonormal transform keeps its energy.
    assert ((codec.encode(twice) - latents) * std).abs().max() < 0.2


def test_latents_in_the_span_return_unchanged():
    """Latents → pixels → latents, with pixels kept as floats by the test's own inverse."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(48, 3, 2, 4, generator=generator) * 0.1
    latents[[channel for channel, kept in enumerate(COEFFICIENTS) if kept.time], 0] = 0
    codec = DctCodec()
    back = codec.encode(codec.decode(latents))
    std = torch.tensor([kept.scale for kept in COEFFICIENTS])[:, None, None, None]
    # A coefficient of 3,072 rounded pixels errs by 1/127.5/√12 = 0.0023 (one σ).
    assert ((back - latents) * std)[:, 1:].abs().max() < 5 * 0.0023


def test_truncation_keeps_the_largest_part_of_a_smooth_clip():
    frames = clip()
    error = DctCodec().decode(DctCodec().encode(frames).bfloat16()).astype(float) - frames
    assert 10 * np.log10(255**2 / (error**2).mean()) > 35


def test_grey_is_one_coefficient():
    """A clip of one grey has no energy but in R + G + B's mean: 0.2·√3072 = 11.085."""
    frames = np.full((5, 32, 32, 3), 153, np.uint8)  # 153 / 127.5 − 1 = 0.2
    latents = DctCodec().encode(frames)
    raw = latents * torch.tensor([k.scale for k in COEFFICIENTS])[:, None, None, None]
    raw += torch.tensor([k.mean for k in COEFFICIENTS])[:, None, None, None]
    assert raw[0].flatten().tolist() == pytest.approx([0.2 * 3072**0.5] * 8, abs=1e-4)
    assert raw[1:].abs().max() < 1e-4
    assert np.array_equal(DctCodec().decode(latents), frames)


def test_first_frame_of_a_still_clip_is_coded_as_the_others():
    frames = np.repeat(clip(frames=1), 9, axis=0)
    latents = DctCodec().encode(frames)
    assert torch.allclose(latents[:, :1], latents, atol=1e-6)


def test_moving_coefficients_of_the_first_frame_do_not_show():
    """The lone first frame is the mean of its four: a sampler's noise there changes nothing."""
    codec = DctCodec()
    latents = codec.encode(clip())
    noisy = latents.clone()
    noisy[[channel for channel, kept in enumerate(COEFFICIENTS) if kept.time], 0] += 3
    assert np.array_equal(codec.decode(noisy), codec.decode(latents))


def test_threads_change_no_bit():
    frames = np.random.default_rng(0).integers(0, 256, (17, 96, 160, 3), dtype=np.uint8)
    codec, before = DctCodec(), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            latents = codec.encode(frames)
            found.append((latents, codec.decode(latents)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for latents, decoded in found[1:]:
        assert torch.equal(latents, found[0][0])
        assert np.array_equal(decoded, found[0][1])


def test_codecs_by_name():
    assert isinstance(codec_for("dct", ""), DctCodec)
    with pytest.raises(UserError, match="expected 'dct' or 'wan_vae'"):
        codec_for("jpeg", "")
