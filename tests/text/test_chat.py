"""Chat templates: what they render, and that control tokens come from the template only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, byte_level, sentencepiece

from polykv.errors import FormatError, PromptError
from polykv.model.gguf import read_gguf
from polykv.text.chat import ChatTemplate
from polykv.text.tokenizer import Tokenizer

TOK = Tokenizer.from_gguf(byte_level())
WITH_BOS = Tokenizer.from_gguf(sentencepiece())
SIMPLE = "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content | trim }}</s>\n{% endfor %}<|turn|>"
# The shape of published templates: branches, loop state, errors, generators.
RICH = """
{%- if messages[0]['role'] == 'system' %}{% set first, rest = messages[0].content + '\\n\\n', messages[1:] %}
{%- else %}{% set first, rest = '', messages %}{% endif %}
{{- bos_token }}{% set ns = namespace(turns=0) %}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {{- '<|turn|>' ~ message['role'] ~ '\\n' ~ (first if loop.first else '') ~ message.content | trim ~ '</s>\\n' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"""


def _user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    metadata = read_gguf(smollm2_path).metadata
    tok = Tokenizer.from_gguf(metadata)
    chat = ChatTemplate.from_gguf(metadata, tok)
    assert chat is not None
    text = chat.render(_user("Who?"))
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert chat.encode(_user("Who?")) == tok.encode(text, special=True)
    assert chat.encode(_user("<|im_end|>")).count(2) == 2


@pytest.mark.model
def test_base_model_has_no_template(gemma3_path: Path) -> None:
    metadata = read_gguf(gemma3_path).metadata
    assert ChatTemplate.from_gguf(metadata, Tokenizer.from_gguf(metadata)) is None


def test_render() -> None:
    chat = ChatTemplate(RICH, TOK)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " hi "},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "why?"},
    ]
    want = (
        "<s><|turn|>user\nBe brief.\n\nhi</s>\n<|turn|>assistant\nyes</s>\n<|turn|>user\nwhy?</s>\n<|turn|>assistant\n"
    )
    assert chat.render(messages) == want
    assert chat.render(messages, add_generation_prompt=False) == want.removesuffix("<|turn|>assistant\n")
    assert '"name": "f"' in chat.render(messages, variables={"tools": [{"name": "f"}]})


def test_the_template_speaks_in_errors() -> None:
    with pytest.raises(PromptError, match="roles must alternate"):
        ChatTemplate(RICH, TOK).render([{"role": "assistant", "content": "x"}])


@settings(deadline=None)
@given(content=st.lists(st.sampled_from([*CONTROL, "the", " ", "\n", "<", "s>", "|turn|>", "\U000f0000"])).map("".join))
def test_control_tokens_come_from_the_template_only(content: str) -> None:
    for tok in (TOK, WITH_BOS):
        chat = ChatTemplate(SIMPLE, tok)
        ids = chat.encode(_user(content))
        names = [tok.token_text(i) for i in ids if tok.is_special(i)]
        assert names == (["<s>"] if tok.add_bos else []) + ["<|turn|>", "</s>", "<|turn|>"]
        # Nothing of the text is lost on the way.
        assert tok.decode(ids).endswith(chat.render(_user(content)))


@settings(deadline=None)
@given(content=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=20))
def test_plain_content_is_encoded_as_rendered(content: str) -> None:
    chat = ChatTemplate(SIMPLE, TOK)
    if not any(t in content for t in CONTROL):
        assert chat.encode(_user(content)) == TOK.encode(chat.render(_user(content)), special=True)


def test_control_tokens_in_roles_and_nested_content_stay_text() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.calls[0].name }}</s>{% endfor %}"
    message = {"role": "user</s>", "content": [{"type": "text", "text": "<s>"}], "calls": [{"name": "<|turn|>"}]}
    ids = ChatTemplate(template, TOK).encode([message])
    assert [TOK.token_text(i) for i in ids if TOK.is_special(i)] == ["</s>"]
    assert TOK.decode(ids) == "user</s>: <s><|turn|></s>"


def test_text_parts_are_joined() -> None:
    chat = ChatTemplate(RICH, TOK)
    part = {"type": "text", "text": "the"}
    for content, text in (
        ([part], "the"),
        ([part, {"type": "text", "text": " and", "x": 1}], "the\n and"),
        ((part,), "the"),
    ):
        assert chat.render(_user(content)) == chat.render(_user(text))
        assert chat.encode(_user(content)) == chat.encode(_user(text))
    # Templates that treat a list apart get the string as well.
    typed = ChatTemplate("{{ 'list' if messages[0].content is not string else messages[0].content }}", TOK)
    assert typed.render(_user([part])) == "the"
    assert chat.encode(_user([])) == chat.encode(_user(""))
    # The caller's message is not changed.
    messages = _user([part])
    chat.encode(messages)
    assert messages == _user([{"type": "text", "text": "the"}])


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "part 1 of message 0 is of type 'image_url'"),
        ({"type": "input_audio"}, "input_audio"),
        ({"type": None, "text": "x"}, "None"),
        ({"text": "x"}, "is of type None; this version reads text parts only"),
        ({"type": "text"}, "`text` of type NoneType"),
        ({"type": "text", "text": 3}, "`text` of type int"),
        ("x", "part 1 of message 0 is of type str"),
        (["x"], "is of type list"),
        ({"type": "\x1b" + "x" * 1000}, "is of type '.x1bx+"),
    ],
)
def test_other_parts_are_refused(part: object, words: str) -> None:
    chat = ChatTemplate(SIMPLE, TOK)
    for use in (chat.render, chat.encode):
        with pytest.raises(PromptError, match=words) as error:
            use(_user([{"type": "text", "text": "the"}, part]))
        assert str(error.value).isprintable() and len(str(error.value)) < 200


def test_bos_exactly_once() -> None:
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        ids = ChatTemplate(template, WITH_BOS).encode(_user("<s>the"))
        assert ids.count(1) == 1 and ids[0] == 1


def test_several_templates() -> None:
    metadata = {"tokenizer.chat_template": "default", "tokenizer.chat_template.tool_use": "tools"}
    default = ChatTemplate.from_gguf(metadata, TOK)
    tools = ChatTemplate.from_gguf(metadata, TOK, name="tool_use")
    assert default is not None and tools is not None
    assert (default.source, tools.source) == ("default", "tools")
    with pytest.raises(PromptError, match=r"default, tool_use"):
        ChatTemplate.from_gguf(metadata, TOK, name="rag")
    assert ChatTemplate.from_gguf({}, TOK) is None


@pytest.mark.parametrize("source", ["x" * ((1 << 20) + 1), 7, None])
def test_template_that_is_none(source: object) -> None:
    with pytest.raises(FormatError, match="chat_template"):
        ChatTemplate.from_gguf({"tokenizer.chat_template": source}, TOK)


@pytest.mark.parametrize(
    "messages", [[], {}, "hi", [{"role": "user"}], [{"content": "x"}], [{"role": 1, "content": "x"}], ["x"], None]
)
def test_bad_messages(messages: object) -> None:
    chat = ChatTemplate(SIMPLE, TOK)
    for use in (chat.render, chat.encode):
        with pytest.raises(PromptError, match="message"):
            use(messages)  # type: ignore[operator]


def test_deeply_nested_messages() -> None:
    value: object = "x"
    for _ in range(100_000):
        value = [value]
    chat = ChatTemplate(SIMPLE, TOK)
    for use in (chat.render, chat.encode):
        with pytest.raises(PromptError, match="part 0 of message 0 is of type list"):
            use(_user(value))
        with pytest.raises(PromptError, match="nested"):
            use([{"role": "user", "content": "x", "calls": value}])
    # Taken apart one by one: a recursive destructor is not what this tests.
    while isinstance(value, list):
        value = value.pop()


def test_long_messages_are_no_reason_to_stop() -> None:
    text = "the and " * 100_000
    chat = ChatTemplate(RICH, TOK)
    assert chat.render(_user(text)).count("and") == 100_000


def test_generation_marks_and_loop_controls() -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(template, TOK).render(_user("a") + _user("b")) == "a"
