//go:build rdmacore && linux && cgo

package verbs

import (
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// numaNode is the NUMA node of a device, -1 if it is on none or the host has only one.
func numaNode(device string) int {
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	n, err := strconv.Atoi(line(filepath.Join("/sys/class/infiniband", device, "device/numa_node")))
	if err != nil || n < 0 || len(nodes) < 2 {
		return -1
	}
	return n
}

// stayNear binds the loop, with a thread of its own, to the processors of the device's NUMA node:
// the queues of the device are there, and memory that the loop touches first. Processors that the
// process must not use are left out.
func (l *loop) stayNear() {
	if l.dev.numa < 0 {
		return
	}
	want, ok := parseCPUs(line(filepath.Join("/sys/devices/system/node", "node"+strconv.Itoa(l.dev.numa), "cpulist")))
	var may unix.CPUSet
	if !ok || unix.SchedGetaffinity(0, &may) != nil {
		return
	}
	for i := range may {
		want[i] &= may[i]
	}
	if want.Count() == 0 {
		return
	}
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		runtime.UnlockOSThread()
		l.dev.log.Warn("an event loop cannot be bound to the processors near its RDMA device", "device", l.dev.name, "node",
			l.dev.numa, "error", err)
	}
}

// parseCPUs reads a list such as 0-7,16-23.
func parseCPUs(s string) (set unix.CPUSet, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b < a || b >= 64*len(set) {
			return unix.CPUSet{}, false
		}
		for ; a <= b; a++ {
			set.Set(a)
		}
	}
	return set, true
}
