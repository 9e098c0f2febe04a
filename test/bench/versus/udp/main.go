// Command udp moves datagrams between two processes with nothing but what the kernel
// offers: the limit that the RDMA transport in user space is held against. It is
// written as one would in C: system calls on blocking sockets, and memory that is there
// before the first of them.
//
//	udp serve KIND ADDR
//	udp KIND ADDR SECONDS WINDOW
//
// The kinds are
//
//	stream  packets with 4096 bytes of payload as an RDMA WRITE of 1 MiB has them, by
//	        UDP_SEGMENT and UDP_GRO, with checksum and one copy to their place
//	single  datagrams of a message of 64 bytes, by sendmmsg and recvmmsg
//	ping    one such datagram there and back
//	wait    the same by Go's own sockets, which wait in the runtime and not in the kernel
//
// The receiver says how many packets it has, and WINDOW is how many the sender is
// ahead of that at most. The client prints begin when it begins to measure, end when it
// is done, and what it measured as JSON, as ../load does.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// result is what was measured, with the names of ../load. Times are in seconds; a
// ping's is half of the way there and back.
type result struct {
	Ops     uint64  `json:"ops"`
	Bytes   uint64  `json:"bytes"` // of payload
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
}

func main() {
	runtime.LockOSThread()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "udp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 3 && args[0] == "serve" {
		fd, err := listen(args[2])
		if err != nil {
			return err
		}
		switch args[1] {
		case "stream":
			err = receive(fd, newGather(streamSlots, streamSlot), place)
		case "single":
			err = receive(fd, newGather(singleBatch, packetMax), func([]byte, int) (uint64, error) { return 1, nil })
		case "ping":
			err = echo(kernel(fd))
		case "wait":
			var w *net.UDPConn
			if w, err = waiting(fd); err == nil {
				err = echo(w)
			}
		default:
			err = fmt.Errorf("there is no kind %q", args[1])
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil // the client is done
		}
		return err
	}
	if len(args) != 4 {
		return fmt.Errorf("usage: udp serve KIND ADDR, or udp KIND ADDR SECONDS WINDOW")
	}
	seconds, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		return err
	}
	window, err := strconv.ParseUint(args[3], 0, 32)
	if err != nil {
		return err
	}
	fd, err := dial(args[1])
	if err != nil {
		return err
	}
	d := time.Duration(seconds * float64(time.Second))
	var r result
	switch args[0] {
	case "stream":
		r, err = stream(fd, d, window)
	case "single":
		r, err = single(fd, d, window)
	case "ping":
		r, err = ping(kernel(fd), d)
	case "wait":
		var w *net.UDPConn
		if w, err = waiting(fd); err == nil {
			r, err = ping(w, d)
		}
	default:
		err = fmt.Errorf("there is no kind %q", args[0])
	}
	if err != nil {
		return err
	}
	fmt.Println("end")
	return json.NewEncoder(os.Stdout).Encode(r)
}

// room is the size of the sockets' buffers in bytes, as large as those of rdma/link/udp.
const room = 16 << 20

// socket is a UDP socket whose receives give up after a second.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, err
	}
	for _, o := range []struct{ force, plain int }{
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF},
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
	} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, room) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, room); err != nil {
				return -1, err
			}
		}
	}
	return fd, nil
}

func address(s string) (*unix.SockaddrInet4, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
}

// listen waits for a client's first datagram, answers it, and is connected to it.
func listen(addr string) (int, error) {
	sa, err := address(addr)
	if err != nil {
		return -1, err
	}
	fd, err := socket()
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return -1, err
	}
	_, from, err := unix.Recvfrom(fd, make([]byte, packetMax), 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, from); err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
		return -1, err
	}
	_, err = unix.Write(fd, []byte("hello"))
	return fd, err
}

// dial connects to a server, which may be about to start.
func dial(addr string) (int, error) {
	sa, err := address(addr)
	if err != nil {
		return -1, err
	}
	fd, err := socket()
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, sa); err != nil {
		return -1, err
	}
	b := make([]byte, packetMax)
	for range 500 {
		_, _ = unix.Write(fd, []byte("hello"))
		if err := timeout(fd, 10*time.Millisecond); err != nil {
			return -1, err
		}
		if _, err := unix.Read(fd, b); err == nil {
			return fd, timeout(fd, time.Second)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return -1, fmt.Errorf("nobody answers at %s", addr)
}

func timeout(fd int, d time.Duration) error {
	tv := unix.NsecToTimeval(int64(d))
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// kernel is a socket whose reads and writes wait in the kernel.
type kernel int

// Read implements io.Reader.
func (k kernel) Read(b []byte) (int, error) {
	for {
		if n, err := unix.Read(int(k), b); err != unix.EINTR {
			return n, err
		}
	}
}

// Write implements io.Writer.
func (k kernel) Write(b []byte) (int, error) { return unix.Write(int(k), b) }

// waiting hands the socket to Go's runtime.
func waiting(fd int) (*net.UDPConn, error) {
	runtime.UnlockOSThread()
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// echo sends back what it gets.
func echo(c io.ReadWriter) error {
	b := make([]byte, packetMax)
	for {
		n, err := c.Read(b)
		if err == nil {
			_, err = c.Write(b[:n])
		}
		if err != nil {
			return err
		}
	}
}

// ping sends a datagram and waits for it, over and over.
func ping(c io.ReadWriter, d time.Duration) (r result, err error) {
	b := make([]byte, singleLen)
	took := make([]time.Duration, 0, 1<<22)
	begin := time.Now().Add(d / 4)
	measuring := false
	for last := time.Now(); ; {
		if _, err := c.Write(b); err != nil {
			return r, err
		}
		if _, err := c.Read(b); err != nil {
			return r, err
		}
		now := time.Now()
		if measuring && len(took) < cap(took) {
			took = append(took, now.Sub(last))
		}
		last = now
		if !measuring && now.After(begin) {
			fmt.Println("begin")
			begin, measuring = time.Now(), true
			last = begin
		} else if measuring && now.Sub(begin) > d {
			r.Seconds = now.Sub(begin).Seconds()
			break
		}
	}
	r.Ops, r.Bytes = uint64(len(took)), uint64(len(took))*singlePayload
	slices.Sort(took)
	r.P50, r.P99 = took[len(took)/2].Seconds()/2, took[len(took)*99/100].Seconds()/2
	return r, nil
}
