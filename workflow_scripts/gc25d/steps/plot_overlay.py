r"""Plot a few frames of the data set under their semantic ids, with a legend.

Inputs:   --data      the data set's folder
          --raw-root  folder of the raw captures it was built from: it holds
                      <subset>/<scene>/<run>
          --clips     how many training clips, round-robin over the runs
Output:   --out       the PNG: two rows a clip, recorded frames and overlay

Example:
  python -m gc25d.steps.plot_overlay --data data/gc25d_v10 --raw-root raw --out figures/overlay.png
"""

import argparse
from pathlib import Path

from gc25d.dataset.clips import ClipDataset
from gc25d.evaluate.overlays import LabelledClip, overlay_figure
from gc25d.evaluate.panels import write_png
from gc25d.evaluate.truth import recorded_frames
from gc25d.steps import cli

CLIPS = 4


def main(arguments: argparse.Namespace) -> None:
    """Read the clips and write the picture.

    Raises:
        UserError: the data set or a raw run is missing or damaged.
    """
    dataset = ClipDataset(arguments.data, "train")
    clips = []
    for index in dataset.round_robin(min(arguments.clips, len(dataset)), "--clips"):
        clip_id = dataset.rows[index].clip_id
        frames, _ = recorded_frames(arguments.raw_root, clip_id, dataset.shape)
        clips.append(LabelledClip(clip_id, frames, dataset.clip(clip_id).sem_ids.numpy()))
    write_png(arguments.out, overlay_figure(clips))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--raw-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clips", type=int, default=CLIPS)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
