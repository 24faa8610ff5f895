# Each target sets itself up: where only make and Python (3.11 to 3.13) are there, it creates .venv and installs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NAME ?= capture_cost
EVAL_DIR ?= results

.PHONY: eval test check format bench clean

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "gym-ray needs Python 3.11 to 3.13; set PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,dev]'
	if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite; fi
	touch $(STAMP)

eval: $(STAMP)
	$(BIN)/gym-ray eval run \
	  --resources-server mcqa --resources-server order_desk --model-type local_model \
	  --input examples/mixed.jsonl --output $(EVAL_DIR)/rollouts.jsonl \
	  ++observability_enabled=true ++model_call_capture_dir="$(abspath $(EVAL_DIR))/model-calls"

# Most tests wait more than they compute, so three parts of them run at the same time; the output of two comes at the end.
# The first of these begins with tests that need no Ray, and goes on with those that start clusters of their own.
BELOW := tests/token_id_capture tests/vectors tests/storage tests/settings tests/testing tests/evidence tests/dialects tests/rollouts
OWN_CLUSTERS := $(addprefix tests/actors/,test_jobs.py test_membership.py test_doctor.py test_cluster_faults.py test_two_nodes.py test_surviving_commands.py) \
  tests/test_readme.py tests/cli tests/examples

test: $(STAMP)
	@{ status=0; $(BIN)/python -m pytest -m "not ray" $(BELOW) || status=$$?; \
	  $(BIN)/python -m pytest -m ray $(OWN_CLUSTERS) || status=$$?; exit $$status; } >$(VENV)/tests-below.log 2>&1 & below=$$!; \
	$(BIN)/python -m pytest -m "not ray" $(addprefix --ignore=,$(BELOW)) >$(VENV)/tests-above.log 2>&1 & above=$$!; \
	trap 'kill $$below $$above 2>/dev/null' INT TERM; \
	$(BIN)/python -m pytest -m ray $(addprefix --ignore=,$(OWN_CLUSTERS)); status=$$?; \
	wait $$below || status=$$?; wait $$above || status=$$?; \
	cat $(VENV)/tests-below.log $(VENV)/tests-above.log; \
	exit $$status

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy gym_ray actors

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/$(NAME).py

clean:
	rm -rf build dist *.egg-info results outputs benchmarks/results
