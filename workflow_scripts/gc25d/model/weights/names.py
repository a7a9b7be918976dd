"""Parameter names: Wan's own ↔ diffusers' `WanTransformer3DModel`. Shapes are the same in both."""

import re

CONDITION_PREFIX = "gc_sem_cond."
WRAPPED = "dit."
"""Stands before every name where the weights were saved with the module around the transformer."""
ACTIONS = "action_model."
"""Stands in the names of an action module's tensors, `blocks.i.action_model.*`."""


def is_condition(name: str) -> bool:
    """Whether a parameter or module belongs to the semantic condition."""
    return f"{name}.".startswith(CONDITION_PREFIX)


def is_action(name: str) -> bool:
    """Whether a parameter or module belongs to an action module."""
    return ACTIONS in f"{name}."


# (native, diffusers), matched against whole dotted parts at the start of a name.
_OUTER = (
    ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
    ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
    ("time_projection.1", "condition_embedder.time_proj"),
    ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
    ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
    ("head.modulation", "scale_shift_table"),
    ("head.head", "proj_out"),
    ("patch_embedding", "patch_embedding"),
)
_INNER = (
    ("modulation", "scale_shift_table"),
    ("norm3", "norm2"),
    ("ffn.0", "ffn.net.0.proj"),
    ("ffn.2", "ffn.net.2"),
    *(
        (f"{native}.{own}", f"{theirs}.{other}")
        for native, theirs in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for own, other in (
            ("q", "to_q"),
            ("k", "to_k"),
            ("v", "to_v"),
            ("o", "to_out.0"),
            ("norm_q", "norm_q"),
            ("norm_k", "norm_k"),
        )
    ),
)
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")


def to_diffusers(name: str) -> str:
    """A native name's diffusers counterpart; a name without one stays as it is."""
    return _translate(name, source=0)


def to_native(name: str) -> str:
    """A diffusers name's native counterpart; a native name stays as it is."""
    return _translate(name, source=1)


def _translate(name: str, source: int) -> str:
    block = _BLOCK.fullmatch(name)
    prefix, rest = block.groups() if block else ("", name)
    for pair in _INNER if block else _OUTER:
        head = pair[source]
        if rest == head or rest.startswith(f"{head}."):
            return prefix + pair[1 - source] + rest[len(head) :]
    return name
