"""gc25d: game captures → a trained, verified, evaluated video world model (README.md)."""

import os

from snakemake.utils import min_version

min_version("9.27")
# Of OpenMP's threads on CPUs: short spins before they sleep (docs/decisions.md).
os.environ.setdefault("GOMP_SPINCOUNT", "300")


configfile: f"{workflow.basedir}/config/config.yaml"


include: "rules/common.smk"


wildcard_constraints:
    scene=alternatives(captured_scenes(settings)),
    run=alternatives(sorted({folder.name for folder in runs.values()})),
    run_id=alternatives(runs),
    checkpoint=rf"base|step-[1-9]\d*({ema_suffix})",
    step=r"[1-9]\d*",
    device=r"[A-Z0-9-]+",
    settings_file=alternatives(steps.values()),


include: "rules/settings.smk"
include: "rules/capture.smk"
include: "rules/prep.smk"
include: "rules/training_inputs.smk"
include: "rules/distill.smk"
include: "rules/train.smk"
include: "rules/export.smk"
include: "rules/eval.smk"
include: "rules/regression.smk"
include: "rules/report.smk"


# Data, training to the last step, export, verification, evaluation, pictures.
rule sft_v10:
    default_target: True
    input:
        ready,
        f"exports/step-{last_step}.safetensors",
        f"verify/step-{last_step}.json",
        expand(
            f"eval/step-{last_step}/{{part}}",
            part=("metrics.json", "clips", "sheet.png", "scores.png"),
        ),
        "figures/curves.png",
        "figures/overlay.png",
        "figures/coverage.png",


include: "rules/hooks.smk"
