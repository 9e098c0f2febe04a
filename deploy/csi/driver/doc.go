// Package driver implements the Container Storage Interface, version 1, for servers of NFS:
// Identity, Controller and Node (github.com/container-storage-interface/spec). A volume is a
// directory below an export. The controller makes and removes it with nfs/dial and mounts nothing.
// A node mounts it directly at the path of the pod, with the kernel's client or by FUSE. The
// transport is RDMA unless the volume says otherwise.
//
// The services keep no state between calls except the volumes and paths that calls work on. All
// other state is in a volume's identifier, and in a record on the server beside the volume's
// directory.
//
// The package knows nothing of NFS beyond nfs/dial, and nothing of Kubernetes.
//
// Begin reading at Serve. controller.go and node.go have the two services, mount.go, kernel.go and
// fuse.go the mounts. gRPC runs each call in a goroutine. Calls for one volume exclude each other:
// the second one gets ABORTED.
//
//	err := driver.Serve(ctx, driver.Config{
//		Endpoint: "unix:///csi/csi.sock", NodeID: id, Node: true, Mounter: mounter, Log: log,
//	})
package driver
