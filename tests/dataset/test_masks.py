import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from gc25d.dataset.draws import uniforms
from gc25d.dataset.masks import CAP, HalfPlane, draw_planes, mask_ids
from gc25d.geometry.camera import look, orthographic, perspective, rotator_axes

T, H, W = 5, 32, 64
EAST = 0.0  # θ of a normal along world X


def walk(pitch, yaw=0.0, height=170.0, step=40.0, clip=None):
    """Cameras that move along X."""
    clip = perspective(80, W / H, 5.0) if clip is None else clip
    axes = rotator_axes(pitch, yaw, 3.0)
    return np.stack([look(np.array([step * t, 0.0, height]), axes) @ clip for t in range(T)])


def overhead(step=0.0):
    """Looks straight down on 640 × 320 cm: world X points up the picture, Y right."""
    clip = orthographic(640, 320, 1.0, 1000.0)
    axes = rotator_axes(-90, 0, 0)
    return np.stack([look(np.array([step * t, 0.0, 500.0]), axes) @ clip for t in range(T)])


def ground_by_rays(camera, plane_z):
    """Ground XY of each cell's pixel (4j + 2, 4i + 2) by unprojecting two depths, and its hit."""
    x = (np.arange(2, W, 4) + 0.5) / W * 2 - 1
    y = 1 - (np.arange(2, H, 4) + 0.5) / H * 2
    x, y = np.meshgrid(x, y)
    inverse = np.linalg.inv(camera)
    near, mid = (
        np.stack([x, y, np.full_like(x, depth), np.ones_like(x)], -1) @ inverse
        for depth in (1.0, 0.5)
    )
    near, mid = near[..., :3] / near[..., 3:], mid[..., :3] / mid[..., 3:]
    slope = mid[..., 2] - near[..., 2]
    along = (plane_z - near[..., 2]) / np.where(slope == 0, np.nan, slope)
    hit = along >= 0
    point = near + np.where(hit, along, 0.0)[..., None] * (mid - near)
    return point[..., :2], hit


def static_pixels(frame):
    """How many of each cell's 16 pixels are static."""
    return (frame <= 6).reshape(H // 4, 4, W // 4, 4).sum(axis=(1, 3))


def oracle(ids, cameras, plane_z, planes, frames=(0,)):
    """The mask pixel by pixel from unprojected rays; also where rounding could decide."""
    seen = [ground_by_rays(camera, plane_z) for camera in cameras]
    counts = {t: static_pixels(ids[t]) * seen[t][1] for t in frames}
    cells = np.stack([~hit for _, hit in seen])
    unsure = np.zeros_like(cells)
    for plane in planes:
        normal = np.array([np.cos(plane.theta), np.sin(plane.theta)])
        values = [np.repeat(seen[t][0] @ normal, counts[t].ravel()) for t in frames]
        line = np.quantile(np.concatenate(values), 1 - plane.quantile)
        for t, (xy, hit) in enumerate(seen):
            beyond = xy @ normal - line
            cells[t] |= hit & (beyond > 0)
            unsure[t] |= hit & (np.abs(beyond) < 1e-6 * (1 + np.abs(xy).max(axis=-1)))
    grown, unsure = (np.kron(c, np.ones((1, 4, 4), bool)) for c in (cells, unsure))
    return np.where(grown & (ids <= 6), 255, ids), unsure


def random_ids(seed):
    """Every pixel by itself; or blocks of static or character pixels that no cell is aligned to."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        blocks = rng.choice(np.array([1, 5, 12], np.uint8), (T, H // 5 + 1, W // 7 + 1))
        return np.kron(blocks, np.ones((1, 5, 7), np.uint8))[:, :H, :W].copy()
    return rng.choice(np.array([0, 1, 2, 3, 4, 5, 6, 10, 15, 16, 21], np.uint8), (T, H, W))


@settings(max_examples=60, deadline=None)
@given(
    pitch=st.floats(-80, 30),
    yaw=st.floats(-180, 180),
    height=st.floats(20, 2000),
    plane_z=st.floats(-300, 10),
    parallel=st.booleans(),
    planes=st.lists(
        st.builds(HalfPlane, st.floats(0, 6.28), st.floats(0.05, 0.4)), min_size=1, max_size=2
    ),
    coverage=st.sampled_from(["first_frame", "mean_frame"]),
    seed=st.integers(0, 99),
)
def test_equals_unprojected_rays(pitch, yaw, height, plane_z, parallel, planes, coverage, seed):
    clip = orthographic(800, 400, 1.0, 5000.0) if parallel else perspective(80, W / H, 5.0, 1e5)
    assume(not parallel or abs(pitch) > 0.1)  # parallel rays along the ground: rounding decides
    cameras, ids = walk(pitch, yaw, height, clip=clip), random_ids(seed)
    frames = (0,) if coverage == "first_frame" else (0, 4)
    before = ids.copy()
    masked, share = mask_ids(ids, cameras, plane_z, planes, coverage)
    assert np.array_equal(ids, before)
    if not any(ground_by_rays(cameras[t], plane_z)[1].any() for t in frames):
        assert share == 0
        assert np.array_equal(masked, ids)
        return
    expected, unsure = oracle(ids, cameras, plane_z, planes, frames)
    assert unsure.mean() < 0.2
    assert np.array_equal(masked[~unsure], expected[~unsure])
    assert share == np.mean(masked != ids)


def test_overhead_by_hand():
    """8 rows of cells along X: the (1 − 0.25) quantile lies between the 6th and the 7th value."""
    ids = np.ones((T, H, W), np.uint8)
    masked, share = mask_ids(ids, overhead(), 0.0, [HalfPlane(EAST, 0.25)], "first_frame")
    assert share == 0.25
    assert (masked[:, :8] == 255).all()  # two rows of cells at the top: X points up
    assert (masked[:, 8:] == 1).all()


def test_a_cell_counts_as_often_as_it_has_static_pixels():
    """8 rows of cells along X, and a character that covers parts of them.

    The 4 rows at the top have one static pixel a cell, a corner that is not sampled, the 4 below
    all 16: 64 and 1,024 of the frame's 1,088. The upper quarter of the pixels (272) are the 64 and
    208 of the 256 of the fifth row: τ is that row's value, and what lies beyond are the 4 rows
    above it. One vote for each cell of a static sample would put τ between the 5th and the 6th row.
    """
    ids = np.full((T, H, W), 12, np.uint8)
    ids[:, 0:16:4, 0::4] = 1
    ids[:, 16:] = 1
    for policy in ("first_frame", "mean_frame"):
        masked, _ = mask_ids(ids, overhead(), 0.0, [HalfPlane(EAST, 0.25)], policy)
        hidden = (masked[0] == 255).sum(axis=1)
        assert hidden.tolist() == [16 if row % 4 == 0 else 0 for row in range(16)] + [0] * 16
    # Nobody's sample is static, and yet there are static pixels to calibrate on.
    ids[:, 18::4, 2::4] = 12
    masked, _ = mask_ids(ids, overhead(), 0.0, [HalfPlane(EAST, 0.25)], "first_frame")
    assert (masked[0, :16] == 255).sum() == 64
    assert not (masked[0, 16:] == 255).any()


def test_coverage_grows_with_the_camera_unless_the_policy_prevents_it():
    """40 cm a frame are one row of cells of 8: 2, 3, 4, 5, 6 rows hidden of the first frame's 2."""
    ids, cameras = np.ones((T, H, W), np.uint8), overhead(step=40.0)
    planes = [HalfPlane(EAST, 0.25)]

    def hidden(policy):
        masked, _ = mask_ids(ids, cameras, 0.0, planes, policy)
        return (masked == 255).mean(axis=(1, 2)).tolist()

    assert hidden("first_frame") == [0.25, 0.375, 0.5, 0.625, 0.75]
    # 51 of 128 cells are the most below 40 %: 3 rows of 16 cells and 3 cells of the fourth.
    assert hidden("capped") == [0.25, 0.375, 51 / 128, 51 / 128, 51 / 128]
    # Frames 0 and 4 show X rows 0..7 and 4..11; of these 16 the upper quarter is rows 8..11.
    assert hidden("mean_frame") == [0.0, 0.125, 0.25, 0.375, 0.5]


def test_characters_keep_their_ids_and_sky_is_hidden():
    ids = random_ids(1)
    masked, _ = mask_ids(ids, walk(-10), 0.0, [HalfPlane(EAST, 0.1)], "first_frame")
    characters = ids > 6
    assert np.array_equal(masked[characters], ids[characters])
    top = ~characters[:, :4]  # above the horizon
    assert (masked[:, :4][top] == 255).all()


@settings(max_examples=30, deadline=None)
@given(
    pitch=st.floats(-60, 40),
    theta=st.floats(0, 6.28),
    quantile=st.floats(0.05, 0.4),
    seed=st.integers(0, 99),
)
def test_capped_hides_a_part_of_first_frame(pitch, theta, quantile, seed):
    """Never above the cap, never elsewhere, untouched where first_frame stays below the cap."""
    ids, cameras, planes = random_ids(seed), walk(pitch, step=100.0), [HalfPlane(theta, quantile)]
    whole, _ = mask_ids(ids, cameras, 0.0, planes, "first_frame")
    capped, share = mask_ids(ids, cameras, 0.0, planes, "capped")
    assert share == np.mean(capped != ids)
    for frame, before, after in zip(ids, whole, capped, strict=True):
        static = (frame <= 6).sum()
        assert (after == 255).sum() <= CAP * static
        assert (before[after == 255] == 255).all()
        if (before == 255).sum() <= CAP * static:
            assert np.array_equal(after, before)
        else:  # as much as fits, but for a cell of 16 pixels each of sky and ground
            assert (after == 255).sum() > CAP * static - 32


def test_capped_takes_the_same_share_from_sky_and_ground():
    """Sky above the horizon is a quarter of the picture here."""
    ids, cameras = np.ones((T, H, W), np.uint8), walk(-12, step=0.0)
    _, hit = ground_by_rays(cameras[0], 0.0)
    sky = np.kron(~hit, np.ones((4, 4), bool))
    planes = [HalfPlane(EAST, 0.4), HalfPlane(2.0, 0.4)]
    whole, capped = (
        mask_ids(ids, cameras, 0.0, planes, policy)[0][0] == 255
        for policy in ("first_frame", "capped")
    )
    assert whole.mean() > 0.5
    share = CAP / whole.mean()
    for region in (sky, ~sky):
        assert capped[region].sum() == pytest.approx(share * whole[region].sum(), abs=16)


def test_capped_keeps_the_highest_sky():
    ids, cameras = np.ones((T, H, W), np.uint8), walk(20, step=0.0)
    _, hit = ground_by_rays(cameras[0], 0.0)
    assert 0 < hit.mean() < 1 - CAP
    masked, _ = mask_ids(ids, cameras, 0.0, [HalfPlane(EAST, 0.2)], "capped")
    rows = (masked[0] == 255).mean(axis=1)
    assert rows[0] == 1
    assert rows[20] == 0  # sky still: the horizon is at row 30


@pytest.mark.parametrize("policy", ["first_frame", "mean_frame", "capped"])
def test_nothing_to_mask(policy):
    planes = [HalfPlane(EAST, 0.4)]
    ids = random_ids(0)
    for cameras, plane_z, chosen in (
        (walk(-20), None, planes),  # a run without a ground plane
        (walk(-20), 0.0, []),  # no half-plane drawn
        (walk(60), 0.0, planes),  # nothing but sky: no line to calibrate
        (walk(-20, height=0.0), 0.0, planes),  # the camera lies in the plane: seen edge-on
    ):
        masked, share = mask_ids(ids, cameras, plane_z, chosen, policy)
        assert share == 0
        assert np.array_equal(masked, ids)
    characters = np.full_like(ids, 12)
    assert mask_ids(characters, walk(-20), 0.0, planes, policy)[1] == 0


def test_out_receives_the_result():
    planes = [HalfPlane(1.0, 0.3)]
    ids = random_ids(3)
    expected, share = mask_ids(ids, walk(-20), 0.0, planes, "first_frame")
    other = np.zeros_like(ids)
    assert mask_ids(ids, walk(-20), 0.0, planes, "first_frame", out=other)[1] == share
    assert np.array_equal(other, expected)
    result, _ = mask_ids(ids, walk(-20), 0.0, planes, "first_frame", out=ids)
    assert result is ids
    assert np.array_equal(ids, expected)


def test_planes_are_drawn_as_documented():
    """4,000 draws; rates within 4 standard errors, continuous values by Kolmogorov-Smirnov."""
    drawn = [draw_planes(uniforms(0, "sample", 0, i, count=5)) for i in range(4000)]
    two = np.mean([len(planes) == 2 for planes in drawn])
    assert abs(two - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 4000)
    for place in (0, 1):
        planes = [chosen[place] for chosen in drawn if len(chosen) > place]
        theta = np.array([plane.theta for plane in planes])
        quantile = np.array([plane.quantile for plane in planes])
        assert stats.kstest(theta, stats.uniform(0, 2 * np.pi).cdf).pvalue > 0.001
        assert stats.kstest(quantile, stats.uniform(0.05, 0.35).cdf).pvalue > 0.001
        assert abs(np.corrcoef(theta, quantile)[0, 1]) < 4 / np.sqrt(len(planes))
