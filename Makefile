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

# The tests that need a cluster wait more than they compute, so both halves run at the same time.
test: $(STAMP)
	@$(BIN)/python -m pytest -m "not ray" >$(VENV)/tests-without-ray.log 2>&1 & others=$$!; \
	trap 'kill $$others 2>/dev/null' INT TERM; \
	$(BIN)/python -m pytest -m ray; with_ray=$$?; \
	wait $$others; status=$$?; cat $(VENV)/tests-without-ray.log; \
	exit $$((with_ray ? with_ray : status))

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
