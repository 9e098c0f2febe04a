#!/bin/sh
# Builds the programs that use RDMA devices through rdma-core: deploy/rdma.sh VERSION DIRECTORY,
# called by "make build-rdma" and for packages and images.
#
# GO is the go command, ARCH the architecture (this host's), CC the C compiler for it. What they link is the
# C library alone: the libraries of rdma-core are opened when a program starts, and it starts
# where they are not. Names are resolved by Go, as in the static programs. Where the compiler or the
# headers are missing it says so and ends with status 3. "deploy/rdma.sh check" does that and no more.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
version=$1 out=${2:-}
here=$($GO env GOHOSTARCH)
: "${ARCH:=$here}"
if [ -z "${CC:-}" ]; then
	case $ARCH in
	"$here") CC=gcc ;;
	amd64) CC=x86_64-linux-gnu-gcc ;;
	arm64) CC=aarch64-linux-gnu-gcc ;;
	*) CC=$ARCH-linux-gnu-gcc ;;
	esac
fi
missing() {
	echo "the programs for RDMA devices cannot be built for $ARCH: $*" >&2
	exit 3
}
command -v "$CC" >/dev/null || missing "there is no C compiler $CC (Debian: gcc, gcc-aarch64-linux-gnu; Fedora: gcc)"
printf '#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n' | "$CC" -E - >/dev/null 2>&1 ||
	missing "$CC finds no headers of rdma-core and of the C library (Debian: libc6-dev libibverbs-dev librdmacm-dev; Fedora: glibc-devel rdma-core-devel)"
[ "$version $out" != 'check ' ] || exit 0
mkdir -p "$out"
CGO_ENABLED=1 CC=$CC GOARCH=$ARCH exec $GO build -trimpath -tags rdmacore,netgo,osusergo \
	-ldflags "-s -w -X github.com/rstored/rstored/cmd/internal/cli.version=$version" -o "$out/" ./cmd/rstored ./cmd/rstorectl
