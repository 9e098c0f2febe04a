package guest

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"syscall"
)

//go:embed scripts
var scripts embed.FS

// script reads an embedded script.
func script(name string) string {
	b, err := scripts.ReadFile("scripts/" + name + ".sh")
	if err != nil {
		panic(err) // it is in this directory or the program is not built
	}
	return string(b)
}

// rw is an export that hides nothing behind squashing.
var rw = []string{"%s=/e(rw,no_root_squash)"}

// cases are in the order of what they build on.
var cases = []Case{
	rpingClient("rping-client", HostAddr, 1500, 64),
	rpingClient("rping-client-4200", HostAddr, 4200, 60000),
	rpingClient("rping-client-ipv6", HostAddr6, 1500, 4096),
	rpingServer("rping-server", HostAddr, guestAddr(0), 1500, 64),
	rpingServer("rping-server-4200", HostAddr, guestAddr(0), 4200, 60000),
	rpingServer("rping-server-ipv6", HostAddr6, "fd99::2", 1500, 4096),
	{Name: "mount", Exports: rw, Script: script("mount"), Env: env("OPTS", ""), Payload: true},
}

func env(kv ...string) map[string]string {
	m := make(map[string]string)
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func rpingClient(name, to string, mtu, size int) Case {
	return Case{
		Name: name, MTU: mtu, Script: script("rping-client"), Env: env("TO", to, "SIZE", strconv.Itoa(size)),
		Host: func(ctx context.Context, r *Run) error {
			p, err := r.start("rping", r.log, r.runner.Bin+"/rping", "-listen", to)
			if err != nil {
				return err
			}
			err = r.Await(ctx, "done")
			_ = p.stop(syscall.SIGTERM)
			return err
		},
	}
}

func rpingServer(name, from, to string, mtu, size int) Case {
	return Case{
		Name: name, MTU: mtu, Script: script("rping-server"), Env: env("ME", to, "SIZE", strconv.Itoa(size)),
		Host: func(ctx context.Context, r *Run) error {
			for n := 1; n <= 3; n++ {
				if err := r.Await(ctx, fmt.Sprintf("listening.%d", n)); err != nil {
					return err
				}
				if err := r.Command(ctx, "rping", "-listen", from, "-connect", to, "-count", "10", "-size", strconv.Itoa(size)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
