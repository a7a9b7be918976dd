"""Settings of the model and its training: architecture, optimisation, validation, hardware."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gc25d.settings_base import FREE, Natural, Positive, Rate, Section


class Model(Section):
    """Architecture and starting weights."""

    name: Literal["wan", "wan_causal", "matrixgame2", "hunyuan", "cosmos"] = "wan"
    """`wan`: the bidirectional diffusion transformer of Wan2.2-TI2V; `wan_causal`: the same weights
    with attention by chunks of frames; the others and the methods that train them: docs/methods.md.
    """
    size: Literal["tiny", "1.3b", "5b"] = "tiny"
    """Width and depth, see gc25d/model/zoo.py."""
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


class Train(Section):
    """The optimisation."""

    method: Literal["finetune", "dfsft", "dmd2", "self_forcing", "kd"] = "finetune"
    """The training method (docs/methods.md)."""
    engine: Literal["auto", "plain", "deepspeed"] = Field("auto", json_schema_extra=FREE)
    """`plain` is accelerate on one device; `deepspeed` shards optimizer state and gradients over
    processes (ZeRO-2); `auto` takes deepspeed on more than one GPU."""
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
    """Learning rate of the transformer."""
    cond_lr: Rate = 3e-3
    """Learning rate of the semantic condition (`gc_sem_cond.*`)."""
    warmup_steps: Natural = 30
    """Optimizer steps of linear warm-up; constant afterwards."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's decoupled weight decay."""
    grad_clip: Rate = 1.0
    """Largest global gradient norm; larger ones are scaled down to it."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward and backward pass; master weights are always fp32."""
    seed: Natural = 0
    """Seeds the starting weights, the order and every draw."""
    cpu_threads: Positive = 2
    """Threads of CPU arithmetic, fixed because sums depend on it (not on `--cores`)."""
    log_every: Positive = Field(10, json_schema_extra=FREE)
    """Optimizer steps between two lines in the job's log (the CSV has every step)."""
    workers: Natural = Field(0, json_schema_extra=FREE)
    """Processes that read samples ahead; 0 reads in the trainer."""

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.global_batch % self.grad_accum:
            raise ValueError(
                f"global_batch is {self.global_batch}, expected a multiple of grad_accum "
                f"({self.grad_accum}): use {_multiples(self.global_batch, self.grad_accum)}"
            )
        return self


class Validation(Section):
    """Losses on fixed held-out clips, at fixed timesteps, with fixed noise."""

    every: Positive = Field(100, json_schema_extra=FREE)
    """Optimizer steps between two validations; each checkpoint validates too."""
    n: Positive = 12
    """Validation clips, round-robin over the validation runs."""
    timesteps: tuple[float, ...] = (200.0, 500.0, 800.0)
    """Timesteps in 0..1000; each is moved to the nearest point of the training grid."""
    seed: Natural = 0
    """Seeds the noise."""


class Hardware(Section):
    """What the training runs on; another device changes rounding only."""

    nodes: Positive = Field(1, json_schema_extra=FREE)
    """Nodes of a training job."""
    gpus_per_node: Natural = Field(0, json_schema_extra=FREE)
    """GPUs of a node; 0 trains on the CPU."""
    gpu_type: str = Field("", json_schema_extra=FREE)
    """SLURM's name of the GPU (`l40s`, `h200`), "" for any."""
    train_hours: Rate = Field(4.0, json_schema_extra=FREE)
    """Wall-clock limit of one training segment on a cluster, hours."""


def _multiples(value: int, of: int) -> str:
    below = value // of * of
    return f"{below} or {below + of}" if below else f"{of}"
