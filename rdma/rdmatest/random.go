package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

// testRandomProgram runs random operations on several connections at once
// against a model of the peer's memory.
func testRandomProgram(t *testing.T, open Provider) {
	const n, conns = 1 << 20, 4
	steps := 150
	if testing.Short() {
		steps = 30
	}
	rnd := seeded(t)
	p := newPair(t, open, endpoint.Config{RecvDepth: 8, RecvSize: 1 << 16})
	var all sync.WaitGroup
	for i := range conns {
		a, b := p.connect(endpoint.Config{RecvDepth: 8, RecvSize: 1 << 16})
		src, back := p.region(a, n, byte(i), 0), p.region(a, n, 0, rdma.LocalWrite)
		dst := p.region(b, n, byte(100+i), anyAccess)
		model := pattern(n, byte(100+i))
		seed := rnd.Uint64()
		all.Go(func() {
			if err := randomProgram(p.ctx, seed, steps, a, b, src, back, dst, model); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

func randomProgram(ctx context.Context, seed uint64, steps int, a, b *endpoint.Conn, src, back, dst rdma.MR,
	model []byte,
) error {
	x := seed
	next := func(n int) int { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return int((z ^ z>>31) >> 1 % uint64(n))
	}
	total := len(model)
	for i := range steps {
		size := 1 + next(1<<(1+next(17)))
		from, to := next(total-size), next(total-size)
		var err error
		switch next(3) {
		case 0:
			err = a.Write(ctx, src, from, size, endpoint.RemoteOf(dst).At(to))
			copy(model[to:], src.Bytes()[from:from+size])
		case 1:
			err = a.Read(ctx, back, from, size, endpoint.RemoteOf(dst).At(to))
			if err == nil && !bytes.Equal(back.Bytes()[from:from+size], model[to:to+size]) {
				err = fmt.Errorf("a READ of %d bytes at %d returned others than were written", size, to)
			}
		case 2:
			size = min(size, 1<<16)
			if err = a.Send(ctx, src, from, size); err == nil {
				var m endpoint.Message
				m, err = b.Recv(ctx)
				if err == nil && !bytes.Equal(m.Data, src.Bytes()[from:from+size]) {
					err = fmt.Errorf("a message of %d bytes arrived wrong", size)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	settle(b)
	if !bytes.Equal(dst.Bytes(), model) {
		return errors.New("the memory differs from the model")
	}
	return nil
}
