# Every target sets up what it needs in .venv. To use an environment of your own instead (with the
# torch for your card): make demo PY=python DEVICE=cuda

PYTHON ?= python3
VENV ?= .venv
DEVICE ?= cpu
ARGS ?=
WORKERS ?= 2

ifdef PY
demo_env :=
bench_env :=
test_env :=
else
PY := $(VENV)/bin/python
demo_env := $(VENV)/.demo
bench_env := $(VENV)/.bench
test_env := $(VENV)/.test
endif

.PHONY: help demo test bench bench-mi300 lint format fuzz sanitize clean

help:
	@echo "make demo         compile an FP8 Llama; fusions, refusals, numerics, times; writes out/"
	@echo "make test         run every test (ARGS= for pytest, WORKERS=2)"
	@echo "make bench        the standard tables and pictures (python -m benchmarks for single ones)"
	@echo "make bench-mi300  on an MI300, with PY=python: ours beside published numbers"
	@echo "make lint         ruff and mypy"
	@echo "make format       let ruff format the Python"
	@echo "make fuzz         the long run of the property tests"
	@echo "make sanitize     the CPU kernels' tests under the address and undefined sanitizers"
	@echo "make clean        remove .venv, out and caches of the tools"
	@echo "PY=python uses your environment instead of .venv; DEVICE=cuda runs on your card."

demo: $(demo_env)
	@echo "building the kernels (once)"
	@$(PY) -c "from mi300_inductor import build; build.load_kernels('$(if $(filter cpu,$(DEVICE)),CPU,CUDA)')"
	@$(PY) -m benchmarks.demo --device $(DEVICE) $(ARGS)

test: $(test_env)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

bench: $(bench_env)
	$(PY) -m benchmarks all --device $(DEVICE) --json out/bench --plot out/bench $(ARGS)

bench-mi300:
	@test "$(PY)" != "$(VENV)/bin/python" || \
		{ echo "make bench-mi300 PY=python: in the environment that has torch for ROCm"; exit 1; }
	$(PY) -m benchmarks mi300 --json out/bench $(ARGS)

lint: $(test_env)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(test_env)
	$(PY) -m ruff format .

fuzz: $(test_env)
	$(PY) -m pytest -k fuzz --hypothesis-profile=fuzz $(ARGS)

sanitize: $(test_env)
	$(PY) -m tests.sanitized $(ARGS)

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.demo $(VENV)/.bench $(VENV)/.test: $(VENV)/.%: pyproject.toml .ci/constraints.txt
	@echo "setting up $(VENV) for $* (once)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint .ci/constraints.txt --editable ".[$*]"
	@touch $@
