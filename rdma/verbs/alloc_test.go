//go:build rdmacore && linux && cgo

package verbs_test

import (
	"testing"

	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/verbs"
)

// BenchmarkPost measures posting and polling a request, with the work of both ends and of the
// device.
func BenchmarkPost(b *testing.B) { rdmatest.Posts(b, provider(verbs.Config{}, addrs(b))) }
