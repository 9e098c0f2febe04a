package nlm

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// waiting is a request that waits for a lock, with the arguments of its GRANTED.
type waiting struct {
	who    Client
	cookie []byte
	lock   Lock
}

// encode makes lock.Waiter.Note, which decodeWaiting reads in a successor of this process.
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
		return w, damaged("a request that waits for a lock names no client")
	}
	if w.who.Addr, err = netip.ParseAddr(addr); err != nil {
		return w, damaged("the client that waits for a lock is at %q", addr)
	}
	w.who.Server, _ = netip.ParseAddr(server) // the zero value if the client had none
	return w, nil
}

// A snapshot is the server's state without the locks, as one gob value, for the successor of this
// process. The successor may be a newer build, so fields may be added and not changed.

type snapshot struct {
	State   int32
	Clients []Client
	Notices []Client
	Grace   time.Duration // the time that is left
	Grants  []snapGrant
}

type snapGrant struct {
	File lock.File
	Have lock.Lock
	Note []byte
}

// Pause with on set cancels the calls to clients and waits until they have ended. Without, it
// begins again: it sends each SM_NOTIFY and GRANTED that has no answer, and tries waiting requests
// on the host. While the server is paused, the caller admits no calls of clients.
func (s *Server) Pause(on bool) {
	s.mu.Lock()
	s.stop()
	if on {
		s.mu.Unlock()
		s.calls.Wait()
		return
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	grants, notices := slices.Collect(maps.Keys(s.grants)), slices.Collect(maps.Keys(s.notices))
	s.mu.Unlock()
	for _, g := range grants {
		s.background(func(ctx context.Context) { s.granted(ctx, g) })
	}
	for _, c := range notices {
		s.background(func(ctx context.Context) { s.notify(ctx, c, s.cfg.State) })
	}
	if _, n := s.cfg.Locks.Count(); n > 0 {
		s.poll()
	}
}

// Snapshot returns the state of a paused server.
func (s *Server) Snapshot() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := snapshot{
		State: s.cfg.State, Clients: slices.Collect(maps.Values(s.clients)), Notices: slices.Collect(maps.Keys(s.notices)),
	}
	if s.grace() {
		out.Grace = clock.Until(time.Unix(0, s.until.Load()))
	}
	for g := range s.grants {
		out.Grants = append(out.Grants, snapGrant{g.file, *g.have, g.encode()})
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), err
}

var errSnapshot = errors.New("the lock manager's state that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore makes a paused server without clients go on from a snapshot. After an error the server
// must not be used.
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
	s.until.Store(clock.Now().Add(in.Grace).UnixNano())
	for _, c := range in.Clients {
		s.clients[c.key()] = c
	}
	for _, c := range in.Notices {
		s.notices[c] = struct{}{}
	}
	for i := range in.Grants {
		x := &in.Grants[i]
		if x.File.Handle.Len == 0 {
			return damaged("a lock without a file")
		}
		w, err := decodeWaiting(x.Note)
		if err != nil {
			return err
		}
		s.grants[&grant{w, x.File, &x.Have}] = struct{}{}
	}
	return nil
}

// RestoreWaiter sets Granted of a request that the old process has queued. It is for
// lock.Table.Restore.
func (s *Server) RestoreWaiter(f lock.File, w *lock.Waiter) error {
	q, err := decodeWaiting(w.Note)
	if err != nil {
		return err
	}
	w.Granted = func() { s.notifyGranted(&grant{q, f, &w.Lock}) }
	return nil
}
