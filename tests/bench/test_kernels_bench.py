"""Kernels by kind and the gaps between them, of a timeline written by hand."""

import pytest


def test_overlapping_kernels_are_busy_once_and_gaps_are_where_nothing_runs():
    from bench.model import kernels

    timeline = [
        kernels.Kernel("nvjet_sm90_x", 100.0, 300.0),
        kernels.Kernel("_norm_rope_backward", 250.0, 400.0),  # beside the product for 50
        kernels.Kernel("triton_red_fused_sum", 900.0, 1000.0),  # after a gap of 500
        kernels.Kernel("triton_red_fused_sum", 1010.0, 1110.0),
        kernels.Kernel("Memset (Device)", 260.0, 270.0),  # within others
    ]
    found = kernels.summary(timeline)
    assert found["span_ms"] == pytest.approx(1.010)
    assert found["busy_ms"] == pytest.approx(0.500)
    assert found["idle_ms"] == pytest.approx(0.510)
    assert found["kinds_ms"] == pytest.approx(
        {
            "matrix products": 0.2,
            "compiled pointwise and sums": 0.2,
            "norms with what follows": 0.15,
            "other": 0.01,
        }
    )
    first = found["gaps"][0]
    assert (first["ms"], first["at_ms"]) == (pytest.approx(0.5), pytest.approx(0.3))
    assert first["before"] == "triton_red_fused_sum"
    assert found["kernels"][0] | {"ms": 0} == {"name": "nvjet_sm90_x", "count": 1, "ms": 0}
    assert {entry["name"]: entry["count"] for entry in found["kernels"]} == {
        "nvjet_sm90_x": 1, "triton_red_fused_sum": 2, "_norm_rope_backward": 1, "Memset (Device)": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm>", "matrix products"),
        ("triton_red_fused_gelu_gelu_backward_sum_view_4", "compiled pointwise and sums"),
        ("_norm_modulate_forward", "norms with what follows"),
        ("Memcpy HtoD (Pageable -> Device)", "other"),
    ],
)
def test_kernels_are_known_by_their_names(name, kind):
    from bench.model import kernels

    assert kernels.kind_of(name) == kind
