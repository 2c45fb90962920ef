"""polykv: many agents read one long document on one machine.

    import polykv

    llm = polykv.load("smollm2")
    with llm.pool(document) as pool:
        for answer in pool.ask(["Who wrote it?", "When?"]):
            print(answer.text)

Importing this package loads nothing else; numpy, numba and the kernels come with the first use of a name below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polykv.calibrator import calibrate
    from polykv.engine_request import Generation
    from polykv.exchange import dequantize, quantize
    from polykv.llm import LLM, load
    from polykv.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "Generation", "SamplingParams", "__version__", "calibrate", "dequantize", "load", "quantize"]

_HOME = {
    "LLM": "polykv.llm",
    "load": "polykv.llm",
    "calibrate": "polykv.calibrator",
    "Generation": "polykv.engine_request",
    "SamplingParams": "polykv.sampling",
    "quantize": "polykv.exchange",
    "dequantize": "polykv.exchange",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'polykv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
