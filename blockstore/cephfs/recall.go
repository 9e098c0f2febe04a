//go:build cephfs && linux && cgo

package cephfs

// This file does not include shim.h: an exported function has its preamble behind another one, and
// shim.h comes first.

// #include <stdint.h>
import "C"

// rcRecalled is called by libcephfs when a delegation has to be returned.
//
//export rcRecalled
func rcRecalled(id C.uintptr_t) {
	// libcephfs holds its locks: who holds leases.mu may wait for them.
	go func() {
		leases.mu.Lock()
		defer leases.mu.Unlock()
		if l := leases.all[uintptr(id)]; l != nil {
			l.notify()
		}
	}()
}
