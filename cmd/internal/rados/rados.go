//go:build cephfs && linux && cgo

package rados

// #cgo LDFLAGS: -ldl
// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/cgo"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// loading guards the library, which is opened once.
var loading sync.Mutex

// Client is a connection to a cluster.
type Client struct {
	cluster, io unsafe.Pointer
	pool        string
}

// Open connects to a cluster. The pool must exist.
func Open(o Options) (*Client, error) {
	loading.Lock()
	why := C.rr_load()
	loading.Unlock()
	if why != nil {
		return nil, fmt.Errorf("rados: librados cannot be loaded: %s", C.GoString(why))
	}
	pool, space := C.CString(o.Pool), C.CString(o.Namespace)
	timeout := C.CString(strconv.FormatFloat(max(o.Timeout, time.Second).Seconds(), 'f', -1, 64))
	defer C.free(unsafe.Pointer(pool))
	defer C.free(unsafe.Pointer(space))
	defer C.free(unsafe.Pointer(timeout))
	c := &Client{pool: o.Pool}
	if r := C.rr_open(&c.cluster, &c.io, pool, space, timeout); r < 0 {
		return nil, fmt.Errorf("rados: connecting to the pool %q (is the keyring readable, and a monitor reachable? see: "+
			"ceph -s): %w", o.Pool, failed(r))
	}
	return c, nil
}

// failed is the error of a result.
func failed(r C.int) error {
	switch e := syscall.Errno(-r); {
	case r >= 0:
		return nil
	case e == syscall.ECANCELED:
		return ErrChanged
	default:
		return e
	}
}

//export rrPair
func rrPair(to C.uintptr_t, key *C.char, keylen C.size_t, value *C.char, n C.size_t) {
	p := cgo.Handle(to).Value().(Pairs)
	if n <= math.MaxInt32 {
		p[C.GoStringN(key, C.int(keylen))] = C.GoBytes(unsafe.Pointer(value), C.int(n))
	}
}

// Pairs returns the pairs of an object whose keys begin with a prefix. An object that does not exist
// has none.
func (c *Client) Pairs(object, prefix string) (Pairs, error) {
	o, p := C.CString(object), C.CString(prefix)
	defer C.free(unsafe.Pointer(o))
	defer C.free(unsafe.Pointer(p))
	out := make(Pairs)
	h := cgo.NewHandle(out)
	defer h.Delete()
	if err := failed(C.rr_pairs(c.io, o, p, C.uintptr_t(h))); err != nil && !errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("reading %s in pool %q: %w", object, c.pool, err)
	}
	return out, nil
}

// Change changes an object, which it makes if need be. It returns ErrChanged if the object does not
// have the values of x.Is.
func (c *Client) Change(object string, x Change) error {
	o := C.CString(object)
	defer C.free(unsafe.Pointer(o))
	change := func() error {
		var l lists
		defer l.pin.Unpin()
		isKeys, is := l.pairs(x.Is)
		setKeys, set := l.pairs(x.Set)
		var remove []C.struct_rr_bytes
		for _, k := range x.Remove {
			remove = append(remove, l.bytes([]byte(k)))
		}
		return failed(C.rr_change(c.io, o, C.int(len(is)), first(isKeys), first(is), C.int(len(set)), first(setKeys),
			first(set), C.int(len(remove)), first(remove)))
	}
	err := change()
	if errors.Is(err, syscall.ENOENT) { // a comparison does not make the object
		if err = failed(C.rr_create(c.io, o)); err == nil {
			err = change()
		}
	}
	if err != nil {
		return fmt.Errorf("changing %s in pool %q: %w", object, c.pool, err)
	}
	return nil
}

// lists are arguments for C.
type lists struct{ pin runtime.Pinner }

func (l *lists) bytes(b []byte) (out C.struct_rr_bytes) {
	if len(b) > 0 {
		l.pin.Pin(&b[0])
		out.p, out.n = (*C.char)(unsafe.Pointer(&b[0])), C.size_t(len(b))
	}
	return out
}

func (l *lists) pairs(p Pairs) (keys, values []C.struct_rr_bytes) {
	for k, v := range p {
		keys, values = append(keys, l.bytes([]byte(k))), append(values, l.bytes(v))
	}
	return keys, values
}

func first(list []C.struct_rr_bytes) *C.struct_rr_bytes { return unsafe.SliceData(list) }

// Delete removes an object. It is no error if there is none.
func (c *Client) Delete(object string) error {
	o := C.CString(object)
	defer C.free(unsafe.Pointer(o))
	if err := failed(C.rr_delete(c.io, o)); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("removing %s in pool %q: %w", object, c.pool, err)
	}
	return nil
}

// Command sends a command to the monitors, as JSON: {"prefix": "health", "format": "json"}. It
// returns their answer.
func (c *Client) Command(command string) ([]byte, error) {
	s := C.CString(command)
	defer C.free(unsafe.Pointer(s))
	var out *C.char
	var n C.size_t
	r := C.rr_command(c.cluster, s, &out, &n)
	defer C.rr_free(out)
	if r < 0 {
		return nil, fmt.Errorf("the monitors say to %s: %w", command, failed(r))
	}
	return C.GoBytes(unsafe.Pointer(out), C.int(n)), nil
}

// Close ends the connection. No call is under way.
func (c *Client) Close() { C.rr_close(c.cluster, c.io) }
