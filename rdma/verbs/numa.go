//go:build rdmacore && linux && cgo

package verbs

import (
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// numaNode is the node that a device is on, -1 if it is on none or the host has but one.
func numaNode(device string) int {
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	n, err := strconv.Atoi(line(filepath.Join("/sys/class/infiniband", device, "device/numa_node")))
	if err != nil || n < 0 || len(nodes) < 2 {
		return -1
	}
	return n
}

// stayNear keeps the loop on the processors of the device's node, with a thread of its own: the queues of the
// device, and the memory that the loop touches first, are there. What the process may not use stays out.
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
		l.dev.log.Warn("a loop does not stay near its RDMA device", "device", l.dev.name, "node", l.dev.numa, "error", err)
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
