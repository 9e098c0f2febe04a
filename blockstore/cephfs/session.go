//go:build cephfs && linux && cgo

package cephfs

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// A session is what the MDS knows of a client: its locks, delegations and open files. That of a
// client that was killed stays until the MDS gives it up, and keeps from others what it had. So a
// mount has a name (Options.Session), and the next one of the same name ends the session of the one
// before.

// Reset ends the session of another mount by its Options.Session, at once and for good: the OSDs
// refuse what that mount still sends. It waits until that is done. It is no error if there is none.
// Only who knows that the other process is dead, or must not go on, may call it.
func Reset(o Options) error {
	if err := Available(); err != nil {
		return err
	}
	f := &FS{}
	if err := f.client(&o); err != nil {
		return err
	}
	defer C.rc_release(f.m)
	if err := f.start(&o); err != nil {
		return err
	}
	name := C.CString(o.Session)
	defer C.free(unsafe.Pointer(name))
	if r := C.rc_reset_session(f.m, name); r < 0 && syscall.Errno(-r) != syscall.ENOENT {
		return fmt.Errorf("cephfs: ending the session %q: %w", o.Session, failed(r))
	}
	return nil
}

// delegate says how long clients have for returning a delegation. The MDS gives a session up that
// does not answer for longer than its session_autoclose, 300 seconds by default.
func (f *FS) delegate(after time.Duration) error {
	if after <= 0 {
		return nil
	}
	if r := C.rc_set_deleg_timeout(f.m, C.uint32_t(after/time.Second)); r < 0 {
		return fmt.Errorf("cephfs: delegations of %v (is that longer than the MDS's session_autoclose?): %w", after,
			failed(r))
	}
	f.delegations = true
	return nil
}

// Releasable reports why Release would fail now. It does so while clients have locks: they would be
// free for others in between.
func (f *FS) Releasable() error {
	f.objs.mu.Lock()
	locks, opening := 0, len(f.objs.opening)
	for _, o := range f.objs.all {
		if o.locked {
			locks++
		}
	}
	f.objs.mu.Unlock()
	if locks > 0 {
		return fmt.Errorf("clients have locked %d files in CephFS, which cannot be handed over; upgrade later, or restart: "+
			"then the clients reclaim their locks", locks)
	}
	if opening > 0 {
		return fmt.Errorf("locks of %d files wait for delegations of other servers; upgrade later", opening)
	}
	return nil
}

// Release closes the mount while another process opens it. Calls fail with ErrJukebox until Resume.
func (f *FS) Release() error {
	if err := f.Releasable(); err != nil {
		return err
	}
	return f.Close()
}

// Retire ends the calls of Options.Lost. Another mount of the same session may end this one from now
// on.
func (f *FS) Retire() { f.lost.Do(func() {}) }

// Settle implements the handover of stores: there is nothing to do.
func (f *FS) Settle() error { return nil }

// Handover implements the handover of stores: another process finds all in the cluster.
func (f *FS) Handover() ([]byte, []*os.File, error) { return nil, nil, nil }

// Restore is the other side of Handover.
func (f *FS) Restore([]byte, []*os.File) error { return nil }

// check calls Options.Lost if the result of a call says that the mount was ended.
func (f *FS) check(r C.int) {
	if e := syscall.Errno(-r); r < 0 && (e == syscall.ESHUTDOWN || e == syscall.ENOTCONN) && f.opts.Lost != nil {
		f.lost.Do(func() {
			f.opts.Lost(fmt.Errorf("the cluster has ended the mount of filesystem %q at %q (is its client %q evicted? see: "+
				"ceph tell mds.* client ls)", f.opts.Filesystem, f.opts.Root, f.opts.Session))
		})
	}
}
