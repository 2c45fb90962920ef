"""Tiny models behind the library front, with and without a chat template; used by the tests of LLM and pools."""

from __future__ import annotations

from tiny_models import tiny_path

import polykv
from polykv.llm import LLM
from polykv.prompt import Prompts
from polykv.text.chat import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Longer than the window of the tiny gemma3 and than a block; ends inside a block.
DOCUMENT = "The bridge of Brellin has seven arches. It was paid for with salt. <|im_end|> is not the end. " * 2
QUESTIONS = ["How many arches?", "0 or 1?", "  Who paid\nfor it? ", "\u00e9t\u00e9?"]


def tiny_llm(name: str = "llama", *, chat: bool = False, backend: str = "cpu", **options) -> LLM:
    """A tiny model with float32 activations; chat: give it a chat template."""
    llm = polykv.load(tiny_path(name), backend=backend, **{"activations": "f32", "ctx": 2048, **options})
    if chat:
        llm.prompts = Prompts(llm.tokenizer, ChatTemplate(CHATML, llm.tokenizer))
    return llm
