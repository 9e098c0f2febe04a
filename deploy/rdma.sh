#!/bin/sh
# Builds the programs that use RDMA devices through rdma-core: deploy/rdma.sh VERSION DIRECTORY,
# called by "make build-rdma" and for packages and images. With CEPH=yes it builds the daemon alone, which then also
# exports directories of CephFS through libcephfs: "make build-ceph".
#
# GO is the go command, ARCH the architecture (default: this host's), CC the C compiler for it. The programs are linked
# with the C library alone. They open the libraries of rdma-core when they start, and also start without these
# libraries. Go resolves names, as in the static programs. If the compiler or the headers are missing, the script
# says so and ends with status 3. "deploy/rdma.sh check" only looks for them.
set -eu
cd "$(dirname "$0")/.."
: "${GO:=go}"
version=$1 out=${2:-}
here=$($GO env GOHOSTARCH)
: "${ARCH:=$here}" "${CEPH:=no}"
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
tags=rdmacore,netgo,osusergo programs='./cmd/rstored ./cmd/rstorectl'
if [ "$CEPH" = yes ]; then
	[ "$ARCH" = "$here" ] && printf '#define _FILE_OFFSET_BITS 64\n#include <cephfs/libcephfs.h>\n' | "$CC" -E ${CGO_CFLAGS:-} - >/dev/null 2>&1 ||
		missing "$CC finds no headers of libcephfs (Debian: libcephfs-dev; Fedora: libcephfs-devel)"
	tags=$tags,cephfs programs=./cmd/rstored
fi
[ "$version $out" != 'check ' ] || exit 0
mkdir -p "$out"
CGO_ENABLED=1 CC=$CC GOARCH=$ARCH exec $GO build -trimpath -tags "$tags" \
	-ldflags "-s -w -X github.com/rstored/rstored/cmd/internal/cli.version=$version" -o "$out/" $programs
