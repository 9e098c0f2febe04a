// Package doctor finds what prevents NFS over RDMA from working, on the server and on a client.
// Each finding says what to type. The package changes nothing, except the steps of a Fixer that the
// user has confirmed. It knows nothing of how the daemon works.
//
// Begin reading at Server and Client. devices.go and host.go look at the host, probe.go makes the
// calls of a mount, denials.go explains clients that were denied, fix.go carries out remedies. A
// Report is made by one goroutine.
//
//	r := doctor.Client(ctx, doctor.This(), url, nil)
//	r.Print(os.Stdout)
package doctor
