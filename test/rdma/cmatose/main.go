// Cmatose is ucmatose of rdma-core over the software device: many connections at
// once, some messages each way on each, and an orderly end.
//
//	cmatose -listen 10.99.0.1 -connections 100 -messages 10 -size 5000      # and on the other host:
//	ucmatose -s 10.99.0.1 -c 100 -C 10 -S 5000
//
//	cmatose -listen 10.99.0.1 -connect 10.99.0.2 -connections 100 -messages 10    # and there:
//	ucmatose -b 10.99.0.2 -c 100 -C 10
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/roce"
)

// defaultPort is the port of ucmatose.
const defaultPort = 7471

type job struct {
	connections, messages, size int
	port                        uint16
}

func main() {
	listen := flag.String("listen", "", "local `address`")
	connect := flag.String("connect", "", "be the client of the ucmatose at this `address`")
	var j job
	flag.IntVar(&j.connections, "connections", 1, "how many; the other side must have been told the same")
	flag.IntVar(&j.messages, "messages", 10, "each way on each connection")
	flag.IntVar(&j.size, "size", 100, "bytes of a message")
	limit := flag.Duration("limit", time.Minute, "for all of it")
	flag.Parse()
	j.port = defaultPort
	ctx, stop := context.WithTimeout(context.Background(), *limit)
	defer stop()
	if err := j.run(ctx, *listen, *connect); err != nil {
		fmt.Fprintln(os.Stderr, "cmatose:", err)
		os.Exit(1)
	}
	fmt.Println("all connections made, used and ended")
}

func (j *job) run(ctx context.Context, listen, connect string) error {
	addr, err := netip.ParseAddr(listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	dev, err := roce.Open(roce.Config{Addr: addr})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	cfg := endpoint.Config{RecvSize: max(j.size, 1), RecvDepth: j.messages}
	if connect == "" {
		return j.serve(ctx, dev, cfg)
	}
	to, err := netip.ParseAddr(connect)
	if err != nil {
		return fmt.Errorf("-connect: %w", err)
	}
	return j.each(func(i int) error {
		c, err := endpoint.Dial(ctx, dev, netip.AddrPortFrom(to, j.port), cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		// The server begins, and ends.
		if err := errors.Join(j.receive(ctx, c), j.send(ctx, c)); err != nil {
			return err
		}
		select {
		case <-c.Done():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("connection %d was not ended: %w", i, ctx.Err())
		}
	})
}

func (j *job) serve(ctx context.Context, dev rdma.Device, cfg endpoint.Config) error {
	l, err := endpoint.Listen(dev, j.port, cfg)
	if err != nil {
		return err
	}
	// Nobody sends before all are connected, as ucmatose has it.
	var all []*endpoint.Conn
	for range j.connections {
		c, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	return j.each(func(i int) error {
		c := all[i]
		defer c.Close()
		return errors.Join(j.send(ctx, c), j.receive(ctx, c))
	})
}

// each runs f for all connections at once.
func (j *job) each(f func(i int) error) error {
	errs := make([]error, j.connections)
	var wg sync.WaitGroup
	for i := range j.connections {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (j *job) send(ctx context.Context, c *endpoint.Conn) error {
	m, err := c.Register(make([]byte, max(j.size, 1)), rdma.LocalWrite)
	if err != nil {
		return err
	}
	for range j.messages {
		if err := c.Send(ctx, m, 0, j.size); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	return nil
}

func (j *job) receive(ctx context.Context, c *endpoint.Conn) error {
	for i := range j.messages {
		m, err := c.Recv(ctx)
		if err != nil {
			return fmt.Errorf("receiving message %d: %w", i, err)
		}
		if len(m.Data) != j.size {
			return fmt.Errorf("a message of %d bytes, want %d", len(m.Data), j.size)
		}
	}
	return nil
}
