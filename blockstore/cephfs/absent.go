//go:build !cephfs || !linux || !cgo

package cephfs

import "github.com/rstored/rstored/blockstore"

// Available reports why there is no CephFS.
func Available() error { return ErrNotBuilt }

// Open returns ErrNotBuilt.
func Open(Options) (blockstore.FS, error) { return nil, ErrNotBuilt }

// Reset returns ErrNotBuilt.
func Reset(Options) error { return ErrNotBuilt }
