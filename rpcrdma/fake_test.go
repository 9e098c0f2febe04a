package rpcrdma

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
)

// A fake of the verbs contract in memory: queue pairs execute each other's
// requests on the loop of the peer, in order, with the checks of keys, bounds
// and access that a real one makes. It sends no packets and loses nothing.

type fakeNet struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]*fakeListener
	key   uint32
	// trace, if set, sees every request that is executed, on the responder's loop.
	trace func(op rdma.SendOp, n int, rkey uint32)
	// posted, if set, is called with the number of RDMA READs that a queue pair has in flight.
	posted func(reads int)
}

func newFakeNet() *fakeNet { return &fakeNet{ports: make(map[netip.AddrPort]*fakeListener)} }

type fakeDevice struct {
	net  *fakeNet
	addr netip.Addr
	loop *fakeLoop
}

func (n *fakeNet) device(addr string) *fakeDevice {
	return &fakeDevice{net: n, addr: netip.MustParseAddr(addr), loop: newFakeLoop()}
}

// fakeLoop runs functions in order, and then calls OnEvent of the CQs with new completions.
type fakeLoop struct {
	mu    sync.Mutex
	ready sync.Cond
	fns   []func()
	ended bool
	done  chan struct{}
	dirty []*fakeCQ // loop only
}

func newFakeLoop() *fakeLoop {
	l := &fakeLoop{done: make(chan struct{})}
	l.ready.L = &l.mu
	go l.run()
	return l
}

func (l *fakeLoop) run() {
	defer close(l.done)
	for {
		l.mu.Lock()
		for len(l.fns) == 0 && !l.ended {
			l.ready.Wait()
		}
		if l.ended {
			l.mu.Unlock()
			return
		}
		fns := l.fns
		l.fns = nil
		l.mu.Unlock()
		for _, f := range fns {
			f()
		}
		dirty := l.dirty
		l.dirty = nil
		for _, q := range dirty {
			q.queued = false
			q.onEvent()
		}
	}
}

func (l *fakeLoop) Submit(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.fns = append(l.fns, fn)
	l.ready.Signal()
	return true
}

func (l *fakeLoop) end() {
	l.mu.Lock()
	l.ended = true
	l.ready.Signal()
	l.mu.Unlock()
	<-l.done
}

func (l *fakeLoop) Now() rdma.Time { return rdma.Time(time.Now().UnixNano()) }

func (l *fakeLoop) After(d rdma.Time, fn func()) func() {
	t := time.AfterFunc(time.Duration(d), func() { l.Submit(fn) })
	return func() { t.Stop() }
}

// do runs fn on the loop and waits for it.
func (l *fakeLoop) do(fn func()) {
	done := make(chan struct{})
	if l.Submit(func() { fn(); close(done) }) {
		<-done
	}
}

type fakePD struct {
	net *fakeNet
	mu  sync.Mutex
	mrs map[uint32]*fakeMR // by either key

	names  []byte // of the dma-bufs: no region can be reused for them
	reuses bool   // regions can be reregistered
}

type fakeMR struct {
	pd         *fakePD
	lkey, rkey uint32
	buf        []byte
	mem        []byte // what buf names, if it is another device's
	access     rdma.Access
}

func (n *fakeNet) newKey() uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.key += 257
	return n.key
}

func (p *fakePD) Register(buf []byte, access rdma.Access) (rdma.MR, error) {
	m := &fakeMR{pd: p, lkey: p.net.newKey(), rkey: p.net.newKey(), buf: buf, access: access}
	p.mu.Lock()
	p.mrs[m.lkey], p.mrs[m.rkey] = m, m
	p.mu.Unlock()
	return m, nil
}

func (p *fakePD) Close() {}

// open counts the regions that exist and allow a given remote access.
func (p *fakePD) open() (all, remote int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, m := range p.mrs {
		if k != m.lkey {
			continue
		}
		all++
		if m.access&(rdma.RemoteRead|rdma.RemoteWrite|rdma.RemoteAtomic) != 0 {
			remote++
		}
	}
	return all, remote
}

const fakeBase = 0x7f00_0000_0000 // addresses start here, per region

func (m *fakeMR) LKey() uint32  { return m.lkey }
func (m *fakeMR) RKey() uint32  { return m.rkey }
func (m *fakeMR) Addr() uint64  { return fakeBase + uint64(m.lkey)<<16 }
func (m *fakeMR) Bytes() []byte { return m.buf }
func (m *fakeMR) Invalidate() uint32 {
	key := m.pd.net.newKey()
	m.pd.mu.Lock()
	delete(m.pd.mrs, m.rkey)
	m.rkey = key
	m.pd.mrs[key] = m
	m.pd.mu.Unlock()
	return key
}

// Reregister implements rdma.Reregisterer, if the domain reuses regions.
func (m *fakeMR) Reregister(buf []byte, access rdma.Access) error {
	if !m.pd.reuses || m.mem != nil {
		return errNotInFake
	}
	if len(buf) > 0 && inside(buf, m.pd.names) {
		return unix.EFAULT
	}
	m.Invalidate()
	m.buf, m.access = buf, access
	return nil
}

func (m *fakeMR) Window(buf []byte, access rdma.Access) (rdma.MR, error) {
	if !inside(buf, m.buf) {
		return nil, errors.New("outside the region")
	}
	w, err := m.pd.Register(buf, access)
	if m.mem != nil {
		w.(*fakeMR).mem = m.mem[rdma.Offset(buf, m.buf):][:len(buf)]
	}
	return w, err
}

func (m *fakeMR) Close() {
	m.pd.mu.Lock()
	delete(m.pd.mrs, m.lkey)
	delete(m.pd.mrs, m.rkey)
	m.pd.mu.Unlock()
}

func (p *fakePD) AllocMW() (rdma.MW, error)        { return nil, errNotInFake }
func (p *fakePD) AllocMR(int) (rdma.FastMR, error) { return nil, errNotInFake }
func (*fakeCQ) Close()                             {}
func (q *fakeCQ) Arm(bool)                         {}
func (q *fakeCQ) Resize(int) error                 { return errNotInFake }
func (d *fakeDevice) CreateSRQ(rdma.Loop, rdma.SRQConfig) (rdma.SRQ, error) {
	return nil, errNotInFake
}

func (d *fakeDevice) ListenUD(uint16, func(rdma.UDRequest)) (rdma.Listener, error) {
	return nil, errNotInFake
}

func (d *fakeDevice) ResolveUD(rdma.Loop, rdma.ResolveParams) (func(), error) {
	return nil, errNotInFake
}

// errNotInFake is the error of methods that rpcrdma does not use.
var errNotInFake = errors.New("not in the fake")

func (p *fakePD) local(e rdma.SGE, write bool) error {
	p.mu.Lock()
	m := p.mrs[e.LKey]
	p.mu.Unlock()
	switch {
	case len(e.Buf) == 0:
		return nil
	case m == nil || m.lkey != e.LKey:
		return fmt.Errorf("unknown L_Key %#x", e.LKey)
	case write && m.access&rdma.LocalWrite == 0:
		return errors.New("no local write")
	case !inside(e.Buf, m.buf) || !inside(e.Buf[len(e.Buf)-1:], m.buf):
		return errors.New("outside the region")
	}
	return nil
}

func (p *fakePD) remote(rkey uint32, addr uint64, n int, need rdma.Access) []byte {
	p.mu.Lock()
	m := p.mrs[rkey]
	p.mu.Unlock()
	if m == nil || m.rkey != rkey || m.access&need == 0 || addr < m.Addr() {
		return nil
	}
	off := addr - m.Addr()
	if off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off {
		return nil
	}
	if m.mem != nil {
		return m.mem[off : off+uint64(n)]
	}
	return m.buf[off : off+uint64(n)]
}

type fakeCQ struct {
	loop    *fakeLoop
	onEvent func()
	depth   int
	queued  bool
	wcs     []rdma.WC
}

func (q *fakeCQ) Poll(dst []rdma.WC) int {
	n := copy(dst, q.wcs)
	q.wcs = q.wcs[n:]
	return n
}

func (q *fakeCQ) add(wc rdma.WC) {
	if len(q.wcs) == q.depth {
		panic("completion queue overrun")
	}
	q.wcs = append(q.wcs, wc)
	if !q.queued {
		q.queued = true
		q.loop.dirty = append(q.loop.dirty, q)
	}
}

func (d *fakeDevice) Loops() []rdma.Loop { return []rdma.Loop{d.loop} }
func (d *fakeDevice) AllocPD() (rdma.PD, error) {
	return &fakePD{net: d.net, mrs: make(map[uint32]*fakeMR)}, nil
}

func (d *fakeDevice) CreateCQ(l rdma.Loop, o rdma.CQOptions) (rdma.CQ, error) {
	return &fakeCQ{loop: l.(*fakeLoop), onEvent: o.OnEvent, depth: o.Depth}, nil
}

func (d *fakeDevice) CreateQP(rdma.Loop, rdma.QPConfig) (rdma.QP, error) {
	return nil, errNotInFake
}
func (d *fakeDevice) Addr() netip.Addr { return d.addr }
func (d *fakeDevice) Close() error     { d.loop.end(); return nil }

type fakeQP struct {
	conn    *fakeConn
	cfg     rdma.QPConfig
	pd      *fakePD
	num     uint32
	err     bool
	sq      int // entries in use
	pending int // unsignaled ones since the last completion
	recvs   []rdma.RecvWR
	inbound []func() bool // requests of the peer that wait, false: still waiting
	rnr     int
	reads   int // in flight
}
