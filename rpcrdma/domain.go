package rpcrdma

import (
	"maps"
	"sync"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// Domain is what several connections of one client to one server share: a protection domain of the
// device, and the memory that the client has registered. The device registers such memory once, and
// each of the queue pairs can use it. The zero value is ready. Its methods may be called from any
// goroutine.
// Connections to different servers must not share a Domain: a server that guessed an R_Key of a
// call to another one could reach the memory of that call.
//
// Lock order: Domain.mu, then domain.mu. The device registers and closes memory with domain.mu
// locked.
type Domain struct {
	mu  sync.Mutex
	cur *domain
}

// domain is the protection domain of one device. It ends with the last connection that uses it.
type domain struct {
	dev rdma.Device
	pd  rdma.PD

	mu    sync.Mutex
	users int                   // connections
	byKey map[regionKey]rdma.MR // what further connections can use
	count map[rdma.MR]int       // connections that use a region
}

// regionKey identifies registered memory.
type regionKey struct {
	at     *byte
	n      int
	access rdma.Access
	dma    bool
}

// join returns the domain for another connection on the device, which leaves it at its end.
func (d *Domain) join(dev rdma.Device) (*domain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cur != nil && d.cur.dev == dev && d.cur.enter() {
		return d.cur, nil
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	d.cur = &domain{dev: dev, pd: pd, users: 1, byKey: make(map[regionKey]rdma.MR), count: make(map[rdma.MR]int)}
	return d.cur, nil
}

// enter adds a connection. It reports false if the protection domain is closed already.
func (d *domain) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		return false
	}
	d.users++
	return true
}

// leave removes a connection that has released its regions. The last one closes the protection
// domain.
func (d *domain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users--; d.users == 0 {
		d.pd.Close()
	}
}

// share returns the region of b, and makes it by open if no connection has it. The connection calls
// release once.
func (d *domain) share(b []byte, access rdma.Access, dma bool, open func() (rdma.MR, error)) (rdma.MR, error) {
	key := regionKey{unsafe.SliceData(b), len(b), access, dma}
	d.mu.Lock()
	defer d.mu.Unlock()
	if mr := d.byKey[key]; mr != nil {
		d.count[mr]++
		return mr, nil
	}
	mr, err := open()
	if err == nil {
		d.byKey[key] = mr
		d.count[mr] = 1
	}
	return mr, err
}

// forget makes share give the region to nobody else. The owner of the memory ends its registration,
// and may free it before all loops have released the region. Other memory can have its address
// then.
func (d *domain) forget(mr rdma.MR) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.byKey, func(_ regionKey, m rdma.MR) bool { return m == mr })
}

// release ends the use of a region by a connection. The last one closes it.
func (d *domain) release(mr rdma.MR) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count[mr]--; d.count[mr] == 0 {
		delete(d.count, mr)
		maps.DeleteFunc(d.byKey, func(_ regionKey, m rdma.MR) bool { return m == mr })
		mr.Close()
	}
}
