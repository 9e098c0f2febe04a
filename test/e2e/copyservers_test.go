package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// offload is a CB_OFFLOAD (RFC 7862 section 16.1).
type offload struct {
	id     string
	status nfs.Status
	n      uint64
	verf   string
}

func decodeOffload(d *xdr.Decoder) (o offload) {
	d.Opaque(128)
	o.id, o.status = string(d.Fixed(16)), nfs.Status(d.Uint32())
	if o.status != nfs.OK {
		o.n = d.Uint64()
		return o
	}
	for range d.Uint32() {
		d.Fixed(16)
	}
	o.n = d.Uint64()
	d.Uint32() // UNSTABLE
	o.verf = string(d.Fixed(8))
	return o
}

// openPlainly opens a file without a delegation. It makes the file if it is opened for writing. It
// returns the file's handle and the stateid.
func (k *caller42) openPlainly(export, name string, write bool) (fh, id []byte) {
	k.t.Helper()
	d := k.do(4, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutRootFH)
		e.Uint32(nfs4.OpLookup)
		e.String(export)
		e.Uint32(nfs4.OpOpen)
		e.Uint32(0)
		access := uint32(0x401) // OPEN4_SHARE_ACCESS_READ and WANT_NO_DELEG
		if write {
			access = 0x403
		}
		e.Uint32(access)
		e.Uint32(0)
		e.Uint64(1)
		e.String("owner")
		e.Bool(write)
		if write {
			e.Uint32(0) // UNCHECKED
			e.Uint32(0)
			e.Opaque(nil)
		}
		e.Uint32(0) // by name
		e.String(name)
		e.Uint32(nfs4.OpGetFH)
	})
	d.Skip(3 * 8)
	id = d.Fixed(16)
	d.Skip(4 + 8 + 8 + 4)
	for range d.Uint32() {
		d.Uint32()
	}
	if kind := d.Uint32(); kind == 3 {
		d.Uint32()
	} else if kind != 0 {
		k.t.Fatalf("delegation %d", kind)
	}
	d.Skip(8)
	fh = d.Opaque(128)
	if d.Err() != nil {
		k.t.Fatal(d.Err())
	}
	return fh, id
}

// copyPair is a client of two servers, the second of which copies a file of the first one. The
// client uses TCP. The second server reads by RDMA if netid says so.
type copyPair struct {
	t            *testing.T
	netid        string
	addr         [2]netip.Addr // of the source, and of the destination
	dial         func(addr string) (net.Conn, error)
	slow         func(string) // sets the bytes that the source sends in a second; "" is no limit
	from, to     *caller42
	source, file string // on the host
	data         []byte

	fromFH, toFH, fromID, toID []byte
	id                         string // of the copy under way
	began                      uint64 // its offset
}

const copySize = 48 << 20

// joins makes a session with one of the servers and opens the file there, as a client does after a
// server's restart.
func (p *copyPair) joins(destination bool) {
	p.t.Helper()
	k := newCaller42On(p.t, p.connects(destination))
	k.join()
	if destination {
		p.to = k
		p.toFH, p.toID = k.openPlainly("data", filepath.Base(p.file), true)
	} else {
		p.from = k
		p.fromFH, p.fromID = k.openPlainly("slow", filepath.Base(p.source), false)
	}
}

// rejoins binds a new connection to the session with one of the servers.
func (p *copyPair) rejoins(destination bool) {
	p.t.Helper()
	k := &p.from
	if destination {
		k = &p.to
	}
	was := *k
	*k = newCaller42On(p.t, p.connects(destination))
	(*k).session, (*k).seq, (*k).xid = was.session, was.seq, was.xid
	(*k).compound(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpBindConnToSession)
		e.Fixed(was.session)
		e.Uint32(7) // BACK_OR_BOTH
		e.Bool(false)
	})
}

// connects waits for one of the servers.
func (p *copyPair) connects(destination bool) (c net.Conn) {
	p.t.Helper()
	i := 0
	if destination {
		i = 1
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if c, err = p.dial(p.addr[i].String() + ":2049"); err == nil {
			break
		}
		if time.Now().After(end) {
			p.t.Fatal(err)
		}
	}
	return c
}

// begins sends COPY_NOTIFY and COPY for what is behind off.
func (p *copyPair) begins(off uint64) {
	p.t.Helper()
	uaddr := func(at netip.Addr, port int) string { return fmt.Sprintf("%v.%d.%d", at, port>>8, port&0xff) }
	d := p.from.do(2, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(p.fromFH)
		e.Uint32(nfs4.OpCopyNotify)
		e.Fixed(p.fromID)
		e.Uint32(3)
		e.String("tcp")
		e.String(uaddr(p.addr[1], 2049))
	})
	d.Skip(8 + 8 + 12)
	notice := d.Fixed(16)
	port := 2049
	if p.netid == "rdma" {
		port = 20049
	}
	d = p.to.do(4, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(p.fromFH)
		e.Uint32(nfs4.OpSaveFH)
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(p.toFH)
		e.Uint32(nfs4.OpCopy)
		e.Fixed(notice)
		e.Fixed(p.toID)
		e.Uint64(off)
		e.Uint64(off)
		e.Uint64(copySize - off)
		e.Bool(true)
		e.Bool(false)
		e.Uint32(1)
		e.Uint32(3)
		e.String(p.netid)
		e.String(uaddr(p.addr[0], port))
	})
	d.Skip(3*8 + 8)
	if n := d.Uint32(); n != 1 || d.Err() != nil {
		p.t.Fatalf("%d stateids, %v", n, d.Err())
	}
	p.id, p.began = string(d.Fixed(16)), off
}

// progress is OFFLOAD_STATUS.
func (p *copyPair) progress() (n uint64, done bool, st nfs.Status) {
	p.t.Helper()
	d, st := p.to.try(2, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(p.toFH)
		e.Uint32(nfs4.OpOffloadStatus)
		e.Fixed([]byte(p.id))
	})
	if st != nfs.OK {
		return 0, false, st
	}
	d.Skip(2 * 8)
	return d.Uint64(), d.Uint32() > 0, nfs.OK
}

// halfway begins a copy from a slow source, and returns in its middle.
func (p *copyPair) halfway() {
	p.t.Helper()
	if err := os.Truncate(p.file, 0); err != nil {
		p.t.Fatal(err)
	}
	p.slow("4M")
	p.begins(0)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n, done, st := p.progress()
		if st != nfs.OK || done {
			p.t.Fatalf("%d bytes, %v, %v", n, done, st)
		}
		if n >= 2<<20 {
			return
		}
		if time.Now().After(end) {
			p.t.Fatal("nothing is copied")
		}
	}
}

// told waits for CB_OFFLOAD, and checks that the bytes that it counts are in the file.
func (p *copyPair) told() offload {
	p.t.Helper()
	select {
	case o := <-p.to.copied:
		if o.id != p.id {
			p.t.Errorf("CB_OFFLOAD for %x instead of %x", o.id, p.id)
		}
		got, err := os.ReadFile(p.file)
		end := p.began + o.n
		if err != nil || o.n > 0 && (end > copySize || uint64(len(got)) < end || !bytes.Equal(got[:end], p.data[:end])) {
			p.t.Errorf("%d bytes from %d on are said to be copied: %v", o.n, p.began, err)
		}
		return o
	case <-time.After(time.Minute):
		p.t.Fatal("no CB_OFFLOAD")
		return offload{}
	}
}

// completes waits for the whole rest of the file, and commits it.
func (p *copyPair) completes() {
	p.t.Helper()
	p.slow("")
	o := p.told()
	if o.status != nfs.OK || p.began+o.n != copySize {
		p.t.Errorf("%v, %d bytes from %d on", o.status, o.n, p.began)
	}
	if got := p.commits(); got != o.verf {
		p.t.Errorf("verifier %x of COMMIT, %x of the copy", got, o.verf)
	}
}

func (p *copyPair) commits() string {
	p.t.Helper()
	d := p.to.do(2, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(p.toFH)
		e.Uint32(nfs4.OpCommit)
		e.Uint64(0)
		e.Uint32(0)
	})
	d.Skip(2 * 8)
	return string(d.Fixed(8))
}

// forgotten checks that a destination that was killed does not know the copy, nor calls for it. The
// client copies again.
func (p *copyPair) forgotten() {
	p.t.Helper()
	p.joins(true)
	if n, done, st := p.progress(); st != nfs.ErrBadStateID && st != nfs.ErrStaleStateID {
		p.t.Errorf("OFFLOAD_STATUS of a copy that was lost: %d bytes, %v, %v", n, done, st)
	}
	p.begins(0)
	p.completes()
}

// shortened checks what the destination says after its source was killed: the copy was short. The
// client copies the rest.
func (p *copyPair) shortened() {
	p.t.Helper()
	o := p.told()
	if o.status != nfs.OK || o.n == 0 || o.n >= copySize {
		p.t.Errorf("%v, %d bytes", o.status, o.n)
	}
	p.joins(false)
	p.begins(o.n)
	p.completes()
}

// newCopyPair writes a file of random bytes below dir, and opens it and its copy in export.
func newCopyPair(t *testing.T, p *copyPair, dir, export string) {
	t.Helper()
	p.t, p.data = t, make([]byte, copySize)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(p.data)
	p.source, p.file = filepath.Join(dir, "source"), filepath.Join(export, "copy")
	if err := os.WriteFile(p.source, p.data, 0o644); err != nil {
		t.Fatal(err)
	}
	p.joins(false)
	p.joins(true)
}
