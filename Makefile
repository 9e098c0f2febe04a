# What a contributor needs; CONTRIBUTING.md says when.

GO            ?= go
GOLANGCI      := 2.15.0
GOVULNCHECK   := v1.1.4
VERSION       ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS       ?= -X github.com/rstored/rstored/cmd/internal/cli.version=$(VERSION)
FUZZTIME      ?= 20s
BENCHTIME     ?= 1s
BENCHFLAGS    ?=
GUESTFLAGS    ?=
VERBSFLAGS    ?=
SCALEFLAGS    ?= -scale .
BENCHDIR      ?= docs/bench
TORTURETIME   ?= 1h
FAILOVERCLIENTS ?= guests,fuse
FAILOVERROUNDS  ?= 200
CEPHROUNDS      ?= 50
RACEFLAGS     ?= -timeout 20m
LINTER        := .bin/golangci-lint-v$(GOLANGCI)
NFPM          := 2.45.2
PACKAGER      := .bin/nfpm-v$(NFPM)
GORELEASER    := v2.16.0
SYFT          := v1.50.0
OUT           ?= out
# Packages are for this architecture and this distribution unless told: ARCHES='amd64 arm64' FORMATS='deb rpm'.
ARCHES        ?= $(shell $(GO) env GOARCH)
FORMATS       ?= $(if $(wildcard /etc/debian_version),deb,rpm)
RDMA          ?= auto
CEPH          ?= auto
PARALLEL      ?= 1
URL           ?= https://packages.example
SBOM          ?= no
IMAGE         ?= rstored:$(VERSION)
IMAGECSI      ?= rstored-csi:$(VERSION)
ENGINE        ?= podman

.PHONY: all help build build-rdma build-ceph test test-ops test-rdma test-ceph race lint format vulncheck bench bench-ceph bench-guest bench-verbs bench-scale microbench fuzz torture failover failover-ceph nightly plots manual demo interop packages release image csi image-csi release-snapshot install install-rdma clean

all: build

# This list: the targets, with the first line of what stands above each.
help:
	@awk '/^# /{if (!n++) text=substr($$0,3); next} /^[a-z][a-z-]*:([^=]|$$)/{split($$1,t,":"); \
		printf "  %-18s %s\n", t[1], text} {n=0; text=""}' $(firstword $(MAKEFILE_LIST))

# Static binaries in bin/.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/ ./cmd/rstored ./cmd/rstorectl

# The programs that use RDMA devices through rdma-core, in bin/rdma/: with a C compiler and the
# headers of rdma-core, for hosts whose C library is not older than this one's.
build-rdma:
	GO='$(GO)' deploy/rdma.sh '$(VERSION)' bin/rdma

# The daemon for CephFS and RDMA devices, in bin/ceph: needs the headers of libcephfs, too.
build-ceph:
	CEPH=yes GO='$(GO)' deploy/rdma.sh '$(VERSION)' bin/ceph

# Everything that runs without privileges and without other hosts.
test:
	$(GO) vet ./...
	$(GO) vet -C test ./...
	$(GO) test -timeout 20m ./...
	$(GO) test -C test -p 1 -timeout 20m ./...

# What administrators use with it: real programs of others look at what is in deploy/ and
# at what the daemon says. They are installed if they can be.
test-ops:
	test/ops/install
	RSTORED_OPS=1 $(GO) test -count=1 -timeout 10m ./cmd/internal/exportsfile
	RSTORED_OPS=1 $(GO) test -C test -count=1 -timeout 30m ./ops
	RSTORED_OPS=1 $(GO) test -C test/ops/kubernetes -count=1 -timeout 10m ./...

# The build for RDMA devices, where it can be made: its tests need no device, or are skipped.
test-rdma: $(LINTER)
	@deploy/rdma.sh check || { [ $$? = 3 ] && echo 'make test-rdma: what uses RDMA devices was not tried' >&2; exit; }; set -ex; \
	export CGO_ENABLED=1; \
	$(GO) vet -tags rdmacore ./...; \
	$(GO) vet -C test -tags rdmacore ./...; \
	$(GO) test -tags rdmacore ./rdma/verbs/...; \
	$(LINTER) run --build-tags rdmacore ./rdma/verbs/...

# The store in CephFS, beside a cluster of its own that is made of Debian's packages.
test-ceph:
	@test/ceph/run check || { [ $$? = 3 ] && echo 'make test-ceph: CephFS was not tried' >&2; exit; }; set -ex; \
	export CGO_ENABLED=1; \
	test/ceph/run sh -c '$(GO) vet -tags cephfs ./blockstore/cephfs ./cmd/internal/rados && \
		$(GO) test -tags cephfs -count=1 ./blockstore/cephfs ./cmd/internal/rados && $(GO) test -C test -count=1 ./ceph'

# The same tests with the race detector.
race:
	$(GO) test -race $(RACEFLAGS) ./...
	$(GO) test -C test -race $(RACEFLAGS) ./...

# Linters, and known vulnerabilities.
lint: $(LINTER) vulncheck
	$(LINTER) run ./...
	cd test && ../$(LINTER) run ./...

# Formats the code.
format: $(LINTER)
	$(LINTER) fmt ./...
	cd test && ../$(LINTER) fmt ./...

$(LINTER):
	mkdir -p .bin
	GOBIN=$(CURDIR)/.bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI)
	mv .bin/golangci-lint $@

# The database is on the network; where it cannot be reached this says so and
# goes on, so that work offline is possible.
vulncheck:
	@deploy/vulncheck.sh $(GO) $(GOVULNCHECK)

# rstored beside other servers and its transport beside bare datagrams, in namespaces of
# their own: some 20 minutes, as root. The peers are installed if they can be. Writes
# BENCHDIR; test/bench/versus -help shows what BENCHFLAGS can be.
bench:
	test/bench/versus/install
	$(GO) build -C test -o ../bin/versus ./bench/versus
	@exec bin/versus -json $(BENCHDIR)/results.json -svg $(BENCHDIR)/results.svg -markdown $(BENCHDIR)/README.md $(BENCHFLAGS)

# rstored beside nfs-ganesha and beside libcephfs itself, in front of one CephFS: some 5 minutes, as root. Writes
# BENCHDIR/ceph.*.
bench-ceph:
	test/bench/versus/install
	$(GO) build -C test -o ../bin/versus ./bench/versus
	@exec test/ceph/run bin/versus -ceph -json $(BENCHDIR)/ceph.json -markdown $(BENCHDIR)/ceph.md $(BENCHFLAGS)

# rstored beside the kernel's own server, for the kernel's client in a guest: some 12 minutes, as root.
# The guests are built the first time. Writes BENCHDIR/guest.*; GUESTFLAGS='-rows RE -merge'
# measures some of it again.
bench-guest:
	test/guest/build
	$(GO) build -C test -o ../bin/guests ./bench/guests
	@exec bin/guests -json $(BENCHDIR)/guest.json -svg $(BENCHDIR)/guest.svg -markdown $(BENCHDIR)/guest.md $(GUESTFLAGS)

# rstorectl perf on a device of the kernel and in user space, beside perftest, in two guests with rdma_rxe: some
# 4 minutes, as root, with a C compiler. The guests are built the first time. Writes BENCHDIR/verbs.*;
# VERBSFLAGS='-rows WRITE -merge' measures some of it and keeps the rest.
bench-verbs:
	test/guest/build
	$(GO) build -C test -o ../bin/verbs ./bench/verbs
	@exec bin/verbs -json $(BENCHDIR)/verbs.json -markdown $(BENCHDIR)/verbs.md $(VERBSFLAGS)

# How the cost of rstored grows with queue pairs, sizes, clients and directories, in
# namespaces of its own: some 10 minutes, as root, with ip and ethtool. SCALEFLAGS='-scale clients' measures
# one part again and keeps the others. Writes BENCHDIR.
bench-scale:
	$(GO) build -C test -o ../bin/versus ./bench/versus
	@exec bin/versus -rounds 3 -time 500ms -json $(BENCHDIR)/scaling.json -svg $(BENCHDIR)/scaling.svg -markdown $(BENCHDIR)/scaling.md $(SCALEFLAGS)

# The Go benchmarks of each layer.
microbench:
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...
	$(GO) test -C test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

# Each fuzz target in turn for FUZZTIME.
fuzz:
	@deploy/fuzz.sh $(GO) $(FUZZTIME)

# Random programs of verbs with random faults on a simulated network, for TORTURETIME:
# some 700,000 an hour. A failure prints its seed and a smaller program
# that fails too; RSTORED_SEED=n go test -C test -run Torture ./torture runs it again.
# Then random programs of NFS clients against a model of the server's state.
torture:
	RSTORED_TORTURE=$(TORTURETIME) $(GO) test -C test -count=1 -v -timeout 0 -run 'TestTorture|TestSame' ./torture
	RSTORED_TORTURE=$(TORTURETIME) $(GO) test -count=1 -v -timeout 0 -run 'TestRandom$$' ./nfs/nfs4
	RSTORED_TORTURE=$(TORTURETIME) $(GO) test -count=1 -v -timeout 0 -run 'TestModel$$' ./nfs/state

# What takes too long for every change: some hours.
nightly:
	$(MAKE) race
	$(MAKE) fuzz FUZZTIME=5m
	$(MAKE) torture TORTURETIME=2h
	$(MAKE) failover
	$(MAKE) test-ceph
	$(MAKE) interop

# Two nodes lose power, cable, storage, daemon and more, 200 times each, under the kernel's client in guests, FUSE mounts
# and Go clients: some two hours, as root. FAILOVER_SEED=N repeats a run; FAILOVERCLIENTS= is for the Go clients alone.
failover:
	[ -z '$(findstring guests,$(FAILOVERCLIENTS))' ] || test/guest/build
	FAILOVER_CLIENTS='$(FAILOVERCLIENTS)' FAILOVER_ROUNDS=$(FAILOVERROUNDS) $(GO) test -C test -timeout 3h -count=1 -v -run '^(TestFailover|TestKeepalived|TestPlannedFailover|TestPlannedFails)$$' ./e2e

# Gateways of CephFS, the OSD and the active MDS are killed, one or two at a time, under clients that write, rename and
# lock: CEPHROUNDS rounds of some 20 s to a minute, as root. FAILOVER_SEED=N repeats a run's choices.
failover-ceph:
	RSTORED_CEPH_STORE=bluestore RSTORED_CEPH_ROUNDS=$(CEPHROUNDS) RSTORED_CEPH_SEED='$(FAILOVER_SEED)' test/ceph/run \
		$(GO) test -C test -count=1 -timeout 3h -v -run '^TestKill$$' ./ceph

# The pictures of docs/transport.md, drawn from the simulator: some minutes.
plots:
	$(GO) build -C test -o ../bin/plots ./plots
	bin/plots

# What the documentation takes from the code: docs/man and the tables of docs/configuration.md.
manual:
	$(GO) run ./cmd/internal/manual

# The whole product on loopback: see cmd/internal/demo. It runs as a binary so that
# an interrupt reaches it and it can clean up.
demo: build
	@$(GO) build -o bin/demo ./cmd/internal/demo && exec bin/demo

# The Linux kernel's own client against rstored, in guests: see test/guest. The
# guests are built the first time, from Debian packages. CASES is a regular expression,
# or "quick"; PARALLEL of them run at a time. A run of all cases writes docs/interop.md. Without CASES, or with "quick",
# a failover of two nodes under guests follows.
interop:
	test/guest/build
	[ '$(CASES)' = quick ] || test/guest/build tls
	RSTORED_GUEST=1 RSTORED_GUEST_CASES='$(CASES)' RSTORED_GUEST_JOBS='$(PARALLEL)' RSTORED_GUEST_TABLE=../../docs/interop.md $(GO) test -C test/guest -count=1 -timeout 3h -run TestInterop
	[ -n '$(filter-out quick,$(CASES))' ] || RSTORED_GUEST=1 $(GO) test -C test -count=1 -timeout 10m -run '^TestKernelFailover$$' ./e2e

# Packages for Debian and for RPM in OUT, of each of ARCHES and FORMATS. Those with the programs for RDMA devices
# where they can be built; RDMA=yes insists on them, and RDMA=no does without. CEPH=yes and CEPH=no are the same for
# the package for CephFS.
packages: $(PACKAGER)
	GO='$(GO)' NFPM='$(CURDIR)/$(PACKAGER)' ARCHES='$(ARCHES)' FORMATS='$(FORMATS)' RDMA='$(RDMA)' CEPH='$(CEPH)' SBOM='$(SBOM)' deploy/package/build '$(VERSION)' '$(OUT)'

$(PACKAGER):
	mkdir -p .bin
	GOBIN=$(CURDIR)/.bin $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@v$(NFPM)
	mv .bin/nfpm $@

# A signed repository for apt and dnf in OUT/release, of packages that were built twice and are the same byte for byte.
# KEY names a secret key of gpg, URL is where hosts will find the repository.
release: $(PACKAGER)
	GO='$(GO)' NFPM='$(CURDIR)/$(PACKAGER)' ARCHES='$(ARCHES)' FORMATS='$(FORMATS)' RDMA='$(RDMA)' KEY='$(KEY)' URL='$(URL)' deploy/package/release '$(VERSION)' '$(OUT)/release'

# A container image with the static programs, and, where they can be built, those for RDMA devices with their libraries,
# and nothing else: see docs/install.md. RDMA=yes insists on these, and RDMA=no does without. Health checks are in
# Docker's format of images alone, which podman has to be told.
image: build
	GO='$(GO)' RDMA='$(RDMA)' LIBRARIES='$(LIBRARIES)' deploy/image/tree '$(VERSION)' bin/image
	BUILDAH_FORMAT=docker $(ENGINE) build -f deploy/Containerfile -t '$(IMAGE)' bin/image

# The driver for Kubernetes, and its image: see docs/kubernetes.md.
csi:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/rstored-csi ./deploy/csi

# The image of the driver for Kubernetes.
image-csi: csi build
	$(ENGINE) build -f deploy/csi/Containerfile -t '$(IMAGECSI)' bin

# What uses RDMA devices in the place of what make install installed.
install-rdma: build-rdma
	install -D -m 0755 -t $(DESTDIR)/usr/local/lib/rstored/rdma bin/rdma/rstored bin/rdma/rstorectl
	install -D -m 0644 systemd/rdma.conf $(DESTDIR)/etc/systemd/system/rstored.service.d/rdma.conf
	install -D -m 0644 systemd/rdma.conf $(DESTDIR)/etc/systemd/system/rstored@.service.d/rdma.conf

# Installs programs, units and documents below DESTDIR.
install: build
	install -D -m 0755 bin/rstored $(DESTDIR)/usr/local/sbin/rstored
	install -D -m 0755 bin/rstorectl $(DESTDIR)/usr/local/bin/rstorectl
	install -d $(DESTDIR)/usr/sbin
	ln -sf /usr/local/bin/rstorectl $(DESTDIR)/usr/sbin/mount.rstored
	install -D -m 0644 -t $(DESTDIR)/etc/systemd/system systemd/rstored.service systemd/rstored@.service systemd/rstored.socket \
		systemd/rstored-snapshots.service systemd/rstored-snapshots.timer
	install -D -m 0644 systemd/rstored.sysusers.conf $(DESTDIR)/usr/lib/sysusers.d/rstored.conf
	install -D -m 0644 docs/man/rstored.8 $(DESTDIR)/usr/local/share/man/man8/rstored.8
	install -D -m 0644 docs/man/rstorectl.1 $(DESTDIR)/usr/local/share/man/man1/rstorectl.1
	install -D -m 0644 docs/man/rstored.yaml.5 $(DESTDIR)/usr/local/share/man/man5/rstored.yaml.5
	test -e $(DESTDIR)/etc/rstored/rstored.yaml || install -D -m 0644 deploy/rstored.yaml $(DESTDIR)/etc/rstored/rstored.yaml

# All that a release would publish, in dist/, and publishes nothing: archives, packages, checksums, and lists of
# what is linked in. Some minutes the first time.
release-snapshot: .bin/goreleaser-$(GORELEASER) .bin/syft-$(SYFT)
	mkdir -p .bin/release
	ln -sf ../syft-$(SYFT) .bin/release/syft
	PATH='$(CURDIR)/.bin/release':"$$PATH" .bin/goreleaser-$(GORELEASER) release --snapshot --clean --config deploy/goreleaser.yaml

.bin/goreleaser-$(GORELEASER):
	mkdir -p .bin
	GOBIN=$(CURDIR)/.bin $(GO) install github.com/goreleaser/goreleaser/v2@$(GORELEASER)
	mv .bin/goreleaser $@

.bin/syft-$(SYFT):
	mkdir -p .bin
	GOBIN=$(CURDIR)/.bin $(GO) install github.com/anchore/syft/cmd/syft@$(SYFT)
	mv .bin/syft $@

clean:
	rm -rf bin out dist
