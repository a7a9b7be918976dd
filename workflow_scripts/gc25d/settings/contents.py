"""The files that settings name (weights, encoders), and digests of what is in them.

A setting that holds a path says where, not what: a file replaced at the same place would change a
result in silence. Only files that are really read count. Imports no torch.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from gc25d.digest_cache import Entries, file_digests
from gc25d.settings.cells import TAUGHT
from gc25d.settings.tree import Settings

Contents: TypeAlias = dict[str, dict[str, str]]
"""Setting → file inside of what it names → SHA-256; no files where nothing is there."""
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_AUTOENCODER = ("config.json", "diffusion_pytorch_model.safetensors")
_TEXT_MODEL = ("config.json", *_WEIGHTS)
_TOKENIZER = ("*.json", "*.model", "*.txt")


def cache_file(settings: Settings) -> Path:
    """Where digests are remembered."""
    return Path(settings.cache_root) / "digests.json"


def named_contents(settings: Settings, tell: Callable[[str], None]) -> tuple[Contents, Entries]:
    """Digests of what the settings in use name, and what of it is new to the cache."""
    named = {name: read_files(name, Path(path)) for name, path in named_paths(settings).items()}
    every = [path for files in named.values() for path in files.values()]
    digests, fresh = file_digests(every, cache_file(settings), tell)
    contents = {
        name: {inside: digests[path] for inside, path in files.items()}
        for name, files in named.items()
    }
    return contents, fresh


def named_paths(settings: Settings) -> dict[str, str]:
    """The settings whose files are read → their paths."""
    prep, model, train = settings.prep, settings.model, settings.train
    teacher = train.teacher.weights if train.method in TAUGHT else ""
    paths = {
        "prep.codec_dir": prep.codec_dir if prep.codec == "wan_vae" else "",
        "prep.text.dir": prep.text.dir if prep.text.encoder == "umt5" else "",
        "model.init_dir": model.init_dir,
        "model.init_ckpt": model.init_ckpt,
        "train.teacher.weights": teacher,
        "regression.init_from": settings.regression.init_from,
    }
    return {name: path for name, path in paths.items() if path}


def read_files(setting: str, path: Path) -> dict[str, Path]:
    """Name inside of `path` → file, for each file that is read of what `setting` names.

    Folders may be a diffusers pipeline's, with what is read in a folder of its own inside. Nothing
    where no weights are.
    """
    if path.is_file():
        return {path.name: path}
    found = set(_read_in(setting, path))
    if not any(file.suffix == ".safetensors" for file in found):
        return {}
    return {str(file.relative_to(path)): file for file in sorted(found)}


def _read_in(setting: str, folder: Path) -> Iterator[Path]:
    if setting == "prep.codec_dir":
        yield from _matching(_inner(folder, "vae"), _AUTOENCODER)
    elif setting == "prep.text.dir":
        yield from _matching(_inner(folder, "text_encoder"), _TEXT_MODEL)
        yield from _matching(_inner(folder, "tokenizer"), _TOKENIZER)
    else:
        found = _matching(folder, _WEIGHTS)
        yield from found or _matching(folder / "transformer", _WEIGHTS)


def _inner(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).is_dir() else folder


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of these names, hidden ones left out."""
    found = [path for pattern in patterns for path in folder.glob(pattern)]
    return [path for path in found if path.is_file() and not path.name.startswith(".")]
