"""How a segment trains, beside what it trains: settings that may change under a run."""

from dataclasses import dataclass

from gc25d.model.execution import CompileChoice, RecomputeChoice


@dataclass(frozen=True)
class Pace:
    """Settings of a segment that may change under a run.

    A smaller micro-batch, another number of processes or the other engine adds gradients in another
    order: equal to rounding, not to the bit.
    """

    micro_batch: int
    save_every: int
    validate_every: int
    log_every: int
    workers: int
    gpu: bool = False
    engine: str = "plain"
    """`plain` or `deepspeed`."""
    exact: bool = True
    """Only kernels that repeat bit for bit."""
    compile: CompileChoice = "auto"
    recompute: RecomputeChoice = "auto"
    rates: tuple[float, float] | None = None
    """lr and cond_lr from here on (train.reset_lr_on_resume); None: those of the settings."""

    @property
    def compiled(self) -> bool:
        """Whether blocks are compiled."""
        return self.gpu if self.compile == "auto" else self.compile == "on"
