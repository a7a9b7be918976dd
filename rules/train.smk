"""data → train/step-<n>/. Each checkpoint of the chain is made from the one before it."""

train = settings.train
hardware = settings.hardware
engine, per_node = training_processes(settings)
# The settings file keeps the rates that the run is bound to; no finished checkpoint reruns.
rates = (
    f" --lr {train.lr!r} --cond-lr {train.cond_lr!r}"
    if train.reset_lr_on_resume
    else ""
)


# Holds the run to one set of settings and data; refuses when either changed under it, and again
# each time: a refusal leaves no output.
rule bind_run:
    input:
        other_data,
        ready=ready,
        settings=steps["train"],
    output:
        binding="train/binding.json",
    log:
        "logs/train/binding.log",
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        dataset=settings.dataset,
    shell:
        "python -m gc25d.steps.bind_run --settings {input.settings:q}"
        " --ready {input.ready:q} --dataset {params.dataset:q}"
        " --out {output.binding:q} --log {log:q}"


# With train.ema each checkpoint has the moving average of the weights too.
averaged = {
    name: f"train/step-{{step}}/{name}.safetensors"
    for name in ("ema", "ema_probe")
    if train.ema
}


# Killed half-way, a segment goes on from its own rolling state below train/states, which is no
# output of the rule: Snakemake deletes the outputs of a job that failed.
rule train_segment:
    input:
        unpack(before_training),
    output:
        **averaged,
        weights="train/step-{step}/weights.safetensors",
        probe="train/step-{step}/probe.safetensors",
        done="train/step-{step}/done.json",
    log:
        "logs/train/step-{step}.log",
    benchmark:
        "benchmarks/train/step-{step}.tsv"
    conda:
        "../envs/environment.yaml"
    threads: all_cores
    resources:
        gpu=hardware.nodes * hardware.gpus_per_node,
        gpu_model=hardware.gpu_type or None,
        nodes=hardware.nodes,
        # On several nodes the job's shell runs once, on the first, and starts the others by srun.
        mpi="srun" if hardware.nodes > 1 else None,
        tasks=hardware.nodes if hardware.nodes > 1 else None,
        tasks_per_gpu=-1 if hardware.nodes > 1 else None,
        mem_mb=1000 * training_memory_gb(settings),
        runtime=round(60 * hardware.train_hours),
    params:
        data=dataset_folder,
        reads=read_folders,
        cpus=cpus_per_node,
        free=(
            f"--micro-batch {train.micro_batch} --save-every {train.save_every}"
            f" --log-every {train.log_every} --workers {train.workers}"
            f" --validate-every {settings.validation.every}"
            f" --engine {engine} --nodes {hardware.nodes} --processes {per_node}"
            f" --gpus-per-node {hardware.gpus_per_node}"
            f" --kernels {train.kernels}"
            f" --compile {settings.model.compile} --recompute {settings.model.recompute}"
            f"{rates}"
        ),
    # exec: a request to stop reaches the trainer, no shell between dies of it.
    shell:
        "exec python -m gc25d.steps.train --settings train/settings.json"
        " --binding train/binding.json --data {params.data:q} --reads {params.reads:q}"
        " --until {wildcards.step} --cpus-per-node {params.cpus} {params.free}"
        " --weights {output.weights:q} --probe {output.probe:q}"
        " --done {output.done:q} --log {log:q}"
