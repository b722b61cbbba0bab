# Two commands do everything on a fresh machine: `make demo` and `make test`.
.DEFAULT_GOAL := help
.PHONY: help setup servers build demo test bench lint fuzz

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the programs that demo, test and bench run (Debian packages; needs root where one is missing)
	@tests/setup

servers: setup ## Build and cache the real test servers (tailscaled, headscale, kube-apiserver, etcd)
	@tests/servers/build

build: ## Build the release binary: target/release/tailyard
	cargo build --release --locked

demo: setup build ## Run a whole group on this machine, under load: replicas, retargets, a kill (25 s)
	target/release/tailyard demo

test: servers lint ## Pass every test of every tier
	cargo test --locked

bench: setup ## Measure, as ratios in one run; see docs/benchmarks.md
	cargo bench --locked

lint: ## Format, clippy, layers, licences and advisories of dependencies
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	@tests/deny

fuzz: ## Fuzz every parser of outside bytes (FUZZ_SECONDS each, default 10)
	@tests/fuzz/run
