//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// hca is a context of a device, and the goroutine that reads its asynchronous events. librdmacm
// opens one context for each device of the kernel in a process, so all Devices with addresses of
// that device share it. The fields below stop are guarded by libraries.
//
//	users    device             context
//	> 0      present            open; the goroutine reads events
//	0        present            open, for the next Open
//	0        removed (dead)     abandoned: its descriptors lead to /dev/null
//	0        no Device is open  closed by release, with librdmacm
type hca struct {
	ctx  *C.struct_ibv_context
	file *os.File // a copy of the descriptor of the events, in the runtime's poller
	raw  syscall.RawConn
	stop atomic.Bool
	done chan struct{} // closed when the goroutine has ended

	users int
	dead  bool // the device was removed, and the context has no descriptor any more
	ended bool
	first *C.struct_ibv_cq // of siw, see occupy
}

// devices are the open Devices.
var devices sync.Map // *Device to nothing

// devicesOf calls f for each open Device on a context.
func devicesOf(ctx *C.struct_ibv_context, f func(*Device)) {
	devices.Range(func(k, _ any) bool {
		if d := k.(*Device); d.ctx == ctx {
			f(d)
		}
		return true
	})
}

// errStale says that librdmacm's context belongs to a device that was removed.
var errStale = errors.New("verbs: the device was removed")

// shareHCA returns the hca of a context, and makes it for the first user.
func shareHCA(ctx *C.struct_ibv_context, siw bool) (*hca, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if h := libraries.hcas[ctx]; h != nil {
		if h.dead {
			return nil, errStale
		}
		h.users++
		return h, nil
	}
	if e := C.rs_nonblock(ctx.async_fd); e != 0 {
		return nil, fmt.Errorf("verbs: watching the events of the device: %w", errno(e))
	}
	fd, err := unix.FcntlInt(uintptr(ctx.async_fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("verbs: watching the events of the device: %w", err)
	}
	h := &hca{ctx: ctx, users: 1, file: os.NewFile(uintptr(fd), "async events"), done: make(chan struct{})}
	if h.raw, err = h.file.SyscallConn(); err == nil && siw {
		err = h.occupy()
	}
	if err != nil {
		_ = h.file.Close()
		return nil, err
	}
	if libraries.hcas == nil {
		libraries.hcas = map[*C.struct_ibv_context]*hca{}
	}
	libraries.hcas[ctx] = h
	go h.run()
	return h, nil
}

// leave ends the use of a context. While the kernel removes a device, it waits until the last user
// has left.
func (h *hca) leave(removed bool) {
	libraries.Lock()
	defer libraries.Unlock()
	// A context of a device that stays is kept for the next Open: librdmacm gives the same one
	// again.
	if h.users--; h.users == 0 && (removed || C.rs_being_removed(h.ctx) != 0) {
		h.end()
		h.dead = true
		C.rs_abandon_device(h.ctx)
	}
}

// end stops the goroutine. libraries is locked.
func (h *hca) end() {
	if h.ended {
		return
	}
	h.ended = true
	h.stop.Store(true)
	_ = h.file.Close() // which wakes the goroutine
	<-h.done
	if h.first != nil {
		C.rs_destroy_cq(h.first)
	}
}

// run reads the asynchronous events. Each is acknowledged when it is read: otherwise the
// destruction of the object that it is about would wait (ibv_ack_async_event).
func (h *hca) run() {
	defer close(h.done)
	for {
		var e C.struct_rs_async
		got := false
		err := h.raw.Read(func(uintptr) bool {
			got = !h.stop.Load() && C.rs_async_event(h.ctx, &e) == 0
			return got || h.stop.Load()
		})
		if err != nil || h.stop.Load() {
			return
		}
		if got {
			h.event(&e)
		}
	}
}

// event gives an event to the Devices or to the object that it is about. A callback runs on the
// loop of its object and never here: this goroutine must not wait for a loop, because end waits
// for this goroutine.
func (h *hca) event(e *C.struct_rs_async) {
	kind := int(e._type)
	switch kind {
	case C.IBV_EVENT_DEVICE_FATAL:
		devicesOf(h.ctx, func(d *Device) {
			d.lastAsync.Store(&asyncEvent{kind, clock()})
			d.removedByKernel()
		})
		return
	case C.IBV_EVENT_PORT_ERR, C.IBV_EVENT_PORT_ACTIVE:
		devicesOf(h.ctx, func(d *Device) {
			if d.port == int(e.port) {
				d.lastAsync.Store(&asyncEvent{kind, clock()})
				d.log.Info("the port of the RDMA device has changed", "device", d.name, "port", d.port,
					"active", kind == C.IBV_EVENT_PORT_ACTIVE)
			}
		})
		return
	}
	if o := objectOf(uint64(e.cookie)); o != nil {
		l := o.home()
		l.n.async.Add(1)
		l.Submit(func() { o.async(kind) })
	}
}
