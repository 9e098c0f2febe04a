// Command boot runs programs in a guest that has an RDMA device, to try what a host without
// one cannot do. What the program prints appears here, and its exit status is this one's.
//
//	boot [flags] FILE [ARG...]
//
// FILE is a program of this host, or a shell script that ends in .sh, which begins with what
// test/guest/lib.sh has. The device is rxe0 or siw0 on eth0, which has the addresses
// 10.99.0.2, 10.99.0.12 and 10.99.0.22; programs find them in RDMA_TEST_ADDRS. What is named
// by -with is in /run/host, where the program begins. Needs root and what test/guest/build has
// made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rstored/rstored/test/guest"
)

func main() {
	device := flag.String("rdma", "rxe", "the `kind` of RDMA device: rxe, siw or none")
	timeout := flag.Duration("timeout", 5*time.Minute, "how long it may take")
	mem := flag.Int("mem", 1024, "memory of the guest in MiB")
	mtu := flag.Int("mtu", 1500, "of the guest's interface")
	with := flag.String("with", "", "further `files` for the guest, with commas between them")
	env := flag.String("env", "", "`variables` of the program, as NAME=VALUE with commas between them")
	wires := flag.Int("wires", 1, "network interfaces of the guest; nothing is done with those after the first")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	cache, err := guest.Cache()
	if err != nil {
		fatal(err)
	}
	c := guest.Boot(*device, flag.Args())
	c.Timeout, c.MemMB, c.MTU, c.Wires = *timeout, *mem, *mtu, *wires
	for _, kv := range fields(*env) {
		k, v, _ := strings.Cut(kv, "=")
		c.Env[k] = v
	}
	c.Host = func(ctx context.Context, r *guest.Run) error {
		return errors.Join(give(r, append(fields(*with), flag.Arg(0))), r.Tell("given"), follow(ctx, r))
	}
	keep, err := os.MkdirTemp("", "rstored-boot-")
	if err != nil {
		fatal(err)
	}
	r := &guest.Runner{Cache: cache, Keep: keep}
	if err := r.Run(context.Background(), c); err != nil {
		fatal(fmt.Errorf("%w; see %s", err, keep))
	}
	_ = os.Remove(keep)
}

// give copies files to where the guest finds them.
func give(r *guest.Run, names []string) error {
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(r.Share, filepath.Base(name)), b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// follow prints what appears on the guest's console until its script is done.
func follow(ctx context.Context, r *guest.Run) error {
	for {
		console, err := os.Open(filepath.Join(r.Dir, "console-a.log"))
		if errors.Is(err, os.ErrNotExist) {
			if err := r.Sleep(ctx, 20*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		defer func() { _ = console.Close() }()
		for {
			_, gone := os.Stat(filepath.Join(r.Share, "at.done"))
			if _, err := io.Copy(os.Stdout, console); err != nil {
				return err
			}
			if gone == nil {
				return nil
			}
			if err := r.Sleep(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

func fields(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "boot:", err)
	os.Exit(1)
}
