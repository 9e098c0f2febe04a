package nfs4

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestDigest: a retry has the digest of the request, however its message is cut, and a request that
// differs in any byte has another.
func TestDigest(t *testing.T) {
	cred := &rpc.Cred{Flavor: rpc.AuthSys, UID: 5}
	for _, n := range []int{0, 4, 200, 1020, 1024, 1028, 5000, 64 << 10} {
		msg := bytes.Repeat([]byte{7, 1, 2, 3}, n/4)
		want := digest(xdr.NewDecoder(msg), cred)
		for _, at := range []int{0, min(n, 1), n / 3, n - min(n, 1), n} {
			if got := digest(xdr.NewSegmented([][]byte{msg[:at], {}, msg[at:]}), cred); got != want {
				t.Errorf("%d bytes cut at %d: another digest", n, at)
			}
		}
		for at := 0; at < n; at += 1 + n/50 {
			other := bytes.Clone(msg)
			other[at] ^= 0x40
			if digest(xdr.NewDecoder(other), cred) == want {
				t.Errorf("%d bytes that differ at %d: the same digest", n, at)
			}
		}
		segs := [][]byte{msg[:n/2], msg[n/2:]}
		if a := testing.AllocsPerRun(100, func() { digest(xdr.NewSegmented(segs), cred) }); a != 0 {
			t.Errorf("%d bytes: %v allocations", n, a)
		}
	}
}
