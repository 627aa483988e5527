"""What each process of `relevo serve` has not imported when it is as far as it has to be.

Imports are most of a start: 0.1 s for numpy, 0.15 s for pydantic, and every process pays for its own. Turns red when a
module that a process does not need comes back into its way; then import it where it is used, or move what was wanted
from it. Not timed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_NEVER = (
    "torch",
    "transformers",
    "sqlalchemy",
    "matplotlib",
    "huggingface_hub",
    "gguf",
    "pydantic_settings",
    "opentelemetry",
    "grpc",
    "relevo.bench",
    "relevo.check",
    "cryptography",
    "relevo.build.kv_door",  # from here on: between boxes
    "relevo.build.gateway_cluster",
    "relevo.build.node_link",
)
_ON_DEMAND = (  # of a gateway: what the first request that needs it imports
    *("relevo.gateway.held.output", "relevo.gateway.held.schema", "relevo.gateway.generation.held_grammar"),
    *("relevo.gateway.openapi.document", "relevo.gateway.openapi.page"),
    *("relevo.policy.slowness.explain", "relevo.policy.tracing.request_spans"),
)
_OF_RANKS = (  # of a worker whose model several processes compute
    *("relevo.build.rank_processes", "relevo.engine.ranks.rank_group", "relevo.engine.ranks.ranked_model"),
)
_FOR_SETTINGS = ("pydantic", "typer", "rich", "relevo.settings")
_FOR_HTTP = ("uvicorn", "starlette", "jinja2", "tokenizers", "prometheus_client", "aiohttp")
_FOR_COMPUTING = ("numpy", "relevo_native", "relevo.engine.ops.protocol", "relevo.engine.runner")

_SUPERVISOR = """
from relevo.cli.main import make_app
make_app("serve")
from relevo.build.listening import open_listener
from relevo.build.serve import plan_serving, serving
from relevo.settings import Settings
settings = Settings(topology="1p1d", cores=("0",), share_cores=True, num_kv_blocks=16, database_url="memory")
with serving(settings, plan_serving(settings), open_listener("127.0.0.1", 0), print) as supervisor:
    assert len(supervisor.workers) == 2
"""

_GATEWAY = """
import relevo.cli.child
import relevo.build.gateway
from relevo.build.ledger import open_database
from relevo.build.tracing import check_tracing
from relevo.engine.loaders.tokenizer_files import load_tokenizer_files
from relevo.gateway.text.chat_template import ModelTemplates
from relevo.gateway.text.tokenizer import Tokenizer
open_database("memory")
assert check_tracing({"OTEL_SERVICE_NAME": "no address, no traces"}) is None
files = load_tokenizer_files()
assert ModelTemplates.from_files(files) and Tokenizer(files).encode("hello")
"""

_WORKER = """
import relevo.cli.child
import relevo.build.worker
from relevo.engine.loaders.resolve import load_model_files
from relevo.engine.models.decoder import Decoder
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.runner import LocalRunner
from relevo.engine.sampler import Sampler
ops = NativeOps()
name, tensor = next(load_model_files().tensors(None, ops.native_formats, "bfloat16"))
"""


@pytest.mark.model
@pytest.mark.parametrize(
    ("start", "unwanted"),
    [
        pytest.param(
            _SUPERVISOR,
            (*_NEVER, *_FOR_HTTP, *_FOR_COMPUTING, "rich", "relevo.build.gateway", "relevo.policy.tracing.words"),
            id="supervisor",
        ),
        pytest.param(_GATEWAY, (*_NEVER, *_ON_DEMAND, *_FOR_SETTINGS, *_FOR_COMPUTING, "aiohttp"), id="gateway"),
        pytest.param(
            _WORKER,
            (*_NEVER, *_FOR_SETTINGS, *_FOR_HTTP, *_OF_RANKS, "asyncio", "importlib.metadata"),
            id="worker",
        ),
    ],
)
def test_what_a_process_does_not_need_is_not_imported(start: str, unwanted: tuple[str, ...]) -> None:
    end = f"\nimport sys\nsys.stdout.write(' '.join(name for name in {unwanted!r} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", start + end], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
