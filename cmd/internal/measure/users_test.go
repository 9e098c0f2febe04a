package measure

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

func usersOf(r *Recorder) []string {
	list, _ := r.Users()
	var out []string
	for _, u := range list {
		out = append(out, fmt.Sprintf("%v %d %v :%d %#x wrote=%v root=%v +%v", u.Client, u.Export, u.Transport, u.Port,
			u.PKey, u.Wrote, u.Root, u.Seen.Sub(r.users.begun)))
	}
	slices.Sort(out)
	return out
}

// TestUsers: who succeeds with an export is remembered with what he did, until it is long ago or
// the export is gone.
func TestUsers(t *testing.T) {
	r := testRecorder(1)
	r.SetExports(map[uint32]string{3: "/data", 4: "/more"})
	served := func(c *rpc.Call, at time.Duration, row int) {
		r.Observe(c, rpc.Served{Row: row, At: at})
	}
	served(testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{Export: 3}), 0, 1)
	w := testCall("::ffff:10.0.0.1", rpc.TransportRDMA, rpc.CallMeta{Export: 3, Op: 3})
	w.Peer.PKey, w.Cred = 0x8001, rpc.Cred{Flavor: rpc.AuthSys, UID: 0}
	served(w, 2500*time.Millisecond, 3)
	served(testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{Export: 4}), time.Second, 1)
	served(testCall("10.0.0.2", rpc.TransportTCP, rpc.CallMeta{Export: 3, Outcome: 13}), time.Second, 1) // refused
	// about nothing that there is
	served(testCall("10.0.0.2", rpc.TransportTCP, rpc.CallMeta{Export: 9}), time.Second, 1)
	want := []string{
		"10.0.0.1 3 rdma :700 0x8001 wrote=true root=true +2s",
		"10.0.0.1 3 tcp :700 0x0 wrote=false root=false +0s",
		"10.0.0.1 4 tcp :700 0x0 wrote=false root=false +1s",
	}
	if got := usersOf(r); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	r.SetExports(map[uint32]string{3: "/data"})
	if got := usersOf(r); len(got) != 2 {
		t.Errorf("an export is gone: %q", got)
	}
	r.users.rotate(r.users.begun.Add(usersKept + 1500*time.Millisecond))
	if got := usersOf(r); len(got) != 2 {
		t.Errorf("one transport was used lately: %q", got)
	}
	r.users.rotate(r.users.begun.Add(usersKept + 4*time.Second))
	if got := usersOf(r); len(got) != 0 {
		t.Errorf("long ago: %q", got)
	}
}

// TestUsersBounded: they are no more than there is room for, and that is told.
func TestUsersBounded(t *testing.T) {
	r := testRecorder(1)
	r.SetExports(map[uint32]string{3: "/data"})
	call := testCall("10.0.0.1", rpc.TransportTCP, rpc.CallMeta{Export: 3})
	// As many as fit are entered at once; one by one would take the time of their square.
	for i := range usersMax {
		r.users.list = append(r.users.list,
			&user{userKey: userKey{netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 3}})
		r.users.list[i].transports[0].seen.Store(1)
	}
	r.users.build()
	r.Observe(call, rpc.Served{Row: 1})
	if list, all := r.Users(); len(list) != usersMax || all {
		t.Errorf("%d users, all %v", len(list), all)
	}
	r.users.rotate(r.users.begun.Add(usersKept + 4*time.Second))
	r.Observe(call, rpc.Served{Row: 1})
	if list, all := r.Users(); len(list) != 1 || !all {
		t.Errorf("after a day: %d users, all %v", len(list), all)
	}
	if n := testing.AllocsPerRun(100, func() { r.Observe(call, rpc.Served{Row: 1, At: time.Second}) }); n != 0 {
		t.Errorf("a call of a known user allocates %v times", n)
	}
}
