"""data and a teacher → the cached paths that `kd` trains on (docs/methods.md)."""


# Only COMPLETE is an output: a job that failed keeps the paths it made, the next goes on with them.
# So does one that runs because its inputs are new: paths of equal data and teacher stay.
rule build_ode_cache:
    input:
        data_files,
        ready=ready,
        binding="train/binding.json",
        settings=steps["train"],
    output:
        complete=f"{settings.train.kd.cache}/COMPLETE",
    log:
        "logs/train/ode_cache.log",
    benchmark:
        "benchmarks/train/ode_cache.tsv"
    conda:
        "../envs/environment.yaml"
    threads: all_cores
    resources:
        gpu=settings.hardware.gpus_per_node,
        gpu_model=settings.hardware.gpu_type or None,
        mem_mb=64_000 if settings.hardware.gpus_per_node else 4000,
        runtime=round(60 * settings.hardware.train_hours),
    params:
        data=dataset_folder,
        reads=read_folders,
        batch=settings.train.micro_batch,
        gpus=settings.hardware.gpus_per_node,
    shell:
        "python -m gc25d.steps.build_ode_cache --settings {input.settings:q}"
        " --data {params.data:q} --reads {params.reads:q} --batch {params.batch} --gpus {params.gpus} --log {log:q}"
