"""What the settings of a campaign's task name, and proof that every machine means the same by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polykv import __version__
from polykv.cache.calibration_file import read_calibration
from polykv.errors import ConfigError
from polykv.evals.arms import Arm, Setting, make_arm
from polykv.evals.corpora import text_digest
from polykv.evals.stamp import commit


def open_arm(setting: Setting, settings: dict[str, Any]) -> Arm:
    """The types of a task: kv, codebooks, calibration and calibration_v (None: without). Raises a PolyKVError for
    anything that is wrong with them."""
    factors = read_calibration(settings["calibration"], settings["calibration_v"])
    return make_arm(setting, settings["kv"], codebooks=settings["codebooks"], calibration=factors)


def identity(setting: Setting, settings: dict[str, Any], text: str | None = None) -> dict[str, str]:
    """What the names in the settings stand for: another model or text of the same name gives other figures.

    text: what is read, if the task reads one of a name.
    """
    files = [*settings["codebooks"], settings["calibration"], settings["calibration_v"]]
    digests = ["-" if file is None else text_digest(Path(file).read_bytes()) for file in files]
    return {
        "model": setting.model.fingerprint,
        **({} if text is None else {"text": text_digest(text.encode())}),
        "factors": " ".join(digests),
        "polykv": __version__,
        "commit": commit() or "unknown",
    }


def check_identity(settings: dict[str, Any], found: dict[str, str]) -> None:
    """Raise ConfigError when a task was made where its names stand for something else than `found`."""
    for name, value in settings.get("identity", found).items():
        if value != found[name]:
            raise ConfigError(f"{name}: {found[name]} is found here under that name, the campaign is of {value}")
