package verbs

import (
	"errors"
	"net/netip"
	"reflect"

	"github.com/rstored/rstored/rdma"
)

// ErrNoDevice says that no RDMA device of the kernel has an address or a name.
var ErrNoDevice = errors.New("the kernel has no such RDMA device")

// Transport is the protocol of a device on the wire.
type Transport string

// The transports.
const (
	RoCEv1     Transport = "RoCE v1"
	RoCEv2     Transport = "RoCE v2"
	InfiniBand Transport = "InfiniBand"
	IWARP      Transport = "iWARP"
)

// Info describes a device. It does not change while the device is open.
type Info struct {
	Name      string // of the kernel's device, such as mlx5_0
	Port      int    // of the device, from 1
	Transport Transport
	GIDIndex  int // of the address in the port's table; -1 if there is none
	PathMTU   rdma.MTU
	NUMA      int // node of the device; -1 if unknown
	Firmware  string
}

// Stats count what happened on a device since it was opened.
type Stats struct {
	PostsSend, PostsRecv uint64 // lists of work requests that were handed to the device
	SendRequests         uint64 // in those lists
	RecvRequests         uint64
	Completions          uint64
	Failed               [FailedMax]uint64 // by rdma.Status, without successes
	Polls                uint64            // calls of the library that polled for completions
	Wakeups              uint64            // events of the completion channels
	AsyncEvents          uint64            // of the device, its port and its queue pairs
	CMEvents             uint64
	Accepted, Dialed     uint64 // connections that were established
	Refused              uint64 // requests that we rejected, or that came for no listener of ours
	Disconnected         uint64
	QPs, Regions         uint64 // now
}

// Each calls f for each counter with its name, except those of Failed.
func (s *Stats) Each(f func(name string, v uint64)) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if x := v.Field(i); x.Kind() == reflect.Uint64 {
			f(v.Type().Field(i).Name, x.Uint())
		}
	}
}

// FailedMax is one more than the largest rdma.Status.
const FailedMax = 24

// QPInfo describes a queue pair.
type QPInfo struct {
	QPN           uint32
	Type          rdma.QPType
	State         rdma.QPState
	Loop          int       // index of the loop it lives on
	Age           rdma.Time // since it was made
	Active        bool      // we asked for the connection
	Local, Remote netip.AddrPort
	RemoteQPN     uint32 // 0 if unknown
	PathMTU       rdma.MTU
	PKey          uint16
	SendDepth     int // requests that the send queue takes
	SendQueued    int // and has
	RecvDepth     int
	RecvQueued    int
	ReadsStarted  uint8
	ReadsServed   uint8
	// Counters are those of rdma-core's users where the provider has them, such as sent_bytes; nil
	// if none.
	Counters map[string]uint64
}
