"""The chain of checkpoints: what must exist before step n is trained, and what it starts from.

Checkpoints are `checkpoint_every` steps apart, and the last one is at `max_steps`. Of step n, the
checkpoint before is the largest multiple of `checkpoint_every` below n; let b be its step.

| what lies in the folder                                             | n waits for     |
|---------------------------------------------------------------------|-----------------|
| b is 0                                                              | nothing         |
| a state of a step from b to n: a killed job's, or that of b itself  | nothing         |
| a state of an older format, placed at step b or later               | nothing         |
| weights between b and n, none of b (`checkpoint_every` was changed) | nothing         |
| anything else                                                       | checkpoint b    |

Training then goes on from the newest whole state at or before n (`train.states.folder`), and starts
from the base weights where there is none. An export records as `resumed_step` the step at which its
segment began, whatever attempt of it was killed and went on.

Imports no torch.
"""

from pathlib import Path

from gc25d.records import read_json

PLACED = Path("train/placed.json")
"""The step at which a state of an older format was placed (gc25d.steps.place_state), if one was."""


def checkpoint_before(step: int, every: int) -> int:
    """The chain's checkpoint from which a segment that ends at `step` starts; 0 is the start."""
    return (step - 1) // every * every


def weights_file(step: int) -> Path:
    """The weights of a checkpoint."""
    return Path(f"train/step-{step}/weights.safetensors")


def placed_step() -> int:
    """The step at which this run took over a state of an older format; 0 when it started itself."""
    return int(read_json(PLACED)["step"]) if PLACED.exists() else 0


def checkpoint_files(step: int, *, averaged: bool) -> list[Path]:
    """The files of a checkpoint; with `train.ema` the moving average is among them."""
    names = ["weights.safetensors", "probe.safetensors", "done.json"]
    averages = ["ema.safetensors", "ema_probe.safetensors"] if averaged else []
    return [weights_file(step).with_name(name) for name in (*names, *averages)]


def needed_before(step: int, every: int) -> int:
    """The checkpoint that must be trained before `step`, 0 for none.

    Where a later one already stands between the two (`checkpoint_every` was changed), a placed
    state lies behind it, or the state after it is still there, training goes on from there.
    """
    before = checkpoint_before(step, every)
    if before <= placed_step() or _has_state(before, step):
        return 0
    between = any(weights_file(done).exists() for done in range(before + 1, step))
    return 0 if between and not weights_file(before).exists() else before


def _has_state(before: int, step: int) -> bool:
    """Whether training left a state from which `step` is reached without the checkpoint before."""
    found = (path.parent.name for path in Path("train/states").glob("step-*/manifest.json"))
    return any(before <= int(name[5:]) <= step for name in found if name[5:].isdigit())
