# Needs Python 3.11 or newer with venv, and make. `make` alone lists the targets.
#
#   make serve SERVE_ARGS="--durability segment"     more options for the broker
#   make tests PYTEST_ARGS="tests/wire -x"           fewer tests
#   make test-pythons PYTHONS="3.13 3.14"            the tests on these versions of Python
#   make test TEST_SEED=7                            other orders of tasks, by trio's scheduler
#   make release VERSION=0.2.0                       the version to make
#   make test-spark-next SPARK_NEXT=4.2.1            another PySpark than the newest
#   make fuzz FUZZ_ARGS="--seed 7"                   the same requests again
#   make test-simulation SEEDS=5000 FIRST_SEED=9000  other seeds; SIMULATE_ARGS=--short for short ones

VENV := .venv
BIN := $(VENV)/bin
AUDIT_VENV := .venv-audit
AUDIT_BIN := $(AUDIT_VENV)/bin
SPARK_NEXT_VENV := .venv-spark-next
SPARK_NEXT ?= 4.3.0
SERVE_ARGS ?=
PYTEST_ARGS ?=
PYTHON ?=
PYTHONS ?= 3.11 3.12 3.13 3.14
BENCH_ARGS ?=
SHORT_SMOKE_SECONDS := 1
TEST_WORKERS := $(shell echo $$(( $$(nproc) * 3 / 2 ))) # tests wait for processes and disks for a quarter of their time
RUN_TESTS = $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "not java and not spark and not faults and not compose and not go and not helm and not observe and not browser and not site and not wheel" $(PYTEST_ARGS)
SEEDS ?= 2000
FIRST_SEED ?= 1
FUZZ_SECONDS ?= 180
FUZZ_ARGS ?=
HELM_VERSION := v3.22.0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help wheel serve test tests test-pythons check docs format release audit lock test-java test-spark test-spark-next test-simulation test-cluster-simulation test-faults test-cluster test-compose test-go test-helm test-wheel test-console test-secured fuzz test-observe has-prometheus has-java has-docker has-go bench bench-claims bench-cluster bench-console bench-freshness bench-groups bench-idle bench-memory bench-peers bench-profile bench-restore bench-smoke bench-spark bench-transactions clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target does; \
	  do printf '%-24s %s\n' "$$target" "$$does"; done

wheel: $(VENV)/installed-build ## Build dist/kafscale-VERSION-py3-none-any.whl, which pip, uvx and pipx take on any machine, and the sdist
	rm -f dist/kafscale-*
	$(BIN)/python -m build --outdir dist .

serve: $(VENV)/installed ## Set up everything and run the broker; its data goes to ./kafscale-data
	@exec $(BIN)/python -m kafscale serve $(SERVE_ARGS)

test: check ## Set up everything and run formatting, lint, types, import direction, tests and a short smoke run
	$(RUN_TESTS)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m bench.smoke --seconds $(SHORT_SMOKE_SECONDS))
	@echo "Left out, since they need more than Python or take long: make test-java, make test-spark, make test-spark-next, make test-faults, make test-compose, make test-go, make test-helm, make test-observe, make test-console, make test-wheel."

# The interpreter of $$version: as `python3.12` on the PATH, or the newest of pyenv's.
FIND_PYTHON = python=python$$version; "$$python" -c '' 2>/dev/null || \
	  python=$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python$$version 2>/dev/null | sort -V | tail -n 1)

test-pythons: ## Run the tests of `make test` on each Python of PYTHONS="3.11 3.12 3.13 3.14" that is installed, and say which are not
	@passed= failed= missing=; for version in $(PYTHONS); do \
	  $(FIND_PYTHON); \
	  if [ -z "$$python" ]; then missing="$$missing $$version"; continue; fi; \
	  echo "Python $$version: $$python, in .venv-$$version"; \
	  if $(MAKE) --no-print-directory tests VENV=.venv-$$version PYTHON="$$python"; \
	    then passed="$$passed $$version"; else failed="$$failed $$version"; fi; \
	done; \
	echo "Python: passed on$${passed:- none}, failed on$${failed:- none}, not installed:$${missing:- none}."; \
	[ -n "$$passed" ] && [ -z "$$failed" ]

tests: $(VENV)/installed-dev ## Run the tests alone
	$(RUN_TESTS)

check: $(VENV)/installed-dev ## All of `make test` but the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/installed-docs ## Build the documentation as a site with search in build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file deploy/site/mkdocs.yml
	$(BIN)/python -m pytest -m site --quiet tests/docs/test_site.py $(PYTEST_ARGS)
	@echo "The documentation is in build/site/index.html."

format: $(VENV)/installed-dev ## Format the code, and repair what lint can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-java: has-java $(VENV)/installed-dev ## Test with Kafka's own Java tools; needs Java 17 and Maven
	$(BIN)/python -m pytest -m java $(PYTEST_ARGS)

test-spark: has-java $(VENV)/installed-spark ## Test Spark's readers and writers; needs Java 17 and Maven
	$(BIN)/python -m pytest -m spark $(PYTEST_ARGS)

test-spark-next: has-java $(SPARK_NEXT_VENV)/installed-$(SPARK_NEXT) ## The same on PySpark SPARK_NEXT=4.3.0, in an environment of its own; without Iceberg, of which there is none for it
	$(SPARK_NEXT_VENV)/bin/python -m pytest -m spark $(PYTEST_ARGS)

test-simulation: $(VENV)/installed-dev ## Run SEEDS=2000 seeds of the simulation, from FIRST_SEED=1 on; minutes
	PYTHONHASHSEED=0 $(BIN)/python -m tests.devtools.simulate $(SEEDS) --first $(FIRST_SEED) $(SIMULATE_ARGS)

test-cluster-simulation: $(VENV)/installed-dev ## The same of several brokers on one bucket
	PYTHONHASHSEED=0 $(BIN)/python -m tests.devtools.simulate --cluster $(SEEDS) --first $(FIRST_SEED) $(SIMULATE_ARGS)

fuzz: $(VENV)/installed-dev ## Send a broker requests that are nearly right, for FUZZ_SECONDS=180
	$(BIN)/python -m tests.hostile.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

test-faults: $(VENV)/installed-dev ## Kill the broker many times under load, and count what is lost; takes minutes
	$(BIN)/python -m pytest -m faults $(PYTEST_ARGS)

test-cluster: $(VENV)/installed-dev ## Kill, suspend and restart brokers that share a bucket, under load; takes minutes
	$(BIN)/python -m pytest tests/faults/test_cluster.py tests/faults/test_cut_off.py -m faults --capture=no $(PYTEST_ARGS)

test-compose: has-docker $(VENV)/installed-dev ## Test the containers of compose.yaml; needs a Docker engine with Compose
	$(BIN)/python -m pytest -m compose --capture=no $(PYTEST_ARGS)

test-secured: $(VENV)/installed-dev ## Test the clients on brokers with TLS, logins and access control lists
	$(BIN)/python -m pytest tests/clients --secured -n 2 --dist loadfile -m "not faults and not go" $(PYTEST_ARGS)

test-wheel: $(VENV)/installed-dev $(VENV)/installed-build ## Run README's tour from the wheel, in empty environments of each installed Python; takes minutes
	$(BIN)/python -m pytest -m wheel $(PYTEST_ARGS)

test-go: has-go $(VENV)/installed-dev ## Test with franz-go, the Go client; needs Go
	$(BIN)/python -m pytest -m go $(PYTEST_ARGS)

test-console: $(VENV)/installed-dev ## Test the console's pages in Chromium; needs chromium and chromium-driver, and says so where they are missing
	$(BIN)/python -m pytest -m browser --capture=no $(PYTEST_ARGS)

test-helm: has-go $(VENV)/installed-dev ## Test the Helm chart: its manifests, and an upgrade on processes; needs Go, with which it builds Helm if there is none
	@command -v helm >/dev/null || test -x build/bin/helm || { echo "Building Helm into build/bin; this takes minutes"; \
	  GOBIN=$(CURDIR)/build/bin go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION); }
	$(BIN)/python -m pytest -m helm --capture=no $(PYTEST_ARGS)

test-observe: has-prometheus $(VENV)/installed-dev ## Evaluate all dashboards and alerts by Prometheus on live brokers; needs Debian's prometheus; takes minutes
	$(BIN)/python -m pytest -m observe --capture=no $(PYTEST_ARGS)

release: $(VENV)/installed-build ## Make a release of this clone, VERSION=0.2.0: changelog, commit, tag, wheel, sdist, checksums, image; publishes nothing
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'towncrier>=24.8'
	@PYTHON=$(BIN)/python .ci/release "$(VERSION)"

audit: $(AUDIT_VENV)/installed ## Write build/sbom.cdx.json, and ask a vulnerability service about what the image installs
	@mkdir -p build
	$(AUDIT_BIN)/cyclonedx-py requirements requirements/image.txt --pyproject pyproject.toml --mc-type application \
	  --spec-version 1.6 --output-reproducible --output-format JSON --output-file build/sbom.cdx.json
	$(AUDIT_BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements/image.txt \
	  --requirement requirements/spark.txt --requirement requirements/build.txt --progress-spinner off || { \
	  echo "make audit: not clean. Either a package has a known vulnerability, of which there is a table above; or the" >&2; \
	  echo "service could not be asked about one (an ERROR line above), and then nothing is known of it." >&2; exit 1; }

lock: $(AUDIT_VENV)/installed ## Write anew which versions and hashes the images install (requirements/), as of today
	$(LOCK) --extra console --output-file requirements/image.txt pyproject.toml
	$(LOCK) --extra iceberg --constraint requirements/image.txt --output-file requirements/spark.txt pyproject.toml
	sed -i '/^# WARNING: pip install/,+3d' requirements/spark.txt # the project itself, which an extra of it names
	$(LOCK) --only-build-deps --build-deps-for wheel --output-file requirements/build.txt pyproject.toml

# Neither addresses of an index nor of this machine get into the files. Python 3.11 is the image's.
LOCK = env --unset=PIP_FIND_LINKS $(AUDIT_BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe \
  --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

has-prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || \
	  { echo "This target needs Prometheus (prometheus and promtool on the PATH; on Debian: apt install prometheus)." >&2; exit 1; }

has-java:
	@version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	  { [ "$${version:-0}" -ge 17 ] && command -v mvn >/dev/null; } || \
	  { echo "This target needs Java 17 or newer and Maven (java and mvn on the PATH)." >&2; exit 1; }

has-docker:
	@docker info >/dev/null 2>&1 || { echo "make test-compose needs a Docker engine that answers \`docker info\`." >&2; exit 1; }
	@docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || \
	  { echo "make test-compose needs \`docker compose\` or \`docker-compose\`." >&2; exit 1; }

has-go:
	@command -v go >/dev/null || { echo "This target needs Go (go on the PATH)." >&2; exit 1; }

bench-restore: $(VENV)/installed-dev ## Start a broker on a bucket of 100,000 segments, from a directory and from S3
	$(BIN)/python -m bench.restore

bench: $(VENV)/installed-dev ## Measure produce and consume on this machine
	$(BIN)/python -m bench.produce
	$(BIN)/python -m bench.consume

bench-claims: $(VENV)/installed-dev ## Show each claim of the sources, on against off; takes 20 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.claims

bench-peers: has-java $(VENV)/installed-dev ## Measure beside Apache Kafka; needs Java 17 and Maven, and hours unless BENCH_ARGS=--rows
	$(BIN)/python -m bench.peers --docs --seconds 30 --warm-up 10 --rounds 3 $(BENCH_ARGS)

bench-transactions: has-java $(VENV)/installed-dev ## Measure transactions beside Apache Kafka; takes 12 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.transactions --docs --seconds 3 --warm-up 1 --rounds 3 $(BENCH_ARGS)

bench-cluster: $(VENV)/installed-dev ## Measure several brokers, also beside three of Apache Kafka where there are Java 17 and Maven; takes 15 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.cluster --docs --seconds 10 --warm-up 3 --rounds 3 $(BENCH_ARGS)

bench-spark: has-java $(VENV)/installed-spark ## Measure Spark on the bucket beside Spark's Kafka source, on Kafka and on us; takes 40 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.spark --docs $(BENCH_ARGS)

bench-freshness: has-java $(VENV)/installed-spark ## Measure how fresh Spark's reads are, and what that costs; takes 12 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.spark.freshness --docs $(BENCH_ARGS)

bench-memory: $(VENV)/installed-dev ## Show that memory is bounded while the store is stalled; takes 13 minutes, writes bench/results and docs/benchmarks
	$(BIN)/python -m bench.memory $(BENCH_ARGS)

bench-profile: $(VENV)/installed-dev ## Sample where the CPU time of each load goes; takes a few minutes, writes bench/results/profiles
	$(BIN)/python -m bench.profile $(BENCH_ARGS)

bench-groups: $(VENV)/installed-dev ## Measure a start with 100,000 consumer groups, and what committing an offset costs; takes two minutes
	$(BIN)/python -m bench.groups $(BENCH_ARGS)

bench-console: $(VENV)/installed-dev ## Measure what an open page of the console costs the broker; takes 4 minutes
	$(BIN)/python -m bench.console_open $(BENCH_ARGS)

bench-idle: $(VENV)/installed-dev ## Measure a start, and the CPU of a broker that idles with 1,000 partitions; takes 4 minutes
	$(BIN)/python -m bench.idle $(BENCH_ARGS)

bench-smoke: $(VENV)/installed-dev ## Measure the main loads against a calibration loop, to see a slow-down; takes a minute
	$(BIN)/python -m bench.smoke $(BENCH_ARGS)

clean: ## Remove what the targets above made, but not ./kafscale-data
	rm -rf $(VENV) .venv-3.* $(AUDIT_VENV) $(SPARK_NEXT_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find kafscale tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says what is installed, so that only a changed pyproject.toml installs again. The package itself is installed
# in place: a changed module needs nothing.
$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing KafScale into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[console]'
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "Installing KafScale and the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: pyproject.toml | $(VENV)/bin/python
	@echo "Installing KafScale, the tools of the documentation and the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	@touch $(VENV)/installed $(VENV)/installed-dev $@

$(VENV)/installed-spark: pyproject.toml | $(VENV)/bin/python
	@echo "Installing KafScale, Spark and the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,notebook]'
	@touch $(VENV)/installed $(VENV)/installed-dev $@

$(AUDIT_VENV)/installed: requirements/audit.txt | $(VENV)/bin/python
	@echo "Installing the tools of make audit and make lock into $(AUDIT_VENV)"
	@$(BIN)/python -m venv $(AUDIT_VENV)
	@$(AUDIT_BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(VENV)/installed-build: | $(VENV)/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2'
	@touch $@

# The newest PySpark that the extra `spark` takes: `iceberg`, which `test-spark` has, keeps to an older one.
$(SPARK_NEXT_VENV)/installed-$(SPARK_NEXT): pyproject.toml | $(VENV)/bin/python
	@echo "Installing KafScale, PySpark $(SPARK_NEXT) and the development tools into $(SPARK_NEXT_VENV)"
	@rm -f $(SPARK_NEXT_VENV)/installed-*
	@$(BIN)/python -m venv $(SPARK_NEXT_VENV)
	@$(SPARK_NEXT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]' pyspark==$(SPARK_NEXT)
	@touch $@

$(VENV)/bin/python:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    rm -rf $(VENV) && "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; exit 0; \
	  fi; \
	done; \
	echo "KafScale needs Python 3.11 or newer with venv (on Debian: apt install python3 python3-venv)." >&2; exit 1
