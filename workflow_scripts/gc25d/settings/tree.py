"""The typed settings tree: the only validator of `config/*.yaml`. Imports no torch.

Every field says what it is, its unit and its default. The fields of dataset, geometry, samples,
model, train and validation that are not `FREE` bind the run; those of capture and prep bind it
through the data's fingerprint.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from gc25d.settings.base import (
    FREE,
    NAME,
    Folder,
    Fraction,
    Natural,
    Number,
    Positive,
    Rate,
    Section,
    each_once,
    refuse,
)
from gc25d.settings.cells import TAUGHT, cell_fault, model_fault
from gc25d.settings.training import Hardware, Model, Train, Validation

SCENES: dict[str, tuple[str, ...]] = {
    # scenarios for one player that come with ViZDoom
    "vizdoom": (
        "basic",
        "deadly_corridor",
        "deathmatch",
        "defend_the_center",
        "defend_the_line",
        "health_gathering",
        "health_gathering_supreme",
        "my_way_home",
        "rocket_basic",
        "simpler_basic",
        "take_cover",
    ),
    "synthetic": ("synthetic_perspective", "synthetic_orthographic"),
}
"""Scenes of each source that this pipeline captures itself."""


class Geometry(Section):
    """Size of a clip. Latents are [48, 1 + (frames − 1)/4, height/16, width/16]."""

    frames: Positive = 17
    """Frames of a clip, 4n + 1 and at least 5: the first is given, the others are generated."""
    height: Positive = 96
    """Pixels, a multiple of 32."""
    width: Positive = 160
    """Pixels, a multiple of 32."""

    @model_validator(mode="after")
    def _legal(self) -> Self:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        for side in ("height", "width"):
            value = getattr(self, side)
            if value % 32:
                below, above = value // 32 * 32, (value // 32 + 1) * 32
                legal = f"{below} or {above}" if below else f"{above}"
                yield f"{side} is {value}, expected a multiple of 32: use {legal}"
        if self.frames < 5:
            yield (
                f"frames is {self.frames}, expected 4n + 1 and at least 5 (the first frame is "
                "given to the model): use 5"
            )
            return
        if self.frames % 4 != 1:
            below = (self.frames - 1) // 4 * 4 + 1
            yield f"frames is {self.frames}, expected 4n + 1: use {below} or {below + 4}"


class Capture(Section):
    """What plays the game. `external` captures are only pointed at by `raw_root`."""

    source: Literal["vizdoom", "synthetic", "external"] = "vizdoom"
    """`vizdoom` plays scripted, seeded games; `synthetic` casts rays into made-up scenes with exact
    ground truth; `external` finds finished runs below `raw_root`."""
    scenes: tuple[str, ...] = ("deadly_corridor", "deathmatch", "defend_the_line")
    """Scenes to play: ViZDoom scenarios, or `synthetic_perspective`, `synthetic_orthographic`."""
    runs_per_scene: Positive = 4
    """Runs of each scene: `run-000`, `run-001`, …"""
    clips_per_run: Positive = 16
    """Clips cut from a run, one after another."""
    height: Positive = 240
    """Pixels of a captured frame."""
    width: Positive = 320
    """Pixels of a captured frame."""
    tics_per_frame: Positive = 2
    """Game tics (1/35 s) between two frames."""
    seed: Natural = 0
    """Seeds the game and the scripted player."""

    @field_validator("scenes")
    @classmethod
    def _each_once(cls, scenes: tuple[str, ...]) -> tuple[str, ...]:
        return each_once(scenes)

    @model_validator(mode="after")
    def _known_scenes(self) -> Self:
        known = SCENES.get(self.source, self.scenes)
        refuse(
            f"scenes holds {scene!r}, which is no scene of {self.source}: use {', '.join(known)}"
            for scene in self.scenes
            if scene not in known
        )
        return self


class Text(Section):
    """What turns a prompt into an embedding of shape [length, dim]."""

    encoder: Literal["bytes", "umt5"] = "bytes"
    """`bytes` is a small seeded encoder over bytes; `umt5` loads UMT5-XXL from `dir`."""
    dir: str = ""
    """Local directory of the `umt5` encoder and its tokenizer."""
    length: Positive = 64
    """Tokens of a prompt: cut to this length, zero-padded up to it."""
    dim: Positive = 64
    """Width of a token's embedding (UMT5-XXL: 4096)."""


class Prep(Section):
    """raw captures → data/<dataset>."""

    codec: Literal["dct", "wan_vae"] = "dct"
    """`dct` needs no weights; `wan_vae` loads Wan2.2's autoencoder from `codec_dir`."""
    codec_dir: str = ""
    """Local directory of the `wan_vae` weights."""
    runs_of: Annotated[str, Field(pattern=f"^({NAME})?$")] = Field("", json_schema_extra=FREE)
    """Name of a data set beside this one whose prepared runs are used; "": this one's own."""
    workers: Natural = Field(0, json_schema_extra=FREE)
    """Processes of a job that read clips ahead of the encoder; 0 reads in the job's own."""
    text: Text = Text()
    val_runs: tuple[str, ...] = (
        "deadly_corridor__run-003",
        "deathmatch__run-003",
        "defend_the_line__run-003",
    )
    """Runs (`<scene>__<run>`) held out for validation; all others train."""
    buried: tuple[str, ...] = ()
    """Clip ids that stay in the index with `drop = true`."""
    buried_file: str = Field("", json_schema_extra=FREE)
    """File of more of them, one a line, `#` starts a comment; its content counts, not its path."""
    limit: Natural = 0
    """Keep this many clips of each split, chosen by `Random(limit_seed)`; 0 keeps all. A split with
    fewer usable clips is an error."""
    limit_seed: Natural = 0
    """Seeds the choice made by `limit`."""
    strict: bool = Field(False, json_schema_extra=FREE)
    """Any faulty clip or run (docs/dataset.md) fails the build instead of being left out."""


class Mask(Section):
    """The world-anchored UNKNOWN mask (docs/dataset.md)."""

    p: Fraction = 0.5
    """Probability that a sample whose condition was kept is masked."""
    coverage: Literal["first_frame", "mean_frame", "capped"] = "first_frame"
    """What the drawn quantile is calibrated on."""


class Samples(Section):
    """What is drawn for each training sample, from (seed, epoch, index) alone."""

    text_dropout: Fraction = 0.1
    """Probability that all prompts of a sample become the empty prompt."""
    cond_dropout: Fraction = 0.05
    """Probability that all semantic ids of a sample become unknown."""
    mask: Mask = Mask()


class Evaluation(Section):
    """Sampled videos and their scores."""

    clips: tuple[str, ...] = ()
    """Validation clip ids; none here or in `clips_file` takes `n`, round-robin over their runs."""
    clips_file: str = Field("", json_schema_extra=FREE)
    """File of more of them, one a line, `#` starts a comment; its content counts, not its path."""
    n: Positive = 3
    """Clips to sample when none is named; as many must be usable."""
    steps: Positive = 50
    """Sampling steps."""
    shift: Rate = 5.0
    """Shift of the sampling schedule."""
    cfg: Rate = 1.0
    """Text guidance scale; 1 samples without guidance."""
    sem_cfg: Rate = 1.0
    """Semantic guidance scale; 1 samples without guidance."""
    sem_mode: Literal["cond", "unknown"] = "cond"
    """`unknown` samples with every semantic id unknown."""
    seed: Natural = 0
    """Seeds the starting noise."""


class Regression(Section):
    """Gradient-norm references per device."""

    refs_root: str = ""
    """Folder of the recorded references; "": `refs/` here, else beside the Snakefile."""
    rtol: Annotated[Number, Field(gt=0, lt=1)] = 0.10
    """Relative tolerance of a cell that sets none of its own, whatever was recorded; a fraction."""
    repeats: Positive = 3
    """Measurements of a cell; their relative spread must stay below rtol / 2."""
    strict: bool = False
    """A missing reference fails instead of being skipped."""
    init_from: str = ""
    """Directory of base weights (as `model.init_dir`): cells `<model>@<size>/<method>` are then
    measured on them too; "" measures small cells only."""


class Settings(Section):
    """Everything a run of the pipeline can be told."""

    dataset: Annotated[str, Field(pattern=f"^{NAME}$")] = "gc25d_v10"
    """Name of the data set: `<data_root>/<dataset>`."""
    raw_root: Folder = Field("raw", json_schema_extra=FREE)
    """Folder of the raw captures."""
    data_root: Folder = Field("data", json_schema_extra=FREE)
    """Folder of the built data sets."""
    cache_root: Folder = Field(".cache", json_schema_extra=FREE)
    """Folder of every cache (compilers, libraries, temporary files)."""
    geometry: Geometry = Geometry()
    capture: Capture = Capture()
    prep: Prep = Prep()
    samples: Samples = Samples()
    model: Model = Model()
    train: Train = Train()
    validation: Validation = Validation()
    evaluation: Evaluation = Evaluation()
    regression: Regression = Regression()
    hardware: Hardware = Hardware()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse([*self._path_faults(), *self._method_faults(), *self._count_faults()])
        return self

    def _path_faults(self) -> Iterator[str]:
        """Folders of weights that are needed and not named, or named twice."""
        if self.prep.codec == "wan_vae" and not self.prep.codec_dir:
            yield "prep.codec is wan_vae, which needs prep.codec_dir: set it"
        if self.prep.text.encoder == "umt5" and not self.prep.text.dir:
            yield "prep.text.encoder is umt5, which needs prep.text.dir: set it"
        if self.model.init_dir and self.model.init_ckpt:
            yield "model.init_dir and model.init_ckpt are both set: keep one of them"

    def _count_faults(self) -> Iterator[str]:
        """Numbers of clips above what there can be, as far as that is known before captures are."""
        capture, limit = self.capture, self.prep.limit
        per_split: dict[str, float] = {"train": math.inf, "val": math.inf}
        if capture.source != "external":
            numbers = range(capture.runs_per_scene)
            runs = {f"{scene}__run-{number:03d}" for scene in capture.scenes for number in numbers}
            held_out = set(self.prep.val_runs)
            if held_out <= runs:  # else another check names the unknown run
                val = len(held_out) * capture.clips_per_run
                per_split = {"train": len(runs) * capture.clips_per_run - val, "val": val}
        for split, count in per_split.items():
            if 0 < count < limit:
                yield f"prep.limit is {limit}, but {split} has {count} clips: use {count} or fewer"
        usable = min(per_split["val"], limit or math.inf)
        asked = {"validation.n": self.validation.n}
        if not (self.evaluation.clips or self.evaluation.clips_file):
            asked["evaluation.n"] = self.evaluation.n
        for setting, n in asked.items():
            if 0 < usable < n:
                yield f"{setting} is {n}, but val has {usable} clips: use {usable} or fewer"

    def _method_faults(self) -> Iterator[str]:
        """What the training method lacks, or is given in vain."""
        model, train, samples = self.model, self.train, self.samples
        fault = cell_fault(model.name, train.method)
        if fault is None:
            fault = model_fault(model.name, model.size, model.init_dir)
        if fault is not None:
            yield fault
        if train.method not in TAUGHT:
            return
        if not (train.teacher.weights or model.init_dir or model.init_ckpt):
            yield (
                f"train.method is {train.method}, which needs a trained teacher: set "
                "train.teacher.weights, or model.init_dir or model.init_ckpt"
            )
        if train.teacher.size != "student" and not train.teacher.weights:
            yield "train.teacher.size needs train.teacher.weights of that size: set it"
        drops = samples.text_dropout or samples.cond_dropout or samples.mask.p
        if train.method == "kd" and drops:
            yield (
                "train.method is kd, whose cached paths were made with the whole condition: set "
                "samples.text_dropout, samples.cond_dropout and samples.mask.p to 0"
            )
