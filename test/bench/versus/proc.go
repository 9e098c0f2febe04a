package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

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

// anonymousOf is the memory of a process that is not of files, in bytes.
func anonymousOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return parseRollup(b, "Anonymous:")
}
