"""raw/ → data/<dataset>/READY (docs/dataset.md). One job per run, then the text table and index."""


rule prep_run:
    input:
        raw_run,
        settings=steps["prep"],
    output:
        latents=f"{prepared}/latents/{{run_id}}.safetensors",
        ids=f"{prepared}/ids/{{run_id}}.safetensors",
        rows=f"{prepared}/index/runs/{{run_id}}.jsonl",
        raw=raw_records,
    log:
        "logs/prep/{run_id}.log",
    conda:
        "../envs/environment.yaml"
    threads: 1 + settings.prep.workers
    resources:
        gpu=one_gpu if settings.prep.codec == "wan_vae" else 0,
        mem_mb=(12_000 if settings.prep.codec == "wan_vae" else 4000)
        + 1000 * settings.prep.workers,
        runtime=30,
    params:
        raw=raw_folder,
        workers=settings.prep.workers,
    shell:
        "python -m gc25d.steps.prep_run --settings {input.settings:q}"
        " --raw {params.raw:q} --run-id {wildcards.run_id:q}"
        " --latents {output.latents:q} --ids {output.ids:q} --rows {output.rows:q}"
        " --record {output.raw:q}"
        " --workers {params.workers} --log {log:q}"


rule encode_text:
    input:
        rows=rows,
        settings=steps["text"],
    output:
        table=f"{data}/text/table.safetensors",
    log:
        "logs/prep/text.log",
    conda:
        "../envs/environment.yaml"
    resources:
        gpu=one_gpu if settings.prep.text.encoder == "umt5" else 0,
        mem_mb=30_000 if settings.prep.text.encoder == "umt5" else 4000,
        runtime=60,
    shell:
        "python -m gc25d.steps.encode_text --settings {input.settings:q}"
        " --rows {input.rows:q} --out {output.table:q} --log {log:q}"


# READY says that the data set is whole, so it waits for the tensors too, though it reads rows only.
rule build_index:
    input:
        lacking_parts,
        tensors=tensors,
        rows=rows,
        table=f"{data}/text/table.safetensors",
        settings=steps["index"],
    output:
        clips=f"{data}/index/clips.jsonl",
        ready=ready,
    log:
        "logs/prep/index.log",
    conda:
        "../envs/environment.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        root=dataset_folder,
    shell:
        "python -m gc25d.steps.build_index --settings {input.settings:q}"
        " --rows {input.rows:q} --table {input.table:q} --root {params.root:q}"
        " --clips {output.clips:q} --ready {output.ready:q} --log {log:q}"
