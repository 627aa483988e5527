"""Prompts equal those of transformers' apply_chat_template; what a template does not take is the client's to mend."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from relevo.core.errors import InvalidRequest, ModelFileError
from relevo.core.model import TokenizerFiles
from relevo.gateway.text.chat_template import ChatTemplate, ModelTemplates

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}
        {{- "\\n" + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>' + call.function.name + (call.function.arguments | tojson(indent=1)) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ message.content }}{% endgeneration %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{% endfor %}
"""
PARTS = "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}({{ part['text'] }}){% endfor %}{% endif %}{% endfor %}"
)
TEMPLATES = {"smollm2": SMOLLM2, "chatml": CHATML_TOOLS, "llama3": LLAMA3, "mistral": MISTRAL}

USER = {"role": "user", "content": "  Grüße, <b>\"you\"</b> & 'me' 中\n"}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [USER, {"role": "assistant", "content": "Yes. "}, {"role": "user", "content": "More?"}],
    [USER, {"role": "assistant", "content": "Unfinished sentence that "}],
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"type": "object", "a<b": "x&y"}}}]


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' rendering of one chat."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")

    def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
        rendered, _ = utils.render_jinja_template([messages], chat_template=template, **options, **SPECIAL)
        return str(rendered[0])

    return render


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompted", [True, False])
def test_equals_transformers(reference: Any, name: str, prompted: bool) -> None:
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    for messages in CHATS:
        expected = reference(TEMPLATES[name], messages, add_generation_prompt=prompted)
        assert template.render(messages, add_generation_prompt=prompted) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_continuing_equals_transformers(reference: Any, name: str) -> None:
    """Llama 3's template trims messages, and with it the space after the unfinished sentence."""
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for messages in (CHATS[2], [*CHATS[1][:1], {"role": "assistant", "content": "two  words"}]):
        assert template.render(messages, **options) == reference(TEMPLATES[name], messages, **options)  # type: ignore[arg-type]


def test_tools_and_template_variables_equal_transformers(reference: Any) -> None:
    template = ChatTemplate(CHATML_TOOLS, SPECIAL)
    expected = reference(CHATML_TOOLS, [USER], tools=TOOLS, add_generation_prompt=True, enable_thinking=False)
    rendered = template.render([USER], TOOLS, enable_thinking=False)
    assert rendered == expected
    assert '"größe"' in rendered and "a<b" in rendered and "<think>" in rendered
    assert "# Tools" not in template.render([USER], [])


def test_arguments_of_tool_calls_arrive_as_objects(reference: Any) -> None:
    """OpenAI clients send a string of JSON; models were trained on the object."""

    def chat(arguments: Any) -> list[dict[str, Any]]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]

    template = ChatTemplate(CHATML_TOOLS, SPECIAL)
    sent = chat('{"a": [1, "ü"]}')
    expected = reference(CHATML_TOOLS, chat({"a": [1, "ü"]}), add_generation_prompt=True)
    assert template.render(sent) == expected
    assert sent == chat('{"a": [1, "ü"]}')  # what the caller gave is not touched
    assert '"not json"' in template.render(chat("not json"))


def test_parts_become_what_the_template_takes() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert "user\none\ntwo<|im_end|>" in ChatTemplate(SMOLLM2, SPECIAL).render(parts)
    assert ChatTemplate(PARTS).render(parts) == "user:one;two;"
    assert ChatTemplate(EITHER).render(parts) == "(one)(two)"
    text = [{"role": "user", "content": "one"}]
    assert ChatTemplate(PARTS).render(text) == "user:one;"
    assert ChatTemplate(EITHER).render(text) == "one"
    # a template that prints whatever it gets would print a Python list
    assert ChatTemplate("{{ messages[0].content }}").render(parts) == "one\ntwo"
    assert ChatTemplate("{{ messages[0].content | tojson }}").render(parts) == '"one\\ntwo"'


def test_continuing_a_message_of_parts() -> None:
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    rendered = ChatTemplate(EITHER).render(parts, add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("(one)(two")


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "messages[1].content[1].type",
        ),
        ([{"type": "text"}], "messages[1].content[0].text"),
        ([{"type": ["text"]}], "messages[1].content[0].type"),
        ([7], "messages[1].content[0].type"),
        (7, "messages[1].content"),
    ],
)
def test_anything_but_text_is_refused_by_name(content: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(SMOLLM2).render([{"role": "system", "content": "s"}, {"role": "user", "content": content}])
    assert refusal.value.param == param


def test_developer_is_system_where_the_template_refuses_it() -> None:
    strict = "{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('role') }}{% endif %}"
    chat = [{"role": "developer", "content": "Be brief."}, USER]
    assert (
        ChatTemplate(strict + "{{ m.role }}={{ m.content }}|{% endfor %}").render(chat).startswith("system=Be brief.|")
    )
    silent = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.content }}{% endif %}{% endfor %}"
    assert ChatTemplate(silent).render(chat).startswith("Be brief.")
    assert "<|im_start|>developer\nBe brief." in ChatTemplate(SMOLLM2).render(
        [{"role": "system", "content": ""}, *chat]
    )


@pytest.mark.parametrize(("name", "knows"), [("chatml", True), ("smollm2", False), ("llama3", False)])
def test_a_template_that_leaves_tools_out_is_told_from_one_that_names_them(name: str, knows: bool) -> None:
    """Red when requests with tools are refused for a model that can take them, or dropped for one that cannot."""
    assert ChatTemplate(TEMPLATES[name]).knows_tools is knows


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(InvalidRequest, match="Conversation roles must alternate") as refusal:
        ChatTemplate(MISTRAL, SPECIAL).render([{"role": "assistant", "content": "a"}, USER])
    assert refusal.value.message.startswith("Conversation roles")
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].missing.deeper }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_escapes_and_faults_end_as_errors_of_the_request(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template cannot render"):
        ChatTemplate(template).render([USER])


def test_refused_options() -> None:
    template = ChatTemplate(SMOLLM2)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        template.render([USER], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        template.render([USER], chat_template="{{ 1 }}")
    with pytest.raises(InvalidRequest) as refusal:
        template.render([])
    assert refusal.value.param == "messages"
    with pytest.raises(InvalidRequest, match="no text that the chat template keeps"):
        ChatTemplate("{{ 1 }}").render([USER], add_generation_prompt=False, continue_final_message=True)


def test_a_broken_template_stops_the_start() -> None:
    with pytest.raises(ModelFileError, match="line 2"):
        ChatTemplate("\n{% for %}")


def test_time_is_the_callers() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", local_time=lambda: datetime(2031, 2, 3))
    assert template.render([USER]) == "03 Feb 2031"


def test_an_absent_special_token_is_undefined() -> None:
    """Turns red when a model without a first token gets a prompt that starts with the word None."""
    template = ChatTemplate("{{ bos_token }}{{ bos_token is defined }}", {"bos_token": None})
    assert template.render([USER]) == "False"


def test_from_files() -> None:
    files = TokenizerFiles(
        tokenizer_json="{}", chat_template="{{ bos_token }}{{ pad_token }}", bos_token="<s>", eos_token=None
    )
    template = ModelTemplates.from_files(files)
    assert template is not None
    assert template.render([USER]) == "<s>"
    bare = TokenizerFiles(tokenizer_json="{}", chat_template=None, bos_token=None, eos_token=None)
    assert ModelTemplates.from_files(bare) is None


# ---- answers without content -----------------------------------------------------------------------------------------

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
AS_THEY_COME = "{% for m in messages %}"
WITHOUT_CONTENT = {  # how a template reads `content`, and what it writes for an answer that has none
    "attribute of a text": (AS_THEY_COME + "[{{ m.content.split('</think>')[-1].strip() }}]{% endfor %}", "[q][]"),
    "membership": (AS_THEY_COME + "[{{ '</think>' in m['content'] }}]{% endfor %}", "[False][False]"),
    "concatenation": (AS_THEY_COME + "{{ '[' + m['content'] + ']' }}{% endfor %}", "[q][]"),
    "printed": (AS_THEY_COME + "[{{ m.content }}]{% endfor %}", "[q][]"),
    "asks is none": (
        AS_THEY_COME + "{% if m.content is none %}nothing{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
        "[q]nothing",
    ),
    "asks is not none": (
        AS_THEY_COME + "{% if m.content is not none %}[{{ m.content + '' }}]{% endif %}{% endfor %}",
        "[q]",
    ),
    "asks for truth": (AS_THEY_COME + "{% if m.content %}[{{ m.content }}]{% endif %}{% endfor %}", "[q]"),
    "parts": (AS_THEY_COME + "[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}", "[q][]"),
}


@pytest.mark.parametrize("extra", [{}, {"tool_calls": [CALL]}])
@pytest.mark.parametrize("sent", [{"content": None}, {}])
@pytest.mark.parametrize("name", WITHOUT_CONTENT)
def test_an_answer_without_content_is_no_text_unless_the_template_asks_for_none(
    name: str, sent: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Red when clients that send a tool call back as they got it hear of attributes of Python objects."""
    template, expected = WITHOUT_CONTENT[name]
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", **sent, **extra}]
    assert ChatTemplate(template).render(chat) == expected


LAST_IS_NO_ANSWER = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('end with a question') }}{% endif %}"


@pytest.mark.parametrize("extra", [{}, {"tool_calls": [CALL]}])
def test_a_template_that_wants_a_question_last_is_asked_for_none_too(extra: dict[str, Any]) -> None:
    """Red when the question that finds out ends with the answer, is refused, and None is then written as no text."""
    template, expected = WITHOUT_CONTENT["asks is none"]
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, **extra}, USER]
    assert ChatTemplate(LAST_IS_NO_ANSWER + template).render(chat) == f"{expected}[{USER['content']}]"


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_only_answers_can_be_none(role: str) -> None:
    """Red when a tool that returned nothing reaches a template as None, because that asks for it of answers."""
    template = (
        AS_THEY_COME + "{% if m.role == 'assistant' and m.content is none %}nothing"
        "{% else %}{{ '[' + m.content + ']' }}{% endif %}{% endfor %}"
    )
    for sent in ({"content": None}, {}):
        chat = [{"role": role, **sent}, {"role": "assistant", "content": None}]
        assert ChatTemplate(template).render(chat) == "[]nothing"


def test_a_tool_call_without_arguments_has_an_empty_object() -> None:
    template = ChatTemplate("{% for c in messages[1].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}")
    for function in ({"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": ""}):
        assert template.render([USER, {"role": "assistant", "tool_calls": [{"function": function}]}]) == "{}"


@pytest.mark.parametrize("call", [None, "f", {}, {"function": None}, {"function": {"arguments": "{}"}}, {"name": "f"}])
def test_a_tool_call_that_names_no_tool_is_refused_by_place(call: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(CHATML_TOOLS).render([USER, {"role": "assistant", "tool_calls": [CALL, call]}])
    assert refusal.value.param == "messages[1].tool_calls[1].function.name"


def test_what_a_template_stumbles_over_becomes_one_sentence_with_advice() -> None:
    with pytest.raises(InvalidRequest, match=r"^the model's .* cannot render .* \(.*'absent'.*\); check that .*[^.]$"):
        ChatTemplate("{{ messages[0].absent.deeper }}").render([USER])


# ---- several templates -----------------------------------------------------------------------------------------------

PLAIN, WITH_TOOLS = "{{ messages[0].content }}", "{{ tools | tojson }}{{ messages[0].content }}"


def model_with(template: str | None, **named: str) -> ModelTemplates | None:
    return ModelTemplates.from_files(
        TokenizerFiles(
            tokenizer_json="{}", chat_template=template, named_templates=named, bos_token=None, eos_token=None
        )
    )


def test_requests_with_tools_get_the_template_for_tools() -> None:
    model = model_with(PLAIN, tool_use=WITH_TOOLS, rag="{{ documents }}")
    assert model is not None and model.knows_tools
    assert model.render([USER]) == model.render([USER], []) == USER["content"]
    assert model.render([USER], TOOLS).startswith("[{")


def test_a_template_for_tools_that_leaves_them_out_is_not_taken() -> None:
    model = model_with(WITH_TOOLS, tool_use=PLAIN)
    assert model is not None and model.knows_tools and model.render([USER], TOOLS).startswith("[{")


@pytest.mark.parametrize(("template", "usable"), [(PLAIN, True), ("{{ raise_exception('no') }}", False), ("hi", False)])
def test_a_template_that_writes_no_question_is_known_at_start(template: str, usable: bool) -> None:
    model = model_with(template)
    assert model is not None and model.is_usable is usable
