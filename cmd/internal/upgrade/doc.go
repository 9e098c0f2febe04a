// Package upgrade is the protocol by which a process hands over to another one, the executable on
// disk, while clients notice only a pause. The two processes speak over a pair of sockets
// (cmd/internal/handover):
//
//	old process                 new process
//	hello                       prepared, or an exit
//	freezes; parts, restore     restored
//	go                          serving
//
// Until the old process has sent go, it can continue unchanged: the new process has sent no packet,
// served no call, and written no file that outlives it. A failure before go kills the new process,
// and the old one thaws. After go the old process never serves again, whatever happens to the new
// one; if the new one fails, the old one kills it and exits, and the service manager starts the
// service as after a crash. So the two never serve at once.
//
// Successor is the new process, in the old one (successor.go). Predecessor is the old process, in
// the new one (predecessor.go). Component and Freezer are in the old process (component.go). The
// package does not know what the parts contain.
//
// Begin reading at component.go, then at Successor.HandOver. One goroutine at a time uses a
// Freezer, a Successor or a Predecessor, apart from Predecessor.Waiting and Has. A component's
// Freeze may be called while calls are served.
//
//	s, err := upgrade.Spawn("/usr/sbin/rstored")
//	_, err = s.Prepare(time.Minute, hello)
//	f := upgrade.Freezer{Components: components, Work: work, Times: upgrade.DefaultTimes}
//	if err = f.Freeze(); err == nil {
//		_, err = s.HandOver(components, 5*time.Second)
//	}
//	if err != nil {
//		return errors.Join(err, s.Kill(), f.Thaw())
//	}
//	err = s.Go() // from here on this process never serves again
package upgrade
