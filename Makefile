# On a fresh machine, `make demo` and `make test` need no other setup.
TIERS = cargo run --locked --quiet --package tailyard-kit --bin tiers --
# A directory of its own: clippy and the compiler run side by side.
LINT = $(or $(CARGO_TARGET_DIR),target)/lint
CLUSTER = cargo run --locked --quiet --package tailyard-kit --bin cluster --
# As in the image: glibc returns freed memory.
export MALLOC_ARENA_MAX = 1
export MALLOC_TRIM_THRESHOLD_ = 131072
export MALLOC_MMAP_THRESHOLD_ = 131072
.DEFAULT_GOAL := help
.PHONY: help setup servers build image demo cluster cluster-down cluster-status cluster-load-image check test test-repeat bench bench-smoke bench-report soak upgrade style lint deny fuzz

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the programs that demo, test and bench run (Debian packages; needs root if one is missing)
	@tests/setup

servers: setup ## Build and cache the real servers of tests and cluster (tailscaled, headscale, Kubernetes, etcd, containerd...)
	@tests/servers/build >/dev/null

build: ## Build the release binary: target/release/tailyard
	cargo build --release --locked

image: setup build ## Build the image and its SBOM, without a container engine: target/image/tailyard.tar
	@config/image/build tailyard --servers "$$(tests/servers/build tailscaled tailscale)"

cluster: setup ## Start a real cluster and a real tailnet on this machine (needs root); NODES=3
	@$(CLUSTER) up --nodes $(or $(NODES),3)

cluster-down: ## Stop the cluster and remove everything of it
	@$(CLUSTER) down

cluster-status: ## Show the cluster's state and how to use it
	@$(CLUSTER) status

cluster-load-image: ## Import an image on the cluster's nodes: the output of `make image`, or IMAGE=FILE
	@$(CLUSTER) load-image $(IMAGE)

demo: setup ## Run a whole group on this machine, under load: replicas, retargets, a kill (25 s)
	cargo build --profile demo --locked
	target/demo/tailyard demo

check: style ## Check a change: format, clippy, unit, property and loopback tests; no root, no servers
	$(TIERS) --check

test: setup ## Run lint and every test of every tier; servers are built meanwhile
	@tests/run

test-repeat: setup ## Run TIER="dns front_end" N=10 times under the load of two busy processes (BUSY); continue after failures
	$(TIERS) $(TIER) --repeat $(or $(N),10) --busy $(or $(BUSY),2) --jobs 2

bench: setup ## Measure, as ratios in one run: all questions, or BENCHES="live connect"; see docs/benchmarks.md
	cargo bench --locked --bench suite -- $(BENCHES)

bench-smoke: setup ## Check that the benchmarks work: small sizes, few repetitions, no release build; all that need no cluster, or BENCHES="live connect"
	cargo bench --locked --profile dev --bench suite -- $(or $(BENCHES),--no-cluster) --quick

bench-report: setup ## Measure and write docs/benchmarks.md with its plots: all questions, or BENCHES="live connect"
	cargo bench --locked --bench suite -- $(BENCHES) --json bench/results
	UPDATE_GOLDEN=1 cargo test --locked --test pure report::

soak: export SOAK_SECONDS := $(or $(SOAK_SECONDS),3600)
soak: export SOAK_SEED := $(or $(SOAK_SEED),$(shell date +%s))
soak: export SOAK_RATE := $(or $(SOAK_RATE),200)
soak: setup ## Run groups under load with random faults: an hour, then an hour on a cluster; SOAK_SECONDS sets the time of each, SOAK_SEED repeats a run
	cargo test --locked --profile bench --test api soak::soak_loses -- --nocapture
	cargo test --locked --profile bench --test cluster cluster::annotated -- --nocapture

upgrade: setup ## Upgrade a real cluster under load from another commit, FROM=992f5d25, to this checkout
	from=$$(tests/former $(or $(FROM),992f5d25)) && UPGRADE_FROM=$$from cargo test --locked --test cluster upgrade:: -- --nocapture

style: ## Check format and clippy of the whole workspace
	cargo fmt --all --check
	CARGO_TARGET_DIR=$(LINT) cargo clippy --locked --workspace --all-targets -- -D warnings

lint: deny style ## Check format, clippy, links of doc comments, the fuzzers' lock file, licences and sources of dependencies
	CARGO_TARGET_DIR=$(LINT) RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --locked --lib --no-deps --document-private-items
	@cargo metadata --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null # a stale lock of the fuzzers

deny: ## Check licences and sources of dependencies with cargo-deny (ADVISORIES=1: advisories too)
	@tests/deny

fuzz: ## Fuzz every parser of untrusted input (FUZZ_SECONDS each, default 10)
	@tests/fuzz/run
