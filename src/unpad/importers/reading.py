"""The door to saved models: what a path holds is seen by its contents, then read."""

from __future__ import annotations

import os
from pathlib import Path

from unpad.importers.artefact import Artefact
from unpad.importers.bundle import newest_prefix, read_bundle
from unpad.importers.errors import ArtefactError, MalformedError, naming
from unpad.importers.files import open_regular
from unpad.importers.hdf5 import SIGNATURE
from unpad.importers.hints import missing, other_kind
from unpad.importers.keras import layers_of, read_h5, read_keras
from unpad.importers.saved_model import read_metadata, read_signatures, with_aliases


def read(path: str | os.PathLike[str]) -> Artefact:
    """Read a saved model of TensorFlow or Keras, without either.

    Args:
        path: a TF1 or TF2 checkpoint (its prefix, one of its files, or its folder, of which the
            newest one counts), the folder of a SavedModel, or a Keras .h5, .keras or .weights.h5
            file. What it is, is seen by its contents.

    Returns:
        An `Artefact`: variables by name, exactly as they were saved. Nothing in the files is
        executed. Arrays with a length of 0 are read like others; gradients play no part.

    Raises:
        ArtefactError: the file is damaged, incomplete, made to harm or of no such kind. Memory and
            time follow the size of the files, whatever they claim. Checksums are verified where
            the format has them: bare HDF5 files have none.

    >>> read("no-such-model")
    Traceback (most recent call last):
    unpad.importers.errors.ArtefactError: no-such-model: there is no such file or folder; give ...
    """
    where = Path(path)
    with naming(where):
        if where.is_dir():
            return _folder(where)
        if where.exists():
            return _file(where)
        if where.with_name(where.name + ".index").exists():
            return _checkpoint(where)
    raise ArtefactError(where, "there is no such file or folder", missing(where))


def _folder(folder: Path) -> Artefact:
    if (folder / "saved_model.pb").exists():
        return _saved_model(folder)
    if (folder / "saved_model.pbtxt").exists():
        raise MalformedError("its saved_model.pbtxt is text", "save it again, as saved_model.pb")
    return _checkpoint(newest_prefix(folder))


def _file(path: Path) -> Artefact:
    if path.name == "checkpoint" or path.name == "saved_model.pb":
        return _folder(path.parent)
    if path.suffix in (".index", ".meta"):
        return _checkpoint(path.with_suffix(""))
    stem, data, _ = path.name.rpartition(".data-")
    if data:
        return _checkpoint(path.with_name(stem))
    with open_regular(path) as file:
        start = file.read(64)
        file.seek(max(0, os.fstat(file.fileno()).st_size - 8))
        end = file.read(8)
    if start[:8] == SIGNATURE:
        return read_h5(path)
    if start[:4] == b"PK\3\4":
        return read_keras(path)
    if int.from_bytes(end, "little") == 0xDB4775248B80FB57:
        remedy = "save it again with tf.train.Saver, which writes PREFIX.index and PREFIX.data-..."
        raise MalformedError("it is a checkpoint in TensorFlow's first format (V1)", remedy)
    problem, remedy = other_kind(start, path.suffix.lower())
    raise MalformedError(problem, remedy)


def _checkpoint(prefix: Path) -> Artefact:
    variables, left_out = read_bundle(prefix)
    return Artefact(str(prefix), "TF checkpoint", with_aliases(variables), left_out)


def _saved_model(folder: Path) -> Artefact:
    signatures = read_signatures(folder)
    if not (folder / "variables").exists():
        remedy = "copy the whole folder; a model without variables has nothing to import"
        raise MalformedError("it has no folder variables beside saved_model.pb", remedy)
    variables, left_out = read_bundle(folder / "variables" / "variables")
    described = read_metadata(folder)
    return Artefact(
        str(folder),
        "SavedModel",
        with_aliases(variables),
        left_out,
        None if described is None else layers_of(described),
        signatures,
    )
