r"""Plot a run's training curves and validation gaps.

Inputs:  the trainer's `train_log.csv` and `val_log.csv`.
Output:  one PNG: loss, gradient norm, learning rates, validation loss and the two gaps by timestep.

Example:
    python -m gc25d.steps.plot_curves --train-log train/train_log.csv \
        --val-log train/val_log.csv --out figures/curves.png
"""

import argparse
from pathlib import Path

from gc25d.errors import UserError
from gc25d.evaluate.curves import save_png, training_figure
from gc25d.records import read_csv
from gc25d.steps import cli


def main(arguments: argparse.Namespace) -> None:
    """Read both logs and write the figure.

    Raises:
        UserError: the training log is missing or empty, or lacks a column.
    """
    train = read_csv(arguments.train_log)
    if not train:
        raise UserError(f"{arguments.train_log}: no rows: train first")
    try:
        figure = training_figure(train, read_csv(arguments.val_log))
    except UserError as error:
        raise UserError(f"{arguments.train_log} or {arguments.val_log}: {error}") from None
    save_png(arguments.out, figure)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--train-log", type=Path, required=True, help="train_log.csv")
    parser.add_argument("--val-log", type=Path, required=True, help="val_log.csv; may be missing")
    parser.add_argument("--out", type=Path, required=True, help="the PNG")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
