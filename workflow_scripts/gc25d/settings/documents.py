"""The files that describe the settings, made from the code: default config, schema, reference."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from gc25d.records import to_json
from gc25d.settings.base import Section
from gc25d.settings.tree import Settings

GENERATOR = "python -m gc25d.steps.document_settings"


def config_yaml() -> str:
    """`config/config.yaml`: every key with its default and its description as a comment."""
    head = [
        "# Every setting with its default. A file of your own is merged over this one:",
        "# `snakemake sft_v10 --cores all --configfile mine.yaml`, the target first. Settings",
        "# marked [free] may change under a run, the others bind it (docs/resume.md).",
        f"# Made by `{GENERATOR}`.",
    ]
    return "\n".join([*head, *_yaml_lines(Settings(), 0)]) + "\n"


def _yaml_lines(section: Section, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield ""
            yield f"{indent}# {_section_summary(value)}"
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, depth + 1)
        else:
            for line in _description(info).splitlines():
                yield f"{indent}# {line}"
            yield f"{indent}{name}: {_yaml_value(section, name)}"


def _yaml_value(section: Section, name: str) -> str:
    plain = section.model_dump(mode="json", include={name})[name]
    flow: str = yaml.safe_dump(plain, default_flow_style=True, width=1000)
    return flow.removesuffix("...\n").strip().replace("''", '""')


def _description(info: FieldInfo) -> str:
    free = isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("free")
    return (info.description or "") + (" [free]" if free else "")


def _section_summary(section: Section) -> str:
    return (type(section).__doc__ or "").strip().splitlines()[0]


def schema_json() -> str:
    """`config/schema.json`: for editors that complete and check YAML."""
    return to_json(Settings.model_json_schema()) + "\n"


def reference_markdown() -> str:
    """`docs/settings.md`: one table a section."""
    lines = [
        "# Settings",
        "",
        "Free settings may change under a run. Every other setting of the run binds it, those of",
        "capture and prep through the data ([resume.md](resume.md)); evaluation and regression",
        f"rerun their own step. This page is made by `{GENERATOR}`.",
        "",
        "Numbers are written in decimals, in quotes or not: `--config` hands over texts, and YAML",
        "1.1 reads 1e-4 as one. What YAML changes in silence is refused with its file and line: a",
        "key that stands twice, which loses one of the two, and numbers such as 1:30 (read as 90),",
        "0100 (64) or 1_000. A truth value (`yes`, `no`, `on`, `off`) where a number or a name is",
        "due is refused, and so are NaN and infinities. A name that looks like a number or a truth",
        "value stands in quotes.",
    ]
    return "\n".join([*lines, *_tables(Settings(), "")]) + "\n"


def _tables(section: Section, prefix: str) -> Iterator[str]:
    fields = type(section).model_fields
    plain = [name for name in fields if not isinstance(getattr(section, name), Section)]
    yield from ("", f"## {prefix.rstrip('.') or 'Top level'}", "", _section_summary(section), "")
    yield from ("| key | default | free | what it is |", "|---|---|---|---|")
    for name in plain:
        yield _table_row(section, prefix, name)
    for name in fields:
        value: Any = getattr(section, name)
        if isinstance(value, Section):
            yield from _tables(value, f"{prefix}{name}.")


def _table_row(section: Section, prefix: str, name: str) -> str:
    info = type(section).model_fields[name]
    free = "yes" if _description(info).endswith("[free]") else ""
    text = " ".join((info.description or "").split()).replace("|", "\\|")
    return f"| `{prefix}{name}` | `{_yaml_value(section, name)}` | {free} | {text} |"
