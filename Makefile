# Everything a person runs here. `make help` lists it. Nothing is installed outside this folder, but for uv's cache (about 3 GB in
# ~/.cache/uv) and Spark's jars (0.2 GB in ~/.ivy2*).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)

PIP_AUDIT_VERSION := 2.10.1

MERMAID := .cache/mermaid.min.js
MERMAID_VERSION := 11.9.0
MERMAID_SHA256 := 0b3ed4374117363815daefdadfcc20ff704d7dd4513b55ed803abddcbd86a898

QUICK := "not clients and not faults"

.DEFAULT_GOAL := help
.PHONY: help install demo dev docs test lint collected advisories test-clients clients-document test-faults vault-setup bench-setup bench lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

install: $(INSTALLED) ## make .venv with the locked dependencies and the tidelog command

$(INSTALLED): requirements.lock pyproject.toml
	@echo "1/5 Make a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv==0.13.8
	@echo "2/5 Install the locked dependencies: about a minute the first time"
	@$(BIN)/uv pip sync --compile-bytecode --python $(BIN)/python requirements.lock
	@echo "3/5 Install the tidelog command"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@echo "4/5 Compile Tidelog to bytecode"  # an agent's start is twice as long without
	@$(BIN)/python -m compileall -q agent cache_ring compactor erasure pyspark_tidelog recovery sequencer spark_compaction spark_source storage tidelog
	@echo "5/5 Compile native kernels: half a minute the first time"  # once here, not at their first use
	@$(BIN)/python -W ignore -c "import sequencer.commits.commit_kernels, storage.arrow.latest_keys, storage.batches.produced_batches"
	@touch $@
	@echo "Installed. Next: make demo, or make dev"

demo: install ## the whole path on real data, in under three minutes
	$(BIN)/tidelog demo

dev: install ## an interactive stack until Ctrl-C
	$(BIN)/tidelog dev

docs: install $(MERMAID) ## write docs/kafka-api.md and docs/configuration.md from the code; build the site into site/
	$(BIN)/python -m agent.kafka.api_document
	$(BIN)/python -m tidelog.configuration_page
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Built. Open site/index.html"

# What draws the site's diagrams: 2.7 MB, so it is not in the repository. Without npm they are shown as text.
$(MERMAID):
	@mkdir -p $(@D)
	@if npm pack --silent --pack-destination $(@D) mermaid@$(MERMAID_VERSION) > /dev/null \
		&& tar -xzOf $(@D)/mermaid-$(MERMAID_VERSION).tgz package/dist/mermaid.min.js > $@.part \
		&& echo "$(MERMAID_SHA256)  $@.part" | sha256sum --check --status; \
	then mv $@.part $@; else rm -f $@.part; echo "No mermaid from npm: the site shows diagrams as text"; fi
	@rm -f $(@D)/mermaid-$(MERMAID_VERSION).tgz

lint: install ## ruff, mypy --strict (tests and benchmarks, too), import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install ## all checks and tests except the two suites below
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint collected
	$(BIN)/python -m pytest -n 3 --dist loadfile -m $(QUICK)

collected: install  # compiles the tests' modules while mypy has the other core; each worker would do it otherwise
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -qq --collect-only -m $(QUICK) > /dev/null || true  # the run tells

test-clients: install ## clients in Go, JavaScript and Rust, where their toolchains are; Kafka Connect, Debezium, Flink, a schema registry
	$(BIN)/python -m tests.clients.toolchains
	$(BIN)/python -m pytest -n 2 --dist loadfile -m clients tests/clients

clients-document: install ## every client's tests, and docs/clients.md from their results
	$(BIN)/python -m tests.clients.toolchains
	$(BIN)/python -m pytest tests/clients --ignore=tests/clients/test_matrix.py --clients-document=docs/clients.md

test-faults: install ## kills and hostile input
	$(BIN)/python -m pytest -n 2 --dist loadfile -m faults

vault-setup: install ## HashiCorp Vault for its tests, by name (Go, some minutes); without it they are skipped
	$(BIN)/python -m tests.support.vault

bench-setup: install ## MinIO, Apache Kafka and Tansu for make bench, by name
	$(BIN)/python -W ignore -m benchmarks.setup

bench: install ## compare Tidelog with its peers and the raw store; writes RESULTS.md
	$(BIN)/python -W ignore -m benchmarks

# Exit status 1 is both a finding and an error, so the report is asked. The database is not a package registry.
advisories: install ## known weaknesses of the locked packages; says so if the advisory database is not reachable
	@mkdir -p .cache
	@timeout --kill-after=5 60 $(BIN)/uv tool run --quiet pip-audit==$(PIP_AUDIT_VERSION) \
		--vulnerability-service osv --timeout 10 --requirement requirements.lock --require-hashes --disable-pip \
		--progress-spinner off > .cache/advisories.txt 2>&1 < /dev/null; status=$$?; \
	if grep -q "known vulnerabilit" .cache/advisories.txt; then cat .cache/advisories.txt; exit $$status; \
	else echo "No advisories were checked: no answer of the database within 60 s (.cache/advisories.txt says why)"; fi

lock: ## resolve pyproject.toml into requirements.lock, and a test's packages into theirs
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra backup --extra all --group dev --group docs pyproject.toml -o requirements.lock
	cd tests/clients/avro && $(CURDIR)/$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes requirements.in -o requirements.lock

clean: ## remove what install and tests made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache site tests/clients/node/node_modules
