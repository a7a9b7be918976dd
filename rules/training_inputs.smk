"""Input functions of the training rules; no rules."""


def cpus_per_node(wildcards, resources):
    """What a job asks a cluster for, which a job step started in it must ask for again."""
    return resources.get("cpus_per_task", 0)
