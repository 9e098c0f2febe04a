package rpcrdma

import (
	"math/rand/v2"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestRetiredReceives: when receives are retired in any order, each page goes back to the system
// with the last of its receives, and no page that has a posted one.
func TestRetiredReceives(t *testing.T) {
	const n, page = 144, rdma.ArenaBlockMin
	for _, size := range []int{1024, 3072, 4096, 5120, 8192, 10240} {
		var unposted, free [n * 3]bool
		gone := func(j int) bool { return j >= 0 && (j >= n || unposted[j]) }
		for _, i := range rand.New(rand.NewPCG(1, uint64(size))).Perm(n) {
			unposted[i] = true
			from, to := pagesOf(i, size, gone)
			for p := (from + page - 1) / page; p < to/page; p++ {
				free[p] = true
			}
			for p := range n * size / page {
				shared := false
				for j := p * page / size; j*size < (p+1)*page; j++ {
					shared = shared || !gone(j)
				}
				if free[p] == shared {
					t.Fatalf("receives of %d bytes: page %d is free: %v, and has a posted receive: %v", size, p, free[p], shared)
				}
			}
		}
	}
}
