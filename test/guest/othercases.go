package guest

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
)

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
				if err := r.Command(ctx, "rping", "-listen", from, "-connect", to, "-count", "10", "-size",
					strconv.Itoa(size)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// sixtyFour connections, with messages that do not fit one packet.
var sixtyFour = []string{"-connections", "64", "-messages", "10", "-size", "5000"}

// cmatoseServes is the server of the guest's ucmatose.
func cmatoseServes(ctx context.Context, r *Run) error {
	return r.Command(ctx, "cmatose", append([]string{"-listen", HostAddr}, sixtyFour...)...)
}

// cmatoseCalls is the client of the guest's ucmatose.
func cmatoseCalls(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "listening"); err != nil {
		return err
	}
	return r.Command(ctx, "cmatose", append([]string{"-listen", HostAddr, "-connect", guestAddr(0)}, sixtyFour...)...)
}

// eightPairs of queue pairs for datagrams, with messages of size bytes.
func eightPairs(size int) []string {
	return []string{"-connections", "8", "-messages", "10", "-size", strconv.Itoa(size)}
}

// udaddyIn is the server of the guest's udaddy, after one that serves no datagrams.
func udaddyIn(name, to string, mtu, size int) Case {
	return Case{
		Name: name, MTU: mtu, Script: script("udaddy-client"), Env: env("TO", to, "SIZE", strconv.Itoa(size)),
		Host: func(ctx context.Context, r *Run) error {
			p, err := r.start("rping", r.log, r.runner.Bin+"/rping", "-listen", to)
			if err != nil {
				return err
			}
			if err = r.Tell("nobody"); err == nil {
				err = r.Await(ctx, "refused")
			}
			_ = p.stop(syscall.SIGTERM)
			if err != nil {
				return err
			}
			if err := r.Tell("somebody"); err != nil {
				return err
			}
			return r.Command(ctx, "udaddy", append([]string{"-listen", to}, eightPairs(size)...)...)
		},
	}
}

// udaddyOut is the client of the guest's udaddy.
func udaddyOut(name, from, to string, mtu, size int) Case {
	return Case{
		Name: name, MTU: mtu, Script: script("udaddy-server"), Env: env("ME", to, "SIZE", strconv.Itoa(size)),
		Host: func(ctx context.Context, r *Run) error {
			if err := r.Await(ctx, "listening"); err != nil {
				return err
			}
			return r.Command(ctx, "udaddy", append([]string{"-listen", from, "-connect", to}, eightPairs(size)...)...)
		},
	}
}
