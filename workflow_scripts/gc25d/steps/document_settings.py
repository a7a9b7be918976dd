"""Write config/config.yaml, config/schema.json and docs/settings.md from the code.

Run it after every change of gc25d/settings/tree.py; a test fails while they differ.

    python -m gc25d.steps.document_settings [--root <repository>]
"""

import argparse
from pathlib import Path

from gc25d.files import write_text
from gc25d.settings import documents
from gc25d.steps import cli


def files() -> dict[str, str]:
    """Path below the repository → content."""
    return {
        "config/config.yaml": documents.config_yaml(),
        "config/schema.json": documents.schema_json(),
        "docs/settings.md": documents.reference_markdown(),
    }


def main(arguments: argparse.Namespace) -> None:
    """Write the files."""
    for name, text in files().items():
        write_text(arguments.root / name, text)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--root", type=Path, default=Path())
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
