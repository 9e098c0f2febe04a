// Package lock is the table of byte-range locks of all protocols. Locks are those of POSIX (fcntl).
// The locks of one owner do not conflict with each other. A new lock replaces, splits or joins the
// owner's older ones. All ranges are of bytes.
//
// The table serves waiting requests in the order of their arrival. If the protocol can notify the
// client of a lock that it has got, the table takes the lock for the client (Wait). If the client
// has to ask again, the table reserves the lock for it (Ask). The protocols choose the names of
// their owners, and notify them.
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
