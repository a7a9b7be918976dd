"""Breakages of every cell, each of which its gradient norm must show."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gc25d.model.wan.kv_cache import KvCache, PastView
from gc25d.regression import gradnorm
from gc25d.regression.cells import CELLS, Cell
from gc25d.regression.fixtures import Fixture, build_fixture
from gc25d.regression.gradnorm import measure, origin_of
from gc25d.regression.refs import Reference, compare, record, reference_of
from gc25d.settings.steps import RegressionStep
from gc25d.settings.tree import Regression
from gc25d.steps.check_refs import check_cells

SELF_ATTENTION = {"hunyuan": "attn", "cosmos": "attn1"}
TEXT_READERS = {"hunyuan": ("add_k_proj", "add_v_proj"), "cosmos": ("attn2",)}


def block_scaled(fixture: Fixture, model: str) -> Fixture:
    """What block 0 adds to its tokens counts 1.3 times."""

    def louder(_: nn.Module, given: tuple, made: torch.Tensor | tuple):
        if isinstance(made, tuple):
            return (made[0] + 0.3 * (made[0] - given[0]), *made[1:])
        return made + 0.3 * (made - given[0])

    fixture.transformer.blocks[0].register_forward_hook(louder)
    return fixture


def text_detached(fixture: Fixture, model: str) -> Fixture:
    """No gradient goes through what blocks read of the text."""
    for name, part in fixture.transformer.named_modules():
        if name.endswith(TEXT_READERS.get(model, ("cross_attn",))):
            part.register_forward_hook(lambda _, __, made: made.detach())
    return fixture


def attention_frozen(fixture: Fixture, model: str) -> Fixture:
    """Block 0's self-attention is not trained."""
    block = fixture.transformer.blocks[0]
    block.get_submodule(SELF_ATTENTION.get(model, "self_attn")).requires_grad_(False)
    return fixture


def text_lost(fixture: Fixture, model: str) -> Fixture:
    """All prompts are zero."""
    empty = torch.zeros_like(fixture.batch.prompts)
    return changed(fixture, prompts=empty)


def condition_lost(fixture: Fixture, model: str) -> Fixture:
    """The semantic condition adds nothing."""
    nn.init.zeros_(fixture.transformer.gc_sem_cond.proj_out.weight)
    return fixture


def actions_lost(fixture: Fixture, model: str) -> Fixture:
    """Mouse and keyboard add nothing."""
    for name, part in fixture.transformer.named_modules():
        if name.endswith(("proj_mouse", "proj_keyboard")):
            nn.init.zeros_(part.weight)
    return fixture


def guidance_lost(fixture: Fixture, model: str) -> Fixture:
    """The teacher is not guided."""
    method = fixture.method
    unguided = dataclasses.replace(method.config.guidance, cfg=1.0, sem_cfg=1.0)
    method.config = dataclasses.replace(method.config, guidance=unguided)
    return fixture


def past_lost(fixture: Fixture, model: str) -> Fixture:
    """A chunk of a roll-out sees none of those before."""
    causal = fixture.method.causal
    whole = causal.new_cache

    def forgetful(*given: object) -> KvCache:
        cache = whole(*given)
        views = cache.views
        cache.views = lambda **how: [without_past(view) for view in views(**how)]
        return cache

    causal.new_cache = forgetful
    return fixture


def without_past(view: PastView) -> PastView:
    """The view with an empty past."""
    view.past_key, view.past_value = view.past_key[:, :0], view.past_value[:, :0]
    return view


def path_end_lost(fixture: Fixture, model: str) -> Fixture:
    """The paths end in zeros."""
    paths = fixture.method.paths.paths.clone()
    paths[:, -1] = 0
    fixture.method.paths = dataclasses.replace(fixture.method.paths, paths=paths)
    return fixture


def weight_lost(fixture: Fixture, model: str) -> Fixture:
    """Every timestep weighs 1."""
    fixture.method.weights = torch.ones_like(fixture.method.weights)
    return fixture


def changed(fixture: Fixture, **parts: object) -> Fixture:
    """The fixture with other parts of its batch."""
    return dataclasses.replace(fixture, batch=dataclasses.replace(fixture.batch, **parts))


Sabotage = Callable[[Fixture, str], Fixture]
EVERYWHERE: tuple[Sabotage, ...] = (
    block_scaled,
    text_detached,
    attention_frozen,
    text_lost,
    condition_lost,
)
BY_METHOD: dict[str, tuple[Sabotage, ...]] = {
    "finetune": (weight_lost,),
    "dfsft": (weight_lost,),
    "kd": (path_end_lost,),
    "dmd2": (guidance_lost,),
    "self_forcing": (past_lost,),
}
BY_MODEL: dict[str, tuple[Sabotage, ...]] = {"matrixgame2": (actions_lost,)}

CPU = torch.device("cpu")
RTOL = Regression().rtol
PAIRS = [
    pytest.param(cell, sabotage, id=f"{cell.name}-{sabotage.__name__}")
    for cell in CELLS
    for sabotage in (
        *EVERYWHERE,
        *BY_METHOD[cell.method],
        *BY_MODEL.get(cell.model, ()),
    )
]


@functools.cache
def reference(cell: Cell) -> Reference:
    return reference_of(measure(cell, CPU, 1), cell.rtol or RTOL, origin_of(CPU))


def broken_by(sabotage: Sabotage) -> Callable[[Cell, torch.device], Fixture]:
    return lambda cell, device: sabotage(build_fixture(cell, device), cell.model)


@pytest.mark.parametrize(("cell", "sabotage"), PAIRS)
def test_a_breakage_moves_the_norm_out_of_tolerance(cell, sabotage, monkeypatch):
    references = {cell.name: reference(cell)}
    monkeypatch.setattr(gradnorm, "build_fixture", broken_by(sabotage))
    verdict = compare(measure(cell, CPU, 1), references, RTOL)
    assert verdict.outcome == "out", verdict
    assert verdict.failed(strict=False)


def test_the_check_fails_every_cell_by_name(tmp_path, monkeypatch):
    path = tmp_path / "CPU.json"
    record(path, "CPU", {cell.name: reference(cell) for cell in CELLS})
    monkeypatch.setattr(gradnorm, "build_fixture", broken_by(block_scaled))
    verdicts, refused = check_cells("CPU", path, RegressionStep(regression=Regression(repeats=1)))
    assert {verdict.cell: verdict.outcome for verdict in verdicts} == {
        cell.name: "out" for cell in CELLS
    }
    assert refused == []
