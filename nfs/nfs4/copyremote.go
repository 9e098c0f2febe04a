package nfs4

import (
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// CopyPartners are the servers from which this server copies files, and that may read files of this
// server for a COPY. Its methods may be called from any goroutine. Only Open may wait.
//
// The client names the source of a copy. Without a list of partners it could make the server
// connect to hosts and ports that the client itself cannot reach.
type CopyPartners interface {
	// Enabled reports whether there is any partner.
	Enabled() bool
	// Admits reports whether a server at an address may be the destination of a copy.
	Admits(netip.Addr) bool
	// Connects reports whether this server may connect to an address, as a destination.
	Connects(netip.AddrPort) bool
	// Open connects to the source of a copy, in a session of version 4.2. ctx also bounds the life of
	// the connection. An error of the source is a nfs.Status.
	Open(ctx context.Context, s *CopySource) (RemoteFile, error)
}

// CopySource is a file of another server.
type CopySource struct {
	At      netip.AddrPort
	RDMA    bool       // the client came by RDMA, or says that At is a port of RDMA
	From    netip.Addr // own address to which the client has sent the COPY; the source has it from COPY_NOTIFY
	Handle  []byte
	Stateid state.Stateid
	// UID, GID and Groups are the identity of the client's caller in the export of the target. This
	// server calls the source as this user only. It calls as root only if root is not squashed here.
	UID, GID uint32
	Groups   []uint32
}

// RemoteFile reads the source of a copy.
type RemoteFile interface {
	// ReadAt reads at most len(p) bytes. eof says that the file ends behind them. An error of the
	// source is a nfs.Status.
	ReadAt(ctx context.Context, p []byte, off uint64) (n int, eof bool, err error)
	// Close ends the connection.
	Close() error
}

// copies counts copies between servers.
type copies struct {
	notified atomic.Uint64 // copy stateids granted
	pulled   atomic.Uint64 // copies from other servers that began
	denied   atomic.Uint64 // servers that are no partners, or not the one that was named
	failed   atomic.Uint64 // copies that the source has refused, or that did not reach it
}

// refusedPause is how long the server waits before it tells a client that the source does not know
// the copy stateid. The Linux client then repeats COPY_NOTIFY and COPY at once and without end.
const refusedPause = time.Second

// foreignSource reports whether the file handle of the PUTFH being executed is one of another
// server. That is so if PUTFH, SAVEFH, PUTFH and a COPY with source servers follow each other,
// which is what the Linux client sends. Then neither PUTFH nor SAVEFH may interpret the handle (RFC
// 7862 section 15.2.3). foreignSource only looks at the arguments behind the PUTFH; they are
// decoded later.
func (k *compound) foreignSource() bool {
	if k.minor < 2 {
		return false
	}
	d := k.c.Args
	if d.Uint32() != OpSaveFH || d.Uint32() != OpPutFH {
		return false
	}
	d.Opaque(FHMax)
	if d.Uint32() != OpCopy {
		return false
	}
	d.Skip(2*resStateid + 3*8 + 2*4) // stateids, offsets and count, consecutive and synchronous
	servers := d.Uint32()
	return d.Err() == nil && servers > 0
}

// foreign reports whether an operation would use the handle of another server. Only the COPY itself
// and the SAVEFH before it may do so.
func (k *compound) foreign(row *operation, op uint32) bool {
	return k.cur.foreign != nil && row.is(needsHandle) && op != OpSaveFH ||
		k.saved.foreign != nil && row.is(needsSaved) && op != OpCopy
}

// copyRemote is COPY from another server (RFC 7862 section 4.6.2). It is always asynchronous. The
// foreign handle is the saved file; at is the first of the client's source servers to which this
// server may connect.
//
//	OFFLOAD_DENIED    no such server, no backchannel, or too many copies: the Linux client reads
//	                  and writes by itself. NOTSUPP would end its copies within this server as well
//	OFFLOAD_NO_REQS   the client insists on a synchronous copy
//	BAD_STATEID       the source stateid is a special one. The source would let this server read with
//	                  it whatever the user may read, although nobody asked it by COPY_NOTIFY
//	STALE             the saved file is not of another server
//
// What fails later is the status of CB_OFFLOAD, see partnerStatus.
func (k *compound) copyRemote(t *transfer, at netip.AddrPort, byRDMA, synchronous bool) nfs.Status {
	switch {
	case k.cur.x == nil:
		return nfs.ErrIsDir
	case k.cur.readOnly():
		return nfs.ErrROFS
	case k.saved.foreign == nil:
		return nfs.ErrStale
	}
	if st := k.regular(); st != nfs.OK {
		return st
	}
	if st := k.ioState(t.target, true); st != nfs.OK {
		return st
	}
	if t.count == 0 {
		t.count = math.MaxInt64 - max(t.sourceOff, t.dstOff, 1) // up to the end of the source
	}
	if t.sourceOff > math.MaxInt64-t.count {
		return nfs.ErrInval
	}
	if err := blockstore.CheckRange(t.dstOff, t.count); err != nil {
		return nfs.StatusOf(err)
	}
	if !at.IsValid() {
		k.s.copies.denied.Add(1)
		return nfs.ErrOffloadDenied
	}
	if t.source.Special() {
		return nfs.ErrBadStateID
	}
	if synchronous {
		k.c.Res.Bool(true)  // consecutive
		k.c.Res.Bool(false) // synchronous
		k.keepResult = true
		return nfs.ErrOffloadNoReqs
	}
	c := &copying{to: k.cur, transfer: *t, verf: k.cur.x.FS.Verifier(), writes: *k.who(&k.cur)}
	c.writes.Groups = slices.Clone(c.writes.Groups)
	c.remote = &CopySource{
		At: at, RDMA: byRDMA || k.c.Peer.Transport == rpc.TransportRDMA, From: k.c.Peer.Local.Addr().Unmap(),
		Handle: slices.Clone(k.saved.foreign), Stateid: t.source,
		UID: c.writes.UID, GID: c.writes.GID, Groups: c.writes.Groups,
	}
	o, st := k.offload(c)
	switch {
	case st != nfs.OK:
		return st
	case o == nil:
		return nfs.ErrOffloadDenied
	}
	k.s.copies.pulled.Add(1)
	k.encodeCopied(c, o)
	return nfs.OK
}

// sourceServer reads the source servers of a COPY, and returns the first one that is a partner.
func (k *compound) sourceServer(n uint32) (found netip.AddrPort, byRDMA bool) {
	for range n {
		at, rdma := decodeNetloc(&k.c.Args)
		if p := k.s.cfg.CopyPartners; p != nil && !found.IsValid() && at.IsValid() && p.Connects(at) {
			found, byRDMA = at, rdma
		}
	}
	return found, byRDMA
}

// pull copies from another server, and returns the status for CB_OFFLOAD. It waits for the source
// without a turn (see offload.go), so that a slow source delays no other copy. It takes a turn to
// write, so that a paused server writes nothing.
func (o *offload) pull() nfs.Status {
	f, c := &o.s.offloads, o.c
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-o.Gone():
		case <-f.stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	err := o.pullFrom(ctx)
	switch {
	case ctx.Err() == nil:
	case o.dropped():
		f.cancelled.Add(1)
		return nfs.OK
	default:
		return o.ended(nfs.ErrJukebox)
	}
	if err == nil || c.done > 0 {
		return nfs.OK
	}
	var local *targetError
	if errors.As(err, &local) {
		return nfs.StatusOf(local.error)
	}
	o.s.copies.failed.Add(1)
	o.s.cfg.Logger.Info("a copy from another server failed; the client can read and write by itself",
		"source", c.remote.At.String(), "export", c.to.x.ID, "error", err)
	st := partnerStatus(err)
	if st == nfs.ErrPartnerNoAuth {
		t := time.NewTimer(refusedPause)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return st
}

// dropped reports whether the stateid has ended.
func (o *offload) dropped() bool {
	select {
	case <-o.Gone():
		return true
	default:
		return false
	}
}

// targetError is an error of this server's store, as opposed to one of the source.
type targetError struct{ error }

// errSilent ends a copy whose client has not renewed its lease.
var errSilent = &targetError{nfs.ErrJukebox}

func (o *offload) pullFrom(ctx context.Context) error {
	c, partners := o.c, o.s.cfg.CopyPartners
	if partners == nil || !partners.Connects(c.remote.At) || c.remote.Stateid.Special() {
		return nfs.ErrOffloadDenied // an upgrade or a reload may have removed the partner
	}
	file, err := partners.Open(ctx, c.remote)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	buf := make([]byte, nfs.MaxIO)
	for c.done < c.count {
		if stop, _ := o.Silent(o.s.cfg.Now()); stop {
			return errSilent
		}
		if !partners.Connects(c.remote.At) {
			return nfs.ErrOffloadDenied
		}
		p := buf[:min(c.count-c.done, uint64(len(buf)))]
		n, eof, err := file.ReadAt(ctx, p, c.sourceOff+c.done)
		if err != nil {
			return err
		}
		if err := o.place(ctx, p[:n]); err != nil {
			return err
		}
		if eof {
			break
		}
		if n == 0 {
			return io.ErrNoProgress // the client would take a copy of 0 bytes for the end of the file
		}
	}
	return nil
}

// place writes p behind the bytes that were copied.
func (o *offload) place(ctx context.Context, p []byte) error {
	f, c := &o.s.offloads, o.c
	var turn []byte
	select {
	case turn = <-f.turns:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { f.turns <- turn }()
	for len(p) > 0 {
		n, _, _, err := c.to.x.FS.WriteAt(&c.writes, c.to.h, p, c.dstOff+c.done, blockstore.Unstable)
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &targetError{err}
		}
		c.done += uint64(n)
		o.Add(uint64(n))
		p = p[n:]
	}
	return nil
}

// partnerStatus returns the status for CB_OFFLOAD of a copy for which the source has returned no
// byte (RFC 7862 sections 11.2 and 16.1):
//
//	PARTNER_NO_AUTH   the source does not know the copy stateid (any more): the Linux client repeats
//	                  COPY_NOTIFY and COPY
//	OFFLOAD_DENIED    all else: the Linux client reads and writes by itself. With PARTNER_NOTSUPP the
//	                  copy_file_range of the program would fail
func partnerStatus(err error) nfs.Status {
	unknown := []nfs.Status{nfs.ErrBadStateID, nfs.ErrExpired, nfs.ErrStaleStateID, nfs.ErrOldStateID}
	var st nfs.Status
	if errors.As(err, &st) && slices.Contains(unknown, st) {
		return nfs.ErrPartnerNoAuth
	}
	return nfs.ErrOffloadDenied
}
