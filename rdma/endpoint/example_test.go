package endpoint_test

import (
	"context"
	"fmt"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/roce"
)

// One side registers memory and sends its address and key. The other side writes into this memory
// by RDMA WRITE, and then sends a message.
func Example() {
	ctx := context.Background()
	server, err := roce.Open(roce.Config{}) // a free loopback address
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := roce.Open(roce.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	l, err := endpoint.Listen(server, 7471, endpoint.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		mem, err := c.Register(make([]byte, 64), rdma.LocalWrite|rdma.RemoteWrite)
		if err != nil {
			done <- err
			return
		}
		defer mem.Close()
		note, err := c.Register(fmt.Appendf(nil, "%d %d", mem.Addr(), mem.RKey()), 0)
		if err != nil {
			done <- err
			return
		}
		defer note.Close()
		if err := c.Send(ctx, note, 0, len(note.Bytes())); err != nil {
			done <- err
			return
		}
		_, err = c.Recv(ctx)
		fmt.Printf("%s\n", mem.Bytes()[:12])
		done <- err
	}()

	c, err := endpoint.Dial(ctx, client, l.Addr(), endpoint.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	m, err := c.Recv(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	var to endpoint.Remote
	if _, err := fmt.Sscan(string(m.Data), &to.Addr, &to.RKey); err != nil {
		fmt.Println(err)
		return
	}
	data, err := c.Register([]byte("Hello, world"), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()
	if err := c.Write(ctx, data, 0, len(data.Bytes()), to); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Send(ctx, data, 0, 0); err != nil { // arrives after the written data
		fmt.Println(err)
		return
	}
	if err := <-done; err != nil {
		fmt.Println(err)
	}
	// Output: Hello, world
}
