"""config → the steps' settings files. Each is an input of its step: an edit reruns what it concerns."""


# The source is new where its content is, and older than anything else where it is not.
rule write_settings:
    input:
        source=settings_source,
    output:
        "{settings_file}",
    log:
        "logs/settings/{settings_file}.log",
    localrule: True
    conda:
        "../envs/environment.yaml"
    shell:
        "cp {input.source:q} {output:q} 2> {log:q}"
