package compare

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ticks is USER_HZ: what /proc counts processor time in, per second.
const ticks = 100

// parseStat reads /proc/PID/stat: the group of a process, and the processor time of the
// process and of its children that have ended, in seconds.
func parseStat(b []byte) (group int, cpu float64, err error) {
	// The second field is a name in parentheses, which may contain anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, 0, errors.New("stat has no name")
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 15 {
		return 0, 0, fmt.Errorf("stat has %d fields after the name", len(f))
	}
	if group, err = strconv.Atoi(f[2]); err != nil {
		return 0, 0, err
	}
	sum := uint64(0)
	for _, s := range f[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		sum += n
	}
	return group, float64(sum) / ticks, nil
}

// CPU is the processor time that a process and its children that have ended have used, in
// seconds.
func CPU(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, cpu, err := parseStat(b)
	return cpu, err
}

// GroupCPU is that of all processes of a group, whose first process is pid.
func GroupCPU(pid int) (float64, error) {
	sum, err := CPU(pid)
	if err != nil {
		return 0, err
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		if other, err := strconv.Atoi(e.Name()); err != nil || other == pid {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended, and its parent has its time
		}
		if group, cpu, err := parseStat(b); err == nil && group == pid {
			sum += cpu
		}
	}
	return sum, nil
}

// parseHostStat reads /proc/stat: the time that all processors were busy, in seconds.
func parseHostStat(b []byte) (float64, error) {
	first, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(first)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("stat begins with %q", first)
	}
	sum := uint64(0)
	for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return float64(sum) / ticks, nil
}

// HostCPU is the time that all processors were busy, in seconds.
func HostCPU() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseHostStat(b)
}
