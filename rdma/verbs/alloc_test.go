//go:build rdmacore && linux && cgo

package verbs_test

import (
	"testing"

	"github.com/rstored/rstored/rdma/rdmatest"
	"github.com/rstored/rstored/rdma/verbs"
)

// BenchmarkPost measures what a request costs to post and to poll, both ends and what the device
// does included.
func BenchmarkPost(b *testing.B) { rdmatest.Posts(b, provider(verbs.Config{}, addrs(b))) }
