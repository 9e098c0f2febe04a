// Rping is rping, the ping of rdma-core, over the software device: it shows with
// the kernel or a network card on the other side whether connections, SEND, RDMA
// READ and RDMA WRITE work.
//
//	rping -listen 10.99.0.1        # and on the other host:
//	rping -c -v -a 10.99.0.1 -C 10
//
//	rping -listen 10.99.0.1 -connect 10.99.0.2 -count 10 -size 4096    # and there:
//	rping -s -v -a 10.99.0.2 -C 10 -S 4096
package main

import (
	"bytes"
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
	connect := flag.String("connect", "", "be the client of the rping at this `address`")
	count := flag.Int("count", 1, "pings of the client")
	size := flag.Int("size", 64, "bytes of a client's ping; the server must have been given the same")
	port := flag.Uint("port", defaultPort, "RDMA port")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(*listen, func(dev rdma.Device) error {
		if *connect == "" {
			return listenOn(ctx, dev, uint16(*port))
		}
		to, err := netip.ParseAddr(*connect)
		if err != nil {
			return fmt.Errorf("-connect: %w", err)
		}
		return ping(ctx, dev, netip.AddrPortFrom(to, uint16(*port)), *count, *size)
	})
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

// run opens the device at an address for f, and prints what it counted.
func run(listen string, f func(rdma.Device) error) error {
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
	return f(dev)
}

// listenOn serves every client that comes.
func listenOn(ctx context.Context, dev rdma.Device, port uint16) error {
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

// ping has a server read each ping and write it back, and compares.
func ping(ctx context.Context, dev rdma.Device, to netip.AddrPort, count, size int) error {
	if size < 1 || size > sizeMax {
		return fmt.Errorf("-size: %d is not between 1 and %d", size, sizeMax)
	}
	c, err := endpoint.Dial(ctx, dev, to, endpoint.Config{RecvSize: infoLen})
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Printf("connected: %+v\n", c.Negotiated())
	out, err := c.Register(make([]byte, size), rdma.LocalWrite|rdma.RemoteRead)
	if err != nil {
		return err
	}
	defer out.Close()
	back, err := c.Register(make([]byte, size), rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		return err
	}
	defer back.Close()
	msg, err := c.Register(make([]byte, infoLen), rdma.LocalWrite)
	if err != nil {
		return err
	}
	defer msg.Close()
	for i := range count {
		b := out.Bytes()[:size]
		for j := range b {
			b[j] = byte('A' + (i+j)%58)
		}
		copy(b, fmt.Sprintf("rdma-ping-%d: ", i))
		b[size-1] = 0 // the server prints it as a string
		clear(back.Bytes()[:size])
		for _, m := range []rdma.MR{out, back} {
			at := endpoint.RemoteOf(m)
			binary.BigEndian.PutUint64(msg.Bytes(), at.Addr)
			binary.BigEndian.PutUint32(msg.Bytes()[8:], at.RKey)
			binary.BigEndian.PutUint32(msg.Bytes()[12:], uint32(size))
			if err := c.Send(ctx, msg, 0, infoLen); err != nil {
				return fmt.Errorf("ping %d: %w", i, err)
			}
			if _, err := c.Recv(ctx); err != nil {
				return fmt.Errorf("ping %d: %w", i, err)
			}
		}
		if !bytes.Equal(back.Bytes()[:size], b) {
			return fmt.Errorf("ping %d came back as %.40q", i, back.Bytes()[:size])
		}
	}
	fmt.Printf("%d pings of %d bytes came back\n", count, size)
	return nil
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
