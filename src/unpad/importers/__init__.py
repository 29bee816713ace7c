"""Saved models of TensorFlow and Keras, read without either, and turned into Unpad's layers."""

from unpad.importers.artefact import Artefact, Signature, Tensor, Variable
from unpad.importers.errors import ArtefactError
from unpad.importers.mapping import read_mapping
from unpad.importers.model import Layer, Model, load
from unpad.importers.reading import read
from unpad.importers.recognise import recognise

__all__ = [
    "Artefact",
    "ArtefactError",
    "Layer",
    "Model",
    "Signature",
    "Tensor",
    "Variable",
    "load",
    "read",
    "read_mapping",
    "recognise",
]
