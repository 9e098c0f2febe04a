package rados

import (
	"errors"
	"time"
)

// Errors of a Client.
var (
	// ErrNotBuilt is the error of a program that was built without the tag cephfs.
	ErrNotBuilt = errors.New("rados: this program was built without Ceph (tag cephfs)")
	// ErrChanged says that a value is not the expected one, so that nothing was changed.
	ErrChanged = errors.New("rados: another process has changed the object")
)

// Options say where the values are. What they leave out is as for every program of Ceph: the
// environment CEPH_CONF and CEPH_ARGS, /etc/ceph/ceph.conf, and the keyring that it names.
type Options struct {
	Pool      string // a replicated pool: others have no omap
	Namespace string // in the pool
	// Timeout bounds each request. After an error the change may have happened, or still happen while
	// the request is under way.
	Timeout time.Duration
}

// Pairs are keys and values of an object. Keys have no NUL.
type Pairs map[string][]byte

// Change is a change of one object, which happens as a whole or not at all.
type Change struct {
	// Is are the values that the object must have; an empty value stands for a missing key.
	Is Pairs
	// Set are the new values, and Remove the keys that are removed.
	Set    Pairs
	Remove []string
}
