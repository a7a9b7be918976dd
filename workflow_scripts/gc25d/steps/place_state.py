r"""Let this directory's run go on from a state of the older format: weights and {step, arm, vocab}.

Inputs: train/settings.json, train/binding.json, data/<dataset>/READY, the state's JSON and its
weights as one `.safetensors` (native names, bf16 or fp32). Outputs: train/states/step-<n>, from
which the next run of snakemake goes on, and train/placed.json. Not exact: the moments start at zero
(docs/resume.md). What the newer of those states say of their place in the data is told and not
used. Refused when the run has a state already, or had one.

    snakemake train/binding.json --cores 1
    python -m gc25d.steps.place_state --settings train/settings.json \
        --binding train/binding.json --data data/gc25d_v10 \
        --state old/trainer_state.json --weights old/step-1000.safetensors
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path

from gc25d.errors import UserError
from gc25d.locks import locked
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.steps import TrainStep, load_step
from gc25d.steps import cli
from gc25d.train.history.chain import STATES, trace_of_states
from gc25d.train.older_state import place_state, read_older_state
from gc25d.train.states.folder import folders
from gc25d.workflow.chain import PLACED

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Check that the state fits the run, write it in this format, say where in the data it is."""
    run: Path = arguments.settings.parent
    settings = load_step(arguments.settings, TrainStep)
    older = read_older_state(arguments.state, settings.model.vocab)
    with locked(run / "lock", wait_s=0.0, held="a trainer works on this run"):
        refuse_begun(run)
        binding = digest_json(read_json(arguments.binding))
        place_state(settings, arguments.weights, older.step, run / STATES, binding)
        write_json(run / PLACED.name, {"step": older.step, "weights": str(arguments.weights)})
    steps = read_json(arguments.data / "READY")["steps_per_epoch"]
    epoch, within = divmod(older.step, steps)
    logger.info("placed at step %d: epoch %d, %d of %d steps", older.step, epoch, within, steps)
    if older.unused:
        logger.warning(
            "%s says more (%s), which is not used: the state is placed by its step alone, at epoch "
            "%d after %d of %d steps, and the samples that follow are this run's, not its own",
            *(arguments.state, listed(older.unused), epoch, within, steps),
        )


def refuse_begun(run: Path) -> None:
    """An older state is where a run begins.

    Raises:
        UserError: the run has states, or had some.
    """
    found = [path.name for path in folders(run / STATES)]
    trace = f"{run / STATES} holds {found[-1]}" if found else trace_of_states(run)
    if trace:
        raise UserError(
            f"{run}: the run has states of its own already ({trace}): place the older one in "
            "another --directory, or set this run aside with `python -m gc25d.steps.restart`"
        )


def listed(values: Mapping[str, object]) -> str:
    """Names and values; of those that are no single value, the name."""
    return ", ".join(
        f"{key} {value}" if isinstance(value, int | float | str) else key
        for key, value in values.items()
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--binding", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
