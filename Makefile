# Lockstep. `make help` lists the targets. Most targets require only Go and bash: `go run` fetches the tools at pinned
# versions.

SHELL      := /bin/bash
GO         ?= go
GOLANGCI   := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BUF        := $(GO) run github.com/bufbuild/buf/cmd/buf@v1.72.0
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS    := -s -w -X main.version=$(VERSION)

# Packages in which data races would lose messages.
CORE       := ./store/... ./replication/... ./failover/... ./server/... ./client/...

N          ?= 20
FUZZTIME   ?= 30s
CHAOS      ?= 30m
OVERLOAD   ?= 1h
ROUNDS     ?= 3
SEEDS      ?= 10000
DETECTION  ?= 7m
SETTINGS   ?= 2s/1500ms 1s/600ms
PEERS      ?= $(LOCKSTEP_PEERS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the static binary bin/lockstep
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/lockstep ./cmd/lockstep

.PHONY: release
release: ## Reproducible static binaries, .deb and .rpm for each platform in dist/, with bills of materials and checksums
	deploy/make-release.sh dist $(VERSION)
	deploy/make-packages.sh dist $(VERSION)

.PHONY: release-check
release-check: release ## Build a release twice, in different directories, and compare
	deploy/check-release.sh dist $(VERSION)

.PHONY: docs
docs: ## Build the documentation site into dist/site; requires Python 3.10 and PyPI
	test -x dist/docs-venv/bin/mkdocs || python3 -m venv dist/docs-venv
	dist/docs-venv/bin/pip install --quiet --disable-pip-version-check --requirement deploy/docs/requirements.txt
	dist/docs-venv/bin/mkdocs build --strict

.PHONY: generate
generate: ## Regenerate the code of the .proto files
	$(BUF) generate

.PHONY: check
check: ## Run CI: quick, the default tier, the race detector, foreign tests, a sample of the deep tier
	.ci/run

.PHONY: quick
quick: ## Check format, licences, go.mod, vet, lint, prose: before every merge
	.ci/run quick

.PHONY: static
static: ## Run quick and govulncheck; check .proto files, generated code, other platforms, reproducible builds
	.ci/run static

.PHONY: vulnerabilities
vulnerabilities: ## Run govulncheck; requires its database, https://vuln.go.dev
	.ci/run vulnerabilities

.PHONY: test
test: ## Run the default tier: unit and model tests, pairs in simulated time, smoke tests with processes
	$(GO) test ./...

.PHONY: test-deep
test-deep: ## Run the deep tier: chaos, mutation table, hostile clients, long simulation, memory, foreign clients; or SUITES='./test/chaos'
	test/deep.sh $(SUITES)

.PHONY: measure
measure: ## Report ratios, and allocation counts that depend on load; requires an idle machine
	-$(GO) test -tags measure ./test/guard -count=1 -timeout 1h -v
	-$(GO) test -tags measure ./server/node -run TestFleetOf100000Queues -count=1 -timeout 1h -v
	-$(GO) test -tags deep,measure ./test/sites/real -run 'TestLag|TestCost|TestReplicaOutage' -count=1 -timeout 3h -v
	-$(MAKE) ratios

.PHONY: race
race: ## Test the core packages with the race detector
	$(GO) test -race -short $(CORE)

.PHONY: lint
lint: ## Run golangci-lint
	$(GOLANGCI) run ./...

.PHONY: format
format: ## Format the Go code
	$(GOLANGCI) fmt ./...

.PHONY: buf
buf: ## Lint the .proto files, and check compatibility with the last release
	$(BUF) lint
	.ci/run buf-breaking

.PHONY: lab
lab: ## Build the benchmarks, bin/lockstep-lab
	$(GO) build -trimpath -o bin/lockstep-lab ./cmd/lockstep-lab

.PHONY: bench
bench: lab ## Run short versions of all benchmarks; PEERS=DIR adds other products (docs/reference/benchmarks.md)
	bin/lockstep-lab all $(if $(PEERS),--peers $(PEERS))

.PHONY: bench-long
bench-long: lab ## Run all benchmarks with the counts and rounds of docs/reference/benchmarks.md: hours
	bin/lockstep-lab all --long $(if $(PEERS),--peers $(PEERS))

.PHONY: demo-soak
demo-soak: build ## Run the demo N times (N=20); prints median and maximum of kill-to-next-ack
	test/demo-soak.sh bin/lockstep $(N)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	test/fuzz.sh $(FUZZTIME)

.PHONY: spec
spec: ## Check the TLA+ models in failover/spec with TLC, all configurations: hours; requires Java, and TLA2TOOLS=tla2tools.jar or network access
	failover/spec/check.sh

.PHONY: simulate
simulate: ## Simulate SEEDS (10000) pairs with faults
	$(GO) test -tags deep ./test/simulation/ -run 'TestSimulation|TestDisks' -count=1 -timeout 24h -v -seeds=$(SEEDS)

.PHONY: ratios
ratios: ## Measure the ratios in docs/decisions/measurements.md in ROUNDS (3) rounds; PEERS=DIR adds other products
	LOCKSTEP_RATIOS=$(ROUNDS) $(if $(PEERS),LOCKSTEP_PEERS=$(PEERS)) $(GO) test -tags measure ./test/ratios -run TestRatios -count=1 -timeout 3h -v

.PHONY: overload
overload: ## Run a pair under CPU overload for OVERLOAD (1h): no failover may occur
	LOCKSTEP_OVERLOAD=$(OVERLOAD) $(GO) test -tags deep ./test/chaos/ -run TestOverload -count=1 -timeout 24h -v

.PHONY: detection
detection: ## Measure false takeovers and dropped standbys of pairs with SETTINGS (timeout/drop-timeout), DETECTION (7m) in each situation
	$(GO) test -tags measure ./test/detection -run TestDetection -count=1 -timeout 24h -v -for $(DETECTION) -settings '$(SETTINGS)'

.PHONY: chaos
chaos: ## Run the chaos tests for CHAOS (30m)
	LOCKSTEP_CHAOS=$(CHAOS) $(GO) test -tags deep ./test/chaos/ -run TestChaos -count=1 -timeout 24h -v
