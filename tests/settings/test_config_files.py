"""Configuration files: what a loader keeps or turns into something else in silence is refused."""

from pathlib import Path

import pytest
import yaml

from gc25d.errors import UserError
from gc25d.settings.config_files import check_config

ROOT = Path(__file__).parents[2]


def refusal(folder: Path, text: str, name: str = "mine.yaml") -> str:
    """What is said of a file with this content."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        check_config([path], None)
    return str(refused.value).removeprefix(f"{path}")


def test_a_section_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    text = "train:\n  lr: 0.5\nmodel: {size: tiny}\n# more\ntrain:\n  max_steps: 3\n"
    assert yaml.safe_load(text)["train"] == {"max_steps": 3}, "the loader says nothing"
    said = refusal(tmp_path, text)
    assert said.startswith(", line 5: train stands twice, first in line 1")


def test_a_nested_key_twice_is_named_with_its_path(tmp_path: Path) -> None:
    said = refusal(tmp_path, "train:\n  kd:\n    cache: a\n    cache: b\n")
    assert said.startswith(", line 4: train.kd.cache stands twice, first in line 3")


def test_a_key_twice_in_json_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, '{"train": {"lr": 1, "lr": 2}}', "mine.json")
    assert said.startswith(": lr stands twice")


@pytest.mark.parametrize(
    ("written", "read"),
    [("1:30", 90), ("1:30.5", 90.5), ("0100", 64), ("0x10", 16), ("0b11", 3), ("1_000", 1000)],
)
def test_numbers_that_yaml_reads_otherwise_are_refused(
    tmp_path: Path, written: str, read: float
) -> None:
    text = f"train:\n  lr: {written}\n"
    assert yaml.safe_load(text) == {"train": {"lr": read}}, "what the loader makes of it"
    assert f", line 2: train.lr is {written}, which YAML reads as {read}:" in refusal(
        tmp_path, text
    )


@pytest.mark.parametrize("written", ["1", "-2", "+3", "0", "0.5", "1.", ".5", "1.0e-5", "'1:30'"])
def test_decimals_and_quoted_texts_pass(tmp_path: Path, written: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"train: {{lr: {written}}}\nprep: {{val_runs: [a, a]}}\n")
    check_config([path], [])


def test_a_key_twice_on_the_command_line_is_refused() -> None:
    with pytest.raises(UserError, match=r"train\.lr stands twice"):
        check_config([], ["seed=1", "train={lr: 1, lr: 2}"])
    check_config([], ["train={lr: 1}", "raw_root=/a/1:30", "dataset=x"])


def test_an_anchor_that_leads_back_ends(tmp_path: Path) -> None:
    said = refusal(tmp_path, "a: &x {y: *x}\nb: 1\nb: 2\n")
    assert said.startswith(", line 3: b stands twice, first in line 2")


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_files_pass(path: Path) -> None:
    check_config([path], None)
