"""What every section of the settings tree shares. Imports no torch.

A field marked `FREE` (workers, logging, paths, hardware) may change under a run: results stay the
same, to rounding where sums are taken in another order.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

FREE: JsonDict = {"free": True}


class Section(BaseModel):
    """A part of the tree: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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
