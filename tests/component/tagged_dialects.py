"""Rows of the families that write arguments between tags; see `family_outputs`."""

from __future__ import annotations

from family_outputs import Call, Family, Output

BODY = 'a } " </tool_call> [\nsecond line'
THREE: list[Call] = [
    ("tide", '{"port":"Brest","day":2}'),
    ("ping", "{}"),
    ("put", '{"body":"a } \\" </tool_call> [\\nsecond line","parts":[{"x": "]"}, -1.5e3, null]}'),
]
VALUES = (
    ("tide", (("port", "Brest"), ("day", "2"))),
    ("ping", ()),
    ("put", (("body", BODY), ("parts", '[{"x": "]"}, -1.5e3, null]'))),
)


def three(head: str, parameter: str, tail: str, between: str, begin: str = "", end: str = "") -> Output:
    """Three calls; `NAME`, `KEY` and `VALUE` stand for their own."""
    calls = (
        head.replace("NAME", name)
        + "".join(parameter.replace("KEY", key).replace("VALUE", value) for key, value in arguments)
        + tail
        for name, arguments in VALUES
    )
    return Output(written=f"{begin}{between.join(calls)}{end}", calls=THREE)


def with_text(output: Output) -> Output:
    return Output(written=f"I look.\n\n{output.written}\n", calls=output.calls, content="I look.")


def template(call: str) -> str:
    return "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}" + call + "{% endfor %}{% endfor %}"


def function_family(tools: str, begin: str, end: str, *, is_recognised: bool = True) -> Family:
    calls = three(f"{begin}\n<function=NAME>\n", "<parameter=KEY>\nVALUE\n</parameter>\n", f"</function>\n{end}", "\n")
    return Family(
        tools=tools,
        outputs=(
            calls,
            with_text(calls),
            Output(written=f"{begin}\n<function=nosuch>\n</function>\n{end}", calls=[("nosuch", "{}")]),
            Output(written="<function=ping>\n</function>", calls=[("ping", "{}")]),
            Output(written=f"Write {begin} first.", content=f"Write {begin} first."),
            Output(
                written=f"{begin}\n<function=put>\n<parameter=body>\nuse </parameter> to close\n</parameter>\n"
                f"</function>\n{end}",
                calls=[("put", '{"body":"use </parameter> to close"}')],
            ),
        ),
        template=template(
            f"{begin}\n<function={{{{ c.function.name }}}}>\n{{% for k, v in c.function.arguments | items %}}"
            f"<parameter={{{{ k }}}}>\n{{{{ v }}}}\n</parameter>\n{{% endfor %}}</function>\n{end}"
        )
        if is_recognised
        else "",
    )


def glm_family(tools: str, line_end: str) -> Family:
    calls = three(
        f"<tool_call>NAME{line_end}",
        f"<arg_key>KEY</arg_key>{line_end}<arg_value>VALUE</arg_value>{line_end}",
        "</tool_call>",
        line_end,
    )
    return Family(
        tools=tools,
        outputs=(
            calls,
            with_text(calls),
            Output(written="<tool_call>ping</tool_call>", calls=[("ping", "{}")]),
            Output(
                written="<tool_call>put<arg_key>body</arg_key><arg_value>a </arg_value> b</arg_value></tool_call>",
                calls=[("put", '{"body":"a </arg_value> b"}')],
            ),
            Output(written="<tool_call> is a mark", content="<tool_call> is a mark"),
        ),
        template=template(
            f"<tool_call>{{{{ c.function.name }}}}{{% for k, v in c.function.arguments | items %}}"
            f"<arg_key>{{{{ k }}}}</arg_key>{line_end}<arg_value>{{{{ v }}}}</arg_value>{{% endfor %}}</tool_call>"
        ),
    )


def invoke_family(tools: str, begin: str, end: str, prefix: str, attribute: str = "") -> Family:
    calls = three(
        f'<{prefix}invoke name="NAME">\n',
        f'<{prefix}parameter name="KEY"{attribute}>VALUE</{prefix}parameter>\n',
        f"</{prefix}invoke>\n",
        "",
        f"{begin}\n",
        end,
    )
    apart = three(
        f'{begin}\n<{prefix}invoke name="NAME">\n',
        f'<{prefix}parameter name="KEY"{attribute}>VALUE</{prefix}parameter>\n',
        f"</{prefix}invoke>\n{end}",
        "\n",
    )
    return Family(
        tools=tools,
        outputs=(
            calls,
            with_text(calls),
            apart,
            Output(
                written=f'{begin}\n<{prefix}invoke name="put">\n<{prefix}parameter name="body"{attribute}>a '
                f"</{prefix}parameter> b</{prefix}parameter>\n</{prefix}invoke>\n{end}",
                calls=[("put", f'{{"body":"a </{prefix}parameter> b"}}')],
            ),
        ),
        template=template(
            f'{begin}\n<{prefix}invoke name="{{{{ c.function.name }}}}">\n<{prefix}parameter name="k"{attribute}>v'
            f"</{prefix}parameter>\n</{prefix}invoke>\n{end}"
        ),
    )


STEP3_CALLS = three(
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">\n',
    '<steptml:parameter name="KEY">VALUE</steptml:parameter>\n',
    "</steptml:invoke><｜tool_call_end｜>",
    "\n",
    "<｜tool_calls_begin｜>\n",
    "\n<｜tool_calls_end｜>",
)

TAGGED_FAMILIES = (
    function_family("qwen3_coder", "<tool_call>", "</tool_call>"),
    function_family("qwen3_xml", "<tool_call>", "</tool_call>", is_recognised=False),
    function_family("step3p5", "<tool_call>", "</tool_call>", is_recognised=False),
    function_family("mimo", "<tool_call>", "</tool_call>", is_recognised=False),
    function_family("seed_oss", "<seed:tool_call>", "</seed:tool_call>"),
    glm_family("glm45", "\n"),
    glm_family("glm47", ""),
    invoke_family("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", ""),
    invoke_family(
        "deepseek_v32", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", ' string="true"'
    ),
    invoke_family("deepseek_v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜", ' string="true"'),
    Family(
        tools="step3",
        outputs=(STEP3_CALLS, with_text(STEP3_CALLS)),
        template=template('<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">'),
    ),
)
