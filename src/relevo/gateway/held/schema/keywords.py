"""What is done with each keyword of a JSON schema: one rule for each, and no keyword without one.

`held`: an answer cannot break it. `held in part`: within what the sentence says; the rest is not held. `no effect`: it
describes and forbids nothing. `not held`: refused in a strict schema, by name and place; elsewhere dropped, with a
note. The guide's table is made from this one. Source: JSON Schema 2020-12, its older drafts, OpenAPI 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Keyword:
    name: str
    rule: Literal["held", "held in part", "no effect", "not held"]
    says: str


KEYWORDS = (
    Keyword("type", "held", "one name or a list of them"),
    Keyword("enum", "held", "up to 20,000 values and more, written as in the schema"),
    Keyword("const", "held", "written as in the schema"),
    Keyword("nullable", "held", "OpenAPI's: `null` besides the type"),
    Keyword("properties", "held", "in the schema's order; names have one spelling, so that a declared one comes once"),
    Keyword("required", "held", "a name that is not declared is held to `additionalProperties`"),
    Keyword("additionalProperties", "held", "behind the declared ones; a name that is not declared may come twice"),
    Keyword("patternProperties", "held in part", "up to 4 patterns for one object"),
    Keyword("propertyNames", "held in part", "schemas of strings"),
    Keyword("minProperties", "held in part", "as far as declared names can fill it, since others may come twice"),
    Keyword("maxProperties", "held", ""),
    Keyword("items", "held", "a schema, or a list of them in older drafts"),
    Keyword("prefixItems", "held", ""),
    Keyword("additionalItems", "held", "of older drafts"),
    Keyword("minItems", "held", ""),
    Keyword("maxItems", "held", ""),
    Keyword("minLength", "held", "in characters"),
    Keyword("maxLength", "held", "in characters; above 1,000,000 no answer reaches it"),
    Keyword("pattern", "held in part", "without look-around, backreferences, word boundaries and Unicode properties"),
    Keyword("format", "held in part", "the formats listed below"),
    Keyword("minimum", "held", "exact by digits, however large"),
    Keyword("maximum", "held", "exact by digits, however large"),
    Keyword("exclusiveMinimum", "held", "a number, or `true` as in draft 4"),
    Keyword("exclusiveMaximum", "held", "a number, or `true` as in draft 4"),
    Keyword("multipleOf", "held in part", "of limits below 2^53"),
    Keyword("allOf", "held", ""),
    Keyword("anyOf", "held", ""),
    Keyword("oneOf", "held in part", "where no value can be of two branches; elsewhere it is held as `anyOf`"),
    Keyword("$ref", "held", "into the same schema, recursion included; its siblings count too"),
    Keyword("$defs", "no effect", "holds what `$ref` names"),
    Keyword("definitions", "no effect", "holds what `$ref` names"),
    Keyword("unevaluatedProperties", "held in part", "beside `properties` alone, where it is `additionalProperties`"),
    Keyword("unevaluatedItems", "held in part", "beside `prefixItems` alone, where it is `items`"),
    *(
        Keyword(name, "no effect", "describes")
        for name in (
            *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
            *("$schema", "$id", "id", "$comment", "$anchor", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor"),
            *("contentMediaType", "contentEncoding", "contentSchema", "discriminator", "xml", "externalDocs"),
            *("enumNames", "enumDescriptions", "markdownDescription", "errorMessage"),
        )
    ),
    Keyword("x-…", "no effect", "every name that begins with `x-`"),
    *(
        Keyword(name, "not held", says)
        for names, says in (
            (("uniqueItems",), "unless it is false or there is one item at most"),
            (("contains", "minContains", "maxContains"), "a grammar cannot count some items among others"),
            (("if", "then", "else"), "a condition on the rest of an object"),
            (("not",), "unless it is an empty schema or names types alone"),
            (("dependentRequired", "dependentSchemas", "dependencies"), "a condition on the rest of an object"),
            (("$dynamicRef", "$recursiveRef"), "which schema it means depends on the way to it"),
        )
        for name in names
    ),
)
BY_NAME = {keyword.name: keyword for keyword in KEYWORDS}


def is_without_effect(name: str) -> bool:
    return name.startswith("x-") or (name in BY_NAME and BY_NAME[name].rule == "no effect")


def why_not_held(name: str) -> str:
    return "cannot be held" if name in BY_NAME else "is no keyword of JSON Schema"
