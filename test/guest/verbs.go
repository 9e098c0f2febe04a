package guest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// serverGuest is the name of the guest that the daemon runs in, where it does.
const serverGuest = "s"

// serverMemMB is its memory. Its exports are in it.
const serverMemMB = 2600

// rdmaPrograms is where in Bin the programs are that have the provider of rdma-core.
const rdmaPrograms = "rdma"

// Boot is a case that runs one program in a guest with an RDMA device of a kind: rxe, siw or none.
// args are its file, which has to be in Share under its base name before "given" is told, and its
// arguments. It tells "done" at its end.
func Boot(kind string, args []string) *Case {
	name := filepath.Base(args[0])
	run := "./" + name
	if strings.HasSuffix(name, ".sh") {
		run = ". ./" + name
	}
	for _, a := range args[1:] {
		run += " " + quote(a)
	}
	return &Case{
		Name: "boot", Quiet: true, Timeout: 5 * time.Minute, Env: env(), Device: kind,
		Script: "rdma_device\naddresses\nawait given\ncd /run/host\nset +e\n(set -e; " + run +
			")\nrc=$?\ntell done\nexit $rc\n",
	}
}

// onVerbs are cases of ordinary and of version 4.2 by their names, with the daemon in a guest of
// its own on a device of a kind.
func onVerbs(kind string, names ...string) (list []Case) {
	all := slices.Concat(ordinary, version4("4.2", rdma))
	for _, name := range names {
		i := slices.IndexFunc(all, func(c Case) bool { return c.Name == name })
		if i < 0 {
			panic("no case " + name)
		}
		c := all[i]
		c.Name = "verbs-" + kind + "-" + name
		c.Server, c.Device, c.Quiet, c.Payload = "verbs", kind, true, false
		c.Timeout = max(2*time.Minute, 2*c.Timeout)
		switch {
		case strings.HasSuffix(name, "enospc"):
			c.FS = nil
			c.Env = with(c.Env, "EXPORTS_FS", "size=16m,nr_inodes=200,mode=755")
		case name == "directory-of-20000", name == "v42-bigdir":
			// tmpfs of this kernel counts names: one that is removed hides another from who is listing them.
			c.Env = with(c.Env, "EXPORTS_EXT4", "256M")
		}
		list = append(list, c)
	}
	return list
}

// with is the variables and one more.
func with(e map[string]string, name, value string) map[string]string {
	if e = maps.Clone(e); e == nil {
		e = env()
	}
	e[name] = value
	return e
}

// clientOn is a case of the Go client on a device of a kind, with the kernel's server in a second
// guest.
func clientOn(kind, name, version string) Case {
	return Case{
		Name: "verbs-" + kind + "-" + name, Script: script("verbs-client"), Guests: 2, Device: kind, RDMACore: true,
		Quiet: true,
		Env:   env("VERS", version, "SERVER", guestAddr(1)), MemMB: 1600, Timeout: 8 * time.Minute,
		Host: func(_ context.Context, r *Run) error {
			return errors.Join(r.give("rstorectl"), r.Tell("programs"))
		},
	}
}

// conformance is a case that runs the tests of rdma/verbs in a guest, and those of rpcrdma that
// need a device.
func conformance(kind string) Case {
	return Case{
		Name: "verbs-" + kind + "-conformance", Script: script("conformance"), Env: env("DMABUFS", dmabufsOn(kind)),
		Device: kind, RDMACore: true, Quiet: true, MemMB: 1400, Timeout: 10 * time.Minute,
		Host: given("verbs.test", "rpcrdma.test", "dmabuf.so"),
	}
}

// dmabufsOn is what the guests' kernel does with dma-bufs on a device of a kind: rxe.patch is of
// rxe alone.
func dmabufsOn(kind string) string {
	if kind == "rxe" {
		return "taken"
	}
	return "refused"
}

// dmabufs is a case of the Go client with memory of another device, on a device of a kind.
func dmabufs(kind string) Case {
	c := onVerbs(kind, "mount")[0]
	c.Name, c.Script, c.RDMACore, c.Host = "verbs-"+kind+"-dmabuf", script("dmabuf"), true, given("dial.test", "dmabuf.so")
	c.Env = env("DMABUFS", dmabufsOn(kind), "VERSIONS", "3 4.2")
	return c
}

// dmabufsOfKernel is the same with the kernel's server.
func dmabufsOfKernel(kind string) Case {
	return Case{
		Name: "verbs-" + kind + "-dmabuf-knfsd", Script: script("dmabuf-knfsd") + script("dmabuf"), Guests: 2, Device: kind,
		RDMACore: true, Quiet: true,
		Env: env("DMABUFS", dmabufsOn(kind), "VERSIONS", "4.2", "VERS", "4.2", "SERVER", guestAddr(1)), MemMB: 1600,
		Timeout: 4 * time.Minute, Host: given("dial.test", "dmabuf.so"),
	}
}

// given gives programs to the guests, and tells them.
func given(programs ...string) func(context.Context, *Run) error {
	return func(_ context.Context, r *Run) error { return errors.Join(r.give(programs...), r.Tell("given")) }
}

// give puts programs that have the provider of rdma-core where the guests find them.
func (r *Run) give(programs ...string) error {
	for _, program := range programs {
		b, err := os.ReadFile(filepath.Join(r.runner.Bin, rdmaPrograms, program))
		if err == nil {
			err = os.WriteFile(filepath.Join(r.Share, program), b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// servedByGuest reports whether the daemon runs in a guest of its own.
func (c *Case) servedByGuest() bool { return c.Server == "verbs" }

// machines is how many guests a case has.
func (c *Case) machines() int {
	n := max(1, c.Guests)
	if c.servedByGuest() {
		n++
	}
	return n
}

// guestName is the name of guest i, counted from 0.
func (c *Case) guestName(i int) string {
	if c.servedByGuest() && i == c.machines()-1 {
		return serverGuest
	}
	return string(rune('a' + i))
}

// script is what runs in each guest.
func (r *Run) script() string {
	c := r.Case
	if !c.servedByGuest() {
		return Library + c.Script
	}
	const exports = "/run/exports"
	var flags, clients []string
	for _, e := range c.Exports {
		flags = append(flags, "--export", quote(exportOf(e, exports)))
	}
	for _, f := range c.Daemon {
		flags = append(flags, quote(strings.NewReplacer("%s", exports, HostAddr, guestAddr(c.machines()-1)).Replace(f)))
	}
	for i := range c.machines() - 1 {
		clients = append(clients, c.guestName(i))
	}
	return fmt.Sprintf(`%s
if [ "$GUEST" = %s ]; then
FLAGS=(%s)
CLIENTS=%s
%s
exit 0
fi
rdma_device
await serving
%s`, Library, serverGuest, strings.Join(flags, " "), quote(strings.Join(clients, " ")), script("serve"), c.Script)
}

// orderPatience is how long guest s may take for one.
const orderPatience = 90 * time.Second

// order has guest s run a command of the shell, in the shell of its script, and returns what it
// prints.
func (r *Run) order(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
	defer cancel()
	n := r.orders.Add(1)
	command := strings.Join(words, " ")
	file := func(name string) string { return filepath.Join(r.Share, fmt.Sprintf("%s.%d", name, n)) }
	if err := os.WriteFile(file("ordered"), []byte(command+"\n"), 0o644); err != nil {
		return "", err
	}
	if err := os.Rename(file("ordered"), file("do")); err != nil {
		return "", err
	}
	if err := r.until(ctx, nil, "guest s to "+command, func() bool { return exists(file("at.did")) }); err != nil {
		return "", err
	}
	out, err := os.ReadFile(file("did"))
	if err != nil {
		return "", err
	}
	status, err := os.ReadFile(file("at.did"))
	if err == nil && strings.TrimSpace(string(status)) != "0" {
		err = fmt.Errorf("%s in guest s: status %s: %s", command, strings.TrimSpace(string(status)),
			strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// quote makes one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
