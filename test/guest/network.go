package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// guestAddr is the IPv4 address of guest i, counted from 0.
func guestAddr(i int) string { return "10.99.0." + strconv.Itoa(2+i) }

// guestAddr6 is its IPv6 address.
func guestAddr6(i int) string { return "fd99::" + strconv.Itoa(2+i) }

// guests runs the scripts and what happens on the host meanwhile.
func (r *Run) guests(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := os.WriteFile(filepath.Join(r.Share, "script"), []byte(r.script()), 0o644); err != nil {
		return err
	}
	var env strings.Builder
	for k, v := range r.Case.Env {
		fmt.Fprintf(&env, "export %s='%s'\n", k, v)
	}
	host, host6 := HostAddr, HostAddr6
	if r.Case.servedByGuest() {
		i := r.Case.machines() - 1
		host, host6 = r.Addr(), guestAddr6(i)
		if err := r.give("rstored", "rstorectl"); err != nil {
			return err
		}
	}
	fmt.Fprintf(&env, "export GUEST=$g_name HOST=%s HOST6=%s RDMA=%s\n", host, host6, cmp.Or(r.Case.Device, "rxe"))
	if err := os.WriteFile(filepath.Join(r.Share, "env"), []byte(env.String()), 0o644); err != nil {
		return err
	}
	n := r.Case.machines()
	done := make(chan error, n+1)
	for i := range n {
		go func() { done <- r.guest(ctx, i) }()
	}
	if r.Case.Host != nil {
		n++
		go func() {
			err := r.Case.Host(ctx, r)
			if err != nil {
				err = fmt.Errorf("on the host: %w", err)
			}
			done <- err
		}()
	}
	var first error
	for range n {
		if err := <-done; err != nil && first == nil {
			first = err
			// A guest that waits for the other would wait in vain.
			cancel(err)
		}
	}
	return first
}

// network makes the namespace, its bridge and a tap for each guest.
func (r *Run) network() error {
	mtu := strconv.Itoa(r.mtu())
	if err := ip("netns", "add", r.ns); err != nil {
		return err
	}
	steps := [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"},
		// A bridge takes the address of its lowest port, which would change with each tap.
		{"link", "set", "br0", "address", "02:99:00:00:00:01"},
		{"addr", "add", HostAddr + "/24", "dev", "br0"},
		{"addr", "add", HostAddr6 + "/64", "dev", "br0", "nodad"},
	}
	for i := range r.Case.machines() {
		for w := range max(1, r.Case.Wires) {
			steps = append(steps,
				[]string{"tuntap", "add", "dev", tap(i, w), "mode", "tap", "vnet_hdr"},
				[]string{"link", "set", tap(i, w), "mtu", mtu, "txqueuelen", "10000", "master", "br0", "up"})
		}
	}
	steps = append(steps, []string{"link", "set", "br0", "mtu", mtu, "up"})
	for _, s := range steps {
		if err := ip(append([]string{"-n", r.ns}, s...)...); err != nil {
			return errors.Join(err, ip("netns", "del", r.ns))
		}
	}
	return nil
}

// tap is the name of the host's end of interface w of guest i.
func tap(i, w int) string {
	if w == 0 {
		return "tap" + strconv.Itoa(i)
	}
	return fmt.Sprintf("tap%d.%d", i, w)
}

// Addr is the IPv4 address of the daemon.
func (r *Run) Addr() string {
	if r.Case.servedByGuest() {
		return guestAddr(r.Case.machines() - 1)
	}
	return HostAddr
}

// rdmaAt is where the daemon listens for RDMA, as its settings say it.
func (r *Run) rdmaAt() string {
	if r.Case.servedByGuest() {
		return "verbs://" + r.Addr() + ":20049"
	}
	return r.Addr() + ":20049"
}

func (r *Run) mtu() int {
	if r.Case.MTU == 0 {
		return 1500
	}
	return r.Case.MTU
}

func ip(args ...string) error {
	_, err := output(exec.Command("ip", args...))
	return err
}
