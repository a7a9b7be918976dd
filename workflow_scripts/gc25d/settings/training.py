"""Settings of the model and its training: architecture, optimisation, validation, hardware."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from gc25d.settings.base import (
    FREE,
    Folder,
    Natural,
    Number,
    Positive,
    Rate,
    Section,
    each_once,
    refuse,
)
from gc25d.settings.cells import UNAVAILABLE


class Model(Section):
    """Architecture and starting weights."""

    name: Literal["wan", "wan_causal", "matrixgame2", "hunyuan", "cosmos"] = "wan"
    """`wan`: the bidirectional diffusion transformer of Wan2.2-TI2V; `wan_causal`: the same weights
    with attention by chunks of frames; the others and the methods that train them: docs/methods.md.
    """
    size: Literal["tiny", "1.3b", "5b", "2b", "13b", "14b"] = "tiny"
    """Width and depth: tiny, 1.3b and 5b for Wan's models, 13b for `hunyuan`, 2b and 14b for
    `cosmos` (docs/models.md)."""
    vocab: Literal["parts", "ids"] = "parts"
    """`parts` keeps body parts apart (20 classes); `ids` collapses them to player/boss (10)."""
    chunk_frames: Positive = 3
    """Latent frames of a chunk of the causal models; frames see their chunk and those before."""
    recompute: Literal["none", "half", "all", "auto"] = Field("auto", json_schema_extra=FREE)
    """Blocks whose forward pass is computed again in the backward pass instead of kept; `auto`
    takes the fewest that fit the GPU's memory."""
    compile: Literal["auto", "on", "off"] = Field("auto", json_schema_extra=FREE)
    """Whether blocks are compiled (`torch.compile`); `auto` compiles on GPUs only."""
    init_dir: str = ""
    """Directory of base weights (Wan's shards or a diffusers `transformer/`); "": from seed."""
    init_ckpt: str = ""
    """A `.safetensors` of this project to start from (warm start), or ""."""

    @field_validator("compile", mode="before")
    @classmethod
    def _on_or_off(cls, value: object) -> object:
        """YAML reads a plain `on` and `off` as truth values."""
        return ("on" if value else "off") if isinstance(value, bool) else value

    @field_validator("name", mode="before")
    @classmethod
    def _available(cls, name: object) -> object:
        if name in UNAVAILABLE:
            raise ValueError(f"{name} is not available: {UNAVAILABLE[str(name)]}")
        return name


class Teacher(Section):
    """The frozen teacher of `dmd2`, `self_forcing` and `kd`: a `wan` model."""

    weights: str = ""
    """A directory of base weights or a `.safetensors` of this project; "": the run's own start."""
    size: Literal["student", "tiny", "1.3b", "5b"] = "student"
    """Width and depth of the teacher, and of the critic, which starts from its weights."""
    cfg: Rate = 1.0
    """Text guidance scale of its predictions; 1 predicts without guidance."""
    sem_cfg: Rate = 1.0
    """Semantic guidance scale of its predictions; 1 predicts without guidance."""


class Distill(Section):
    """How a student of few steps samples (`dmd2`, `self_forcing`, `kd`) and learns."""

    denoising_steps: Positive = 4
    """Forward passes of the student from noise to a clip."""
    shift: Rate = 5.0
    """Shift of the noise levels of these steps."""
    generator_update_interval: Positive = 5
    """The student learns at every so many optimizer steps, the critic at each (not in `kd`)."""
    critic_lr: Rate = 4e-7
    """Learning rate of the critic, its semantic condition included."""


class Kd(Section):
    """The teacher's cached paths from noise to clips, which `kd` regresses."""

    cache: Folder = "ode_paths"
    """Folder of the paths: about a clip's latents times (denoising_steps + 1) a training clip."""
    teacher_steps: Positive = 48
    """Steps of the teacher along a path, a multiple of `distill.denoising_steps`."""


class Train(Section):
    """The optimisation."""

    method: Literal["finetune", "dfsft", "dmd2", "self_forcing", "kd"] = "finetune"
    """The training method (docs/methods.md)."""
    engine: Literal["auto", "plain", "deepspeed"] = Field("auto", json_schema_extra=FREE)
    """`plain` is accelerate on one device; `deepspeed` shards optimizer state and gradients over
    processes (ZeRO-2); `auto` takes deepspeed on more than one GPU."""
    kernels: Literal["exact", "fastest"] = Field("exact", json_schema_extra=FREE)
    """On GPUs: `exact` ones repeat bit for bit, and with them a resumed run; `fastest` ones may add
    in any order, which saves an eighth of a 5B step on an H200. A CPU's are always exact."""
    max_steps: Positive = Field(600, json_schema_extra=FREE)
    """Optimizer steps of the whole run; a larger value later continues the chain."""
    checkpoint_every: Positive = Field(200, json_schema_extra=FREE)
    """Optimizer steps between two checkpoints of the chain (DAG targets)."""
    save_every: Positive = Field(50, json_schema_extra=FREE)
    """Optimizer steps between two rolling states, from which a killed job goes on."""
    global_batch: Positive = 8
    """Samples of an optimizer step, over all processes."""
    grad_accum: Positive = 1
    """Rounds in which a step's samples are formed; the epoch's last step may have fewer rounds."""
    micro_batch: Positive = Field(8, json_schema_extra=FREE)
    """Samples of a forward pass on one device, at most; another value changes rounding only."""
    lr: Rate = 3e-3
    """Learning rate of the transformer, after the warm-up."""
    cond_lr: Rate = 3e-3
    """Learning rate of the semantic condition (`gc_sem_cond.*`)."""
    warmup_steps: Natural = 30
    """Optimizer steps of linear warm-up; constant afterwards."""
    weight_decay: Annotated[Number, Field(ge=0)] = 0.01
    """AdamW's decoupled weight decay."""
    grad_clip: Rate = 1.0
    """Largest global gradient norm; larger ones are scaled down to it."""
    reset_lr_on_resume: bool = Field(False, json_schema_extra=FREE)
    """Lets `lr` and `cond_lr` change under a run: training goes on from its last state with the new
    ones. Each change stands in history.jsonl, in done.json and in the export's metadata."""
    ema: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Decay of a moving average of the weights, kept in fp32 and exported beside them
    (`exports/step-<n>-ema.safetensors`); 0 keeps none."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward and backward pass."""
    master_weights: Literal["fp32", "bf16"] = "fp32"
    """Type of the trained weights and their moments. `bf16` halves their memory and loses updates
    below 1/256 of a weight; it needs the plain engine and `precision: bf16`."""
    seed: Natural = 0
    """Seeds the starting weights, the order and every draw."""
    cpu_threads: Positive = 2
    """Threads of CPU arithmetic, fixed because sums depend on it (not on `--cores`)."""
    log_every: Positive = Field(10, json_schema_extra=FREE)
    """Optimizer steps between two lines in the job's log (the CSV has every step)."""
    workers: Natural = Field(0, json_schema_extra=FREE)
    """Threads of each process that read samples ahead; 0 reads in the trainer's own."""
    teacher: Teacher = Teacher()
    distill: Distill = Distill()
    kd: Kd = Kd()

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        if self.global_batch % self.grad_accum:
            yield (
                f"global_batch is {self.global_batch}, expected a multiple of grad_accum "
                f"({self.grad_accum}): use {_multiples(self.global_batch, self.grad_accum)}"
            )
        if self.master_weights == "bf16" and self.precision != "bf16":
            yield (
                f"master_weights is bf16 with precision {self.precision}: set precision to bf16, "
                "or master_weights to fp32"
            )
        steps, student = self.kd.teacher_steps, self.distill.denoising_steps
        if self.method == "kd" and steps % student:
            yield (
                f"kd.teacher_steps is {steps}, expected a multiple of distill.denoising_steps "
                f"({student}): use {_multiples(steps, student)}"
            )


Timestep = Annotated[Number, Field(ge=0, le=1000)]


class Validation(Section):
    """Losses on fixed held-out clips, at fixed timesteps, with fixed noise."""

    every: Positive = Field(100, json_schema_extra=FREE)
    """Optimizer steps between two validations; each checkpoint validates too."""
    n: Positive = 12
    """Validation clips, round-robin over the validation runs; as many must be usable."""
    timesteps: Annotated[tuple[Timestep, ...], Field(min_length=1)] = (200.0, 500.0, 800.0)
    """Timesteps in 0..1000, each once; each is moved to the nearest point of the training grid."""
    seed: Natural = 0
    """Seeds the noise."""

    @field_validator("timesteps")
    @classmethod
    def _each_once(cls, timesteps: tuple[float, ...]) -> tuple[float, ...]:
        return each_once(timesteps)


class Hardware(Section):
    """What the training runs on; another device changes rounding only."""

    nodes: Positive = Field(1, json_schema_extra=FREE)
    """Nodes of a training job."""
    gpus_per_node: Natural = Field(0, json_schema_extra=FREE)
    """GPUs of a node; 0 trains on the CPU."""
    processes: Natural = Field(0, json_schema_extra=FREE)
    """Processes of a node; 0 is one a GPU, or one on the CPU."""
    gpu_type: str = Field("", json_schema_extra=FREE)
    """SLURM's name of the GPU (`l40s`, `h200`), "" for any."""
    train_hours: Rate = Field(4.0, json_schema_extra=FREE)
    """Wall-clock limit of one training segment on a cluster, hours."""
    train_memory_gb: Natural = Field(0, json_schema_extra=FREE)
    """Host memory of a training job on each node, GB; 0 asks for 200 with GPUs, 4 a process
    without."""

    @model_validator(mode="after")
    def _one_process_a_gpu(self) -> Self:
        if self.gpus_per_node and self.processes not in (0, self.gpus_per_node):
            raise ValueError(
                f"processes is {self.processes} with {self.gpus_per_node} GPUs a node, expected "
                f"one a GPU: use 0 or {self.gpus_per_node}"
            )
        return self


def _multiples(value: int, of: int) -> str:
    below = value // of * of
    return f"{below} or {below + of}" if below else f"{of}"
