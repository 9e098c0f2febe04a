package guest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// kerberosProtect is the kernel's client with state protection (SP4_MACH_CRED).
func kerberosProtect(version, carrier string) Case {
	c := kerberosCase(version, carrier)
	c.Name = strings.Replace(c.Name, "krb-", "krb-protect-", 1)
	c.Script, c.Host, c.Timeout = script("krb-protect"), kerberosProtectHost, 10*time.Minute
	return c
}

// krbHeld is what the clients of version 4 have.
type krbHeld struct{ clients, opens, locks int }

func (r *Run) krbHeld() (h krbHeld, err error) {
	out, err := r.CtlOutput("client", "list", "-o", "json")
	if err != nil {
		return h, err
	}
	var list []struct{ Opens, Locks int }
	err = json.Unmarshal([]byte(out), &list)
	for _, c := range list {
		h.clients++
		h.opens += c.Opens
		h.locks += c.Locks
	}
	return h, err
}

// holds waits until the clients have this.
func (r *Run) holds(ctx context.Context, what string, fits func(krbHeld) bool) error {
	return r.until(ctx, r.daemon, what, func() bool {
		h, err := r.krbHeld()
		return err == nil && fits(h)
	})
}

// kerberosProtectHost ends all connections while a file is open and locked, and looks whether the
// client gives back what it has.
func kerberosProtectHost(ctx context.Context, r *Run) error {
	kdc, err := r.startKDC(filepath.Join(filepath.Dir(r.Exports), "krb"))
	if err != nil {
		return err
	}
	defer func() { _ = kdc.stop(syscall.SIGKILL) }()
	if err := r.Tell("kdc"); err != nil {
		return err
	}
	kind, at := "tcp", ":2049"
	if r.Case.Env["CARRIER"] == rdma {
		kind, at = "rdma", r.rdmaAt()
	}
	for _, flavor := range []string{"krb5", "krb5i", "krb5p"} {
		if err := r.Await(ctx, flavor+".made"); err != nil {
			return err
		}
		// A file that is open here is not delegated: the guest must ask the server for the lock.
		kept, err := os.OpenFile(filepath.Join(r.Exports, flavor, "open"), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer kept.Close()
		if err := errors.Join(r.Tell(flavor+".kept"), r.Await(ctx, flavor+".holding")); err != nil {
			return err
		}
		var open krbHeld
		err = r.holds(ctx, "an open file with a lock", func(h krbHeld) bool {
			open = h
			return h.opens > 0 && h.locks > 0
		})
		// New connections have to be bound before the session goes on.
		err = errors.Join(err, r.Ctl("port", "remove", kind, at), r.Ctl("port", "add", kind, at), r.Tell(flavor+".seen"),
			r.Await(ctx, flavor+".closed"))
		if err != nil {
			return err
		}
		err = r.holds(ctx, "the file to be closed and unlocked", func(h krbHeld) bool {
			return h.opens < open.opens && h.locks == 0
		})
		if err = errors.Join(err, r.Tell(flavor+".released"), r.Await(ctx, flavor+".unmounted")); err != nil {
			return err
		}
		err = r.holds(ctx, "the client to be gone", func(h krbHeld) bool { return h.clients == 0 })
		if err = errors.Join(err, r.Tell(flavor+".gone")); err != nil {
			return err
		}
	}
	return r.Await(ctx, "done")
}
