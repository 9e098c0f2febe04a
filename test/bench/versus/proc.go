package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ: what /proc counts processor time in, per second.
const ticks = 100

// parseStat reads /proc/PID/stat: the processor time of a process and of its children
// that have ended, in seconds.
func parseStat(b []byte) (float64, error) {
	// The second field is a name in parentheses, which may contain anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, errors.New("stat has no name")
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 15 {
		return 0, fmt.Errorf("stat has %d fields after the name", len(f))
	}
	sum := uint64(0)
	for _, s := range f[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return float64(sum) / ticks, nil
}

// cpuOf is the processor time that a process has used, in seconds.
func cpuOf(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(b)
}

// parsePSS reads /proc/PID/smaps_rollup: the memory of a process in bytes, its share of
// what it shares.
func parsePSS(b []byte) (int64, error) { return parseRollup(b, "Pss:") }

// parseRollup reads a line of /proc/PID/smaps_rollup, in bytes.
func parseRollup(b []byte, key string) (int64, error) {
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), key)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		return n << 10, err
	}
	return 0, fmt.Errorf("smaps_rollup has no %s", key)
}

func pssOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return parsePSS(b)
}

// listening waits until somebody accepts connections at an address.
func listening(ctx context.Context, r *server, addr string) error {
	return until(ctx, r, func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// until tries until it works, the server has ended, or patience has.
func until(ctx context.Context, r *server, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("%s has ended: %s", r.name, r.cmd.ProcessState)
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}

// anonymousOf is the memory of a process that is not of files, in bytes.
func anonymousOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return parseRollup(b, "Anonymous:")
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

// hostCPU is the time that all processors were busy, in seconds.
func hostCPU() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseHostStat(b)
}
