"""References of another project: {test: {device: norm}} in and out."""

import argparse
import dataclasses
import json
import sys

import pytest

from gc25d.errors import UserError
from gc25d.locks import locked
from gc25d.regression import refs
from gc25d.regression.exchange import export_norms, import_devices, imported, merge_norms
from gc25d.regression.refs import (
    Measurement,
    Origin,
    Reference,
    compare,
    lock_of,
    read_refs,
    record,
)
from gc25d.steps import export_refs, import_refs

ORIGIN = Origin("CPU", "2.13.0", "", "", "2026-01-01T00:00:00Z")
OURS = Reference(1.5, 0.05, 0.001, 3, "digest", ORIGIN)


def theirs(tmp_path, content, name="norms.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def run_import(tmp_path, *files, names=None, replace=False, rtol=0.1):
    import_refs.main(
        argparse.Namespace(
            files=list(files), refs=tmp_path / "refs", rtol=rtol, names=names, replace=replace
        )
    )


def norms_in(tmp_path) -> dict:
    return {
        path.stem: {name: cell.norm for name, cell in read_refs(path, path.stem).items()}
        for path in sorted((tmp_path / "refs").glob("*.json"))
    }


def test_devices_get_our_keys_and_existing_cells_survive(tmp_path):
    record(tmp_path / "refs/L40S.json", "L40S", {"wan/finetune": OURS})
    path = theirs(
        tmp_path,
        {
            "test_causal": {"B200": 2.9781, "NVIDIA L40S": 3.2562},
            "test_wan": {"nvidia h100 80gb hbm3": 1, "RTX-4090": 0.25},
        },
    )
    run_import(tmp_path, path, rtol=0.2)
    assert norms_in(tmp_path) == {
        "GB200": {"test_causal": 2.9781},
        "H100": {"test_wan": 1.0},
        "L40S": {"test_causal": 3.2562, "wan/finetune": 1.5},
        "RTX-4090": {"test_wan": 0.25},
    }
    cells = read_refs(tmp_path / "refs/L40S.json", "L40S")
    assert cells["wan/finetune"] == OURS
    assert cells["test_causal"].rtol == 0.2
    assert cells["test_causal"].origin.source == "norms.json"
    assert cells["test_causal"].origin.recorded.endswith("Z")


def test_an_imported_norm_is_compared_with_any_fixture(tmp_path):
    run_import(tmp_path, theirs(tmp_path, {"a/b": {"CPU": 2.0}}))
    refs = read_refs(tmp_path / "refs/CPU.json", "CPU")
    assert compare(Measurement("a/b", (2.1,), "any"), refs, 0.5).outcome == "ok"
    assert compare(Measurement("a/b", (2.3,), "any"), refs, 0.5).outcome == "out"


@pytest.mark.parametrize(
    "norm", ["NaN", "Infinity", "1e999", "1" + "0" * 400, "0", "-1", "true", '"1"', "null"]
)
def test_what_is_no_norm_is_refused_and_nothing_written(tmp_path, norm):
    good = theirs(tmp_path, {"other": {"H200": 1.0}})
    bad = theirs(tmp_path, f'{{"test": {{"L40S": {norm}}}}}', "bad.json")
    with pytest.raises(UserError, match=r"bad\.json"):
        run_import(tmp_path, good, bad)
    assert not (tmp_path / "refs").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"t": 1}', '{"t": {}}', '{" ": {"CPU": 1}}'])
def test_another_form_is_refused(tmp_path, content):
    with pytest.raises(UserError, match=r"norms\.json"):
        run_import(tmp_path, theirs(tmp_path, content))
    assert not (tmp_path / "refs").exists()


@pytest.mark.parametrize("device", ["rtol", "my gpu", "GH100-ish card", "h200 MIG 1g.18gb"])
def test_a_device_that_is_not_in_the_table_is_refused(tmp_path, device):
    with pytest.raises(UserError, match="no known device"):
        run_import(tmp_path, theirs(tmp_path, {"test": {device: 1.0}}))


def test_two_norms_for_one_cell_are_refused(tmp_path):
    one = theirs(tmp_path, {"test": {"B200": 1.0, "GB200": 1.1}})
    with pytest.raises(UserError, match=r"test has 1\.0 and 1\.1 for GB200"):
        run_import(tmp_path, one)
    first = theirs(tmp_path, {"test": {"CPU": 1.0}}, "first.json")
    second = theirs(tmp_path, {"test": {"CPU": 2.0}}, "second.json")
    with pytest.raises(UserError, match=r"second\.json"):
        run_import(tmp_path, first, second)
    assert merge_norms([first, first], {}) == {"test": {"CPU": 1.0}}


def test_a_cell_with_another_norm_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "refs/CPU.json"
    record(path, "CPU", {"a/b": OURS, "c/d": OURS})
    before = path.read_bytes()
    file = theirs(tmp_path, {"a/b": {"CPU": 1.6}, "new": {"A100": 1.0}})
    with pytest.raises(UserError, match=r"a/b is 1\.5 there and 1\.6 in the import"):
        run_import(tmp_path, file)
    assert path.read_bytes() == before
    assert norms_in(tmp_path).keys() == {"CPU"}
    run_import(tmp_path, file, replace=True)
    assert norms_in(tmp_path) == {
        "A100": {"new": 1.0},
        "CPU": {"a/b": 1.6, "c/d": 1.5},
    }


@pytest.mark.parametrize("replace", [False, True])
def test_a_damaged_file_of_one_device_leaves_the_others_alone(tmp_path, replace):
    damaged = tmp_path / "refs/H200.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    file = theirs(tmp_path, {"a/b": {"CPU": 1.6, "H200": 1.0}})
    with pytest.raises(UserError, match=r"H200\.json"):
        run_import(tmp_path, file, replace=replace)
    assert list(damaged.parent.iterdir()) == [damaged]


def test_a_second_device_that_is_locked_leaves_the_first_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(refs, "LOCK_WAIT_S", 0.05)
    record(tmp_path / "refs/CPU.json", "CPU", {"c/d": OURS})
    before = (tmp_path / "refs/CPU.json").read_bytes()
    file = theirs(tmp_path, {"a/b": {"CPU": 1.6, "H200": 1.0}})
    with (
        locked(tmp_path / "refs/.H200.json.lock", wait_s=1, held="x"),
        pytest.raises(UserError, match=r"H200\.json is being written"),
    ):
        run_import(tmp_path, file)
    assert (tmp_path / "refs/CPU.json").read_bytes() == before
    assert norms_in(tmp_path) == {"CPU": {"c/d": 1.5}}


def test_a_second_device_that_cannot_be_written_leaves_the_first_alone(tmp_path):
    record(tmp_path / "refs/CPU.json", "CPU", {"c/d": OURS})
    (tmp_path / "refs/H200.json").symlink_to(tmp_path / "not-mounted/H200.json")
    file = theirs(tmp_path, {"a/b": {"CPU": 1.6, "H200": 1.0}})
    with pytest.raises(UserError, match=r"H200\.json: a link to .*not-mounted"):
        run_import(tmp_path, file)
    cells = read_refs(tmp_path / "refs/CPU.json", "CPU")
    assert cells == {"c/d": OURS}


def test_references_behind_links_are_written_through_them(tmp_path):
    shared = tmp_path / "shared"
    record(shared / "cpu.json", "CPU", {"c/d": OURS})
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/CPU.json").symlink_to(shared / "cpu.json")
    run_import(tmp_path, theirs(tmp_path, {"a/b": {"CPU": 1.6}}))
    assert (tmp_path / "refs/CPU.json").is_symlink()
    assert read_refs(shared / "cpu.json", "CPU").keys() == {"a/b", "c/d"}
    (shared / "theirs.json").write_text('{"kept": {"L40S": 2.0}}')
    (tmp_path / "out.json").symlink_to("shared/theirs.json")
    given = argparse.Namespace(
        files=[tmp_path / "refs/CPU.json"], out=tmp_path / "out.json", names=None
    )
    export_refs.main(given)
    assert (tmp_path / "out.json").is_symlink()
    assert json.loads((shared / "theirs.json").read_text()) == {
        "a/b": {"CPU": 1.6},
        "c/d": {"CPU": 1.5},
        "kept": {"L40S": 2.0},
    }
    # Whoever comes by another link waits for the same lock.
    assert lock_of(tmp_path / "refs/CPU.json") == lock_of(shared / "cpu.json")


@pytest.mark.parametrize(
    "content",
    ['{"t": {"L40S": 1, "L40S": 2}}', '{"t": {"L40S": 1}, "t": {"H100": 2}}'],
)
def test_a_test_or_device_that_stands_twice_is_refused(tmp_path, content):
    file = theirs(tmp_path, content)
    with pytest.raises(UserError, match=r"norms\.json: .*stands twice in one object"):
        run_import(tmp_path, file)
    assert not (tmp_path / "refs").exists()
    record(tmp_path / "refs/CPU.json", "CPU", {"c/d": OURS})
    given = argparse.Namespace(files=[tmp_path / "refs/CPU.json"], out=file, names=None)
    with pytest.raises(UserError, match=r"norms\.json: .*stands twice in one object"):
        export_refs.main(given)
    assert file.read_text() == content
    names = theirs(tmp_path, '{"t": "a/b", "t": "c/d"}', "names.json")
    with pytest.raises(UserError, match=r"names\.json: .*stands twice in one object"):
        run_import(tmp_path, theirs(tmp_path, {"t": {"CPU": 1.0}}), names=names)


def test_a_recorded_cell_that_stands_twice_is_refused(tmp_path):
    record(tmp_path / "CPU.json", "CPU", {"a/b": OURS})
    text = (tmp_path / "CPU.json").read_text()
    (tmp_path / "CPU.json").write_text(text.replace('"norm": 1.5', '"norm": 1.5, "norm": 15.0'))
    with pytest.raises(UserError, match=r"CPU\.json: .*'norm' stands twice"):
        read_refs(tmp_path / "CPU.json", "CPU")


def test_two_files_of_one_device_that_disagree_are_not_exported(tmp_path):
    record(tmp_path / "one/CPU.json", "CPU", {"a/b": OURS})
    other = dataclasses.replace(OURS, norm=1.6)
    record(tmp_path / "two/CPU.json", "CPU", {"a/b": other, "c/d": OURS})
    files = [tmp_path / "one/CPU.json", tmp_path / "two/CPU.json"]
    given = argparse.Namespace(files=files, out=tmp_path / "out.json", names=None)
    with pytest.raises(UserError, match=r"two/CPU\.json: a/b has 1\.5 and 1\.6 for CPU"):
        export_refs.main(given)
    assert not (tmp_path / "out.json").exists()


def test_an_equal_norm_keeps_all_that_is_known_of_it(tmp_path):
    record(tmp_path / "CPU.json", "CPU", {"a/b": OURS})
    cells = {"a/b": imported(1.5, 0.1, "f", "now"), "c/d": imported(2.0, 0.1, "f", "now")}
    assert import_devices(tmp_path, {"CPU": cells}, replace=True) == {"CPU": (1, 1)}
    assert read_refs(tmp_path / "CPU.json", "CPU")["a/b"] == OURS


def test_their_tests_may_have_other_names(tmp_path):
    names = theirs(tmp_path, {"test_wan[sft]": "wan/finetune"}, "names.json")
    file = theirs(tmp_path, {"test_wan[sft]": {"CPU": 1.25}, "own": {"CPU": 2.5}})
    run_import(tmp_path, file, names=names)
    assert norms_in(tmp_path) == {"CPU": {"wan/finetune": 1.25, "own": 2.5}}
    out = tmp_path / "back.json"
    export_refs.main(argparse.Namespace(files=[tmp_path / "refs/CPU.json"], out=out, names=names))
    assert json.loads(out.read_text()) == json.loads(file.read_text())
    twice = theirs(tmp_path, {"a": "x", "b": "x"}, "twice.json")
    with pytest.raises(UserError, match="two tests stand for one cell"):
        run_import(tmp_path, file, names=twice)


def test_an_export_keeps_what_it_does_not_know(tmp_path):
    record(tmp_path / "refs/GB200.json", "GB200", {"test_wan": OURS})
    out = theirs(tmp_path, {"test_wan": {"B200": 9.0, "L40S": 3.0}, "only_theirs": {"H200": 2.0}})
    export_refs.main(argparse.Namespace(files=[tmp_path / "refs/GB200.json"], out=out, names=None))
    assert json.loads(out.read_text()) == {
        "only_theirs": {"H200": 2.0},
        "test_wan": {"GB200": 1.5, "L40S": 3.0},
    }
    broken = theirs(tmp_path, '{"test": 1}', "broken.json")
    with pytest.raises(UserError, match=r"broken\.json"):
        export_refs.main(
            argparse.Namespace(files=[tmp_path / "refs/GB200.json"], out=broken, names=None)
        )
    assert broken.read_text() == '{"test": 1}'


def test_two_cells_do_not_become_one_test(tmp_path):
    out = tmp_path / "out.json"
    norms = {"a/b": {"CPU": 1.0}, "theirs": {"CPU": 2.0}}
    with pytest.raises(UserError, match=r"a/b is to become theirs, but theirs is a cell"):
        export_norms(norms, out, {"theirs": "a/b"})
    assert not out.exists()
    export_norms(norms, out, {"theirs": "a/b", "a/b": "theirs"})
    assert json.loads(out.read_text()) == {"a/b": {"CPU": 2.0}, "theirs": {"CPU": 1.0}}


def test_out_and_in_again_gives_the_same_norms(tmp_path):
    odd = Reference(0.1 + 0.2, 0.1, 0.0, 1, "f", ORIGIN)
    record(tmp_path / "from/CPU.json", "CPU", {"a/b": odd, "c/d": OURS})
    record(tmp_path / "from/H200-MIG-1G-18GB.json", "H200-MIG-1G-18GB", {"a/b": OURS})
    out = tmp_path / "out.json"
    files = sorted((tmp_path / "from").glob("*.json"))
    export_refs.main(argparse.Namespace(files=files, out=out, names=None))
    run_import(tmp_path, out)
    assert norms_in(tmp_path) == {
        "CPU": {"a/b": 0.1 + 0.2, "c/d": 1.5},
        "H200-MIG-1G-18GB": {"a/b": 1.5},
    }


def test_the_commands_parse_their_arguments(monkeypatch, tmp_path):
    file = theirs(tmp_path, {"test": {"CPU": 1.0}})
    refs = str(tmp_path / "refs")
    monkeypatch.setattr(sys, "argv", ["import_refs", "--refs", refs, str(file)])
    import_refs.main(import_refs.parse_arguments())
    written = tmp_path / "refs/CPU.json"
    monkeypatch.setattr(
        sys, "argv", ["export_refs", "--out", str(tmp_path / "out.json"), str(written)]
    )
    export_refs.main(export_refs.parse_arguments())
    assert json.loads((tmp_path / "out.json").read_text()) == {"test": {"CPU": 1.0}}
