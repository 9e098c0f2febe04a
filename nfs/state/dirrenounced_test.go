package state

import (
	"testing"

	"github.com/rstored/rstored/nfs"
)

// TestRenouncedOfSilent: a silent client has missed a notification, and cannot be ended, because
// that cannot be written down. The directory is recalled: the client may come back.
func TestRenouncedOfSilent(t *testing.T) {
	m := newModel()
	for _, a := range []act{
		{kind: "join"},
		{kind: "complete"},
		{kind: "open", access: Read},
		{kind: "delegate", off: 1},
	} {
		if err := m.step(&a); err != nil {
			t.Fatal(err)
		}
	}
	list := m.s.Notified(modelDirFile(0), NoticeAdd)
	if len(list) != 1 {
		t.Fatalf("%d clients are notified", len(list))
	}
	m.d.fails = true
	m.now = m.now.Add(modelLease + 1)
	m.s.Renounce(m.now, &list[0])
	if got := m.s.DelegationList(1); len(got) != 1 || !got[0].Recalled {
		t.Errorf("%+v", got)
	}
	if n := len(m.s.Notified(modelDirFile(0), NoticeAdd)); n != 0 {
		t.Errorf("%d clients are still notified", n)
	}
	m.d.fails = false
	if _, ok := m.s.BeginDirChange(m.now, modelDirFile(0), nil, NoticeAdd); !ok {
		t.Error("a silent client keeps others from the directory")
	}
	if _, st := m.s.Client(m.clients[0].c.ID); st == nfs.OK {
		t.Error("the client is still there")
	}
}
