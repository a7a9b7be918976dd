"""Every command in README, docs/, profiles/, comments of config/ and the steps' manuals works.

Snakemake's are run as dry runs, those with equal options together; what would write or needs a
finished run, and every Python program, goes as far as its own parsing of the arguments.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from snakemake.cli import parse_args

from gc25d.train.processes.launch import Layout, srun_command

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "profiles").glob("*/*.md")),
]
COMMENTED = [
    *sorted((ROOT / "config").glob("*.yaml")),
    *sorted((ROOT / "profiles").glob("*/*.yaml")),
]
STEPS = sorted((ROOT / "workflow_scripts/gc25d/steps").glob("[a-z]*.py"))
LANGUAGES = {"sh", "text", "python", "yaml", "json"}
SHELL = ("sh", "bash", "console")
TYPED = re.compile(r"(?:snakemake|python|make|\.ci/run)(?: |$)")
"""What inline code begins with that is a command; `snakemake` and `python` alone are programs."""
PLACEHOLDERS = {"<n>": "10"}
FAST = "/fast/run"
"""A folder that readers are to name."""


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block."""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield block[1], block[2]


def lines_of(block: str) -> Iterator[str]:
    """The commands of a shell block, each in one line and without its comment."""
    for line in block.replace("\\\n", " ").splitlines():
        command = line.removeprefix("$ ").split("  #")[0].split(" # ")[0]
        if command.strip() and not command.startswith("#"):
            yield command


def inline(text: str) -> Iterator[str]:
    """Inline code that is a command."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", prose):
        code = " ".join(span.split())
        if TYPED.match(code) and code not in ("snakemake", "python"):
            yield code


def manual(path: Path) -> Iterator[str]:
    """The commands in a step's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    for line in doc.replace("\\\n", " ").splitlines():
        if line.startswith("    ") and TYPED.match(line.strip()):
            yield line


def written() -> dict[str, str]:
    """Command → the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = page.read_text()
        blocks = [block for language, block in fenced(text) if language in SHELL]
        for command in [*(c for b in blocks for c in lines_of(b)), *inline(text)]:
            found.setdefault(plain(command), str(page.relative_to(ROOT)))
    for page in COMMENTED:
        comments = re.findall(r"^ *#(.*)$", page.read_text(), re.MULTILINE)
        for command in inline("\n".join(comments)):
            found.setdefault(plain(command), str(page.relative_to(ROOT)))
    for page in STEPS:
        for command in manual(page):
            found.setdefault(plain(command), str(page.relative_to(ROOT)))
    return found


def plain(command: str) -> str:
    """With something in place of what the reader fills in, and what may be left out."""
    filled = re.sub(r"<[^<>]+>", lambda name: PLACEHOLDERS.get(name[0], "x"), command)
    return " ".join(re.sub(r"[\[\]]|…$", "", filled).split())


WRITTEN = written()
KINDS = {
    "snakemake": [c for c in WRITTEN if c.startswith("snakemake ")],
    "python": [c for c in WRITTEN if c.startswith("python ")],
    "make": [c for c in WRITTEN if re.fullmatch(r"make( [\w-]+)?", c)],
    "srun": [c for c in WRITTEN if c.startswith("srun ")],
    "ci": [c for c in WRITTEN if c == ".ci/run"],
}


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    known = {command for commands in KINDS.values() for command in commands}
    assert {c: page for c, page in WRITTEN.items() if c not in known} == {}
    assert all(KINDS.values())
    assert len(KINDS["snakemake"]) >= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_its_language(page: Path) -> None:
    """So that none with commands is overlooked."""
    text = page.read_text()
    assert {language for language, _ in fenced(text)} <= LANGUAGES
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "```" not in outside
    assert [line for line in outside.splitlines() if line.startswith("    ")] == []


@pytest.mark.parametrize("command", KINDS["snakemake"])
def test_targets_stand_first_and_no_option_swallows_them(command: str) -> None:
    words = shlex.split(command)[1:]
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    _, arguments = parse_args(words)
    assert sorted(arguments.targets) == sorted(words[:first])
    if not arguments.targets:
        assert words[first] in ("--delete-all-output", "--lint")
    for file in arguments.configfile or ():
        assert file.suffix == ".yaml", file
    assert all("=" in pair for pair in arguments.config or ())
    assert set(arguments.forcerun or ()) <= {"record_references"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the reader's own `mine.yaml`, captures and folders of weights."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Snakefile", "rules", "config", "profiles", "refs", "docs", "envs"):
        (folder / name).symlink_to(ROOT / name)
    for number in range(2):
        raw = folder / f"captures/day/castle/run-00{number}"
        raw.mkdir(parents=True)
        for name in ("frames.tar", "stencil.tar", "cameras.npz", "skeletons.npz", "meta.json"):
            (raw / name).write_text("{}")
        for frames in (17, 81):
            (raw / f"clips_{frames}.json").write_text("{}")
    weights = folder / "weights"
    weights.mkdir()
    for name in ("config.json", "diffusion_pytorch_model.safetensors"):
        (weights / name).write_text("{}")
    named = {"codec_dir": str(weights), "text": {"dir": str(weights)}}
    mine = {
        "raw_root": str(folder / "captures"),
        "capture": {"source": "external"},
        "prep": {**named, "val_runs": ["castle__run-001"]},
        "model": {"init_dir": str(weights)},
        "regression": {"init_from": str(weights)},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(mine))
    return folder


def runs() -> Iterator[list[str]]:
    """What is run for all of Snakemake's commands: one dry run for those of equal options."""
    targets: dict[tuple[str, ...], list[str]] = {}
    for command in KINDS["snakemake"]:
        words = shlex.split(command)[1:]
        asked = parse_args(words)[1].targets
        options = tuple(words[len(asked) :])
        if any("-ema" in target for target in asked):
            options += ("--config", "train={ema: 0.99}")  # which the text tells to set
        targets.setdefault(options, []).extend(asked)
    for options, asked in targets.items():
        words = [*dict.fromkeys(asked), *options]
        if "--report" in words:  # of a finished run: what it reports on can be made
            at = words.index("--report")
            del words[at : at + 2]
        acts = {"--unlock", "--delete-all-output"} & set(words)
        yield words if acts else [*words, "-n"]


RUNS = {shlex.join(words): words for words in runs()}


@pytest.fixture(scope="module")
def said(workplace: Path) -> dict[str, tuple[int, str]]:
    """Of each run its status and what it said."""
    for name in ("fast", "said"):
        (workplace / name).mkdir()
    commands = [
        [w.replace(FAST, str(workplace / "fast")) for w in words] for words in RUNS.values()
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "dry_runs.py"), str(workplace / "said")],
        input=json.dumps(commands),
        cwd=workplace,
        env={**os.environ, "XDG_CACHE_HOME": str(workplace / "cache")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    outputs = [(workplace / f"said/{number}").read_text() for number in range(len(commands))]
    statuses = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(RUNS, zip(statuses, outputs, strict=True), strict=True))


@pytest.mark.parametrize("command", RUNS)
def test_snakemake_does_what_is_printed(said: dict[str, tuple[int, str]], command: str) -> None:
    status, output = said[command]
    assert status == 0, output
    if command.endswith("-n"):
        assert "This was a dry-run" in output


def test_python_programs_take_their_printed_arguments() -> None:
    commands = [shlex.split(command)[1:] for command in KINDS["python"]]
    done = subprocess.run(
        [sys.executable, str(HERE / "parse_only.py")],
        input=json.dumps(commands),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    faults = json.loads(done.stdout.splitlines()[-1])
    found = zip(KINDS["python"], faults, strict=True)
    assert {command: fault for command, fault in found if fault} == {}


@pytest.mark.parametrize("command", KINDS["make"])
def test_make_knows_its_targets_and_puts_snakemakes_first(command: str) -> None:
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--always-make", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        if "bin/snakemake " in line and "--lint" not in line:
            words = shlex.split(line)[1:]
            assert parse_args(words)[1].targets == words[:1]


@pytest.mark.parametrize("command", KINDS["srun"])
def test_srun_is_called_as_printed(command: str) -> None:
    printed = shlex.split(command.replace("=N", "=2"))
    layout = Layout(nodes=2, processes_per_node=1, gpu=False)
    assert printed[:-1] == srun_command(["python"], layout, 1)[:-1]


def test_ci_runs_what_contributors_are_told() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=False).returncode == 0
    assert re.findall(r"^make (\S+)$", script, re.MULTILINE) == ["lint", "test", "test-slow"]
