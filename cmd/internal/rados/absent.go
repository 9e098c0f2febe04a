//go:build !cephfs || !linux || !cgo

package rados

// Client is a connection to a cluster. Without the tag there is none.
type Client struct{}

// Open returns ErrNotBuilt.
func Open(Options) (*Client, error) { return nil, ErrNotBuilt }

// Pairs returns ErrNotBuilt.
func (*Client) Pairs(string, string) (Pairs, error) { return nil, ErrNotBuilt }

// Change returns ErrNotBuilt.
func (*Client) Change(string, Change) error { return ErrNotBuilt }

// Delete returns ErrNotBuilt.
func (*Client) Delete(string) error { return ErrNotBuilt }

// Command returns ErrNotBuilt.
func (*Client) Command(string) ([]byte, error) { return nil, ErrNotBuilt }

// Close does nothing.
func (*Client) Close() {}
