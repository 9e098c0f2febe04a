// Command load makes one kind of NFS call on one connection, as many at a time as it
// is told. It is the Go client's side of a comparison; ../libnfs/load.c is the same by
// libnfs.
//
//	load URL OP[:DIR[:ENTRIES]] SIZE DEPTH SECONDS FILESIZE
//	load many ADDR PATH OP SIZE CONNECTIONS DEPTH SECONDS FILESIZE
//	load idle ADDR PATH CONNECTIONS
//
// Below URL there are a file of FILESIZE bytes; names, a directory with name-000000 to
// name-000999; and for readdir large, a directory of any size. DIR is taken instead, with
// as many ENTRIES, called like those of names. load prints begin when it
// begins to measure, after a quarter of SECONDS, end when it is done, and what it
// measured as JSON. A SIZE above the longest call is made of calls one after the other.
//
// many does the same over RDMA by CONNECTIONS clients, DEPTH calls of each at a time, from
// up to eight addresses. It prints connected when all of them are.
//
// idle opens connections over RDMA, looks PATH up on each, prints begin, and keeps them
// until its input ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// names is how many files there are to look up, in a directory of that name.
const names = 1000

// errOver ends what takes longer than the measurement.
var errOver = errors.New("the measurement is over")

// result is what one run got.
type result struct {
	Ops     uint64  `json:"ops"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"` // seconds of this process
	P50     float64 `json:"p50"` // seconds
	P99     float64 `json:"p99"`
	Allocs  float64 `json:"allocs"` // of this process, per operation
	Jain    float64 `json:"jain"`   // how evenly clients shared the operations, 1 is evenly
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 4 && args[0] == "idle" {
		return idle(ctx, args[1], args[2], int(number(args[3])))
	}
	if len(args) == 9 && args[0] == "many" {
		return many(ctx, args[1], args[2], args[3], int(number(args[5])), args[4:])
	}
	if len(args) != 6 {
		return fmt.Errorf("usage: load URL OP SIZE DEPTH SECONDS FILESIZE, load many ADDR PATH OP SIZE CONNECTIONS DEPTH " +
			"SECONDS FILESIZE, or load idle ADDR PATH CONNECTIONS")
	}
	c, u, err := connect(args[0], int(number(args[3])))
	if err != nil {
		return err
	}
	l, err := newLoad(ctx, []*client.Client{c}, u.Path, args[1], int(number(args[2])), int(number(args[3])),
		number(args[5]))
	if err != nil {
		return err
	}
	return l.report(ctx, args[4])
}

// report measures for as many seconds, and prints it.
func (l *load) report(ctx context.Context, seconds string) error {
	s, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return err
	}
	r, err := l.measure(ctx, time.Duration(s*float64(time.Second)))
	if err != nil {
		return fmt.Errorf("%s: %w", l.op, err)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 0, 63)
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(2)
	}
	return n
}

// connect makes a client as root, of version 3.
func connect(url string, depth int) (*client.Client, client.URL, error) {
	u, err := client.ParseURL(url)
	if err != nil {
		return nil, u, err
	}
	sec, err := secure()
	if err != nil {
		return nil, u, err
	}
	d := &dial.Dialer{
		Version: client.Version3, Depth: depth, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "load"}, Secure: sec,
	}
	if p := os.Getenv("MOUNTPORT"); p != "" {
		d.MountPort = uint16(number(p))
	}
	return d.Client(u), u, nil
}

// jain is the index of fairness of Jain, Chiu and Hawe: 1 if all have the same, 1/n if one has
// everything, 0 of nothing.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// cpu is the processor time that this process has used, in seconds.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
