"""Texts that come with polykv, for measuring with. data/README.md says where they are from.

Whatever is tuned on a text (codebooks, factors, thresholds) must be judged on another: choose with `opticks`, decide
with `news`. They share neither author nor century.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

# name -> (file in data/texts, what it is)
CORPORA: dict[str, tuple[str, str]] = {
    "opticks": ("opticks.txt", "Newton's Opticks (1730): English prose"),
    "news": ("news-from-nowhere.txt", "Morris's News from Nowhere (1890): English prose, dialogue"),
    "code": ("polykv-sources.txt", "Python sources of this project"),
    "languages": ("human-rights.txt", "Universal Declaration of Human Rights in 25 languages"),
}


def corpus(name: str) -> str:
    """The text called `name`, one of CORPORA."""
    file, _ = CORPORA[name]
    return (files("polykv.data") / "texts" / file).read_text(encoding="utf-8")


def read_text(name: str) -> str:
    """The text of a name of CORPORA, or of a UTF-8 file. For tasks, whose files were looked at before."""
    return corpus(name) if name in CORPORA else Path(name).read_text(encoding="utf-8-sig").strip()


def text_digest(data: bytes) -> str:
    """Tells apart texts, or files, that have one name."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
