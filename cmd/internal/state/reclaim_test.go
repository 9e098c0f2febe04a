package state

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestReclaim: clients of versions 4.0 and 4.1 reclaim in one COMPOUND what three owners had open
// and locked, after kills of the server with the list of clients in the state directory. The second
// kill comes when half of them have done so. Clients without an open are not in the list: they
// reclaim nothing, and nobody waits for them.
func TestReclaim(t *testing.T) {
	for _, n := range []int{100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n > 100 && testing.Short() {
				t.Skip("-short: a thousand clients sync the list some thousand times")
			}
			reclaims(t, n)
		})
	}
}

// server is the server of version 4 over a state directory.
type server struct {
	t     *testing.T
	dir   string
	store *Store
	table *nfs.Table
	codec *nfs.Codec
	now   time.Time
	boot  uint32
	nfs   *nfs4.Server
	locks *lock.Table
	rpc   *rpc.Server
	xid   uint32
}

// start starts the server, in the place of one that was killed.
func (s *server) start() {
	if s.store != nil {
		must(s.t, s.store.Close())
		s.rpc.Close()
	}
	s.store = open(s.t, s.dir)
	known, err := s.store.Journal().Owners()
	must(s.t, err)
	s.boot++
	s.locks = lock.New(0)
	s.nfs = nfs4.New(nfs4.Config{
		Config: nfs.Config{Exports: s.table, Codec: s.codec}, Boot: s.boot, Locks: s.locks,
		Now:   func() time.Time { return s.now },
		Known: known, Journal: s.store.Journal(),
	})
	s.rpc = rpc.NewServer(rpc.ServerConfig{Programs: s.nfs.Programs(), Workers: 2})
}

type operation = func(e *xdr.Encoder)

func words(list ...any) operation {
	return func(e *xdr.Encoder) {
		for _, v := range list {
			switch v := v.(type) {
			case int:
				e.Uint32(uint32(v))
			case uint32:
				e.Uint32(v)
			case uint64:
				e.Uint64(v)
			case bool:
				e.Bool(v)
			case string:
				e.String(v)
			case []byte:
				e.Fixed(v)
			}
		}
	}
}

// send sends a COMPOUND, and returns its results and its status.
func (s *server) send(minor int, ops ...operation) (xdr.Decoder, nfs.Status) {
	s.t.Helper()
	var e xdr.Encoder
	s.xid++
	rpc.EncodeCall(&e, s.xid, nfs4.Program, nfs4.Version, nfs4.ProcCompound,
		&rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
	words("", minor, len(ops))(&e)
	for _, o := range ops {
		o(&e)
	}
	done := make(chan []byte, 1)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort("10.0.0.1:700")}, BulkMax: -1}
	c.Reply = func(c *rpc.Call, _ bool) { done <- c.Res.AppendFlat(nil) }
	s.rpc.Dispatch(c, xdr.NewDecoder(e.B), false)
	d := xdr.NewDecoder(<-done)
	if err := rpc.DecodeReply(&d, s.xid); err != nil {
		s.t.Fatal(err)
	}
	st := nfs.Status(d.Uint32())
	d.Opaque(0)
	d.Uint32() // results
	return d, st
}

// member is a client.
type member struct {
	s       *server
	i       int
	v40     bool
	id      uint64
	session []byte
	seq     uint32
}

func (m *member) ok(d xdr.Decoder, st nfs.Status) xdr.Decoder {
	m.s.t.Helper()
	if st != nfs.OK {
		m.s.t.Fatalf("client %d: %v", m.i, st)
	}
	d.Skip(8) // the first operation and its status
	return d
}

// come makes the client known to the server.
func (m *member) come() {
	m.s.t.Helper()
	verf, owner := []byte("verifier"), fmt.Sprintf("client %04d", m.i)
	channel := words(0, 1<<16, 1<<16, 2048, 32, 1, 0)
	if m.v40 {
		d := m.ok(m.s.send(0, words(nfs4.OpSetClientID, verf, owner, 0x40000000, "tcp", "0.0.0.0.0.0", 1)))
		m.id = d.Uint64()
		m.ok(m.s.send(0, words(nfs4.OpSetClientIDConfirm, m.id, d.Fixed(8))))
		return
	}
	d := m.ok(m.s.send(1, words(nfs4.OpExchangeID, verf, owner, 0, 0, 0)))
	id, seq := d.Uint64(), d.Uint32()
	d = m.ok(m.s.send(1, func(e *xdr.Encoder) {
		words(nfs4.OpCreateSession, id, seq, 0)(e)
		channel(e)
		channel(e)
		words(0x40000000, 1, 0)(e)
	}))
	m.id, m.session, m.seq = id, d.Fixed(16), 0
}

// do sends operations, in version 4.1 behind SEQUENCE.
func (m *member) do(ops ...operation) nfs.Status {
	m.s.t.Helper()
	if m.v40 {
		_, st := m.s.send(0, ops...)
		return st
	}
	m.seq++
	_, st := m.s.send(1, append([]operation{words(nfs4.OpSequence, m.session, m.seq, 0, 0, false)}, ops...)...)
	return st
}

// handle is that of one of a client's files; number 0 is one that all share.
func (s *server) handle(i, file int) string {
	var h blockstore.Handle
	root, err := s.table.ByID(1).FS.Root()
	must(s.t, err)
	name := fmt.Sprintf("%d of %d", file, i)
	if file == 0 {
		name = "of all"
	}
	h, _, _, err = s.table.ByID(1).FS.Create(nil, root, name, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
	must(s.t, err)
	return string(s.codec.Append(nil, 1, &h))
}

// opens are the operations by which three owners open a file each and, in version 4.1, lock a byte
// of it.
func (m *member) opens(reclaim bool) (ops []operation) {
	const access, lockWrite = 3, 2
	for file := range 3 {
		owner := fmt.Sprintf("owner %d", file)
		ops = append(ops, words(nfs4.OpPutFH, m.s.handle(m.i, file)))
		claim := words(4) // the file itself
		if reclaim {
			claim = words(1, 0)
		}
		if m.v40 && !reclaim {
			// Version 4.0 opens by name, in the directory of all.
			root, _ := m.s.table.ByID(1).FS.Root()
			name := fmt.Sprintf("%d of %d", file, m.i)
			if file == 0 {
				name = "of all"
			}
			ops[len(ops)-1] = words(nfs4.OpPutFH, string(m.s.codec.Append(nil, 1, &root)))
			claim = words(0, name)
		}
		ops = append(ops, func(e *xdr.Encoder) {
			words(nfs4.OpOpen, 1, access, 0, m.id, owner, 0)(e)
			claim(e)
		})
		if !m.v40 {
			current := make([]byte, 16)
			binary.BigEndian.PutUint32(current, 1)
			ops = append(ops, words(nfs4.OpLock, lockWrite, reclaim, uint64(3*m.i+file), uint64(1), true, 0, current, 0, m.id,
				owner))
		}
	}
	return ops
}

func reclaims(t *testing.T, n int) {
	s := &server{
		t: t, dir: filepath.Join(t.TempDir(), "state"), table: nfs.NewTable(nil),
		codec: nfs.NewCodec([]byte("secret")), now: time.Unix(1_700_000_000, 0),
	}
	must(t, s.table.Replace([]*nfs.Export{{
		ID: 1, Pseudo: "/", FS: memfs.New(memfs.Options{FSID: 7}),
		Clients: []nfs.ClientRule{
			{CIDR: netip.MustParsePrefix("10.0.0.0/24"), Squash: nfs.NoRootSquash},
		},
	}}))
	s.start()
	defer func() {
		s.rpc.Close()
		must(t, s.store.Close())
	}()
	complete := words(nfs4.OpReclaimComplete, false)
	want := func(what string, m *member, st, want nfs.Status) {
		t.Helper()
		if st != want {
			t.Fatalf("%s, client %d: %v instead of %v", what, m.i, st, want)
		}
	}
	members := make([]*member, n)
	var opens, locks, has int
	for i := range members {
		m := &member{s: s, i: i, v40: i%4 == 1}
		members[i] = m
		m.come()
		if !m.v40 {
			want("RECLAIM_COMPLETE", m, m.do(complete), nfs.OK)
		}
		if i%3 == 0 {
			continue
		}
		if m.v40 {
			// The owners are confirmed by what they reclaim.
			for file := range 3 {
				want("OPEN", m, m.do(m.opens(false)[2*file:][:2]...), nfs.OK)
			}
		} else {
			want("OPEN and LOCK", m, m.do(m.opens(false)...), nfs.OK)
			locks += 3
		}
		opens, has = opens+3, has+1
	}
	known, err := s.store.Journal().Owners()
	must(t, err)
	if got := s.nfs.State().Counts(); got.Opens != opens || got.Locks != locks || len(known) != has {
		t.Fatalf("%+v instead of %d opens and %d locks; %d clients are remembered of %d", got, opens, locks, len(known), has)
	}
	for _, part := range []int{2, 1} { // the first time only half of them come before the next kill
		s.start()
		for j := range n / part {
			m := members[j*7%n]
			m.come()
			if m.i%3 != 0 {
				want("reclaiming", m, m.do(m.opens(true)...), nfs.OK)
				if !m.v40 {
					want("something new before RECLAIM_COMPLETE", m, m.do(m.opens(false)...), nfs.ErrGrace)
				}
			} else {
				want("reclaiming without having had anything", m, m.do(m.opens(true)[:2]...), nfs.ErrNoGrace)
			}
			if !m.v40 {
				want("RECLAIM_COMPLETE", m, m.do(complete), nfs.OK)
			}
		}
	}
	if got := s.nfs.State().Counts(); got.Clients != n || got.Opens != opens || got.Locks != locks {
		t.Errorf("%+v instead of %d opens and %d locks", got, opens, locks)
	}
	if held, _ := s.locks.Count(); held != locks {
		t.Errorf("%d locks instead of %d", held, locks)
	}
	s.now = s.now.Add(91 * time.Second) // clients of version 4.0 do not say that they are done
	for _, m := range members {
		if m.v40 {
			continue
		}
		if m.i%3 == 0 { // opens what is its own
			want("something new", m, m.do(m.opens(false)...), nfs.OK)
		} else {
			want("reclaiming late", m, m.do(m.opens(true)[:2]...), nfs.ErrNoGrace)
		}
	}
}
