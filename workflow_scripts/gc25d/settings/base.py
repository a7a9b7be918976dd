"""What every section of the settings tree shares. Imports no torch.

A field marked `FREE` (workers, logging, paths, hardware) may change under a run: results stay the
same, to rounding where sums are taken in another order.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

_Item = TypeVar("_Item")
FREE: JsonDict = {"free": True}
DECIMAL = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
"""How a number is written in decimals."""


class Section(BaseModel):
    """A part of the tree: immutable; an unknown key is an error, and so are NaN and infinities."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def _number(value: object) -> object:
    """Pass on what is a number or its text in decimals.

    `--config` hands over all numbers inside a section as texts, and YAML 1.1 those like 1e-4.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number (YAML reads yes, no, on and off as truth values)")
    if isinstance(value, str) and not DECIMAL.fullmatch(value):
        raise ValueError(f"{value!r} is no number in decimals")
    return value


def each_once(values: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """The values; one that stands twice is an error."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} stands twice: keep it once")
    return values


Number = Annotated[float, BeforeValidator(_number)]
Integer = Annotated[int, BeforeValidator(_number)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Positive = Annotated[Integer, Field(gt=0)]
Natural = Annotated[Integer, Field(ge=0)]
Rate = Annotated[Number, Field(gt=0)]
Folder = Annotated[str, Field(pattern=r"^[^{}\x00-\x1f]+$")]
"""A folder's path; braces would be Snakemake's wildcards."""
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
"""Pattern of a folder's plain name: neither a path, nor hidden, nor an option."""


def refuse(faults: Iterable[str]) -> None:
    """Of a validator: name all faults of a section at once, one a line.

    Raises:
        ValueError: there is a fault.
    """
    if lines := list(faults):
        raise ValueError("\n".join(lines))


def result_settings(section: Section) -> dict[str, Any]:
    """The fields of `section` that alter a result, nested sections included, as plain JSON."""
    kept: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("free"):
            continue
        value = getattr(section, name)
        kept[name] = (
            result_settings(value)
            if isinstance(value, Section)
            else section.model_dump(mode="json", include={name})[name]
        )
    return kept
