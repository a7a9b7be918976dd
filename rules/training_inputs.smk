"""Input functions of the training rules; no rules."""


def cached_paths(wildcards):
    """`kd` trains on a teacher's paths, which are made before its first segment."""
    seal = f"{settings.train.kd.cache}/COMPLETE"
    return ancient(seal) if settings.train.method == "kd" else []


def cpus_per_node(wildcards, resources):
    """What a job asks a cluster for, which a job step started in it must ask for again."""
    return resources.get("cpus_per_task", 0)
