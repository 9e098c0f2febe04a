// Package ports has the ports that the server listens on. A port is a line of the configuration or
// of the state directory: a transport and where to listen. A port has an endpoint for each of its
// addresses. Set.Apply opens and closes ports until they are the desired ones.
//
// A port over RDMA may listen on a device of the kernel. The kernel can take the device away. Its
// endpoints are then closed, and the port waits until the device is back (wait.go).
//
// The package connects listeners and servers: RPC over TCP and RDMA, the port mapper, measurements,
// metrics and the control interface. It knows how an upgrade hands connections over (handover.go),
// but not when. It knows nothing of exports and of the state of clients.
//
// A Set can be used by several goroutines. Its lock is held while a port is opened or closed. It is
// taken before the lock of devices.Set and after the lock by which the daemon serializes changes.
// An upgrade freezes the set: the daemon then changes nothing, and the set opens and closes nothing
// by itself.
//
// Begin with set.go.
//
//	set := ports.New(ports.Config{Settings: settings, Devices: devices, RPC: srv, Log: log})
//	err := set.Apply(state.Ports, nil, true)
//	defer set.Close()
package ports
