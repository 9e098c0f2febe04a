//go:build rdmacore && linux && cgo

package verbs

// #cgo LDFLAGS: -ldl
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// libraries guards the loading of rdma-core, and the contexts that librdmacm has opened.
var libraries struct {
	sync.Mutex
	users int // devices that are open, or that Open is opening
	hcas  map[*C.struct_ibv_context]*hca
}

// Available reports why the provider cannot be used: nil if the libraries are there.
func Available() error {
	libraries.Lock()
	defer libraries.Unlock()
	return load()
}

// load opens the libraries. libraries is locked.
func load() error {
	if why := C.rs_load(); why != nil {
		return fmt.Errorf("verbs: rdma-core cannot be loaded: %s", C.GoString(why))
	}
	return nil
}

// acquire loads the libraries and counts a device. release follows.
func acquire() error {
	libraries.Lock()
	defer libraries.Unlock()
	if err := load(); err != nil {
		return err
	}
	libraries.users++
	return nil
}

// release undoes acquire. The last one closes the contexts and unloads librdmacm, which would
// keep its contexts open otherwise, also when the kernel waits for their end to remove a device.
// No loop runs any more when the last device is released, so librdmacm is not in use while it is
// unloaded.
func release() {
	libraries.Lock()
	defer libraries.Unlock()
	if libraries.users--; libraries.users > 0 {
		return
	}
	for ctx, h := range libraries.hcas {
		h.end()
		C.rs_close_device(ctx)
	}
	clear(libraries.hcas)
	C.rs_unload_cm()
}

// resync makes librdmacm forget devices that were removed.
func resync() error {
	libraries.Lock()
	defer libraries.Unlock()
	if e := C.rs_resync(); e != 0 {
		return fmt.Errorf("verbs: looking for the RDMA devices: %w", errno(e))
	}
	for ctx, h := range libraries.hcas {
		if h.dead {
			delete(libraries.hcas, ctx)
		}
	}
	return nil
}

func errno(n C.int) error { return syscall.Errno(n) }

var errNoReason = errors.New(
	"the library does not say why; is the limit of locked memory, ulimit -l, high enough?")

// cause is the errno of a call that has failed. Libraries do not always leave one.
func cause(err error) error {
	if err == nil {
		return errNoReason
	}
	return err
}

// eventful is an object that events of the libraries are about.
type eventful interface {
	home() *loop
	// async handles an asynchronous event (IBV_EVENT_*). It is called on the loop.
	async(kind int)
}

// cookies are the numbers by which the libraries name our objects: C code must not store Go
// pointers. A number is not used again, so an event that was on its way when its object was
// destroyed finds no object.
var cookies struct {
	last    atomic.Uint64
	objects sync.Map // uint64 to eventful
}

func newCookie(o eventful) uint64 {
	n := cookies.last.Add(1)
	cookies.objects.Store(n, o)
	return n
}

// The result is nil for an object that was destroyed.
func objectOf(cookie uint64) eventful {
	o, _ := cookies.objects.Load(cookie)
	e, _ := o.(eventful)
	return e
}

func dropCookie(cookie uint64) { cookies.objects.Delete(cookie) }
