"""Game → raw/<source>/<scene>/<run>/ (docs/raw-format.md)."""

FRAMES = settings.geometry.frames


rule capture_run:
    input:
        settings=steps["capture"],
    output:
        f"{captured}/{{scene}}/{{run}}/frames.tar",
        f"{captured}/{{scene}}/{{run}}/stencil.tar",
        f"{captured}/{{scene}}/{{run}}/cameras.npz",
        f"{captured}/{{scene}}/{{run}}/skeletons.npz",
        f"{captured}/{{scene}}/{{run}}/clips_{FRAMES}.json",
        f"{captured}/{{scene}}/{{run}}/meta.json",
    log:
        "logs/capture/{scene}__{run}.log",
    conda:
        "../envs/environment.yaml"
    resources:
        mem_mb=4000,
        runtime=10,
    params:
        folder=capture_folder,
    shell:
        "python -m gc25d.steps.capture --settings {input.settings:q}"
        " --scene {wildcards.scene:q} --run {wildcards.run:q}"
        " --out {params.folder:q} --log {log:q}"
