// Package sockets has the sockets that outlive a process. The service manager has opened them
// (socket activation), or stores them over a restart (its file descriptor store). Before a port
// opens a new socket, it takes one for its address from here, if there is one. See sd_listen_fds(3)
// and FileDescriptorStoreMax= in systemd.service(5). The package knows nothing of what is spoken on
// a socket.
//
// Begin reading at Set.Listen; datagrams.go has UDP, handover.go the sockets for the successor in
// an upgrade. The methods of a Set may be called from any goroutine.
//
//	set, err := sockets.Inherit(notifier, log, nil)
//	l, err := set.Listen(at, func() (net.Listener, error) { return net.Listen("tcp", at.String()) })
//	unused := set.Sweep() // closes what no port has claimed
package sockets
