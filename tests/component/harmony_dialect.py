"""Rows of harmony, as gpt-oss writes; see `family_outputs`."""

from __future__ import annotations

from family_outputs import HARD, Family, Output

START = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>hm<|end|>"
CALLS = (("tide", '{"port": "Brest"}'),)


def call(name: str, arguments: str) -> str:
    return f"{START}<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def one(written: str, content: str = "") -> Output:
    return Output(written=written, calls=CALLS, content=content)


BODY = '<|message|>{"port": "Brest"}<|call|>'

HARMONY = Family(
    tools="openai",
    reasoning="openai_gptoss",
    outputs=(
        Output(written=f"{THOUGHT}{START}<|channel|>final<|message|>Done.<|return|>", content="Done.", reasoning="hm"),
        Output(written=f"{THOUGHT}{call('tide', CALLS[0][1])}<|call|>", calls=CALLS, reasoning="hm"),
        Output(
            written=f"{THOUGHT}{call('put', HARD)}<|call|>{call('ping', '')}<|call|>{call('tide', CALLS[0][1])}",
            calls=[("put", HARD), ("ping", "{}"), *CALLS],
            reasoning="hm",
        ),
        one(f"{START} to=functions.tide<|channel|>commentary json{BODY}"),
        one(f" to=functions.tide<|channel|>commentary{BODY}"),
        one(f"to=functions.tide<|channel|>commentary{BODY}"),
        one(f"{START} to=functions.tide<|constrain|>json{BODY}"),
        one(f"<|channel|>analysis to=functions.tide code{BODY}"),
        one(f"<|channel|>commentary to=functions.tide<|constrain|>json{BODY}"),
        one(f"<|channel|>commentary to=tide<|channel|>commentary{BODY}"),
        one(f"<|channel|>commentary<|message|>I look.<|end|>{call('tide', CALLS[0][1])}<|call|>", "I look."),
        one(f"{call('tide', CALLS[0][1])}"),
        one(f"I look.{call('tide', CALLS[0][1])}<|call|>", "I look."),
        Output(written="Plain words, no tokens.", content="Plain words, no tokens."),
        Output(written="to whom?", content="to whom?"),
        Output(written="assistants help", content="assistants help"),
        Output(written="<|channel|>final<|message|>a < b <|x|> c", content="a < b <|x|> c"),
        Output(written="<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b<|channel|>final<|message|>c",
               reasoning="ab", content="c"),
        Output(written=f"{START}<|message|>Hello<|end|>", content="Hello"),
        Output(written="<|channel|>final Hello there<|return|>", content="Hello there"),
        Output(written=f"{call('tide', '7')}<|call|>", content="7"),
        Output(written=f"{call('tide', 'null')}<|call|>", calls=[("tide", "{}")]),
        Output(written=f"{call('nosuch', '{}')}<|call|>", calls=[("nosuch", "{}")]),
        Output(written="<|end|><|end|><|message|>x<|constrain|>y<|call|>", content="xy"),
    ),
    template="<|start|>system<|message|>{{ x }}<|end|>{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{{ '<|channel|>analysis<|message|>' }}",
)  # fmt: skip
