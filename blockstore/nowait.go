package blockstore

// NowaitWriter is optional: a store that can often write without waiting.
type NowaitWriter interface {
	// WriteNowait is WriteAt that never waits. It writes, or returns ErrWouldBlock; the caller then
	// calls WriteAt where it may wait. It returns no other error: a call that would fail is left to
	// WriteAt as well. When it returns ErrWouldBlock a part of p may have been written, which WriteAt
	// writes again. WriteNowait may be called from any goroutine.
	WriteNowait(c *Cred, h Handle, p []byte, off uint64, how Stability) (n int, committed Stability, w Wcc, err error)
}

// NowaitAttr is optional: a store that often has the attributes of an object in memory.
type NowaitAttr interface {
	// GetAttrNowait is GetAttr that never waits. It returns the attributes, or ErrWouldBlock; the caller
	// then calls GetAttr where it may wait. It returns no other error. It may be called from any
	// goroutine.
	GetAttrNowait(c *Cred, h Handle) (Attr, error)
}

// NowaitLookup is optional: a store that often has names in memory.
type NowaitLookup interface {
	// LookupNowait is Lookup that never waits. It returns the object, its attributes and those of the
	// directory, or ErrWouldBlock; the caller then calls Lookup where it may wait. It returns no other
	// error. It may be called from any goroutine.
	LookupNowait(c *Cred, dir Handle, name string) (h Handle, a, dirAttr Attr, err error)
}
