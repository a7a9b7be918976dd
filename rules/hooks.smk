"""What happens around the jobs: targets are checked before and after, the data is held meanwhile."""

from gc25d.workflow import data_lock, profile, targets

BUILDERS = {
    "prep_run": {data, prepared},
    "encode_text": {data},
    "build_index": {data},
}
held = []  # locks that this snakemake keeps to its end


command_line = profile.command_line() if workflow.is_main_process else None


def asked_for():
    """The targets on the command line; none where another program runs this workflow."""
    return command_line.targets if command_line else []


def hold_data(dag):
    """Keep the data sets that this run builds from being read or built elsewhere."""
    rules_run = {job.rule.name for job in dag.needrun_jobs()}
    folders = {
        folder for name in BUILDERS.keys() & rules_run for folder in BUILDERS[name]
    }
    held.extend(data_lock.hold_for_building(Path(folder)) for folder in sorted(folders))


EXAMPLES = [
    *(rule.name for rule in workflow.rules if not rule.has_wildcards()),
    *(f"exports/{name}.safetensors" for name in ("base", f"step-{last_step}")),
    *(f"eval/{name}/metrics.json" for name in ("base", f"step-{last_step}")),
    *(
        f"{folder}/{device}.json"
        for folder in ("refs", "regression")
        for device in ("CPU", "H200")
    ),
    *(f"verify/step-{last_step}.json", f"train/step-{last_step}/weights.safetensors"),
    *(f"exports/step-{last_step}/{layout}/" for layout in ("native", "diffusers")),
    *(ready, "figures/curves.png", "figures/overlay.png", "figures/coverage.png"),
]

try:
    if command_line:
        profile.check_profile(command_line, Path(workflow.basedir))
    targets.check_targets(
        asked_for(),
        EXAMPLES,
        lambda path: any(rule.is_producer(path) for rule in workflow.rules),
        averaged=bool(settings.train.ema),
    )
except UserError as error:
    raise WorkflowError(str(error))


onstart:
    if workflow.is_main_process:
        try:
            hold_data(workflow.dag)
            settings_files.keep_record(sources, logger.warning)
            digest_cache.remember(cache_file(settings), new_digests)
        except UserError as error:
            raise WorkflowError(str(error))


onsuccess:
    if workflow.is_main_process:
        dag = workflow.dag
        try:
            targets.check_finished(
                dag.jobs, dag.dependencies, dag.finished, asked_for()
            )
        except UserError as error:
            raise WorkflowError(str(error))
