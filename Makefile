# The one entry: run, test, chaos, fuzz, interop, bench, lint. Whatever these need they install
# into the checkout, at the versions pinned in go.mod, package-lock.json and requirements.txt files.

GO     ?= go
BIN    := bin/roundhouse
CONFIG ?= .roundhouse/example.mcp.json

.PHONY: all build run test chaos fuzz interop bench lint clean

all: build

build:
	$(GO) build -o $(BIN) ./cmd/roundhouse

# run starts the daemon on CONFIG. Without one it installs two official servers into
# the checkout and writes an example file.
run: build $(CONFIG)
	$(BIN) serve --config $(CONFIG)

.roundhouse/example.mcp.json: examples/package-lock.json
	scripts/example $@

test:
	$(GO) test -race -timeout 10m ./...

# chaos has 200 sessions call ten servers that are killed, restarted and configured anew for a
# minute, kills the daemon 200 times while 64 recorded streams flow, and has 10,000 streams come
# before their requests have been read; "make test" does the same for seconds.
chaos:
	ROUNDHOUSE_CHAOS=60s ROUNDHOUSE_KILLS=200 $(GO) test -race -count=1 -timeout 15m -run 'TestChaos|TestKilledDaemonLosesNoTurn' -v ./internal/daemon/
	ROUNDHOUSE_STREAMS=10000 $(GO) test -count=1 -timeout 10m -run TestUpstreamThatAnswersAtOnce -v ./internal/recorder/

# fuzz gives every fuzz target 500 inputs, starting from the corpora in testdata/fuzz.
# What fails is written there. For longer: scripts/fuzz 1m
fuzz:
	scripts/fuzz

# interop runs official SDKs of three languages, official servers, the official conformance suite and real
# agents against the built binary.
SUITES := interop interop/conformance interop/agents interop/model interop/responses

interop: build $(SUITES:%=%/node_modules/.package-lock.json) interop/python/.venv/installed interop/model/.venv/installed
	for suite in $(SUITES); do (cd $$suite && ROUNDHOUSE_BIN=$(CURDIR)/$(BIN) npm test --silent) || exit 1; done
	ROUNDHOUSE_BIN=$(CURDIR)/$(BIN) $(GO) test -tags interop -count=1 -timeout 10m ./interop/... ./internal/upstream/

%/node_modules/.package-lock.json: %/package-lock.json
	cd $* && npm ci --no-audit --no-fund --silent

%/.venv/installed: %/requirements.txt
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	touch $@

bench: build
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...
	$(GO) run ./bench -roundhouse $(CURDIR)/$(BIN)

lint:
	test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) vet -tags interop ./interop/... ./internal/upstream/
	GOOS=darwin $(GO) vet ./cmd/... ./internal/...
	GOOS=windows $(GO) vet ./cmd/... ./internal/...
	$(GO) tool staticcheck ./...
	test -z "$$($(GO) fix -diff ./...)" || { $(GO) fix -diff ./...; exit 1; }

clean:
	rm -rf bin .roundhouse $(SUITES:%=%/node_modules) interop/python/.venv interop/model/.venv
