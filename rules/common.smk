"""Settings and input functions; no rules."""

import os
import shlex
import sys
from pathlib import Path

from snakemake.settings.types import DeploymentMethod

from gc25d import digest_cache
from gc25d.errors import UserError
from gc25d.settings import config_files
from gc25d.settings.contents import cache_file, named_contents
from gc25d.settings.loading import load_settings
from gc25d.workflow import (
    binding,
    clock,
    environment,
    kept_contents,
    raw_record,
    settings_files,
)
from gc25d.workflow.chain import (
    checkpoint_files,
    needed_before,
    placed_step,
    weights_file,
)
from gc25d.workflow.clock import dated_files
from gc25d.workflow.environment import (
    cache_environment,
    training_memory_gb,
    training_processes,
)
from gc25d.workflow.runs import (
    captured_root,
    captured_scenes,
    dataset_root,
    prepared_root,
    present_files,
    raw_files,
    raw_runs,
    settings_paths,
)
from gc25d.workflow.settings_files import alternatives

try:
    config_files.check_config(
        workflow.configfiles, workflow.config_settings.config_args
    )
    settings = load_settings(config)
    runs = raw_runs(settings)
    placed_step()  # a damaged record is told here: input functions must not raise
    clock.check_times(dated_files(settings))
    named, new_digests = named_contents(settings, logger.info)
    contents = settings_files.settings_contents(settings, named)
    if not workflow.is_main_process:
        settings_files.check_unchanged(settings, contents)
    sources = settings_files.write_sources(
        settings, contents, workflow.snakemake_tmp_dir
    )
except (UserError, OSError) as error:
    raise WorkflowError(str(error))

if workflow.is_main_process and (
    told := kept_contents.unknown_contents(settings, contents)
):
    logger.warning(told)
caches = cache_environment(settings)
tmpdir = caches.pop("TMPDIR")  # made by the first job
os.environ.update(caches)
# Snakemake points TMPDIR elsewhere for each job. Jobs run the Python that runs Snakemake, whether
# or not its environment is activated; in a rule's own conda environment they run that one's.
setup = f"export TMPDIR={shlex.quote(tmpdir)}; mkdir -p {shlex.quote(tmpdir)}; "
if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
    setup += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(setup)

step_files = settings_paths(settings)
steps = {name: str(path) for name, path in step_files.items()}
captured = str(captured_root(settings))
data = str(dataset_root(settings))
ready = f"{data}/READY"
# Of this data set, or of the one whose prepared runs it shares (prep.runs_of).
prepared = str(prepared_root(settings))
tensors = expand(
    f"{prepared}/{{kind}}/{{run_id}}.safetensors", kind=("latents", "ids"), run_id=runs
)
rows = expand(f"{prepared}/index/runs/{{run_id}}.jsonl", run_id=runs)
raw_records = f"{prepared}/index/raw/{{run_id}}.json"  # what each run was prepared from
# Whoever reads the data names all its files: Snakemake makes a deleted file again only for a job
# that runs and names it itself.
data_files = [
    f"{data}/index/clips.jsonl",
    f"{data}/text/table.safetensors",
    *tensors,
]
last_step = settings.train.max_steps
one_gpu = min(1, settings.hardware.gpus_per_node)  # of a job that can use one
ema_suffix = "-ema|" if settings.train.ema else ""  # of a checkpoint's name


def all_cores(wildcards):
    """The cores that Snakemake was given; `--report` is given none."""
    return workflow.resource_settings.cores or 1


def dataset_folder(wildcards):
    """The folder of the data set."""
    return data


def read_folders(wildcards):
    """The data sets that a training or evaluation reads."""
    return sorted({data, prepared})


def capture_folder(wildcards):
    """The folder of one run that this pipeline captures."""
    return f"{captured}/{wildcards.scene}/{wildcards.run}"


def raw_run(wildcards):
    """The files of one raw run, and a new one where the run was prepared from others.

    Somebody else's captures are named only where nothing tells that they are those that the run was
    prepared from: whatever their times are, equal content is not prepared again.
    """
    folder = runs[wildcards.run_id]
    external = settings.capture.source == "external"
    made_from = raw_record.is_made_from(
        Path(raw_records.format(run_id=wildcards.run_id)),
        present_files(folder, settings.geometry.frames),
        raw_digests,
        all_there=external,
    )
    files = raw_files(settings, folder)
    if made_from is False:
        return [*files, new_file(f"other_captures-{wildcards.run_id}")]
    return [] if made_from and external else files


def raw_digests(files):
    """Digests of raw files, remembered when a run starts."""
    digests, new = digest_cache.file_digests(files, cache_file(settings), logger.info)
    new_digests.update(new)
    return digests


def own_frames(wildcards):
    """The recorded frames that pictures and scores show; captures that are made here, by name."""
    if settings.capture.source == "external":
        return []
    return [f"{folder}/frames.tar" for folder in runs.values()]


def raw_folder(wildcards):
    """The folder of one raw run."""
    return runs[wildcards.run_id]


def settings_source(wildcards):
    """What a settings file should hold."""
    return settings_files.source_of(wildcards.settings_file, step_files, sources)


def regression_source(wildcards):
    """The regression's settings as they are now."""
    return sources["regression"]


def lacking_parts(wildcards):
    """A new file, as long as the data set has a READY, but lacks a part or READY cannot be read.

    It makes `build_index` run, which names all parts: Snakemake makes a part that is gone again only
    for a job that runs and reads it.
    """
    parts = [*rows, *data_files]
    whole = binding.fingerprint(Path(ready), "fingerprint")
    if not Path(ready).exists() or (whole and not settings_files.missing(parts)):
        return []
    return new_file("lacking_parts")


def other_data(wildcards):
    """A new file, as long as the binding is not of these data: a refusal is repeated each time."""
    if binding.is_bound_to(Path("train/binding.json"), Path(ready)):
        return []
    return new_file("other_data")


def new_file(name):
    """A file that is newer than any output, so that whoever reads it runs; gone with this run."""
    path = Path(workflow.snakemake_tmp_dir) / name
    path.touch()
    return str(path)


def before_training(wildcards):
    """What a segment waits for, as long as one of its outputs is missing.

    A finished segment waits for nothing: whatever is touched, restored or remade with equal content
    never trains it again. Data or settings that did change are refused by `bind_run`, on which the
    scores depend too.
    """
    step = int(wildcards.step)
    averaged = bool(settings.train.ema)
    if not settings_files.missing(checkpoint_files(step, averaged=averaged)):
        return {}
    before = needed_before(step, settings.train.checkpoint_every)
    chain = {"before": weights_file(before)} if before else {}
    waits = {"paths": cached_paths(), "ready": ready, "data": data_files}
    return {
        **chain,
        **waits,
        "binding": "train/binding.json",
        "settings": steps["train"],
    }


def cached_paths():
    """`kd` trains on a teacher's paths, which are made before its first segment."""
    return (
        f"{settings.train.kd.cache}/COMPLETE" if settings.train.method == "kd" else []
    )


def verification(wildcards):
    """An export is sampled only after it was verified; the starting weights have none."""
    step = wildcards.checkpoint.removeprefix("step-")
    return [] if step == "base" else f"verify/step-{step}.json"


def references_path(wildcards):
    """Recorded references: this folder's own by the name that `record_references` makes them by.

    They are its input, so a comparison waits for a recording in the same run. Others' are named by
    absolute path: they are compared with, never made for it. So are one's own where everything is
    forced, or where the outputs are only looked at or deleted: a comparison alone records nothing.
    """
    own = f"refs/{wildcards.device}.json"
    asked = own in map(targets.spelled, asked_for())
    path = environment.references_path(
        settings, wildcards.device, Path(workflow.basedir), made=asked
    )
    runs = workflow.execution_settings and not workflow.dag_settings.forceall
    return own if path == Path(own).resolve() and (asked or runs) else path


def recorded_references(wildcards):
    """The references to compare with; a missing file is the step's to report."""
    path = references_path(wildcards)
    return path if isinstance(path, str) or path.exists() else []
