"""Chat templates: Hugging Face's dialect, the sandbox, the limits, and errors that help."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from aotlm.errors import ArtifactCorrupt, ArtifactNotFound, RequestError
from aotlm.text.conversation import BUILT_IN_TEMPLATES, ConversationTemplate
from tests.core.tokenizer_files import smollm2_chat_template

USER = {"role": "user", "content": "Hi"}


def render(source: str, *messages: Mapping[str, Any], **variables: Any) -> str:
    return ConversationTemplate(source).render(messages or [USER], **variables)


def test_the_template_of_smollm2() -> None:
    source = smollm2_chat_template()
    template = ConversationTemplate(source)
    assert template.render([USER]) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    system = {"role": "system", "content": "Be brief."}
    assert template.render([system, USER], add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_chatml_is_built_in() -> None:
    template = ConversationTemplate.built_in("chatml")
    answer = {"role": "assistant", "content": "Hello\n"}
    assert template.render([USER, answer, USER]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello\n<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render([USER], add_generation_prompt=False).endswith("<|im_end|>\n")
    assert template.stop_strings == ("<|im_end|>",)
    assert set(BUILT_IN_TEMPLATES) == {"chatml"}
    with pytest.raises(ArtifactNotFound, match="'alpaca'; known: chatml"):
        ConversationTemplate.built_in("alpaca")


def test_content_that_is_null_or_absent_is_empty() -> None:
    source = "{% for m in messages %}[{{ m['content'] + '' }}]{% endfor %}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}
    assert render(source, USER, call, {"role": "tool"}) == "[Hi][][]"
    assert call["content"] is None  # the caller's message is as it was


def test_the_template_speaks_for_itself_when_it_refuses() -> None:
    source = (
        "{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role\\nnot supported') }}{% endif %}"
    )
    with pytest.raises(RequestError) as caught:
        render(source, {"role": "system", "content": "x"})
    assert str(caught.value) == "the chat template: System role not supported"
    assert caught.value.param == "messages"


def test_variables_and_special_tokens() -> None:
    source = "{{ bos_token }}{{ thinking }}{{ tools is none }}{{ documents is none }}{{ more }}"
    template = ConversationTemplate(source, special_tokens={"bos_token": "<s>"})
    assert template.render([USER], thinking=False) == "<s>FalseTrueTrue"
    assert template.render([USER], tools=[], more=1) == "<s>FalseTrue1"


def test_extras_of_hugging_face() -> None:
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abHic"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{{ '<' }}") == "<"


def test_loops_know_their_place() -> None:
    source = (
        "{% for m in messages if m.role != 'x' %}{{ loop.index }}/{{ loop.length }}"
        "{{ '.' if loop.last }}{{ loop.previtem is defined }} {% else %}none{% endfor %}"
    )
    assert render(source, USER, {"role": "x"}, USER) == "1/2False 2/2.True "
    assert render(source, {"role": "x"}) == "none"
    assert render("{% for a, b in {'k': 'v'}.items() %}{{ a ~ b ~ 1 }}{% endfor %}") == "kv1"
    assert render("{% for x in nothing %}{% endfor %}{{ nothing ~ 'x' }}") == "x"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ nothing.content }}", "'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nothing | tojson }}", "tojson of an undefined value"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__ }}{{ [].__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_failures_are_requests_errors_in_one_line(source: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{% if n %}"
        "{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}"
        "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
        "{% set ns = namespace(x=2) %}{% for i in range(99) %}"
        "{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * [0] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | indent(999999999) }}",
        "{{ ('a' * 9000).replace('a', 'a' * 9000) }}",
        "{% for a in range(90000) %}{{ 'a' * 900 }}{% endfor %}",
        "{% for a in range(90000) %}" + "static text " * 50 + "{% endfor %}",
    ],
)
def test_a_hostile_template_is_stopped(source: str) -> None:
    started = time.perf_counter()
    with pytest.raises(RequestError) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 20


def test_a_long_conversation_is_no_attack() -> None:
    source = BUILT_IN_TEMPLATES["chatml"]
    messages = [{"role": "user", "content": "word " * 200}] * 2_000
    assert len(render(source, *messages)) > 2_000_000


def test_a_template_that_does_not_parse(tmp_path: Path) -> None:
    template = ConversationTemplate("a\n{% if %}", name="the chat template of x")
    with pytest.raises(ArtifactCorrupt, match="the chat template of x does not parse: line 2: "):
        template.prepare()
    with pytest.raises(ArtifactCorrupt):
        template.render([USER])


def test_templates_in_files(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("{{ bos_token }}é", encoding="utf-8")
    template = ConversationTemplate.from_file(path, special_tokens={"bos_token": "<s>"})
    assert template.render([USER]) == "<s>é"
    assert template.source == "{{ bos_token }}é"
    with pytest.raises(ArtifactNotFound, match="there is no chat template at"):
        ConversationTemplate.from_file(tmp_path / "none")
    path.write_bytes(b"\xff")
    with pytest.raises(ArtifactCorrupt, match="cannot be read"):
        ConversationTemplate.from_file(path)


def test_jinja_is_imported_only_for_rendering() -> None:
    program = (
        "import sys\n"
        "from aotlm.text.conversation import ConversationTemplate\n"
        "template = ConversationTemplate.built_in('chatml')\n"
        "assert 'jinja2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
