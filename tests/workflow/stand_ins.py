"""Light stand-ins for the heavy step programs: an output is a digest of what the step reads.

`install` copies this file over the steps in a copy of the package, so that the real rules run it
by the steps' own names and arguments. Each output says which step made it and digests exactly the
contents that the real step reads, so that two outputs are equal if and only if everything that
they were made from is. `bind_run` stays the real one. Beside its outputs the trainer appends a line
to `trained.txt` in the working folder: "start <step>" and "train <step>", the latter for steps of
which it has no state yet.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gc25d.workflow.raw_record import states, write_record
from gc25d.workflow.runs import present_files

REPLACED = (
    *("capture", "prep_run", "encode_text", "build_index", "train", "export", "verify"),
    *("evaluate", "plot_curves", "plot_overlay", "plot_coverage"),
)
RAW = ("frames.tar", "stencil.tar", "cameras.npz", "skeletons.npz", "meta.json")
FRAMES_BYTES = 1_200_000
TRAINED = Path("trained.txt")


def install(package: Path) -> None:
    """Put stand-ins in place of a package copy's step programs."""
    for name in REPLACED:
        shutil.copy(__file__, package / f"steps/{name}.py")


def digest(*parts: str | bytes) -> str:
    """SHA-256 over the parts' digests."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()


def write(path: Path, **content: Any) -> None:
    """Write whole or not at all, as the real steps do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, sort_keys=True))
    partial.replace(path)


def read(path: Path) -> Any:
    """A file that `write` made, or a settings file."""
    return json.loads(path.read_text())


def capture(a: argparse.Namespace) -> None:
    """Settings and place → the six files of a run."""
    frames = read(a.settings[0])["geometry"]["frames"]
    made = digest(a.settings[0].read_bytes(), a.scene, a.run)
    for name in (f"clips_{frames}.json", *RAW):
        # Of the size of a recording: above 1 MB, up to which Snakemake compares contents by itself.
        write(a.out / name, capture=name, of=made, pad="." * (FRAMES_BYTES * (name == RAW[0])))


def prep_run(a: argparse.Namespace) -> None:
    """A run → latents of the frames, ids of the geometry, rows that digest both, with prompts."""
    settings = a.settings[0].read_bytes()
    frames = read(a.settings[0])["geometry"]["frames"]
    files = present_files(a.raw, frames)
    write_record(a.record, files, states(files))
    raw = {name: (a.raw / name).read_bytes() for name in (*RAW, f"clips_{frames}.json")}
    prompts = raw.pop(f"clips_{frames}.json")
    write(a.latents, latents=a.run_id, of=digest(settings, raw["frames.tar"], raw["meta.json"]))
    write(a.ids, ids=a.run_id, of=digest(settings, *(raw[name] for name in RAW[1:])))
    made = digest(a.latents.read_bytes(), a.ids.read_bytes())
    write(a.rows[0], rows=a.run_id, of=made, prompts=digest(prompts))


def encode_text(a: argparse.Namespace) -> None:
    """The rows' prompts → the table."""
    prompts = [read(path)["prompts"] for path in a.rows]
    write(a.out, table=digest(a.settings[0].read_bytes(), *prompts))


def build_index(a: argparse.Namespace) -> None:
    """Rows and table → clips and READY with the fingerprint."""
    settings = a.settings[0].read_bytes()
    rows = digest(settings, *(path.read_bytes() for path in a.rows))
    write(a.clips, clips=rows)
    write(a.ready, fingerprint=digest(rows, a.table.read_bytes()))


def tensors(data: Path) -> str:
    """What a training or a score reads of a data set, beside READY."""
    files = [*sorted(data.glob("latents/*.safetensors")), *sorted(data.glob("ids/*.safetensors"))]
    files += [data / "text/table.safetensors", data / "index/clips.jsonl"]
    if len(files) != 2 + 2 * len(list(data.glob("index/runs/*.jsonl"))):
        sys.exit(f"{data}: a tensor file is missing")
    return digest(*(path.read_bytes() for path in files))


def train(a: argparse.Namespace) -> None:
    """Data and settings → a checkpoint, from the newest state; refuses other data, as the real one.

    A state of the very step is enough to write its checkpoint again. Only the chain is logged.
    """
    _say(f"start {a.until}")
    fingerprint = read(a.data / "READY")["fingerprint"]
    if read(a.binding)["data_fingerprint"] != fingerprint:
        sys.exit("the run is bound to other data")
    made = digest(a.settings[0].read_bytes(), tensors(a.data), fingerprint, str(a.until))
    name = f"step-{a.until:07d}/manifest.json"
    chain = [int(path.parent.name[5:]) for path in Path("train/states").glob("*/manifest.json")]
    state, aside = Path("train/states") / name, Path("train/aside") / name
    if not state.exists() and not aside.exists():
        ahead = max(chain, default=0) > a.until
        if not ahead:
            _log_rows(a.until)
        write(aside if ahead else state, state=made)
        _say(f"train {a.until}")
    state = state if state.exists() else aside
    if read(state)["state"] != made:
        sys.exit(f"{state} belongs to another run")
    write(a.weights, weights=made)
    write(a.probe[0], probe=made)
    write(a.done, done=a.until, fingerprint=fingerprint)


def _say(line: str) -> None:
    with TRAINED.open("a") as file:
        file.write(f"{line}\n")


def _log_rows(until: int) -> None:
    write(Path("train/train_log.csv"), rows=list(range(1, until + 1)))


def export(a: argparse.Namespace) -> None:
    """A checkpoint → its export."""
    files = [*a.settings, a.binding, *(path for path in (a.weights, a.done) if path)]
    write(a.out, export=digest(*(path.read_bytes() for path in files)))


def verify(a: argparse.Namespace) -> None:
    """An export against the checkpoint; a mixture of two fails, as it does in the real step."""
    if read(a.weights)["weights"] != read(a.probe[0])["probe"]:
        sys.exit("the probe is of other weights")
    files = [*a.settings, a.export, a.weights, *a.probe]
    write(a.out, verified=digest(*(path.read_bytes() for path in files)))


def evaluate(a: argparse.Namespace) -> None:
    """An export, the data and the recorded frames → pictures, then metrics."""
    raw = [path.read_bytes() for path in sorted(a.raw_root.glob("*/*/*/frames.tar"))]
    ready = (a.data / "READY").read_bytes()
    made = digest(a.settings[0].read_bytes(), a.weights.read_bytes(), tensors(a.data), ready, *raw)
    write(a.clips / "clip.mp4", clip=made)
    write(a.sheet, sheet=made)
    write(a.scores, scores=made)
    write(a.out, metrics=made)


def plot_curves(a: argparse.Namespace) -> None:
    """The log's rows, as they are."""
    write(a.out, **read(a.train_log))


def plot_overlay(a: argparse.Namespace) -> None:
    """Data and recorded frames → the picture."""
    raw = [path.read_bytes() for path in sorted(a.raw_root.glob("*/*/*/frames.tar"))]
    write(a.out, overlay=digest(tensors(a.data), *raw))


def plot_coverage(a: argparse.Namespace) -> None:
    """Data → the numbers and the picture."""
    write(a.summary, summary=tensors(a.data))
    write(a.out, coverage=tensors(a.data))


STEPS: dict[str, Callable[[argparse.Namespace], None]] = {
    name: globals()[name] for name in REPLACED
}
MANY = ("rows", "settings", "probe")
TEXTS = ("scene", "run", "run_id")


def parse(words: Iterable[str]) -> argparse.Namespace:
    """`--name value…` of any step; values are paths but for a few."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = []
        else:
            found[name].append(word)
    values: dict[str, Any] = dict.fromkeys(("weights", "done"))
    for name, given in found.items():
        if name in MANY:
            values[name] = [Path(value) for value in given]
        elif name == "until":
            values[name] = int(given[0])
        elif given:
            values[name] = given[0] if name in TEXTS else Path(given[0])
    return argparse.Namespace(**values)


if __name__ == "__main__":
    time.sleep(float(os.environ.get("STAND_IN_S", "0")))
    STEPS[Path(sys.argv[0]).stem](parse(sys.argv[1:]))
