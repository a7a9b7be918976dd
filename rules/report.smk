"""Pictures of the run, with their captions for `snakemake --report`."""


rule plot_curves:
    input:
        f"train/step-{last_step}/weights.safetensors",
    output:
        figure=report(
            "figures/curves.png",
            caption="../docs/report/curves.rst",
            category="Curves",
        ),
    log:
        "logs/report/curves.log",
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        train_log="train/train_log.csv",
        val_log="train/val_log.csv",
    shell:
        "python -m gc25d.steps.plot_curves --train-log {params.train_log:q}"
        " --val-log {params.val_log:q} --out {output.figure:q} --log {log:q}"


rule plot_overlay:
    input:
        data_files,
        own_frames,
        ready=ready,
    output:
        figure=report(
            "figures/overlay.png",
            caption="../docs/report/overlay.rst",
            category="Data",
        ),
    log:
        "logs/report/overlay.log",
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        data=dataset_folder,
        raw_root=settings.raw_root,
    shell:
        "python -m gc25d.steps.plot_overlay --data {params.data:q} --raw-root {params.raw_root:q}"
        " --out {output.figure:q} --log {log:q}"


# How much of each frame the mask hides under the three coverage policies, as numbers and a picture.
rule measure_coverage:
    input:
        data_files,
        ready=ready,
    output:
        summary="figures/coverage.json",
        figure=report(
            "figures/coverage.png",
            caption="../docs/report/coverage.rst",
            category="Data",
        ),
    log:
        "logs/report/coverage.log",
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        data=dataset_folder,
    shell:
        "python -m gc25d.steps.plot_coverage --data {params.data:q}"
        " --summary {output.summary:q} --out {output.figure:q} --log {log:q}"
