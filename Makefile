# All the set-up a fresh machine needs, and the ways to build, run and test. Wants rustup, a C linker, make.
.DELETE_ON_ERROR:
.PHONY: build run test release bench fuzz lint format components guests peers toolchain packages \
  kubernetes cluster cluster-down image manifests

TOOLCHAIN := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
GUEST     := wasm32-wasip2
HANDLERS  := udev debug-echo opcua onvif
RUN       := target/run
PEERS     := target/peers
# Debian packages that stories need: a real udevd, network namespaces, and gRPC for Go.
PACKAGES  := udev iproute2 golang-go golang-google-grpc-dev

build: components ## The program and the built-in handlers, for development.
	cargo build --workspace --locked
	@echo "built target/debug/akri and target/components/"

run: build ## The main job without a cluster: this machine's devices from the Configurations in examples/local.
	@mkdir -p $(RUN)/kubelet
	exec target/debug/akri agent --local examples/local --components target/components \
	  --state-dir $(RUN)/state --kubelet-dir $(RUN)/kubelet --handlers-dir $(RUN)/handlers --show

test: packages peers kubernetes build guests lint ## Everything CI checks.
	cd handlers && cargo test --workspace --locked --quiet
	cargo test --workspace --locked -- --test-threads 4

lint: toolchain
	cargo fmt --all --check
	cd handlers && cargo fmt --all --check
	cd tests/guests && cargo fmt --all --check
	cd fuzz && cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo clippy --workspace --release --locked --target $(GUEST) --quiet -- -D warnings

kubernetes: ## The programs of a cluster, for stories; minutes, but once. Without Debian those stories are skipped.
	tests/cluster/build.sh target/cluster

cluster: kubernetes build ## A real cluster of two nodes, to try things by hand; stories use it while it runs. Wants root.
	target/debug/test-cluster up

cluster-down: build
	target/debug/test-cluster down

image: release ## The files of the container image, which deploy/Containerfile describes.
	rm -rf target/image
	mkdir -p target/image
	cp -r target/release/akri target/components deploy/Containerfile target/image/
	@echo "now: podman build --tag NAME target/image"

manifests: build ## What in deploy/ is made from the program and the handlers.
	target/debug/akri crds >deploy/crds.yaml
	for handler in $(sort $(HANDLERS)); do echo --- && cat handlers/$$handler/handler.yaml; done >deploy/handlers.yaml

release: components ## The optimised program. Takes several minutes.
	cargo build --release --locked --workspace
	@echo "built target/release/akri"

bench: release guests ## What the README's numbers were made with. NUMBERS chooses, such as NUMBERS=round.
	cargo bench --locked --workspace --bench numbers -- $(NUMBERS)

fuzz: guests ## A minute for each parser of outside input. Wants a nightly toolchain, cargo-fuzz and a C++ compiler.
	@mkdir -p fuzz/corpus/component
	@cp tests/guests/target/$(GUEST)/release/akri_older_guest.wasm fuzz/corpus/component/
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; \
	done

components: toolchain
	cd handlers && cargo build --workspace --release --locked --target $(GUEST) --quiet
	@mkdir -p target/components
	@for handler in $(HANDLERS); do \
	  cp "handlers/target/$(GUEST)/release/$$(echo $$handler | tr - _).wasm" target/components/ && \
	  cp "handlers/$$handler/handler.yaml" "target/components/$$handler.yaml" || exit 1; \
	done

guests: toolchain
	cd tests/guests && cargo build --release --locked --target $(GUEST) --quiet

# Other people's implementations of the protocols, pinned; installed anew when the lists change.
peers: packages $(PEERS)/python/installed $(PEERS)/node/installed $(PEERS)/go/remote_go

$(PEERS)/python/installed: tests/peers/requirements.txt
	@mkdir -p $(PEERS)
	python3 -m venv $(PEERS)/python
	$(PEERS)/python/bin/pip install --quiet --requirement $<
	@touch $@

$(PEERS)/node/installed: tests/peers/package.json tests/peers/package-lock.json
	@mkdir -p $(PEERS)/node
	cp $^ $(PEERS)/node/
	cd $(PEERS)/node && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# With Debian's Go and its libraries, which come as source. Without Go its story is skipped.
$(PEERS)/go/remote_go: tests/peers/remote_go/main.go | packages
	@if command -v go >/dev/null; then \
	  mkdir -p $(PEERS)/go && cd tests/peers/remote_go && \
	  GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$(CURDIR)/$(PEERS)/go/cache go build -o $(CURDIR)/$@ .; \
	fi

# Installs only what is missing, so that it works where automatic installation is off and nothing can be fetched.
toolchain:
	@rustup toolchain list | grep -q '^$(TOOLCHAIN)-' || \
	  rustup toolchain install $(TOOLCHAIN) --profile minimal --component clippy --component rustfmt --target $(GUEST)
	@rustup target list --installed --toolchain $(TOOLCHAIN) | grep -qx $(GUEST) || \
	  rustup target add --toolchain $(TOOLCHAIN) $(GUEST)

# Likewise. Without root, or without Debian, the stories that need them say that they are skipped.
packages:
	@missing=$$(for package in $(PACKAGES); do \
	  dpkg -s $$package 2>/dev/null | grep -q '^Status: .* installed$$' || echo $$package; \
	done; \
	python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv; \
	command -v npm >/dev/null || echo nodejs npm); \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	else echo "not installed, and only root can: $$missing; some stories will be skipped" >&2; fi

format:
	cargo fmt --all
	cd handlers && cargo fmt --all
	cd tests/guests && cargo fmt --all
	cd fuzz && cargo fmt
