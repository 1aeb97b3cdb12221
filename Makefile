# All the set-up a fresh machine needs, and the ways to build, run and test. Wants rustup, a C linker, make.
.DELETE_ON_ERROR:
.PHONY: build run test release bench lint format components guests toolchain

TOOLCHAIN := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
GUEST     := wasm32-wasip2
HANDLERS  := udev debug-echo
RUN       := target/run

build: components ## The program and the built-in handlers, for development.
	cargo build --workspace --locked
	@echo "built target/debug/akri and target/components/"

run: build ## The main job without a cluster: this machine's devices from the Configurations in examples/local.
	@mkdir -p $(RUN)/kubelet
	exec target/debug/akri agent --local examples/local --components target/components \
	  --state-dir $(RUN)/state --kubelet-dir $(RUN)/kubelet --show

test: build guests lint ## Everything CI checks.
	cd handlers && cargo test --workspace --locked --quiet
	cargo test --workspace --locked

lint: toolchain
	cargo fmt --all --check
	cd handlers && cargo fmt --all --check
	cd tests/guests && cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

release: components ## The optimised program. Takes several minutes.
	cargo build --release --locked --workspace
	@echo "built target/release/akri"

bench: release guests ## What the README's numbers were made with. NUMBERS chooses, such as NUMBERS=round.
	cargo bench --locked --workspace --bench numbers -- $(NUMBERS)

components: toolchain
	cd handlers && cargo build --workspace --release --locked --target $(GUEST) --quiet
	@mkdir -p target/components
	@for handler in $(HANDLERS); do \
	  cp "handlers/target/$(GUEST)/release/$$(echo $$handler | tr - _).wasm" target/components/ && \
	  cp "handlers/$$handler/handler.yaml" "target/components/$$handler.yaml" || exit 1; \
	done

guests: toolchain
	cd tests/guests && cargo build --release --locked --target $(GUEST) --quiet

# Installs only what is missing, so that it works where automatic installation is off and nothing can be fetched.
toolchain:
	@rustup toolchain list | grep -q '^$(TOOLCHAIN)-' || \
	  rustup toolchain install $(TOOLCHAIN) --profile minimal --component clippy --component rustfmt --target $(GUEST)
	@rustup target list --installed --toolchain $(TOOLCHAIN) | grep -qx $(GUEST) || \
	  rustup target add --toolchain $(TOOLCHAIN) $(GUEST)

format:
	cargo fmt --all
	cd handlers && cargo fmt --all
	cd tests/guests && cargo fmt
