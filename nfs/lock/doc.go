// Package lock is the table of byte-range locks of all protocols. Locks have the semantics of POSIX
// record locks (fcntl): the locks of one owner do not conflict with each other, a new one replaces,
// splits or joins the old ones, and all ranges are of bytes. The table serves waiting requests in
// the order of their arrival. If the protocol can report a lock later, the table grants it (Wait).
// If the client has to ask again, the table offers it (Ask). Each protocol names its owners, and
// notifies them.
//
// The package knows no protocol, no transport and no clock. With UseHost the table takes each lock
// in the host's kernel, too, through a blockstore.HostLocker.
//
// Begin reading at Table. lock.go takes and removes locks, ranges.go splits and joins them, wait.go
// has the queues, ask.go the requests of Ask, host.go the host, and snapshot.go the table for the
// successor in an upgrade.
//
// The methods of a Table may be called from any goroutine; Table has the order of its mutexes.
//
//	t := lock.New(0)
//	l := lock.Lock{Owner: lock.Owner{Client: "a", ID: "1"}, End: lock.ToEnd, Exclusive: true}
//	holder, ok, err := t.Lock(file, l) // ok is false if holder's lock conflicts
package lock
