// Package dial connects nfs/client to the servers of URLs, over RDMA and over TCP. It chooses
// and opens the RDMA device, and finds the MOUNT service of version 3. It knows nothing of files
// and procedures. Programs with transports of their own need only client.Config. Begin reading
// at Dialer. Its methods may be called from any goroutine.
//
//	var d dial.Dialer
//	defer d.Close()
//	fs, err := d.FS(ctx, "nfs+rdma://server.example.org/data")
package dial
