"""A model that answers, for an arm: the library's own front, so that what is measured is what users get."""

from __future__ import annotations

from polykv.cache.pool import KVPool
from polykv.cache.support import cache_config
from polykv.engine import Engine
from polykv.evals.arms import Arm, Setting
from polykv.llm import LLM
from polykv.model.runner import Runner
from polykv.prompt import Prompts
from polykv.text.chat import ChatTemplate
from polykv.text.tokenizer import Tokenizer


def session(setting: Setting, arm: Arm, *, context: int, sequences: int) -> LLM:
    """A session whose cache has the types of an arm and room for so many sequences of `context` tokens."""
    model, config = setting.model, cache_config(setting.ops, arm.tiers)
    pool = KVPool(
        setting.ops,
        model.config,
        config,
        fingerprint=model.fingerprint,
        max_tokens=sequences * (context + config.block_size),
    )
    pool.equalize(arm.calibration)
    tokenizer = Tokenizer.from_gguf(model.gguf.metadata)
    template = ChatTemplate.from_gguf(model.gguf.metadata, tokenizer)
    runner = Runner(setting.ops, model, pool, setting.activations)
    engine = Engine(setting.ops, runner, tokenizer, context=context)
    return LLM(model, setting.ops, engine, Prompts(tokenizer, template), arm.name)
