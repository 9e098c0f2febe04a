// Rping is the server side of rping, the ping of rdma-core, over the software
// device: a client of the kernel, or of a network card, can try against it
// whether connections, SEND, RDMA READ and RDMA WRITE work.
//
//	rping -listen 10.99.0.1        # and on the other host:
//	rping -c -v -a 10.99.0.1 -C 10
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/roce"
)

// defaultPort is the port of rping.
const defaultPort = 7174

// The messages of rping: where the client's buffer is.
const (
	infoLen = 16 // be64 address, be32 R_Key, be32 size
	sizeMax = 1 << 20
)

func main() {
	listen := flag.String("listen", "", "local `address`")
	port := flag.Uint("port", defaultPort, "RDMA port")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, uint16(*port)); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string, port uint16) error {
	addr, err := netip.ParseAddr(listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	dev, err := roce.Open(roce.Config{Addr: addr, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer func() {
		s := dev.Stats()
		s.Each(func(name string, v uint64) {
			if v != 0 {
				fmt.Printf("%s %d\n", name, v)
			}
		})
		_ = dev.Close()
	}()
	l, err := endpoint.Listen(dev, port, endpoint.Config{RecvSize: infoLen})
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("connected: %+v\n", c.Negotiated())
		go func() {
			n, err := serve(ctx, c)
			fmt.Printf("served %d pings; %v\n", n, err)
			c.Close()
		}()
	}
}

// serve answers pings until the client leaves.
func serve(ctx context.Context, c *endpoint.Conn) (pings int, err error) {
	buf, err := c.Register(make([]byte, sizeMax), rdma.LocalWrite)
	if err != nil {
		return 0, err
	}
	defer buf.Close()
	for {
		from, n, err := info(ctx, c)
		if err != nil {
			return pings, err
		}
		if err := c.Read(ctx, buf, 0, n, from); err != nil {
			return pings, fmt.Errorf("reading the ping: %w", err)
		}
		fmt.Printf("ping data: %.40q\n", buf.Bytes()[:n])
		if err := c.Send(ctx, buf, 0, infoLen); err != nil {
			return pings, fmt.Errorf("go-ahead: %w", err)
		}
		to, n, err := info(ctx, c)
		if err != nil {
			return pings, err
		}
		if err := c.Write(ctx, buf, 0, n, to); err != nil {
			return pings, fmt.Errorf("writing the pong: %w", err)
		}
		if err := c.Send(ctx, buf, 0, infoLen); err != nil {
			return pings, fmt.Errorf("done: %w", err)
		}
		pings++
	}
}

// info receives where the client's next buffer is.
func info(ctx context.Context, c *endpoint.Conn) (endpoint.Remote, int, error) {
	m, err := c.Recv(ctx)
	if err != nil {
		return endpoint.Remote{}, 0, err
	}
	if len(m.Data) != infoLen {
		return endpoint.Remote{}, 0, fmt.Errorf("a message of %d bytes instead of %d", len(m.Data), infoLen)
	}
	n := binary.BigEndian.Uint32(m.Data[12:])
	if n > sizeMax {
		return endpoint.Remote{}, 0, fmt.Errorf("a buffer of %d bytes", n)
	}
	return endpoint.Remote{Addr: binary.BigEndian.Uint64(m.Data), RKey: binary.BigEndian.Uint32(m.Data[8:])}, int(n), nil
}
