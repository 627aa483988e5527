"""Rows of the families whose calls are JSON; see `family_outputs`."""

from __future__ import annotations

import orjson
from family_outputs import HARD, Call, Family, Output, framed, in_pairs

ONE: list[Call] = [("tide", '{"port":"Brest"}')]


def objects(begin: str, end: str, between: str, key: str = "arguments") -> Output:
    """As `in_pairs`, with the name in the object."""
    return in_pairs(begin + '{"name": "', f'", "{key}": ', "}" + end, between)


def arguments(written: str) -> str:
    """One of Hermes' calls with these arguments."""
    return f'<tool_call>\n{{"name": "tide", "arguments": {written}}}\n</tool_call>'


HERMES_CALL = '<tool_call>{"name":"tide","arguments":{"port":"Brest"}}</tool_call>'
HERMES = Family(
    tools="hermes",
    reasoning="qwen3",
    outputs=(
        Output(written=f"Looking.{HERMES_CALL}", calls=ONE, content="Looking."),
        objects("<tool_call>\n", "\n</tool_call>", "\n"),
        framed(objects("<tool_call>\n", "\n</tool_call>", "\n"), "", "\n", content="I look.\n\n"),
        Output(written=f"<think>\nhm\n</think>\n\n{HERMES_CALL}\n", calls=ONE, reasoning="hm"),
        Output(written=f"<think>maybe {HERMES_CALL} no</think>{arguments('{}')}", calls=[("tide", "{}")],
               reasoning=f"maybe {HERMES_CALL} no"),
        Output(written=f"<think>so {HERMES_CALL}", calls=ONE, reasoning="so"),
        Output(written=f"<think>a</think>{HERMES_CALL}\n<think>b</think>\nDone.", calls=ONE, reasoning="ab",
               content="Done."),
        Output(written=arguments('"{\\"q\\":\\"x\\"}"'), calls=[("tide", '{"q":"x"}')]),
        Output(written=arguments("null"), calls=[("tide", "{}")]),
        Output(written='<tool_call>{"name": "tide"}</tool_call>', calls=[("tide", "{}")]),
        Output(written='<tool_call>{"parameters": {"day": 1}, "name": "tide"}</tool_call>',
               calls=[("tide", '{"day": 1}')]),
        Output(written=arguments("[1]"), content=arguments("[1]")),
        Output(written=arguments("7"), content=arguments("7")),
        Output(written=arguments('"Brest"'), content=arguments('"Brest"')),
        Output(written='<tool_call>{"name": "", "arguments": {}}</tool_call>',
               content='<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        Output(written='<tool_call>{"name": "nosuch", "arguments": {}}</tool_call>', calls=[("nosuch", "{}")]),
        Output(written="Write <tool_call> before it.", content="Write <tool_call> before it."),
        Output(written=arguments('{"body": "one\ntwo"}'), calls=[("tide", '{"body": "one\\ntwo"}')]),
        Output(written="  code\n\n", content="  code\n\n"),
        Output(written="<think>x</think>\n\n    code", reasoning="x", content="    code"),
    ),
    template="{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>{% endfor %}"
    "{% if enable_thinking is defined %}<think>\n\n</think>{% endif %}",
)  # fmt: skip

FENCED = '```json\n{\n  "name": "tide",\n  "arguments": {"port":"Brest"}\n}\n```'
QWEN = Family(
    tools="qwen2_5",
    outputs=(
        objects("<tool_call>\n", "\n</tool_call>", "\n"),
        Output(written='{"name": "tide", "arguments": {"port":"Brest"}}', calls=ONE),
        Output(written=FENCED, calls=ONE),
        Output(written=f"Like this: {FENCED}", content=f"Like this: {FENCED}"),
        Output(written=FENCED.replace("tide", "nosuch"), content=FENCED.replace("tide", "nosuch")),
        Output(written="```json\n[1, 2]\n```", content="```json\n[1, 2]\n```"),
        Output(written="```json\nnothing\n```", content="```json\nnothing\n```"),
        Output(written="```js\nf()\n```", content="```js\nf()\n```"),
        Output(written='<tool_call>{"name": "nosuch", "arguments": {}}</tool_call>', calls=[("nosuch", "{}")]),
        Output(written='{"name": "db", "port": 1}', content='{"name": "db", "port": 1}'),
    ),
    template="You are Qwen, created by Alibaba Cloud. <tool_call>{{ tools | tojson }}</tool_call>",
)

LLAMA = Family(
    tools="llama3_json",
    outputs=(
        objects("", "", "; ", "parameters"),
        objects("", "", ";", "parameters"),
        framed(objects("", "", "; ", "parameters"), "<|python_tag|>", ""),
        Output(written='Config: {"name":"ping","port":1}', content='Config: {"name":"ping","port":1}'),
        Output(written='{"name":"db","port":1}', content='{"name":"db","port":1}'),
        Output(written='{"name":"ping","port":1}', content='{"name":"ping","port":1}'),
        Output(written='{"name":"ping"}', content='{"name":"ping"}'),
        Output(written='{"name":"nosuch","parameters":{}}', content='{"name":"nosuch","parameters":{}}'),
        Output(written='{"type":"function","name":"ping","parameters":{}}', calls=[("ping", "{}")]),
    ),
    template="{% for m in messages %}<|start_header_id|>{{ m.role }}{% for c in m.tool_calls or [] %}"
    """{{ '{"name": "' + c.function.name + '", "parameters": ' }}{{ c.function.arguments | tojson }}}{% endfor %}"""
    "<|eot_id|>{% endfor %}",
)

MISTRAL = Family(
    tools="mistral",
    reasoning="mistral",
    outputs=(
        in_pairs("[TOOL_CALLS]", "[ARGS]", "", ""),
        in_pairs("[TOOL_CALLS]", "[CALL_ID]a1B2c3D4e[ARGS]", "", ""),
        framed(in_pairs("[TOOL_CALLS]", "[ARGS]", "", ""), "", "", content="I look."),
        framed(objects("", "", ", "), "[TOOL_CALLS] [", "]"),
        Output(written='[THINK]hm[/THINK][TOOL_CALLS]ping{"a": [1, [2]]}', reasoning="hm",
               calls=[("ping", '{"a": [1, [2]]}')]),
        Output(written="A list: [1, 2] [TOOL", content="A list: [1, 2] [TOOL"),
    ),
    template="[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][THINK][/THINK]"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments }}{% endfor %}",
)  # fmt: skip

MISTRAL_LIST = Family(
    tools="mistral_list",
    outputs=(framed(objects("", "", ", "), "[TOOL_CALLS] [", "]"), in_pairs("[TOOL_CALLS]", "[ARGS]", "", "")),
    template="[AVAILABLE_TOOLS] {{ tools }}[/AVAILABLE_TOOLS]{{ '[TOOL_CALLS] [' }}{{ calls }}{{ ']' }}",
)

GRANITE = Family(
    tools="granite",
    reasoning="granite",
    outputs=(
        framed(objects("", "", ", "), "<|tool_call|>[", "]"),
        framed(objects("", "", ", "), "<tool_call>[", "]</tool_call>"),
        Output(written="Here is my thought process: hm.\nHere is my response: Hi.", reasoning="hm.", content="Hi."),
    ),
    template="Here is my thought process: Here is my response: <|tool_call|>{{ calls }}",
)

GRANITE4 = Family(
    tools="granite4",
    outputs=(objects("<tool_call>\n", "\n</tool_call>", "\n"),),
    template="<|start_of_role|>assistant<|end_of_role|><tool_call>\n{{ call }}\n</tool_call>",
)

PHI4_MINI = Family(
    tools="phi4_mini_json",
    outputs=(
        framed(objects("", "", ", "), "functools[", "]"),
        Output(written="import functools\nfunctools.cache", content="import functools\nfunctools.cache"),
    ),
    template="{% if tools %}<|tool|>{{ tools }}<|/tool|>{% endif %}",
)

DEEPSEEK_V3 = Family(
    tools="deepseek_v3",
    reasoning="deepseek_r1",
    outputs=(
        framed(
            in_pairs("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n"),
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            content="I look.",
        ),
        Output(written="```json\n{}\n```", content="```json\n{}\n```"),
    ),
    template="</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ n }}\n```json\n{{ a }}\n```",
)

DEEPSEEK_V31 = Family(
    tools="deepseek_v31",
    reasoning="deepseek_r1",
    outputs=(
        framed(
            in_pairs("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", ""),
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            content="I look.",
        ),
    ),
    template="</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ n }}<｜tool▁sep｜>{{ a }}<｜tool▁call▁end｜>",
)

KIMI = Family(
    tools="kimi_k2",
    reasoning="kimi_k2",
    outputs=(
        framed(
            in_pairs("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", ""),
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            content="I look.",
        ),
        framed(  # without the section's end
            in_pairs("<|tool_call_begin|>functions.", ":7<|tool_call_argument_begin|> ", " <|tool_call_end|>", ""),
            "<|tool_calls_section_begin|>",
            "",
        ),
        Output(
            written="<think>x</think><|tool_call_begin|>ping<|tool_call_argument_begin|><|tool_call_end|>",
            reasoning="x",
            calls=[("ping", "{}")],
        ),
        Output(written="a <|tool_calls_section_begin|> b", content="a <|tool_calls_section_begin|> b"),
    ),
    template="<|im_middle|><think></think><|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ a }}<|tool_call_end|><|tool_calls_section_end|>",
)

INTERNLM = Family(
    tools="internlm",
    outputs=(
        Output(
            written='I look.<|action_start|><|plugin|>\n{"name": "put", "parameters": ' + HARD + "}<|action_end|>\n",
            content="I look.",
            calls=[("put", HARD)],
        ),
    ),
    template="<|im_start|>system name=<|plugin|>\n{{ tools }}",
)

JAMBA = Family(
    tools="jamba",
    outputs=(framed(objects("", "", ",\n    "), "<tool_calls>[\n    ", "\n]</tool_calls>", content="I look. "),),
    template="<tool_calls>[{{ calls }}]</tool_calls>",
)

HUNYUAN = Family(
    tools="hunyuan_a13b",
    outputs=(framed(objects("", "", ", "), "<tool_calls>[", "]</tool_calls>"),),
    template="<answer><tool_calls>[{{ calls }}]</tool_calls></answer>",
)

MINIMAX = Family(
    tools="minimax",
    outputs=(framed(objects("", "", "\n"), "<tool_calls>\n", "\n</tool_calls>"),),
    template="<beginning_of_sentence>ai<tool_calls>\n{{ calls }}\n</tool_calls>",
)

XLAM = Family(
    tools="xlam",
    outputs=(
        framed(objects("", "", ", "), "[", "]"),
        framed(objects("", "", ", "), "<tool_call>[", "]</tool_call>"),
        Output(written="[1, 2] and", content="[1, 2] and"),
    ),
)

JSON_FAMILIES = (
    *(
        HERMES,
        QWEN,
        LLAMA,
        MISTRAL,
        MISTRAL_LIST,
        GRANITE,
        GRANITE4,
        PHI4_MINI,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        KIMI,
        INTERNLM,
    ),
    *(JAMBA, HUNYUAN, MINIMAX, XLAM),
)
assert all(orjson.loads(text) is not None for text in (HARD, ONE[0][1]))
