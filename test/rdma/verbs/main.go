// Verbs plays a fixed sequence of requests over the software device, as client or as
// server: the peer of test/guest/verbs/verbs.c, which plays it over rdma-core.
//
//	verbs -sequence part -listen 10.99.0.1                       # and on the other host:
//	verbs part connect 10.99.0.1
//
//	verbs -sequence part -listen 10.99.0.1 -connect 10.99.0.2    # and there:
//	verbs part listen 10.99.0.2 ready
//
// The file part is one of requests.Parts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/test/rdma/requests"
)

func main() {
	sequence := flag.String("sequence", "", "`file` of what is played")
	listen := flag.String("listen", "", "local `address`")
	connect := flag.String("connect", "", "be the client of the server at this `address`")
	ready := flag.String("ready", "", "make this `file` when the server listens")
	limit := flag.Duration("limit", time.Minute, "for all of it")
	flag.Parse()
	ctx, stop := context.WithTimeout(context.Background(), *limit)
	defer stop()
	if err := run(ctx, *sequence, *listen, *connect, *ready); err != nil {
		fmt.Fprintln(os.Stderr, "verbs:", err)
		os.Exit(1)
	}
	fmt.Println("the sequence was played")
}

func run(ctx context.Context, sequence, listen, connect, ready string) error {
	text, err := os.ReadFile(sequence)
	if err != nil {
		return fmt.Errorf("-sequence: %w", err)
	}
	all, err := requests.Parse(string(text))
	if err == nil && len(all) == 0 {
		err = errors.New("no connections")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sequence, err)
	}
	addr, err := netip.ParseAddr(listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	loss := requests.NewLoss(connect == "")
	wrap := loss.Wrap
	if all[0].Loses {
		// The peer's timeouts are of seconds: what is lost is to be noticed first by
		// whoever would notice it on a quiet host.
		wrap = func(i int, l link.Link) link.Link { return loss.Wrap(i, requests.Slow(l, 20)) }
	}
	dev, err := roce.Open(roce.Config{Addr: addr, Wrap: wrap})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	if connect != "" {
		to, err := netip.ParseAddr(connect)
		if err != nil {
			return fmt.Errorf("-connect: %w", err)
		}
		return requests.Call(ctx, dev, loss, to, all)
	}
	s, err := requests.Listen(dev, loss, all)
	if err != nil {
		return err
	}
	defer s.Close()
	if ready != "" {
		if err := os.WriteFile(ready, nil, 0o644); err != nil {
			return err
		}
	}
	return s.Serve(ctx)
}
