package nlm

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// waiting is who waits for a lock, and how he is told.
type waiting struct {
	who    Client
	cookie []byte
	lock   Lock
}

// encode makes the note of a lock.Waiter, which decodeWaiting reads, in this process or the next
// one.
func (w *waiting) encode() []byte {
	var e xdr.Encoder
	e.String(w.who.Name)
	e.String(w.who.Addr.String())
	e.String(w.who.Server.String())
	e.Opaque(w.cookie)
	EncodeLock(&e, &w.lock)
	return e.B
}

func decodeWaiting(b []byte) (w waiting, err error) {
	d := xdr.NewDecoder(b)
	const addrMax = 64
	w.who.Name = d.String(stringMax)
	addr, server := d.String(addrMax), d.String(addrMax)
	w.cookie = d.Opaque(stringMax)
	w.lock = DecodeLock(&d)
	if d.Err() != nil || d.Remaining() > 0 {
		return w, damaged("who waits for a lock is not known")
	}
	if w.who.Addr, err = netip.ParseAddr(addr); err != nil {
		return w, damaged("who waits for a lock is at %q", addr)
	}
	w.who.Server, _ = netip.ParseAddr(server) // it may have had none
	return w, nil
}

// A snapshot is what the server must tell the one that takes its place, beside the locks
// themselves, as a gob value to which fields may be added.

type snapshot struct {
	State   int32
	Clients []Client
	Notices []Client
	Grace   time.Duration // that is left
	Grants  []snapGrant
}

type snapGrant struct {
	Export uint32
	Handle []byte
	Have   lock.Lock
	Note   []byte
}

// Hold ends the calls to clients, as Close does, and has them begin again when it is taken back:
// locks that were granted are told of, and those who wait for the host are tried. No calls of
// clients come while the server is held.
func (s *Server) Hold(on bool) {
	s.mu.Lock()
	if on {
		s.stop()
		s.mu.Unlock()
		s.calls.Wait()
		return
	}
	s.stop()
	s.ctx, s.stop = context.WithCancel(context.Background())
	var grants []*grant
	for g := range s.grants {
		grants = append(grants, g)
	}
	var notices []Client
	for c := range s.notices {
		notices = append(notices, c)
	}
	s.mu.Unlock()
	for _, g := range grants {
		s.background(func(ctx context.Context) { s.granted(ctx, g) })
	}
	for _, c := range notices {
		s.background(func(ctx context.Context) { s.notify(ctx, c) })
	}
	if _, n := s.cfg.Locks.Count(); n > 0 {
		s.poll()
	}
}

// Snapshot is what the server remembers, while it is held.
func (s *Server) Snapshot() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := snapshot{State: s.cfg.State}
	if s.grace() {
		out.Grace = clock.Until(s.until)
	}
	for _, c := range s.clients {
		out.Clients = append(out.Clients, c)
	}
	for c := range s.notices {
		out.Notices = append(out.Notices, c)
	}
	for g := range s.grants {
		out.Grants = append(out.Grants, snapGrant{Export: g.file.Export, Handle: bytes.Clone(g.file.Handle.Bytes()), Have: *g.have, Note: g.encode()})
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), err
}

var errSnapshot = errors.New("the lock manager's state that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore has a server that knows nobody go on from a snapshot, when it is held no more. After
// an error the server is of no use.
func (s *Server) Restore(data []byte) error {
	var in snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return damaged("%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) > 0 {
		return errors.New("clients with locks can be handed over to a server that knows none only")
	}
	if len(in.Clients) > clientsMax || len(in.Notices) > clientsMax {
		return damaged("%d clients", len(in.Clients))
	}
	s.cfg.State = in.State
	s.until = clock.Now().Add(in.Grace)
	for _, c := range in.Clients {
		s.clients[c.key()] = c
	}
	for _, c := range in.Notices {
		s.notices[c] = struct{}{}
	}
	for i := range in.Grants {
		x := &in.Grants[i]
		h, ok := blockstore.MakeHandle(x.Handle)
		if !ok {
			return damaged("a handle of %d bytes", len(x.Handle))
		}
		w, err := decodeWaiting(x.Note)
		if err != nil {
			return err
		}
		s.grants[&grant{w, lock.File{Export: x.Export, Handle: h}, &x.Have}] = struct{}{}
	}
	return nil
}

// Waits makes what is called when a lock is granted to somebody who waits for it, from what
// another process has noted. It is for lock.Table.Restore.
func (s *Server) Waits(f lock.File, w *lock.Waiter) error {
	q, err := decodeWaiting(w.Note)
	if err != nil {
		return err
	}
	w.Granted = func() { s.tell(&grant{q, f, &w.Lock}) }
	return nil
}
