"""The files that settings name (weights, encoders), and digests of what is in them.

A setting that holds a path says where, not what: a file replaced at the same place would change a
result in silence. The steps' settings hold the digest beside the path. Only files that are really
read count. Imports no torch.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from gc25d.cells import TAUGHT
from gc25d.digest_cache import FILE, file_digests
from gc25d.errors import UserError
from gc25d.records import digest_json
from gc25d.settings import Settings

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
AUTOENCODER = ("config.json", "diffusion_pytorch_model.safetensors")
TEXT_MODEL = ("config.json", *WEIGHTS)
TOKENIZER = ("*.json", "*.model", "*.txt")


def content_digests(settings: Settings, *, remember: bool = True) -> dict[str, str]:
    """Setting → digest of the content that it names; nothing for settings that are not in use.

    A file's is its SHA-256; a folder's is made of the names and SHA-256 of the files read in it.
    Neither depends on where they lie.

    Args:
        settings: of the whole pipeline.
        remember: whether digests may be written below `cache_root`; a dry run writes nothing.

    Raises:
        UserError: a file or folder is missing; names the setting.
    """
    files = {name: read_files(name, Path(path)) for name, path in named_paths(settings)}
    every = [path for found in files.values() for path in found.values()]
    digests = file_digests(every, Path(settings.cache_root) / FILE, remember=remember)
    return {
        name: _together({inside: digests[path] for inside, path in found.items()})
        for name, found in files.items()
    }


def named_paths(settings: Settings) -> Iterator[tuple[str, str]]:
    """The settings whose files are read, with their paths."""
    prep, model, train = settings.prep, settings.model, settings.train
    if prep.codec == "wan_vae":
        yield "prep.codec_dir", prep.codec_dir
    if prep.text.encoder == "umt5":
        yield "prep.text.dir", prep.text.dir
    if model.init_dir:
        yield "model.init_dir", model.init_dir
    if model.init_ckpt:
        yield "model.init_ckpt", model.init_ckpt
    if train.method in TAUGHT and train.teacher.weights:
        yield "train.teacher.weights", train.teacher.weights
    if settings.regression.init_from:
        yield "regression.init_from", settings.regression.init_from


def read_files(setting: str, path: Path) -> dict[str, Path]:
    """Name inside of `path` → file, for each file that is read of what `setting` names.

    Folders may be a diffusers pipeline's, with what is read in a folder of its own inside. A single
    file has no name, so that it may be called otherwise.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(
            f"{setting} {path}: not found: restore it, or set {setting} to where it lies now"
        )
    if path.is_file():
        return {"": path}
    if setting == "prep.codec_dir":
        found = _matching(_inner(path, "vae"), AUTOENCODER)
    elif setting == "prep.text.dir":
        found = {
            f"{part}/{name}": file
            for part, patterns in (("text_encoder", TEXT_MODEL), ("tokenizer", TOKENIZER))
            for name, file in _matching(_inner(path, part), patterns).items()
        }
    else:
        found = _matching(path, WEIGHTS) or _matching(path / "transformer", WEIGHTS)
    if not any(name.endswith(".safetensors") for name in found):
        raise UserError(f"{setting} {path}: no .safetensors there: restore the files")
    return found


def _inner(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).is_dir() else folder


def _matching(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """The files of these names, by name, hidden ones left out."""
    found = {path.name: path for pattern in patterns for path in folder.glob(pattern)}
    return {
        name: path
        for name, path in sorted(found.items())
        if path.is_file() and not name.startswith(".")
    }


def _together(digests: dict[str, str]) -> str:
    return digests[""] if "" in digests else digest_json(digests)
