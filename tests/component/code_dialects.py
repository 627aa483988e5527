"""Rows of the families that write calls as code; see `family_outputs`."""

from __future__ import annotations

from family_outputs import Call, Family, Output

THREE: list[Call] = [
    ("tide", '{"port":"Brest","day":2}'),
    ("ping", "{}"),
    ("put", '{"body":"a } \\" </tool_call> [","parts":[{"x":"]"},-1.5e3,null]}'),
]
PYTHON = (
    'tide(port="Brest", day=2)',
    "ping()",
    """put(body='a } " </tool_call> [', parts=[{'x': "]"}, -1.5e3, None])""",
)
BODY = 'a } " </tool_call> ['
ODD = "[put(body='x]\n', parts=(2, (3)), from=1, at=-1.5)]"
ODD_CALL = [("put", '{"body":"x]\\n","parts":[2,3],"from":1,"at":-1.5}')]


def python(begin: str, between: str, end: str, content: str = "") -> Output:
    return Output(written=f"{content}{begin}{between.join(PYTHON)}{end}", calls=THREE, content=content.strip())


def gemma_family(tools: str, start: str, end: str, quote: str, template: str) -> Family:
    def text(value: str) -> str:
        return quote + value + quote

    calls = (
        f"call:tide{{port:{text('Brest')},day:2}}",
        "call:ping{}",
        f"call:put{{body:{text(BODY)},parts:[{{x:{text(']')}}},-1.5e3,null]}}",
    )
    written = "".join(f"{start}{call}{end}" for call in calls)
    return Family(
        tools=tools,
        outputs=(
            Output(written=written, calls=THREE),
            Output(written=f"I look.\n{written}", calls=THREE, content="I look."),
            Output(written=calls[0], calls=THREE[:1]),
            Output(written='call:put{m:{New York:"a, b"},parts:["p"]}',
                   calls=[("put", '{"m":{"New York":"a, b"},"parts":["p"]}')]),
            Output(written="call:nosuch{} is prose", content="call:nosuch{} is prose"),
        ),
        template=template,
    )  # fmt: skip


LISTS = (
    python("[", ", ", "]"),
    python("<|python_start|>[", ",", "]<|python_end|>"),
    python("<|python_start|>[", ",", "]<|python_end|>", "I look.\n"),
    Output(written=ODD, calls=ODD_CALL),
    Output(written="[nosuch(a=1)]", content="[nosuch(a=1)]"),
    Output(written="See [ping()].", content="See [ping()]."),
)

CODE_FAMILIES = (
    Family(
        tools="pythonic",
        outputs=LISTS,
        template="<|start_header_id|>{{ 'Write [func_name1(params_name1=params_value1), func_name2(params)]' }}"
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ),
    Family(
        tools="llama4_pythonic",
        outputs=LISTS,
        template="<|header_start|>{{ 'Write [func_name1(param1=value1)]' }}"
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ),
    Family(
        tools="olmo3",
        outputs=(
            python("<function_calls>\n", "\n", "\n</function_calls>"),
            python("<function_calls>", "\n", "</function_calls>", "I look.\n"),
            Output(written="Say <function_calls> here.", content="Say <function_calls> here."),
        ),
        template="<functions>{{ tools }}</functions> <function_calls>\nf(a='1')\n</function_calls>",
    ),
    Family(
        tools="lfm2",
        outputs=(
            python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
            python("<|tool_call_start|>[", ", ", "]<|tool_call_end|>", "I look."),
        ),
        template="<|tool_list_start|>{{ tools }}<|tool_list_end|>",
    ),
    Family(
        tools="gemma3",
        outputs=(
            python("```tool_code\n", "\n", "\n```"),
            python("```tool_code\n[", ", ", "]\n```", "I look.\n"),
            Output(written="```tool_code\nprint(1)\n```", content="```tool_code\nprint(1)\n```"),
        ),
        template="<start_of_turn>{{ 'wrap calls in ```tool_code' }}",
    ),
    gemma_family("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call>call:{{ name }}<tool_call|>"),
    gemma_family(
        "functiongemma", "<start_function_call>", "<end_function_call>", "<escape>", "<start_function_call>call:{{ f }}"
    ),
)
