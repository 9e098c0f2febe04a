package requests_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/test/rdma/requests"
)

// TestPlay plays the sequence between two devices on loopback; each request's status
// is the one that the kernel completes it with.
func TestPlay(t *testing.T) {
	for i, part := range requests.Parts() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			all, err := requests.Parse(part)
			if err != nil || len(all) == 0 {
				t.Fatal(len(all), err)
			}
			play(t, all)
		})
	}
}

func play(t *testing.T, all []requests.Connection) {
	here, there := requests.NewLoss(true), requests.NewLoss(false)
	server, client := open(t, here), open(t, there)
	s, err := requests.Listen(server, here, all)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	if err := requests.Call(ctx, client, there, server.Addr(), all); err != nil {
		t.Error(err)
		cancel()
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, loss *requests.Loss) rdma.Device {
	t.Helper()
	dev, err := roce.Open(roce.Config{Wrap: loss.Wrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

func TestParse(t *testing.T) {
	all, err := requests.Parse("# words\nconnection c 3 64 late\n\nwrite 3mtu-5 win2!+mtu+1 solicited status 10\ncas 8 " +
		"rw+8 compare 1 swap 18446744073709551615\n")
	if err != nil || len(all) != 1 || len(all[0].Lines) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	c := all[0]
	if c.Name != "c" || c.Receives != 3 || c.Bytes != 64 || !c.Late {
		t.Errorf("%+v", c)
	}
	w, a := c.Lines[0], c.Lines[1]
	if w.Number != 4 || w.Op != rdma.OpWrite || w.Length.At(1024) != 3067 || w.Region != 4 || !w.WrongKey ||
		w.Offset.At(1024) != 1025 || !w.Solicited || w.Status != rdma.RemAccessErr {
		t.Errorf("%+v", w)
	}
	if a.Op != rdma.OpCompareSwap || a.Region != 0 || a.WrongKey || a.Offset.At(1024) != 8 || a.Compare != 1 ||
		a.Swap != 1<<64-1 {
		t.Errorf("%+v", a)
	}
	for _, bad := range []string{
		"send 1", "connection", "connection c x 1", "connection c 1 x", "connection c 1 1 early",
		"connection c 1 1 late gone", "connection c 1 1 lose", "connection c 1 1 lose X", "connection c 1 1\nsned 1",
		"connection c 1 1\nsend",
		"connection c 1 1\nsend x", "connection c 1 1\nsend xmtu", "connection c 1 1\nsend mtux",
		"connection c 1 1\nwrite 1 wr",
		"connection c 1 1\nwrite 1 rw+x", "connection c 1 1\nwrite 1 rw status", "connection c 1 1\nwrite 1 rw status x",
	} {
		if all, err := requests.Parse(bad); err == nil {
			t.Errorf("%q: %+v", bad, all)
		}
	}
}
