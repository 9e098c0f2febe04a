// Package capture copies the packets of a RoCE device into a pcap file. Slot wraps the links of a
// device and costs one atomic load per batch while no capture runs. The loops of the device never
// wait for a capture: it counts what it cannot take.
//
// RoCE packets have no socket that tcpdump could read all of them from, as segmentation offload
// joins them. The package writes the IP and UDP headers that each packet had on the wire.
//
// Begin with Slot.Run. The package knows links and wire formats, and nothing of devices.
//
// A capture runs in the goroutine that called Run. Slot and Run may be used from any goroutine, and
// one capture of a device runs at a time.
//
//	var slot capture.Slot
//	d, err := roce.Open(roce.Config{Addr: addr, Wrap: slot.Wrap})
//	missed, err := capture.Run(ctx, file, capture.Options{Packets: 1000},
//		[]capture.Device{{Slot: &slot, Closed: closed}}, func() {})
package capture
