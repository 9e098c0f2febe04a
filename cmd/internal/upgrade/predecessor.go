package upgrade

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/rstored/rstored/cmd/internal/handover"
)

// partsMax bounds the parts of a handover.
const partsMax = 1 << 16

// Predecessor is the old process, as the new one sees it, and the parts that the old one has handed
// over. A nil Predecessor stands for a start without an upgrade: there are no parts, and the
// process may serve. The methods up to Commit belong to the goroutine that starts the server.
type Predecessor struct {
	// Restored is what this process has taken over so far.
	Restored Restored

	conn  channel
	parts map[string]*handover.Part
	// start runs in Commit, after the old process has sent go.
	start   []func()
	serving atomic.Bool
}

// Receive checks the hello of the old process, reports that this one is prepared, and receives the
// parts that the old one hands over, until the word restore.
func Receive(conn channel, version string, check func(Hello) error) (*Predecessor, error) {
	p, err := conn.Receive()
	if err != nil {
		return nil, err
	}
	var said Hello
	if p.Name != WordHello || p.Version != WordVersion {
		return nil, fmt.Errorf("the handover begins with %q, version %d", p.Name, p.Version)
	}
	if err := Decode(p, &said); err != nil {
		return nil, err
	}
	if err := check(said); err != nil {
		return nil, err
	}
	t := &Predecessor{conn: conn, parts: make(map[string]*handover.Part), Restored: Restored{Version: version}}
	if err := t.say(WordPrepared); err != nil {
		return nil, err
	}
	for {
		p, err := conn.Receive()
		if err != nil {
			return nil, fmt.Errorf("the old process has given up: %w", err)
		}
		if p.Name == WordRestore {
			return t, nil
		}
		if t.parts[p.Name] != nil || len(t.parts) == partsMax {
			return nil, fmt.Errorf("part %q of the handover comes twice, or there are too many", p.Name)
		}
		t.parts[p.Name] = p
	}
}

// Holds tells the old process on another node that this one has every part. It does not serve yet.
func (t *Predecessor) Holds() error { return t.say(WordRestored) }

// say sends a word, with what was taken over.
func (t *Predecessor) say(word string) error {
	data, err := Encode(t.Restored)
	if err != nil {
		return err
	}
	return t.conn.Send(&handover.Part{Name: word, Version: WordVersion, Data: data})
}

// Waiting reports whether this process has to wait for the old one before it may serve. Any
// goroutine may call it.
func (t *Predecessor) Waiting() bool { return t != nil && !t.serving.Load() }

// Has reports whether there is a part of a name that no component has taken.
func (t *Predecessor) Has(name string) bool { return t.Waiting() && t.parts[name] != nil }

// Left returns the names of the parts that no component has taken.
func (t *Predecessor) Left() []string { return slices.Sorted(maps.Keys(t.parts)) }

// Take returns the part of a name, or nil if there is none. It belongs to the caller.
func (t *Predecessor) Take(name string) (*handover.Part, error) {
	if !t.Waiting() {
		return nil, nil
	}
	p := t.parts[name]
	delete(t.parts, name)
	if p != nil && (p.Version < 1 || p.Version > PartVersion) {
		return nil, fmt.Errorf("part %q of the handover is of version %d, and this program knows %d: it can only "+
			"be started anew",
			name, p.Version, PartVersion)
	}
	return p, nil
}

// Restore passes the data of the part of a name to restore. The part must be there and have no
// files.
func (t *Predecessor) Restore(name string, restore func(data []byte) error) error {
	p, err := t.Need(name, 0)
	if err != nil {
		return err
	}
	return restore(p.Data)
}

// Need is Take for a part that must be there. It must have that many files, unless files is
// negative.
func (t *Predecessor) Need(name string, files int) (*handover.Part, error) {
	p, err := t.Take(name)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, fmt.Errorf("the handover has no part %q", name)
	case files >= 0 && len(p.Files) != files:
		return nil, fmt.Errorf("part %q of the handover has %d files", name, len(p.Files))
	}
	return p, nil
}

// WhenServing runs fn when this process may serve: in Commit, or at once.
func (t *Predecessor) WhenServing(fn func()) {
	if !t.Waiting() {
		fn()
		return
	}
	t.start = append(t.start, fn)
}

// Commit reports that this process has restored everything, waits for go, and runs what waits for
// it. An error means that go did not come: this process must exit.
func (t *Predecessor) Commit() error {
	if err := t.say(WordRestored); err != nil {
		return err
	}
	if err := t.AwaitGo(); err != nil {
		return err
	}
	t.Begin()
	return nil
}

// AwaitGo waits for the word go.
func (t *Predecessor) AwaitGo() error {
	p, err := t.conn.Receive()
	if err != nil {
		return fmt.Errorf("the old process goes on: %w", err)
	}
	if p.Name != WordGo {
		return fmt.Errorf("the old process says %q", p.Name)
	}
	return nil
}

// Begin runs the functions of WhenServing.
func (t *Predecessor) Begin() {
	t.serving.Store(true)
	for _, fn := range t.start {
		fn()
	}
}

// Done tells the old process that this one serves, and closes the parts that nobody took. If that
// process is gone, there is an error, and nothing to do about it.
func (t *Predecessor) Done() error {
	err := t.say(WordServing)
	_ = t.conn.Close()
	for _, p := range t.parts {
		p.Close()
	}
	return err
}

// Fail tells the old process why this one does not take over.
func Fail(conn channel, why error) {
	_ = conn.Send(&handover.Part{Name: wordError, Version: WordVersion, Data: []byte(why.Error())}) // it may be gone
	_ = conn.Close()
}
