package guest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workloads are the cases that are run on every kind of device.
var workloads = []string{
	"mount", "names", "mmap", "mount-rsize", "fsx", "tree", "git", "dbench", "fio", "large-file", "two-guests", "locks",
	"loss-1", "restart", "port-removed",
	"mount-v42-rdma", "v42-names", "v42-mmap", "v42-rsize", "v42-fsx", "v42-tree", "v42-git", "v42-dbench", "v42-fio",
	"v42-large", "v42-two-guests", "v42-locks4", "v42-loss", "v42-restart", "v42-ports", "v42-deleg-two",
}

// others are those that say less about a device, and are soon over.
var others = []string{
	"mount-sync", "mount-soft", "mount-v41-rdma", "mount-v40-rdma", "mount-nconnect", "mount-tcp-and-rdma", "mount-errors",
	"mount-ro", "export-ro",
	"squash", "open-files", "append", "statfs", "truncate-race", "link-down", "server-stopped",
	"v42-sparse", "v42-acltools", "v42-deleg", "v42-squash", "v42-open-files", "v42-append", "v42-statfs",
	"v42-truncate-race", "v42-ro-export", "v42-ro-mount",
}

// verbsCases are those of the provider of rdma-core.
func verbsCases() []Case {
	return slices.Concat(
		[]Case{conformance("rxe"), conformance("siw")},
		onVerbs("rxe", workloads...),
		[]Case{
			clientOn("rxe", "knfsd", "3"), clientOn("rxe", "knfsd-v42", "4.2"), clientOn("siw", "knfsd", "3"),
			clientOn("siw", "knfsd-v42", "4.2"),
		},
		onVerbs("rxe", others...),
		onVerbs("rxe", "mount-4200", "enospc", "directory-of-20000", "v42-enospc", "v42-bigdir", "v42-reclaim", "v42-frozen",
			"loss-5"),
		onVerbs("siw", workloads...),
		onVerbs("siw", others...),
		[]Case{dmabufs("rxe"), dmabufs("siw"), dmabufsOfKernel("rxe")},
		[]Case{
			removal("rxe"), removal("siw"), postMortems(), churn("rxe", 500, 2000), churn("siw", 200, 1000),
			succession("rxe"), succession("siw"), carriers("rxe"), carriers("siw"),
		},
	)
}

// deviceGoes takes the server's device away under load and adds it again, twice.
func deviceGoes(kind string) func(context.Context, *Run) error {
	device := kind + "0"
	return func(ctx context.Context, r *Run) error {
		if err := r.Await(ctx, "loaded"); err != nil {
			return err
		}
		for range 2 {
			if err := r.Sleep(ctx, 3*time.Second); err != nil {
				return err
			}
			// The kernel waits until the daemon has let it go.
			if _, err := r.order(ctx, "timeout 30 rdma link delete "+device); err != nil {
				return err
			}
			if err := r.Sleep(ctx, 3*time.Second); err != nil {
				return err
			}
			if _, err := r.order(ctx, "rdma link add "+device+" type "+kind+" netdev eth0"); err != nil {
				return err
			}
		}
		if err := r.Sleep(ctx, 10*time.Second); err != nil {
			return err
		}
		return r.Tell("stop")
	}
}

// removal is a case of the server's device that goes and comes back while a guest writes.
func removal(kind string) Case {
	c := onVerbs(kind, "port-removed")[0]
	c.Name, c.Host = "verbs-"+kind+"-device-removed", deviceGoes(kind)
	c.Timeout = 5 * time.Minute
	return c
}

// takenOver has another process take the daemon's place on a device of the kernel, twice, under
// load. Its connections end with the old one, and the clients make new ones.
func takenOver(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	locks, err := r.order(ctx, "ctl locks -o json")
	if err != nil {
		return err
	}
	for range 2 {
		if err := r.Sleep(ctx, 3*time.Second); err != nil {
			return err
		}
		out, err := r.order(ctx, "upgraded")
		if err != nil {
			return err
		}
		r.Logf("upgraded: %s", strings.TrimSpace(out))
	}
	if err := r.Sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	if after, err := r.order(ctx, "ctl locks -o json"); err != nil || after != locks {
		return errors.Join(fmt.Errorf("the locks were %s, and are %s", locks, after), err)
	}
	return r.Tell("stop")
}

// succession is a case of live upgrades while a guest writes by version 4.2.
func succession(kind string) Case {
	c := onVerbs(kind, "v42-restart")[0]
	c.Name, c.Script, c.Host, c.Timeout = "verbs-"+kind+"-upgrade", script("upgrade"), takenOver, 5*time.Minute
	c.Env = with(c.Env, "RECONNECTS", "1")
	return c
}

// churn is a case of many connections, after which nobody has kept anything.
func churn(kind string, mounts, connections int) Case {
	c := onVerbs(kind, "remount")[0]
	c.Name, c.Script, c.Timeout = "verbs-"+kind+"-churn", script("verbs-churn"), 20*time.Minute
	c.Env = env("MOUNTS", strconv.Itoa(mounts), "CONNECTIONS", strconv.Itoa(connections))
	c.Daemon = []string{"--max-client-connections", "50", "--lease-time", "10s"}
	c.MemMB = 1400
	c.Host = func(ctx context.Context, r *Run) error {
		if err := r.give("reconnect"); err != nil {
			return err
		}
		// Of the end of a client of iWARP that says nothing the server hears when TCP gives up, by itself
		// a quarter of an hour after there was something to send.
		if _, err := r.order(ctx, "echo 5 >/proc/sys/net/ipv4/tcp_retries2"); err != nil {
			return err
		}
		if err := r.Tell("programs"); err != nil {
			return err
		}
		before, err := r.atRest(ctx, "warm")
		if err != nil {
			return err
		}
		if err := r.Tell("measured"); err != nil {
			return err
		}
		after, err := r.atRest(ctx, "over")
		if err != nil {
			return err
		}
		r.Logf("before %+v, after %+v", before, after)
		if before.resources != after.resources || after.files > before.files+5 || after.rss > before.rss+churnGrows {
			return fmt.Errorf("before %+v, after %d mounts and more than %d connections %+v", before, mounts, connections, after)
		}
		return r.Tell("compared")
	}
	return c
}

// churnGrows is by how many KiB the daemon may grow between the first hundreds of connections and
// the last of thousands: the runtime collects garbage when the heap has doubled, and the C library
// keeps what was freed in pieces. One page for each connection would be more.
const churnGrows = 8 << 10

// standing is what a daemon in guest s has while it has no client.
type standing struct {
	resources  string // of its kernel's device
	files, rss int    // open files, and memory in KiB
}

// atRest waits for a guest's word that it has no connection, and until the daemon has none: what
// the connections had whose clients have vanished goes when the kernel or the daemon has given them
// up.
func (r *Run) atRest(ctx context.Context, name string) (s standing, err error) {
	if err := r.Await(ctx, name); err != nil {
		return s, err
	}
	const patience = 3
	for i := range patience {
		if _, err = r.order(ctx, `settled "queue pairs" "$idle_qps" resource qp`); err == nil || i == patience-1 {
			break
		}
		r.Logf("%v", err)
	}
	if err != nil {
		return s, err
	}
	if s.resources, err = r.order(ctx, "resources"); err != nil {
		return s, err
	}
	if s.files, err = r.openFiles(); err != nil {
		return s, err
	}
	rss, err := r.order(ctx, "rss")
	if err == nil {
		s.rss, err = strconv.Atoi(strings.TrimSpace(rss))
	}
	return s, err
}

// carriers is a case of one export on all the carriers that a host can have beside a device of a
// kind, in one daemon. The kernel of the server's guest does without rdma_rxe where the device is
// another, since that has the UDP port of the soft provider.
func carriers(kind string) Case {
	const soft = "10.98.0.3"
	c := onVerbs(kind, "mount")[0]
	c.Name, c.Script, c.Timeout = "verbs-"+kind+"-carriers", script("carriers"), 5*time.Minute
	c.Daemon = []string{"--portmap-listen", HostAddr + ":111"}
	if kind != "rxe" {
		c.Name = "verbs-" + kind + "-three-carriers"
		c.Wires, c.Env = 2, env("SECOND", soft, "BESIDE", "10.98.0.2")
		c.Daemon = append(c.Daemon, "--rdma-listen", "soft://"+soft+":20049", "--tcp-listen", soft+":2049",
			"--portmap-listen", soft+":111")
		c.Kernel = func(r *Run, i int) []string {
			if r.Case.guestName(i) != serverGuest {
				return nil
			}
			return []string{"initcall_blacklist=rxe_module_init"}
		}
	}
	c.Host = func(ctx context.Context, r *Run) error {
		if err := r.Await(ctx, "mounted"); err != nil {
			return err
		}
		ports, err := r.CtlOutput("port", "list")
		if err != nil {
			return err
		}
		r.Logf("%s", ports)
		if kind == "rxe" {
			_, err := r.CtlOutput("port", "add", "rdma", "soft://"+r.Addr()+":20050")
			if err == nil || !strings.Contains(err.Error(), "its software RoCE has it (rxe0)") {
				return fmt.Errorf("a port of the soft provider beside rxe: %w", err)
			}
		}
		if err := r.Tell("seen"); err != nil {
			return err
		}
		if err := r.Await(ctx, "mixed"); err != nil {
			return err
		}
		if at := c.Env["SECOND"]; at != "" {
			if err := ip("-n", r.ns, "addr", "add", strings.TrimSuffix(at, ".3")+".1/24", "dev", "br0"); err != nil {
				return err
			}
		}
		// The Go client in user space, which speaks RoCEv2 with soft and with rxe alike.
		file := "/e/d/verbs-3"
		for _, by := range []string{
			"nfs+rdma://" + cmp.Or(c.Env["SECOND"], r.Addr()) + file + "?provider=soft",
			"nfs+tcp://" + r.Addr() + file,
		} {
			if err := r.Command(ctx, "rstorectl", "get", by, r.path("got")); err != nil {
				return err
			}
			got, err := os.ReadFile(r.path("got"))
			if err != nil {
				return err
			}
			want, err := r.order(ctx, "sha256sum </run/exports/d/verbs-3")
			if sum := fmt.Sprintf("%x  -", sha256.Sum256(got)); err != nil || sum != strings.TrimSpace(want) {
				return errors.Join(fmt.Errorf("%s has the sum %s instead of %s", by, sum, want), err)
			}
		}
		return r.Tell("mixed-seen")
	}
	return c
}
