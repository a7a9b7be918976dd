"""exports/<checkpoint>.safetensors → eval/<checkpoint>/: sampled videos and their scores."""


# Scores depend on the data, and the binding comes first: a run is never scored on data that it was
# not trained with.
rule evaluate_checkpoint:
    input:
        verification,
        data_files,
        own_frames,
        weights="exports/{checkpoint}.safetensors",
        ready=ready,
        binding="train/binding.json",
        settings=steps["eval"],
    output:
        metrics="eval/{checkpoint}/metrics.json",
        clips=report(
            directory("eval/{checkpoint}/clips"),
            patterns=["{clip}.mp4"],
            caption="../docs/report/clip.rst",
            category="Sampled videos",
            subcategory="{checkpoint}",
        ),
        scores=report(
            "eval/{checkpoint}/scores.png",
            caption="../docs/report/scores.rst",
            category="Sampled videos",
            subcategory="{checkpoint}",
        ),
        sheet=report(
            "eval/{checkpoint}/sheet.png",
            caption="../docs/report/sheet.rst",
            category="Sampled videos",
            subcategory="{checkpoint}",
        ),
    log:
        "logs/eval/{checkpoint}.log",
    benchmark:
        "benchmarks/eval/{checkpoint}.tsv"
    conda:
        "../envs/environment.yaml"
    threads: all_cores
    resources:
        gpu=one_gpu,
        mem_mb=60_000 if settings.model.size == "5b" else 4000,
        runtime=60,
    params:
        data=dataset_folder,
        reads=read_folders,
        raw_root=settings.raw_root,
    shell:
        "python -m gc25d.steps.evaluate --settings {input.settings:q} --weights {input.weights:q}"
        " --data {params.data:q} --reads {params.reads:q} --raw-root {params.raw_root:q}"
        " --out {output.metrics:q} --clips {output.clips:q} --sheet {output.sheet:q} --scores {output.scores:q}"
        " --log {log:q}"
