r"""Measure how much of each frame the UNKNOWN mask hides, under all three coverage policies.

Inputs:   --data     the data set's folder
          --clips    how many masked training samples to measure
Outputs:  --out      the PNG: one panel a policy, over the frames of a clip
          --summary  JSON: mean and 90th percentile per frame, frames over 90 %, per policy

Example:
  python -m gc25d.steps.plot_coverage --data data/gc25d_v10 \
    --summary figures/coverage.json --out figures/coverage.png
"""

import argparse
from pathlib import Path

from gc25d.evaluate.coverage import coverage_figure, coverage_summary, measure_coverage
from gc25d.evaluate.curves import save_png
from gc25d.records import write_json
from gc25d.steps import cli

CLIPS = 100


def main(arguments: argparse.Namespace) -> None:
    """Measure, then write the numbers and the picture.

    Raises:
        UserError: the data set is missing or damaged.
    """
    curves = measure_coverage(arguments.data, 0, arguments.clips)
    write_json(arguments.summary, coverage_summary(curves))
    save_png(arguments.out, coverage_figure(curves))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data set's folder")
    parser.add_argument("--clips", type=int, default=CLIPS, help="masked samples (default 100)")
    parser.add_argument("--summary", type=Path, required=True, help="the JSON")
    parser.add_argument("--out", type=Path, required=True, help="the PNG")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
