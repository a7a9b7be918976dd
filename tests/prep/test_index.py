from random import Random

import pytest

from gc25d.errors import UserError
from gc25d.prep.index import (
    Choice,
    build_rows,
    check_split,
    collect_prompts,
    count_clips,
    equal_clips,
    failed_runs,
    fingerprint,
)
from gc25d.records import digest_json

SHAPE = (5, 32, 32)
GEOMETRY = {"frames": 5, "height": 32, "width": 32}


def row(run, start, **changes):
    clip_id = f"{run}__{start:06d}"
    return {
        "clip_id": clip_id, "run": run, "start": start, "shape": list(SHAPE), "drop": False,
        "reason": "", "flags": [], "text_keys": ["go", "go"], "prompts": {"go": "walk on"},
        "ground_z": 0.0, "static_share": 0.9, "character_share": 0.1,
        "digests": {"latents": f"L{clip_id}", "ids": "I", "world_to_clip": "W"},
        **changes,
    }  # fmt: skip


def rows():
    return [row(f"maze__run-{run:03d}", start) for run in (2, 0, 1) for start in (81, 0)]


def choice(val=("maze__run-002",), buried=(), limit=0, seed=0):
    return Choice(val, buried, limit, seed)


def test_rows_are_sorted_and_split_by_run():
    index = build_rows(rows(), choice(), SHAPE)
    assert [(r["clip_id"], r["split"]) for r in index] == [
        ("maze__run-000__000000", "train"),
        ("maze__run-000__000081", "train"),
        ("maze__run-001__000000", "train"),
        ("maze__run-001__000081", "train"),
        ("maze__run-002__000000", "val"),
        ("maze__run-002__000081", "val"),
    ]
    assert index[0]["paths"] == {
        "latents": "latents/maze__run-000.safetensors",
        "ids": "ids/maze__run-000.safetensors",
    }
    assert count_clips(index) == {
        "train": 4, "val": 2, "dropped": 0, "usable": 6, "usable_train": 4, "usable_val": 2,
    }  # fmt: skip


def test_buried_and_broken_clips_stay_with_their_reasons():
    given = rows()
    given[0] |= {"drop": True, "reason": "frame 3 is missing", "digests": {}}
    buried = ("maze__run-000__000081", "maze__run-002__000081")
    index = build_rows(given, choice(buried=buried), SHAPE)
    reasons = {r["clip_id"]: r["reason"] for r in index if r["drop"]}
    assert reasons == {
        "maze__run-000__000081": "buried",
        "maze__run-002__000081": "frame 3 is missing",
    }
    assert len(index) == 6
    assert count_clips(index)["usable_train"] == 3


def test_limit_shuffles_cuts_and_sorts_each_split():
    given = [row(f"r__{run}", start) for run in range(4) for start in range(10)]
    index = build_rows(given, choice(val=("r__3",), limit=4, seed=7), SHAPE)
    expected = []
    for names in ([f"r__{r}__{s:06d}" for r in range(3) for s in range(10)],
                  [f"r__3__{s:06d}" for s in range(10)]):  # fmt: skip
        Random(7).shuffle(names)
        expected += sorted(names[:4])
    assert [r["clip_id"] for r in index] == expected


def test_dropped_clips_do_not_count_against_the_limit():
    given = [row("r__0", start) for start in range(6)] + [row("r__1", s) for s in range(5)]
    buried = [f"r__0__{start:06d}" for start in range(3)]
    index = build_rows(given, choice(val=("r__1",), buried=buried, limit=3), SHAPE)
    assert count_clips(index) == {
        "train": 6, "val": 3, "dropped": 3, "usable": 6, "usable_train": 3, "usable_val": 3,
    }  # fmt: skip


def test_a_limit_above_what_there_is_is_refused_with_the_number():
    given = [row("r__0", start) for start in range(6)] + [row("r__1", s) for s in range(5)]
    assert count_clips(build_rows(given, choice(val=("r__1",), limit=5), SHAPE))["val"] == 5
    buried = choice(val=("r__1",), buried=("r__1__000002",), limit=5)
    with pytest.raises(UserError, match=r"prep\.limit is 5, but val has 4 usable clips: use 4"):
        build_rows(given, buried, SHAPE)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (choice(val=("maze__run-02",)), r"prep\.val_runs names 'maze__run-02'.*maze__run-002"),
        (choice(buried=("maze__run-000__000080",)), r"prep\.buried .*maze__run-000__000081"),
        (choice(val=("maze__run-000", "maze__run-001", "maze__run-002")), "no usable train clip"),
        (choice(buried=("maze__run-002__000000", "maze__run-002__000081")), "no usable val clip"),
    ],
)
def test_choices_that_cannot_work_are_refused(chosen, message):
    with pytest.raises(UserError, match=message):
        build_rows(rows(), chosen, SHAPE)


def test_a_split_without_clips_is_refused():
    with pytest.raises(UserError, match="no usable val clip"):
        build_rows(rows(), choice(val=()), SHAPE)


def test_unreadable_runs_are_reported_and_the_rest_is_built():
    failed = {"run": "maze__run-003", "drop": True, "reason": "meta.json: not found"}
    buried = ("maze__run-003__000000",)
    index = build_rows([*rows(), failed], choice(buried=buried), SHAPE)
    assert len(index) == 6
    assert failed_runs([*rows(), failed]) == {"maze__run-003": "meta.json: not found"}
    with pytest.raises(UserError, match=r"unreadable runs: 1; the first reason: meta\.json"):
        build_rows([failed], choice(val=()), SHAPE)


def test_a_clip_that_occurs_twice_is_refused():
    with pytest.raises(UserError, match="maze__run-000__000000 occurs twice"):
        build_rows([*rows(), row("maze__run-000", 0)], choice(), SHAPE)


def test_clips_of_another_size_are_refused():
    with pytest.raises(UserError, match=r"maze__run-000__000162 is \[5, 32, 64\]"):
        build_rows([*rows(), row("maze__run-000", 162, shape=[5, 32, 64])], choice(), SHAPE)


def test_a_leak_is_refused():
    index = build_rows(rows(), choice(), SHAPE)
    check_split(index)
    with pytest.raises(UserError, match="run maze__run-000 is in the train and in the val"):
        check_split([index[0], index[1] | {"split": "val"}])
    with pytest.raises(UserError, match="clip_id maze__run-000__000000 is in the train"):
        check_split([index[0], index[0] | {"split": "val", "run": "another"}])


def test_equal_content_in_both_splits_is_found():
    given = rows()
    assert equal_clips(build_rows(given, choice(), SHAPE)) == []
    given[1]["digests"] = dict(given[3]["digests"])  # run 2 (val) and run 0 (train)
    pairs = equal_clips(build_rows(given, choice(), SHAPE))
    assert pairs == [("maze__run-000__000000", "maze__run-002__000000")]


def test_prompts_are_collected_and_contradictions_named():
    given = [row("r__0", 0), row("r__1", 0, prompts={"go": "walk on", "stop": "stand"})]
    assert collect_prompts(given) == {"go": "walk on", "stop": "stand"}
    given.append(row("r__2", 0, prompts={"stop": "halt"}))
    with pytest.raises(UserError, match=r"'stop' stands for 'stand' in run r__1 and for 'halt'"):
        collect_prompts(given)
    assert collect_prompts([{"run": "r__3", "drop": True, "reason": "gone"}]) == {}


def test_fingerprint_is_of_the_content_only():
    index = build_rows(rows(), choice(), SHAPE)
    base = fingerprint(index, GEOMETRY, "T")
    counted = ("clip_id", "split", "drop", "text_keys", "digests", "ground_z")
    clips = [{key: row[key] for key in counted} for row in index]
    assert base == digest_json({"geometry": GEOMETRY, "text": "T", "clips": clips})
    moved = [r | {"paths": {"latents": "x", "ids": "y"}, "reason": "elsewhere"} for r in index]
    assert fingerprint(moved, GEOMETRY, "T") == base
    changes = [
        fingerprint(index[1:], GEOMETRY, "T"),
        fingerprint(index, {**GEOMETRY, "width": 64}, "T"),
        fingerprint(index, GEOMETRY, "U"),
        *(
            fingerprint([index[0] | {key: value}, *index[1:]], GEOMETRY, "T")
            for key, value in {
                "digests": {}, "drop": True, "split": "val", "text_keys": ["go"], "ground_z": None,
            }.items()
        ),
    ]  # fmt: skip
    assert len({base, *changes}) == 1 + len(changes)
