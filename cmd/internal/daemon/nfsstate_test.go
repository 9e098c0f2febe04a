package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestNFSState: what clients have, as the control socket tells it: clients, sessions, locks
// and the grace period, through a restart.
func TestNFSState(t *testing.T) {
	ctx := t.Context()
	cfg := testConfig(t, t.TempDir()+"=/a")
	d, ctl := startDaemon(t, cfg)
	defer func() { stopDaemon(t, d) }()

	s := d.NFS4.State()
	now := time.Now()
	x, st := s.ExchangeID(now, &state.ExchangeID{
		Owner: []byte("host\x1b[2J"), Verifier: state.Verifier{1},
		Principal: state.Principal{Flavor: rpc.AuthSys},
	})
	if st != 0 {
		t.Fatal(st)
	}
	created, st := s.CreateSession(now,
		&state.CreateSession{
			Client: x.Client, Sequence: x.Sequence, Principal: state.Principal{Flavor: rpc.AuthSys},
			Minor: 2, Fore: state.Channel{MaxRequest: 1 << 20, MaxResponse: 1 << 20, MaxSlots: 4, MaxOps: 8},
		})
	if st != 0 {
		t.Fatal(st)
	}
	c, st := s.Client(x.Client)
	if st != 0 {
		t.Fatal(st)
	}
	if st := c.ReclaimComplete(); st != 0 {
		t.Fatal(st)
	}
	root, err := d.Table.ByID(1).FS.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := lock.File{Export: 1, Handle: root}
	if _, st := c.Open(now, &state.Open{Owner: []byte("o"), File: file, Access: state.Both}); st != 0 {
		t.Fatal(st)
	}
	attr, err := d.Table.ByID(1).FS.GetAttr(&blockstore.Cred{}, root)
	if err != nil {
		t.Fatal(err)
	}
	owner := lock.Owner{Client: "client\n", ID: "\x01\x02"}
	held := lock.Lock{Owner: owner, Start: 5, End: 9, Exclusive: true}
	if _, ok, err := d.LockTable.Lock(file, held); !ok || err != nil {
		t.Fatal(err)
	}

	clients, err := ctl.NFS4Clients(ctx)
	if err != nil || len(clients) != 1 || clients[0].Owner != `host\x1b[2J` || clients[0].Sessions != 1 ||
		clients[0].Opens != 1 || !clients[0].Confirmed {
		t.Fatalf("%+v, %v", clients, err)
	}
	sessions, err := ctl.NFS4Sessions(ctx)
	if err != nil || len(sessions) != 1 || sessions[0].Client != clients[0].ID || sessions[0].Minor != 2 ||
		sessions[0].Slots != created.Fore.MaxSlots {
		t.Errorf("%+v, %v", sessions, err)
	}
	locks, err := ctl.Locks(ctx)
	want := control.FileLock{
		Export: "/a", FileID: attr.FileID, Client: `client\n`, Owner: "0102", Start: 5, End: 9,
		Exclusive: true,
	}
	if err != nil || len(locks) != 1 || locks[0] != want {
		t.Errorf("%+v, %v", locks, err)
	}
	if g, err := ctl.Grace(ctx); err != nil || g.On {
		t.Errorf("%+v, %v", g, err)
	}

	stopDaemon(t, d)
	d, ctl = startDaemon(t, cfg)
	if g, err := ctl.Grace(ctx); err != nil || !g.On || g.NFS4Until == nil || len(g.Waiting) != 1 ||
		g.Waiting[0] != `host\x1b[2J` {
		t.Errorf("after a restart: %+v, %v", g, err)
	}
	if err := ctl.EndGrace(ctx); err != nil {
		t.Error(err)
	}
	if g, err := ctl.Grace(ctx); err != nil || g.On {
		t.Errorf("after its end: %+v, %v", g, err)
	}
	for id, want := range map[string]string{clients[0].ID: "not found", "x": "not a client ID"} {
		if err := ctl.EvictClient(ctx, id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("evicting %q: %v", id, err)
		}
	}
	x, _ = d.NFS4.State().ExchangeID(time.Now(), &state.ExchangeID{Owner: []byte("other")})
	if err := ctl.EvictClient(ctx, control.ClientID(x.Client)); err != nil {
		t.Error(err)
	}
	if list, err := ctl.NFS4Clients(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
