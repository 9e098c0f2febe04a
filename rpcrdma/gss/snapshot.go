package gss

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// snapshot is the state that a server hands over to its successor: the contexts with their keys,
// least recently used first. It is a gob value, to which fields may be added.
type snapshot struct {
	Nonce, Last uint64
	Contexts    []snapContext
}

type snapContext struct {
	Number    uint64
	Key       Key
	Role      Role // Seq is the next sequence number
	Principal string
	Acceptor  string
	Identity  Identity
	Expires   time.Time
	Host      netip.Addr
	Used      bool
	Top       uint32
	Seen      []uint64
}

// Snapshot returns the snapshot. No call may be in execution.
func (s *Server) Snapshot() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := snapshot{Nonce: s.nonce, Last: s.last}
	for e := s.used.Front(); e != nil; e = e.Next() {
		x := e.Value.(*ServerContext)
		role := x.role
		role.Seq = x.seq.Load()
		x.mu.Lock()
		out.Contexts = append(out.Contexts, snapContext{
			Number: x.number, Key: x.key, Role: role, Principal: x.Principal, Acceptor: x.Acceptor, Identity: x.Identity,
			Expires: x.expires, Host: x.host, Used: x.window.used, Top: x.window.top, Seen: x.window.seen[:],
		})
		x.mu.Unlock()
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), err
}

var errSnapshot = errors.New("gss: the snapshot is damaged")

// Restore makes a server without contexts continue from a snapshot. After an error the server has
// some of the contexts.
func (s *Server) Restore(data []byte) error {
	var in snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.contexts) > 0 {
		return errors.New("gss: contexts can be handed over only to a server without any")
	}
	s.nonce, s.last = in.Nonce, in.Last
	for i := range in.Contexts {
		y := &in.Contexts[i]
		c, err := NewContext(y.Key, y.Role)
		if err != nil {
			return err
		}
		x := &ServerContext{
			Context: c, Principal: y.Principal, Acceptor: y.Acceptor, Identity: y.Identity, expires: y.Expires,
			number: y.Number, host: y.Host, window: Window{used: y.Used, top: y.Top},
		}
		if y.Number > in.Last || s.contexts[y.Number] != nil || copy(x.window.seen[:], y.Seen) != len(x.window.seen) {
			return errSnapshot
		}
		s.enter(x)
	}
	return nil
}
