package rpcrdma

import "testing"

// TestInlineWrite: the data of a WRITE of 4096 bytes is in the message if the server receives 5120
// bytes and grants 16 credits, and is fetched by RDMA READ otherwise. Replies are no longer than
// 4096 bytes.
func TestInlineWrite(t *testing.T) {
	for _, c := range []struct {
		name    string
		server  Config
		client  ClientConfig
		out     int
		fetched uint64
	}{
		{"defaults", Config{}, ClientConfig{}, 5120, 0},
		{"a client as the kernel's", Config{}, ClientConfig{Inline: 4096}, 4096, 4096},
		{"a server as the kernel's", Config{Inline: 4096}, ClientConfig{}, 4096, 4096},
		{"pinned memory", Config{Pinned: true}, ClientConfig{}, 4096, 4096},
		{"few credits", Config{Credits: 8}, ClientConfig{}, 5120, 4096},
		{"a longer message than a receive", Config{Receive: 6144}, ClientConfig{Send: 8192}, 6144, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.server)
			cl := w.dial("192.0.2.9", c.client)
			if i := cl.Info(); i.InlineOut != c.out || i.InlineIn != 4096 {
				t.Errorf("%+v", i)
			}
			// The client has one credit: it does not know yet how many clients the server has.
			for i, want := range []uint64{4096, 4096 + c.fetched} {
				if err := put(cl, 4096); err != nil {
					t.Fatal(err)
				}
				if n := w.l.Stats().RDMAReadBytes; n != want {
					t.Errorf("%d bytes were fetched for %d calls, want %d", n, i+1, want)
				}
			}
			if err := get(cl, 4096, 4096, 0); err != nil {
				t.Error(err)
			}
		})
	}
}
