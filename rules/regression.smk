"""Gradient-norm references per device: record them (refs/), compare with them (regression/)."""


# update(): the cells of other people's measurements survive, and a failure restores the old file.
# No input: once recorded, references are measured again on request only (--forcerun).
rule record_references:
    output:
        refs=update("refs/{device}.json"),
    log:
        "logs/regression/record-{device}.log",
    conda:
        "../envs/environment.yaml"
    resources:
        gpu=one_gpu,
        mem_mb=64000 if settings.regression.init_from else 4000,
        runtime=30,
    params:
        settings=regression_source,
    shell:
        "python -m gc25d.steps.record_refs --settings {params.settings:q}"
        " --device {wildcards.device:q} --out {output.refs:q} --log {log:q}"


rule check_regression:
    input:
        refs=recorded_references,
        settings=steps["regression"],
    output:
        report="regression/{device}.json",
    log:
        "logs/regression/check-{device}.log",
    conda:
        "../envs/environment.yaml"
    resources:
        gpu=one_gpu,
        mem_mb=64000 if settings.regression.init_from else 4000,
        runtime=30,
    params:
        refs=references_path,
    shell:
        "python -m gc25d.steps.check_refs --settings {input.settings:q}"
        " --device {wildcards.device:q} --refs {params.refs:q}"
        " --out {output.report:q} --log {log:q}"
