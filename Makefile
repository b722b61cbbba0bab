# Two commands do everything on a fresh machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
.PHONY: help setup servers build image demo cluster cluster-down cluster-status cluster-load-image test bench bench-smoke bench-report soak lint fuzz

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the programs that demo, test and bench run (Debian packages; needs root where one is missing)
	@tests/setup

servers: setup ## Build and cache the real servers of tests and cluster (tailscaled, headscale, Kubernetes, etcd, containerd...)
	@tests/servers/build >/dev/null

build: ## Build the release binary: target/release/tailyard
	cargo build --release --locked

image: setup build ## Build the image, without a container engine: target/image/tailyard.tar, and what is in it
	@config/image/build tailyard --servers "$$(tests/servers/build tailscaled tailscale)"

cluster: setup ## Start a real cluster beside a real tailnet on this machine (needs root); NODES=3
	@cargo run --locked --quiet --example cluster -- up --nodes $(or $(NODES),3)

cluster-down: ## End it; nothing is left
	@cargo run --locked --quiet --example cluster -- down

cluster-status: ## Say how it is and how it is used
	@cargo run --locked --quiet --example cluster -- status

cluster-load-image: ## Make an image known on its nodes: what `make image` made, or IMAGE=FILE
	@cargo run --locked --quiet --example cluster -- load-image $(IMAGE)

demo: setup build ## Run a whole group on this machine, under load: replicas, retargets, a kill (25 s)
	target/release/tailyard demo

test: servers lint ## Pass every test of every tier
	cargo test --locked

bench: setup ## Measure, as ratios in one run: all questions, or BENCHES="live connect"; see docs/benchmarks.md
	cargo bench --locked --bench suite -- $(BENCHES)

bench-smoke: setup ## Show that the benchmarks work: small sizes, few repetitions, no release build; all that need no cluster, or BENCHES="live connect"
	cargo bench --locked --profile dev --bench suite -- $(or $(BENCHES),--no-cluster) --quick

bench-report: setup ## Measure and write docs/benchmarks.md with its plots: all questions, or BENCHES="live connect"
	cargo bench --locked --bench suite -- $(BENCHES) --json bench/results
	TAILYARD_WRITE_DOCS=1 cargo test --locked --test pure report

soak: setup ## Keep a group under load while troubles befall it: two hours, or SOAK_SECONDS; SOAK_SEED repeats a run, SOAK_RATE loads more
	SOAK_SECONDS=$(or $(SOAK_SECONDS),7200) SOAK_SEED=$(or $(SOAK_SEED),$(shell date +%s)) SOAK_RATE=$(or $(SOAK_RATE),200) \
		cargo test --locked --profile bench --test api soak::nothing_is_lost -- --nocapture

lint: ## Format, clippy, the fuzzers' lock, licences and advisories of dependencies
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	@cargo metadata --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >/dev/null # a stale lock of the fuzzers
	@tests/deny

fuzz: ## Fuzz every parser of outside bytes (FUZZ_SECONDS each, default 10)
	@tests/fuzz/run
