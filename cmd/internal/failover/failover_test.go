package failover

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// part is what a node hands over.
type part struct{ data string }

func (part) Freeze(upgrade.Stage) (func() error, error) { return nil, nil }
func (p part) Snapshot(to *upgrade.Parts)               { to.Add("part", []byte(p.data), nil, nil) }

type rig struct {
	*Listener
	dir          string
	held, failed chan error
}

func listen(t *testing.T, secret string) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), held: make(chan error, 8), failed: make(chan error, 8)}
	l, err := Listen(Config{
		Dir: r.dir, Node: "b/.", Address: "127.0.0.1:0", Secret: []byte(secret), Version: "2",
		Held: func() { r.held <- nil }, Failed: func(err error) { r.failed <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Listener = l
	t.Cleanup(func() { l.Close("") })
	return r
}

// standby is what the state directory says of the listener.
func (r *rig) standby(t *testing.T) Standby {
	t.Helper()
	list, err := List(r.dir)
	if err != nil || len(list) != 1 || list[0].Node != "b/." {
		t.Fatalf("standbys %+v, %v", list, err)
	}
	return list[0]
}

// handOver hands one part over, up to the word restored.
func handOver(t *testing.T, to Standby, token, data string) *upgrade.Successor {
	t.Helper()
	s, err := Dial(t.Context(), to, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill() })
	said, err := s.Prepare(time.Minute, upgrade.Hello{Node: "a", Token: token})
	if err != nil || said.Version != "2" {
		t.Fatal(said, err)
	}
	if _, err := s.HandOver([]upgrade.Component{part{data}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHandOver: a standby that has claimed the lease by the token has what was handed over last,
// and says that it serves.
func TestHandOver(t *testing.T) {
	r := listen(t, "secret")
	to := r.standby(t)
	handOver(t, to, "1", "first")
	s := handOver(t, to, "2", "second")
	if err := s.Go(); err != nil {
		t.Fatal(err)
	}
	<-r.held
	from := r.Close("2")
	if from == nil {
		t.Fatal("nothing was handed over")
	}
	p, err := from.Need("part", 0)
	if err != nil || string(p.Data) != "second" {
		t.Fatal(p, err)
	}
	from.Begin()
	if err := from.Done(); err != nil {
		t.Fatal(err)
	}
	if err := s.Await(upgrade.WordServing, time.Minute, nil); err != nil {
		t.Error(err)
	}
	if list, err := List(r.dir); err != nil || len(list) != 0 {
		t.Errorf("standbys %+v, %v", list, err)
	}
}

// TestOtherToken: a standby that has the lease by another way drops what was handed over, and the
// serving node learns of it.
func TestOtherToken(t *testing.T) {
	for _, token := range []string{"", "2"} {
		r := listen(t, "secret")
		s := handOver(t, r.standby(t), "1", "data")
		if from := r.Close(token); from != nil {
			t.Errorf("token %q: it continues", token)
		}
		if err := s.Await(upgrade.WordServing, time.Minute, nil); err == nil {
			t.Error("the serving node is told that it serves")
		}
	}
}

// TestStrangers: nobody without the secret hands anything over, or is handed anything, and one that
// says nothing keeps nobody out.
func TestStrangers(t *testing.T) {
	r := listen(t, "secret")
	to := r.standby(t)
	silent, err := net.Dial("tcp", to.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := Dial(t.Context(), to, []byte("another")); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("a standby with another secret: %v", err)
	}
	if err := <-r.failed; err == nil {
		t.Error("no error")
	}
	s, err := Dial(t.Context(), to, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	if _, err := s.Prepare(time.Minute, upgrade.Hello{Node: "b/.", Token: "1"}); err == nil {
		t.Error("a node hands over to itself")
	}
	handOver(t, to, "1", "data")
}

// TestList: a file that is no standby is an error, and none is an empty list.
func TestList(t *testing.T) {
	dir := t.TempDir()
	if list, err := List(dir); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := os.WriteFile(filepath.Join(dir, prefix+"x"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := List(dir); err == nil {
		t.Error("no error")
	}
}
