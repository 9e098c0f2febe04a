package daemon

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestVersionsSwitchedOff: what is not served is answered as if there were none of it, and
// port mappers are not told of it.
func TestVersionsSwitchedOff(t *testing.T) {
	type prog struct{ prog, vers uint32 }
	v3, v4 := prog{nfs3.Program, nfs3.Version}, prog{nfs4.Program, nfs4.Version}
	mount, locks, status := prog{nfs3.MountProgram, nfs3.MountVersion}, prog{nlm.Program, nlm.Version},
		prog{nlm.StatusProgram, nlm.StatusVersion}
	for _, c := range []struct {
		versions []string
		on, off  []prog
		only     uint32 // of the program NFS
	}{
		{[]string{"3"}, []prog{v3, mount, locks, status}, []prog{v4}, 3},
		{[]string{"4.1", "4.2"}, []prog{v4}, []prog{v3, mount, locks, status}, 4},
		{[]string{"3", "4.2"}, []prog{v3, v4, mount, locks, status}, nil, 0},
	} {
		cfg := testConfig(t, t.TempDir()+"=/a")
		cfg.RDMAListen, cfg.NFSVersions = nil, c.versions
		d, _ := startDaemon(t, cfg)
		conn, err := tcp.Dial(t.Context(), cfg.TCPListen[0])
		if err != nil {
			t.Fatal(err)
		}
		null := func(p prog) error { return conn.Call(t.Context(), &rpc.Request{Prog: p.prog, Vers: p.vers}) }
		for _, p := range c.on {
			if err := null(p); err != nil || !d.ports.Serves(p.prog, p.vers) {
				t.Errorf("%v: program %d version %d: %v", c.versions, p.prog, p.vers, err)
			}
		}
		for _, p := range c.off {
			err := null(p)
			var refused *rpc.AcceptError
			if !errors.As(err, &refused) || d.ports.Serves(p.prog, p.vers) {
				t.Errorf("%v: program %d version %d: %v", c.versions, p.prog, p.vers, err)
				continue
			}
			want := rpc.AcceptError{Stat: rpc.ProgUnavail}
			if p.prog == nfs3.Program {
				want = rpc.AcceptError{Stat: rpc.ProgMismatch, Low: c.only, High: c.only}
			}
			if *refused != want {
				t.Errorf("%v: program %d version %d: %+v", c.versions, p.prog, p.vers, refused)
			}
		}
		_ = conn.Close()
		stopDaemon(t, d)
	}
}
