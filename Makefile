# SPDX-FileCopyrightText: 2026 The metactl_ros authors
# SPDX-License-Identifier: Apache-2.0

PYTHON ?= python3
VENV := .venv
PACKAGING := setup.py setup.cfg pyproject.toml

# What drives an arm needs Pinocchio only for one from a URDF: make demo ARM=fr3.
DRIVES := sim-ros$(if $(filter-out two_link,$(ARM)),-urdf)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test hil coverage lint format bench benchmark study nightly clean

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.$(DRIVES) ## fixed against learned gains over real ROS 2, with a picture
	$(VENV)/bin/metactl demo $(if $(ARM),--arm $(ARM))

test: $(VENV)/.sim-ros-urdf-train-dev ## the whole suite
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

hil: $(VENV)/.$(DRIVES) ## every scenario of faults over real ROS 2, with verdicts and pictures
	$(VENV)/bin/metactl hil --all $(if $(ARM),--arm $(ARM))

coverage: $(VENV)/.sim-ros-urdf-train-dev ## every branch of the control core, or fail
	$(VENV)/bin/python -m pytest --cov metactl_ros.control --cov-branch --cov-fail-under 100 \
	  --cov-report term-missing test/control test/test_config.py

lint: $(VENV)/.sim-ros-urdf-train-dev ## ruff, format check, mypy --strict
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: $(VENV)/.sim-ros-urdf-train-dev ## apply ruff's fixes and format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(VENV)/.sim-ros-urdf-train-dev ## measure speed, write results/bench.json
	$(VENV)/bin/python -m training.bench

benchmark: $(VENV)/.sim-ros-urdf-train-dev ## learned and classical controllers in every regime: docs/benchmark.md
	$(VENV)/bin/python -m training.benchmark

study: $(VENV)/.sim-ros-urdf-train-dev ## the paper's comparison, and our differences to it: docs/paper_*.md
	$(VENV)/bin/python -m training.paper_study
	$(VENV)/bin/python -m training.differences_page

nightly: $(VENV)/.sim-ros-urdf-train-dev ## slow proofs: every model learns, time is kept, faults are survived
	$(VENV)/bin/python -m training.sweep config/studies/nightly.yaml
	$(VENV)/bin/python -m training.report runs/sweep/nightly/results/*.json --out runs/nightly
	cp runs/nightly/runs.csv results/nightly_models.csv
	$(VENV)/bin/metactl bench --out results/ros_timing.json --headlines results/bench.json
	$(VENV)/bin/python test/hil_mutants.py
	PYTHONPATH=test:. $(VENV)/bin/python -m hostile.bags
	PYTHONPATH=test:. $(VENV)/bin/python -m hostile.bundles
	$(VENV)/bin/python test/hang_bench.py
	PYTHONPATH=test:. $(VENV)/bin/python -m hostile.yaml_files
	$(VENV)/bin/python -m training.false_alarms
	for seed in 7 8 9; do \
	  $(VENV)/bin/metactl hil --random --minutes 10 --seed $$seed && \
	  cp runs/random_faults/$$seed/random_faults.json results/random_faults_$$seed.json || exit 1; done
	$(VENV)/bin/python -m metactl_ros.hil.fault_table --out results/faults_after.json
	$(VENV)/bin/python test/fault_page.py

clean: ## remove the environment, builds and caches; runs/ stays
	rm -rf $(VENV) build dist install log .coverage .hypothesis *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One thread: small matrices only lose by more, and timings stay comparable.
test hil coverage bench benchmark study nightly: export OMP_NUM_THREADS := 1
test hil coverage bench benchmark study nightly: export OPENBLAS_NUM_THREADS := 1

# $(VENV)/.sim-ros says that the extras sim and ros are installed.
$(VENV)/.sim-ros $(VENV)/.sim-ros-urdf $(VENV)/.sim-ros-urdf-train-dev: $(VENV)/.%: $(PACKAGING) | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --editable '.[$(subst -,$(comma),$*)]'
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

comma := ,
