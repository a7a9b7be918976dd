"""train/step-<n>/ → exports/step-<n>.safetensors, verify/step-<n>.json."""

EXPORT_PARAMS = dict(
    data_root=settings.data_root,
    data=settings.dataset,
)


rule export_step:
    input:
        binding="train/binding.json",
        settings=steps["train"],
        weights="train/step-{step}/weights.safetensors",
        done="train/step-{step}/done.json",
    output:
        export="exports/step-{step}.safetensors",
    log:
        "logs/export/step-{step}.log",
    conda:
        "../envs/environment.yaml"
    resources:
        mem_mb=30_000 if settings.model.size == "5b" else 2000,
        runtime=30,
    params:
        **EXPORT_PARAMS,
        average="",
    shell:
        "python -m gc25d.steps.export --settings {input.settings:q} --binding {input.binding:q}"
        " --weights {input.weights:q} --done {input.done:q} {params.average}"
        " --dataset {params.data:q} --data-root {params.data_root:q}"
        " --out {output.export:q} --log {log:q}"


# The moving average of the weights (train.ema), as an export of its own.
use rule export_step as export_ema with:
    input:
        binding="train/binding.json",
        settings=steps["train"],
        weights="train/step-{step}/ema.safetensors",
        done="train/step-{step}/done.json",
    output:
        export="exports/step-{step}-ema.safetensors",
    log:
        "logs/export/step-{step}-ema.log",
    params:
        **EXPORT_PARAMS,
        average="--average",


# The starting weights: the semantic condition is there and zero.
rule export_base:
    input:
        binding="train/binding.json",
        settings=steps["train"],
    output:
        export="exports/base.safetensors",
    log:
        "logs/export/base.log",
    conda:
        "../envs/environment.yaml"
    resources:
        mem_mb=30_000 if settings.model.size == "5b" else 2000,
        runtime=30,
    params:
        **EXPORT_PARAMS,
    shell:
        "python -m gc25d.steps.export --settings {input.settings:q} --binding {input.binding:q}"
        " --dataset {params.data:q} --data-root {params.data_root:q}"
        " --out {output.export:q} --log {log:q}"


# A verified export for other programs: Wan's native shards, or diffusers' transformer/ folder.
rule export_layout:
    input:
        export="exports/{checkpoint}.safetensors",
        report="verify/{checkpoint}.json",
    output:
        folder=directory("exports/{checkpoint}/{layout}"),
    log:
        "logs/export/{checkpoint}-{layout}.log",
    wildcard_constraints:
        checkpoint=r"step-[1-9]\d*(-ema)?",
        layout="native|diffusers",
    conda:
        "../envs/environment.yaml"
    resources:
        mem_mb=30_000 if settings.model.size == "5b" else 2000,
        runtime=30,
    params:
        text_length=settings.prep.text.length,
    shell:
        "python -m gc25d.steps.export_layout --export {input.export:q} --report {input.report:q}"
        " --layout {wildcards.layout} --text-length {params.text_length}"
        " --out {output.folder:q} --log {log:q}"


# Everything in the report comes from the written file, read again in a fresh process.
rule verify_export:
    input:
        binding="train/binding.json",
        settings=steps["train"],
        export="exports/step-{step}.safetensors",
        weights="train/step-{step}/weights.safetensors",
        probe="train/step-{step}/probe.safetensors",
        done="train/step-{step}/done.json",
    output:
        report="verify/step-{step}.json",
    log:
        "logs/export/verify-{step}.log",
    conda:
        "../envs/environment.yaml"
    resources:
        gpu=one_gpu,
        mem_mb=60_000 if settings.model.size == "5b" else 2000,
        runtime=30,
    params:
        **EXPORT_PARAMS,
        average="",
    shell:
        "python -m gc25d.steps.verify --settings {input.settings:q} --binding {input.binding:q}"
        " --export {input.export:q} --weights {input.weights:q} --probe {input.probe:q}"
        " --done {input.done:q} --step {wildcards.step} {params.average}"
        " --dataset {params.data:q} --data-root {params.data_root:q}"
        " --out {output.report:q} --log {log:q}"


use rule verify_export as verify_ema with:
    input:
        binding="train/binding.json",
        settings=steps["train"],
        export="exports/step-{step}-ema.safetensors",
        weights="train/step-{step}/ema.safetensors",
        probe="train/step-{step}/ema_probe.safetensors",
        done="train/step-{step}/done.json",
    output:
        report="verify/step-{step}-ema.json",
    log:
        "logs/export/verify-{step}-ema.log",
    params:
        **EXPORT_PARAMS,
        average="--average",
