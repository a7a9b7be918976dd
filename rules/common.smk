"""Settings and input functions; no rules."""

import os
import shlex
from pathlib import Path

from gc25d import plan
from gc25d.errors import UserError

try:
    settings = plan.load_settings(config)
    runs = plan.raw_runs(settings)
    plan.write_settings_files(settings)
except (UserError, OSError) as error:
    raise WorkflowError(str(error))

caches = plan.cache_environment(settings)
os.environ.update(caches)
# Snakemake points TMPDIR elsewhere for each job.
shell.prefix(f"export TMPDIR={shlex.quote(caches['TMPDIR'])}; ")

steps = {name: str(path) for name, path in plan.settings_files(settings).items()}
captured = str(plan.captured_root(settings))
data = str(plan.dataset_root(settings))
ready = f"{data}/READY"
last_step = settings.train.max_steps
one_gpu = min(1, settings.hardware.gpus_per_node)  # of a job that can use one


def all_cores(wildcards):
    """The cores that Snakemake was given; `--report` is given none."""
    return workflow.resource_settings.cores or 1


def dataset_folder(wildcards):
    """The folder of the data set."""
    return data


def capture_folder(wildcards):
    """The folder of one run that this pipeline captures."""
    return f"{captured}/{wildcards.scene}/{wildcards.run}"


def raw_run(wildcards):
    """The files of one raw run."""
    return plan.raw_files(settings, runs[wildcards.run_id])


def raw_folder(wildcards):
    """The folder of one raw run."""
    return runs[wildcards.run_id]


def checkpoint_before(wildcards):
    """The weights of the chain's checkpoint before this one; nothing for the first segment."""
    step = plan.needed_before(int(wildcards.step), settings.train.checkpoint_every)
    return {"before": ancient(plan.weights_file(step))} if step else {}


def verification(wildcards):
    """An export is sampled only after it was verified; the starting weights have none."""
    step = wildcards.checkpoint.removeprefix("step-")
    return [] if step == "base" else f"verify/step-{step}.json"


def references_path(wildcards):
    """Recorded references, by absolute path: they are compared with, never remade for it."""
    return plan.references_path(settings, wildcards.device, Path(workflow.basedir))


def recorded_references(wildcards):
    """The references to compare with; a missing file is the step's to report."""
    path = references_path(wildcards)
    return path if path.exists() else []
