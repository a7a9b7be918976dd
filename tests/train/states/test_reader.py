"""Loading states: M processes read what N wrote, and nothing is missing, left over or misplaced."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import AdamW

from gc25d.errors import UserError
from gc25d.train.states.files import StoredState
from gc25d.train.states.folder import newest_state
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.reader import load_state, read_whole, shapes_of, state_table
from gc25d.train.states.writer import StateWriter

SHAPES = {"s/a:weight": (3, 4), "s/b:weight": (5,), "s/c:weight": (2, 2, 2), "s/d:step": ()}
SIZES = (12, 5, 8, 1)


def numbered() -> dict[str, Tensor]:
    """Tensors whose values are all different: 0, 1, 2, … over all of them."""
    starts = itertools.accumulate(SIZES, initial=0)
    return {
        name: torch.arange(float(start), float(start + size)).view(SHAPES[name])
        for (name, size), start in zip(zip(SHAPES, SIZES, strict=True), starts, strict=False)
    }


def share(tensors: dict[str, Tensor], start: int, stop: int) -> list[Fragment]:
    """What a process holds of the tensors laid end to end, values `start` to `stop`."""
    fragments, offset = [], 0
    for name, tensor in tensors.items():
        low, high = max(start - offset, 0), min(stop - offset, tensor.numel())
        if low < high:
            fragments.append(Fragment(name, tuple(tensor.shape), low, tensor.view(-1)[low:high]))
        offset += tensor.numel()
    return fragments


def write(root: Path, shares: Sequence[Sequence[Fragment]], part_bytes: int = 1 << 20) -> None:
    writers = [
        StateWriter(root, rank, len(shares), part_bytes=part_bytes) for rank in range(len(shares))
    ]
    for writer, fragments in zip(writers, shares, strict=True):
        writer.save(1, fragments, binding="b", checkpoint=False)
    for writer in writers:
        writer.wait()


def stored(root: Path) -> StoredState:
    state = newest_state([root], 1, "b")
    assert state is not None
    return state


def cut(total: int, places: Sequence[int]) -> list[tuple[int, int]]:
    edges = [0, *sorted(places), total]
    return list(itertools.pairwise(edges))


places = st.lists(st.integers(0, sum(SIZES)), max_size=4)


@settings(max_examples=15, deadline=None)
@given(saved=places, loaded=places, part_values=st.integers(1, 9))
def test_any_number_of_processes_reads_what_any_number_wrote(
    tmp_path_factory: pytest.TempPathFactory, saved: list[int], loaded: list[int], part_values: int
) -> None:
    root, total, source = tmp_path_factory.mktemp("states"), sum(SIZES), numbered()
    write(root, [share(source, *edges) for edges in cut(total, saved)], 4 * part_values)
    target = {name: torch.full(shape, -1.0) for name, shape in SHAPES.items()}
    for edges in cut(total, loaded):
        load_state(stored(root), share(target, *edges), SHAPES)
    assert [v for tensor in target.values() for v in tensor.view(-1).tolist()] == list(range(total))


def test_what_every_process_saved_is_read_once(tmp_path: Path) -> None:
    step = torch.tensor(9.0)
    halves = [Fragment("s/a:weight", (4,), i, torch.full((2,), float(i))) for i in (0, 2)]
    write(tmp_path, [[half, Fragment("s/a:step", (), 0, step.view(1))] for half in halves])
    table = state_table(stored(tmp_path))
    ranges = [(found.start, found.stop) for found in table.ranges["s/a:step"]]
    assert ranges == [(0, 1), (0, 1)]
    assert read_whole(stored(tmp_path), "step")["s/a"].item() == 9.0
    assert read_whole(stored(tmp_path), "weight")["s/a"].tolist() == [0.0, 0.0, 2.0, 2.0]
    with pytest.raises(UserError, match="holds no ema"):
        read_whole(stored(tmp_path), "ema")


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    source = numbered()
    write(tmp_path, [share(source, 0, sum(SIZES))])
    wanted = {"s/a:weight": (4, 3), "s/b:weight": (5,), "s/new:weight": (1,)}
    target = {name: torch.zeros(shape) for name, shape in wanted.items()}
    with pytest.raises(UserError) as raised:
        load_state(stored(tmp_path), share(target, 0, 100))
    said = str(raised.value)
    assert "missing ['s/new:weight']" in said
    assert "unexpected ['s/c:weight', 's/d:step']" in said
    assert "misshapen ['s/a:weight (3, 4), expected (4, 3)']" in said
    assert all(not tensor.any() for tensor in target.values())


def test_a_gap_is_an_error_that_names_its_tensor(tmp_path: Path) -> None:
    values = torch.arange(6.0)
    pieces = [Fragment("s/a:weight", (6,), i, values[i : i + 2]) for i in (0, 4)]
    write(tmp_path, [[piece] for piece in pieces])
    with pytest.raises(UserError, match="s/a:weight: its values from 2 on are in no file"):
        load_state(stored(tmp_path), [Fragment("s/a:weight", (6,), 0, values)])


def test_a_tensor_of_two_shapes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [[Fragment("s/a:weight", s, 0, torch.zeros(4))] for s in ((4,), (2, 2))])
    with pytest.raises(UserError, match=r"s/a:weight is \(4,\) and \(2, 2\)"):
        state_table(stored(tmp_path))


def test_a_process_may_lack_a_tensor_that_another_holds(tmp_path: Path) -> None:
    source = numbered()
    write(tmp_path, [share(source, 0, sum(SIZES))])
    target = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    first = share(target, 0, 12)
    assert set(shapes_of(first)) == {"s/a:weight"}
    load_state(stored(tmp_path), first, SHAPES)
    assert target["s/a:weight"].tolist() == source["s/a:weight"].tolist()


class Pair(nn.Module):
    """Two parameters of one shape: mistaking them for one another would go unseen."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.full((3,), value))
        self.right = nn.Parameter(torch.full((3,), -value))


def step_once(model: Pair, optimizer: AdamW) -> list[float]:
    optimizer.zero_grad()
    (model.left.sum() * 3 - (model.left * model.right.square()).sum()).backward()
    optimizer.step()
    return torch.cat([model.left, model.right]).tolist()


def live(model: Pair, optimizer: AdamW) -> list[Fragment]:
    found = []
    for name, parameter in model.named_parameters():
        kinds = {"weight": parameter.data, **optimizer.state[parameter]}
        for kind, value in kinds.items():
            label, shape = f"student/{name}:{kind}", tuple(value.shape)
            found.append(Fragment(label, shape, 0, value.view(-1)))
    return found


def test_moments_follow_names_and_not_positions(tmp_path: Path) -> None:
    model, other = Pair(1.0), Pair(9.0)
    optimizer = AdamW(model.parameters(), lr=0.1)
    swapped = AdamW([{"params": [other.right]}, {"params": [other.left]}], lr=0.1)
    for _ in range(2):
        step_once(model, optimizer)
    step_once(other, swapped)
    write(tmp_path, [live(model, optimizer)])
    load_state(stored(tmp_path), live(other, swapped))
    assert step_once(other, swapped) == step_once(model, optimizer)
    assert swapped.state[other.left]["step"].item() == 3.0


def test_blank_moments_are_named(tmp_path: Path) -> None:
    model = Pair(1.0)
    optimizer = AdamW(model.parameters(), lr=0.1)
    step_once(model, optimizer)
    full = live(model, optimizer)
    write(tmp_path, [[fragment for fragment in full if fragment.name.endswith(":weight")]])
    with pytest.raises(UserError, match=r"missing \['student/left:exp_avg'"):
        load_state(stored(tmp_path), full)
