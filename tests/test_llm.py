"""The library front: load, logits, generate, stream, chat, report."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from tiny_llm import CHATML, tiny_llm
from tiny_models import BACKENDS, NAMES, tiny_golden, tiny_path

import polykv
from polykv.engine_request import Finish
from polykv.errors import ConfigError, DownloadError, PromptError
from polykv.prompt import Prompts
from polykv.report import render
from polykv.text.chat import ChatTemplate
from polykv.types import Activations


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_generate_give_the_golden_values(name: str, backend: str) -> None:
    golden = tiny_golden(name)
    llm = tiny_llm(name, backend=backend, kv="f32", chunk=20)
    logits = llm.logits(golden["ids"])
    assert logits.dtype == np.float32
    assert np.abs(logits - golden["logits"]).max() < 5e-4
    g = llm.generate(golden["ids"].tolist(), max_tokens=24, ignore_eog=True)
    assert g.tokens == golden["greedy"].tolist()
    assert (g.finish_reason, g.stats.prompt_n, g.stats.generated_n) == (Finish.LENGTH, 48, 24)
    assert llm.logits([]).shape == (0, 320)
    assert llm.cache.used_nbytes == 0


def test_logits_need_no_second_copy_of_the_result() -> None:
    llm, seen = tiny_llm(chunk=32), []
    head = llm.ops.head

    def spy(h, w, *, activations, out=None):
        seen.append(out)
        return head(h, w, activations=activations, out=out)

    llm.ops.head = spy
    result = llm.logits(list(range(100)))
    assert len(seen) == 4
    assert all(np.shares_memory(out, result) for out in seen)


def test_tokenize_round_trip() -> None:
    llm = tiny_llm()
    assert llm.tokenize("<|im_start|>") == [1]
    assert len(llm.tokenize("<|im_start|>", special=False)) > 1
    for text in ("", "Hello, w\u00f6rld!", "a\n\n b", "\U0001f600"):
        assert llm.detokenize(llm.tokenize(text)) == text


def test_what_is_no_text_and_no_token_ids_is_refused() -> None:
    llm = tiny_llm()
    for text in (None, b"text", ["text"], 5):
        with pytest.raises(PromptError, match="must be a string"):
            llm.tokenize(text)
    for ids in (None, 5, "text", b"ab", [1.5], [True], [[1]], np.ones(2), ["1"]):
        with pytest.raises(PromptError, match="token ids"):
            llm.detokenize(ids)
    assert llm.detokenize(np.array(llm.tokenize("a b"))) == "a b"


def test_what_a_prompt_means() -> None:
    chat, plain = tiny_llm(chat=True), tiny_llm()
    as_messages = chat.prompt_ids([{"role": "user", "content": "Hi"}])
    assert (
        chat.prompt_ids("Hi") == as_messages == chat.tokenize("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert chat.prompt_ids(parts) == as_messages
    options = {"max_tokens": 4, "ignore_eog": True}
    want = chat.generate("Hi", **options).tokens
    assert chat.generate(parts, **options).tokens == chat.generate_many([parts], **options)[0].tokens == want
    with chat.stream(parts, **options) as stream:
        assert "".join(stream) == stream.generation.text and stream.generation.tokens == want
    for use in (chat.generate, chat.stream, lambda p: chat.generate_many([p])):
        with pytest.raises(PromptError, match="image_url"):
            use([{"role": "user", "content": [{"type": "image_url"}]}])
    assert chat.prompt_ids("Hi", raw=True) == plain.prompt_ids("Hi") == plain.tokenize("Hi")
    assert plain.prompt_ids([5, np.int32(6)]) == [5, 6]
    gemma = tiny_llm("gemma3")
    assert gemma.prompt_ids("Hi")[0] == gemma.tokenizer.bos
    # Text that looks like a special token stays text: only the two that the template writes are there.
    assert chat.prompt_ids("<|im_start|>").count(1) == 2
    with pytest.raises(PromptError, match="no chat template"):
        plain.generate([{"role": "user", "content": "Hi"}])
    for bad in ([1, "a"], [True], [{"role": "user"}, 3], [1.5]):
        with pytest.raises(PromptError):
            plain.generate(bad)
    for empty in ([], ""):
        with pytest.raises(PromptError):
            plain.generate(empty)


@pytest.mark.parametrize("chat", (True, False))
def test_a_chat_continues_its_own_tokens(chat: bool) -> None:
    llm = tiny_llm(chat=chat)
    with llm.chat(system="Be brief.") as agent:
        first = agent.ask("Hi", max_tokens=7, ignore_eog=True)
        agent.ask("Why?", max_tokens=7, ignore_eog=True)
        text = llm.detokenize(agent.tokens)
    if chat:
        # An answer that was cut at max_tokens is closed as the template closes it.
        assert text.startswith(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        answer = llm.detokenize(first.tokens)
        assert f"{answer}<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n" in text
    else:
        assert text.startswith("Be brief.\n\nQuestion: Hi\nAnswer:")
        assert "\n\nQuestion: Why?\nAnswer:" in text
    assert llm.cache.used_nbytes == 0


def test_the_turn_end_that_was_generated_is_not_doubled() -> None:
    llm = tiny_llm()
    prompts = Prompts(llm.tokenizer, ChatTemplate(CHATML, llm.tokenizer))
    end = llm.tokenize("<|im_end|>")
    tail = llm.tokenize("\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert prompts.next("Why?", end[0]) == tail
    assert prompts.next("Why?", 7) == end + tail


@pytest.mark.parametrize("document", ("Salt.", "Salt. ", "Salt.\n\n", "\u00e9", "", "<|im_end|>"))
@pytest.mark.parametrize("chat", (True, False))
def test_every_question_continues_the_document(document: str, chat: bool) -> None:
    llm = tiny_llm(chat=chat)
    prefix = llm.prompts.prefix(document)
    assert document in llm.detokenize(prefix)
    for question in ("Why?", " 3?", "\n\nHow", "\u00fcber", "<|im_end|>", "'s"):
        assert llm.prompts.first(question, document)[: len(prefix)] == prefix


def test_generate_many_and_stream_agree_with_generate() -> None:
    llm = tiny_llm()
    prompts = ["One", "Two two two", "Three " * 40]
    options = {"max_tokens": 12, "ignore_eog": True, "temperature": 1.0, "seed": 3}
    alone = [tiny_llm().generate(p, **options) for p in prompts]
    assert [g.tokens for g in llm.generate_many(prompts, **options)] == [g.tokens for g in alone]
    for p, g in zip(prompts, alone, strict=True):
        stream = llm.stream(p, **options)
        assert "".join(stream) == g.text
        assert stream.generation.tokens == g.tokens


def test_load_refuses_bad_arguments() -> None:
    for options, words in (
        ({"ctx": 0}, "context of 0"),
        ({"ctx": 5000}, r"1\.\.4096"),
        ({"kv": "q9_0"}, "unknown K/V type"),
        ({"backend": "gpu"}, "unknown backend"),
        ({"activations": "q4"}, "f32, q8"),
        ({"threads": 0}, "threads"),
        ({"threads": 10_000}, "threads"),
        ({"backend": "ref", "threads": 1}, "no threads"),
        ({"chunk": 0}, "chunk"),
        ({"cache_tokens": 0}, "at least one"),
        ({"codebooks": 5}, "codebooks is 5"),
        ({"codebooks": "file"}, "list of files"),
        ({"codebooks": [5]}, "codebooks has 5"),
        ({"calibration": 5}, "calibration has 5"),
        ({"calibration_v": 5}, "calibration_v has 5"),
    ):
        with pytest.raises(ConfigError, match=words):
            polykv.load(tiny_path("llama"), **options)
    with pytest.raises(DownloadError, match="no-such-model"):
        polykv.load("no-such-model")


def test_defaults() -> None:
    llm = polykv.load(tiny_path("llama"))
    assert (llm.kv, llm.ops.name, llm.activations, llm.context) == ("q8_0/turbo3", "cpu", Activations.Q8, 4096)
    assert polykv.load(tiny_path("llama"), backend="ref").activations is Activations.F32
    with pytest.raises(PromptError, match="context of 64"):
        polykv.load(tiny_path("llama"), ctx=64).logits([1] * 65)


def test_int8_activations_stay_close_to_float32() -> None:
    ids, path = tiny_golden("llama")["ids"], tiny_path("llama", "q8_0")
    exact, rounded = (polykv.load(path, kv="f32", activations=a).logits(ids) for a in ("f32", "q8"))
    assert 0 < np.abs(exact - rounded).max() < 0.2


@pytest.mark.parametrize("name", ["ctx", "agents", "shared"])
@pytest.mark.parametrize("value", ["3", 1.5, True])
def test_plan_takes_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        tiny_llm().plan(**{name: value})


def test_plan_predicts_what_the_pool_then_holds() -> None:
    for name in ("llama", "gemma3"):
        llm = tiny_llm(name)
        with llm.pool("x" * 200) as pool:
            n = len(pool.tokens)
            plan = llm.plan(agents=3, shared=n, ctx=n + 40)
            agents = [pool.fork() for _ in range(3)]
            for a in agents:
                a.generate("?", max_tokens=40 - len(llm.tokenize("?")), ignore_eog=True)
            m = pool.memory()
            full = plan.groups[0]
            assert full.shared == len(pool._sequence.used_blocks()[0])
            assert m.total <= plan.nbytes
            assert m.f16_equivalent <= plan.f16_nbytes


def test_the_report_says_what_ran() -> None:
    llm = tiny_llm("gemma3", kv="q8_0/turbo3,0=f16")
    llm.generate("a " * 100, max_tokens=5, ignore_eog=True)
    llm.generate("a " * 100, max_tokens=5, ignore_eog=True)
    report = json.loads(json.dumps(llm.report()))
    assert report["ops"]["layers"].startswith("polykv.fast.cpu")
    assert report["calls"]["layers"] == report["counters"]["runner"]["steps"]
    assert [x["kv"] for x in report["layers"]] == ["f16/f16", *["q8_0/turbo3"] * 5]
    assert [x["window"] for x in report["layers"]] == [16, 16, 0, 16, 16, 0]
    assert report["bytes"]["kv_allocated"] == llm.cache.nbytes
    assert report["bytes"]["weights"] == llm.model.weight_bytes
    assert 0 <= report["bytes"]["file_in_large_pages"] <= llm.model.gguf.path.stat().st_size
    assert 0 < report["cache_n"] < report["prompt_n"]
    assert report["timing"]["decode_tok_s"] > 0
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(report))
    text = console.export_text()
    for words in ("q8_0/turbo3,0=f16", "sliding 16", "layers", "polykv.fast.cpu", "f16/f16"):
        assert words in text


def test_importing_polykv_loads_nothing_heavy() -> None:
    script = (
        "import sys, polykv; names = dir(polykv); assert polykv.__version__;"
        "assert not {'numpy', 'numba', 'tokenizers', 'jinja2', 'rich'} & set(sys.modules);"
        "from polykv.sampling import SamplingParams; assert polykv.SamplingParams is SamplingParams;"
        "assert 'numba' not in sys.modules; print(names)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "'load'" in run.stdout
    with pytest.raises(AttributeError, match="nothing"):
        _ = polykv.nothing


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "model has None"),
        ({"model": b"x"}, "model has b'x'"),
        ({"activations": []}, "activations are"),
        ({"codebooks": [None]}, "codebooks has None"),
        ({"calibration": 5}, "calibration has 5"),
    ],
)
def test_arguments_of_load_of_the_wrong_type(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        polykv.load(**{"model": tiny_path("llama"), **options})


@pytest.mark.parametrize("prompts", [5, None, "a prompt", b"x"])
def test_many_prompts_are_a_list(prompts: object) -> None:
    with pytest.raises(PromptError, match="takes a list of prompts"):
        tiny_llm().generate_many(prompts)
