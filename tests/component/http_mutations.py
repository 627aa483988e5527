"""Requests as bytes: good ones, and what a careless or hostile client makes of them. Hypothesis strategies."""

from __future__ import annotations

import orjson
from hypothesis import strategies as st

from relevo.gateway.anthropic.schemas import MessagesFields
from relevo.gateway.openai.schemas import ChatFields, CompletionFields, DetokenizeFields, TokenizeFields
from relevo.gateway.responses.schemas import ResponseFields

SCHEMAS = {
    b"/v1/completions": (CompletionFields, {"prompt": "hi", "max_tokens": 2}),
    b"/v1/chat/completions": (ChatFields, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    b"/v1/messages": (MessagesFields, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    b"/v1/responses": (ResponseFields, {"model": "tiny", "input": "hi", "max_output_tokens": 2}),
    b"/tokenize": (TokenizeFields, {"prompt": "hi"}),
    b"/detokenize": (DetokenizeFields, {"tokens": [1, 2]}),
}
PATHS = (
    *SCHEMAS,
    *(b"/", b"/v1/models", b"/v1/models/a%2Fb", b"/v1/usage?since=1d", b"/health", b"/ready", b"/metrics", b"/version"),
    *(b"/v1/../metrics", b"//", b"*", b"http://localhost/v1/models", b"/%00", b"/%zz", b"/v1/models/\xc3\xa9", b""),
)
METHODS = st.sampled_from((b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"CONNECT", b"PRI", b"get", b"X"))
VERSIONS = st.sampled_from((b"HTTP/1.1",) * 8 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"http/1.1", b""))
HEADERS = st.sampled_from(
    (
        *(
            b"Connection: close",
            b"Connection: keep-alive",
            b"Connection: Upgrade\r\nUpgrade: h2c",
            b"Expect: 100-continue",
        ),
        *(b"Expect: x", b"Accept: */*", b"Authorization: Bearer x", b"Authorization: Basic \xff", b"x-api-key: a"),
        *(b"x-request-id: \xff", b"x-request-id: " + b"a" * 200, b"x-request-timeout: 0.5", b"x-request-timeout: nan"),
        *(b"x-relevo-priority: -1", b"x-relevo-explain: 1", b"Content-Encoding: gzip", b"Content-Type: text/plain"),
        *(b"Content-Type: application/json; charset=utf-16", b"Host: other", b"Origin: null", b"Cookie: a=b; c"),
        *(b"X: " + b"a" * 5000, b"X:", b": x", b"X y: z", b" folded", b"X\0: y", b"X: a\0b", b"TE: trailers"),
        *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 1e3", b"Transfer-Encoding: chunked"),
        *(
            b"Transfer-Encoding: gzip",
            b"x-llm-d-slo-ttft-ms: 1e400",
            b"x-session-affinity: \xf0\x9f\x98\x80",
            b"Forwarded: \x7f",
        ),
    )
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ("1" + "0" * 400, "-1" + "0" * 400, "1e999", "-1e400", "NaN", "Infinity", "-0", "0.1e-9", "01", "+1")
    ),
)
TEXTS = st.one_of(
    st.text(max_size=8).map(lambda text: orjson.dumps(text.encode("utf-8", "replace").decode()).decode()),
    st.sampled_from(('"\\ud800"', '"\\u0000"', '"' + "a" * 3000 + '"', '"\\x"', '"', "'a'", '"\\ud83d\\ude00"')),
)
VALUES = st.one_of(
    NUMBERS,
    TEXTS,
    st.sampled_from(
        (
            *(
                "null",
                "true",
                "[]",
                "{}",
                "[[]]",
                '{"":{}}',
                "[" * 300 + "]" * 300,
                "[" * 300,
                '{"a":' * 150 + "1" + "}" * 150,
            ),
            *(
                '[{"role":"user"}]',
                '[{"role":"tool","content":[{"type":"text"}]}]',
                '{"type":"json_object"}',
                '["a","b"]',
            ),
        )
    ),
    st.lists(NUMBERS, max_size=3).map(lambda each: "[" + ",".join(each) + "]"),
    st.tuples(TEXTS, NUMBERS).map(lambda pair: "{" + ":".join(pair) + "}"),
)
SEPARATORS = st.sampled_from((",",) * 12 + (",,", "", ";"))


@st.composite
def json_bodies(draw: st.DrawFn, path: bytes) -> bytes:
    schema, needed = SCHEMAS.get(path, (CompletionFields, {}))
    members = {name: orjson.dumps(value).decode() for name, value in needed.items()}
    names = draw(st.lists(st.sampled_from(schema.__struct_encode_fields__), max_size=3))
    pairs = [*members.items(), *((name, draw(VALUES)) for name in names)]
    text = "{" + draw(SEPARATORS).join(f'"{name}":{value}' for name, value in pairs) + "}"
    encoding = draw(st.sampled_from(("utf-8",) * 12 + ("utf-8-sig", "utf-16", "utf-32", "latin-1")))
    return text.encode(encoding, "replace")


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    size = draw(st.integers(1, 40))
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    extension = draw(st.sampled_from((b"",) * 5 + (b";a=b", b";" + b"x" * 500, b" ", b"\n")))
    trailer = draw(
        st.sampled_from(
            (b"",) * 5 + (b"Authorization: Bearer x\r\n", b"X: y\r\n", b"Content-Length: 3\r\n", b"bad\r\n")
        )
    )
    last = draw(st.sampled_from((b"0",) * 6 + (b"", b"00", b"f" * 17, b"-1")))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return chunks + last + b"\r\n" + trailer + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    path = draw(st.sampled_from(PATHS))
    method = draw(METHODS) if draw(st.integers(0, 4)) == 0 else (b"POST" if path in SCHEMAS else b"GET")
    body = draw(json_bodies(path)) if method == b"POST" else b""
    lines = [b" ".join((method, path, draw(VERSIONS)))]
    if draw(st.integers(0, 15)):
        lines.append(b"Host: localhost")
    if draw(st.integers(0, 7)):
        lines.append(b"Content-Type: application/json")
    lines += draw(st.lists(HEADERS, max_size=2 if draw(st.booleans()) else 0))
    if body and draw(st.integers(0, 2)) == 0:
        lines.append(b"Transfer-Encoding: chunked")
        body = draw(chunked(body))
    elif body:
        wrong = draw(st.sampled_from((0,) * 10 + (-1, 1, 7)))
        lines.append(b"Content-Length: %d" % max(0, len(body) + wrong))
    end = draw(st.sampled_from((b"\r\n",) * 20 + (b"\n", b"\r", b"\r\n ")))
    return end.join((*lines, b"", b"")) + body


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """What one connection sends, in the segments in which it comes."""
    data = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.sampled_from((0, 0, 0, 0, 1, 3)))):
        place = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[place] = draw(st.integers(0, 255))
            case 1:
                del data[place : place + draw(st.integers(1, 8))]
            case 2:
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
            case _:
                data[place:place] = data[place : place + draw(st.integers(1, 40))]
        if not data:
            data += b"\0"
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
