"""Which rates each step of a run was trained with, from its history."""

from typing import Any

from gc25d.settings.rates import RateChange, changes_up_to, rate_changes, rates_of, with_bound_rates

FIRST = RateChange(1, 0.1, 0.2)


def started(step: int, lr: float, cond_lr: float = 0.2) -> dict[str, Any]:
    event = "resume" if step else "start"
    return {"event": event, "step": step, "lr": lr, "cond_lr": cond_lr}


def told(*events: dict[str, Any]) -> list[tuple[int, float]]:
    return [(change.step, change.lr) for change in rate_changes(events, FIRST)]


def test_rates_hold_from_the_step_after_the_one_resumed_from() -> None:
    known = rate_changes([started(0, 0.1), started(100, 0.1), started(150, 0.05, 0.3)], FIRST)
    assert [rates_of(known, step) for step in (1, 100, 150, 151, 400)] == [
        *((0.1, 0.2), (0.1, 0.2), (0.1, 0.2), (0.05, 0.3), (0.05, 0.3))
    ]
    assert changes_up_to(known, 150) == []
    assert changes_up_to(known, 151) == [{"step": 151, "lr": 0.05, "cond_lr": 0.3}]


def test_a_resume_from_before_a_change_with_the_same_rates_changes_nothing() -> None:
    """The state of step 150 was lost: steps 101 to 150 have the rates that they had."""
    assert told(started(150, 0.05), started(100, 0.05)) == [(1, 0.1), (151, 0.05)]


def test_other_rates_replace_what_was_known_of_later_steps() -> None:
    assert told(started(150, 0.05), started(100, 0.07)) == [(1, 0.1), (101, 0.07)]
    assert told(started(150, 0.05), started(150, 0.1)) == [(1, 0.1)]
    assert told(started(150, 0.05), started(200, 0.1)) == [(1, 0.1), (151, 0.05), (201, 0.1)]
    assert told(started(0, 0.05)) == [(1, 0.1), (1, 0.05)]


def test_events_that_say_no_rates_say_nothing() -> None:
    older = {"event": "resume", "step": 3}
    assert told(older, {"event": "finish", "step": 9, "lr": 7, "cond_lr": 7}) == [(1, 0.1)]


def test_the_settings_keep_the_bound_rates() -> None:
    asked = {"version": 1, "train": {"lr": 1, "cond_lr": 2, "seed": 3}}
    bound = {"version": 0, "train": {"lr": 4, "cond_lr": 5, "seed": 6}}
    assert with_bound_rates(asked, bound) == {
        "version": 1,
        "train": {"lr": 4, "cond_lr": 5, "seed": 3},
    }
    assert asked["train"]["lr"] == 1
