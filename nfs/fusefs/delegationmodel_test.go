package fusefs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// The regions of the file of TestDelegationModel. Each is filled with the number of the write.
const (
	regions    = 6
	regionSize = 700
)

func region(number uint32) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint32(nil, number), regionSize/4)
}

// delegationModel knows what a region may hold: what was acknowledged last as stable (certain), or
// one of the later writes of a mount that it has not made stable (open, in the order of the writes).
type delegationModel struct {
	certain [regions]uint32
	open    [regions][]openWrite
}

type openWrite struct {
	number uint32
	by     *modelMount
}

func (m *delegationModel) allowed(i int, number uint32) bool {
	for _, w := range m.open[i] {
		if w.number == number {
			return true
		}
	}
	return m.certain[i] == number
}

// stable records that all writes of a mount are stable: nothing that is older may appear again.
func (m *delegationModel) stable(by *modelMount) {
	for i := range m.open {
		for at := len(m.open[i]) - 1; at >= 0; at-- {
			if m.open[i][at].by == by {
				m.certain[i], m.open[i] = m.open[i][at].number, m.open[i][at+1:]
				break
			}
		}
	}
}

// failed records that the writes of a mount are stable or lost, and what the file holds.
func (m *delegationModel) failed(by *modelMount, holds [regions]uint32) {
	for i := range m.open {
		var left []openWrite
		later := true
		for _, w := range m.open[i] {
			if w.number == holds[i] {
				left, later = nil, true // it and what is older is decided
				continue
			}
			if later && w.by != by {
				left = append(left, w)
			}
		}
		m.certain[i], m.open[i] = holds[i], left
	}
}

// modelMount is a mount of the test. While deaf is set it does not answer recalls.
type modelMount struct {
	*mounted
	name string
	f    *os.File
	deaf atomic.Pointer[chan struct{}]
}

// Recalled implements client.DelegationUser.
func (m *modelMount) Recalled(ctx context.Context, d *client.Delegation) {
	if deaf := m.deaf.Load(); deaf != nil {
		<-*deaf
	}
	m.FS.Recalled(ctx, d)
}

// delegationTest is one run.
type delegationTest struct {
	*testing.T
	s      *host
	rnd    *rand.Rand
	model  delegationModel
	mounts []*modelMount
	writer *client.Client // has no delegations
	h      client.Handle
	last   uint32
	pass   func(time.Duration)
	steps  strings.Builder
	counts map[string]int
}

func (x *delegationTest) note(format string, args ...any) {
	fmt.Fprintf(&x.steps, format+"\n", args...)
}

// content reads the file at the server's side. That recalls delegations.
func (x *delegationTest) content() (numbers [regions]uint32) {
	x.Helper()
	b, err := os.ReadFile(x.s.dir + "/f")
	must(x, err)
	for i := range numbers {
		part := b[i*regionSize:][:regionSize]
		numbers[i] = binary.BigEndian.Uint32(part)
		if !bytes.Equal(part, region(numbers[i])) {
			x.Fatalf("region %d is torn\n%s", i, x.steps.String())
		}
	}
	return numbers
}

// check compares what the server has with the model.
func (x *delegationTest) check(what string) {
	x.Helper()
	for i, number := range x.content() {
		if !x.model.allowed(i, number) {
			x.Fatalf("%s: region %d has write %d, acknowledged is %d, open are %v\n%s", what, i, number,
				x.model.certain[i], x.model.open[i], x.steps.String())
		}
	}
}

func (x *delegationTest) write(m *modelMount) {
	i := x.rnd.IntN(regions)
	x.last++
	x.note("%s writes %d to %d, delegated: %t", m.name, x.last, i, m.delegation("f") != nil)
	_, err := m.f.WriteAt(region(x.last), int64(i*regionSize))
	must(x, err)
	x.model.open[i] = append(x.model.open[i], openWrite{x.last, m})
	if m.delegation("f") == nil {
		x.sync(m, m.f.Sync) // without a delegation nothing keeps others from writing first
	} else {
		x.counts["delegated"]++
	}
}

// sync makes the writes of a mount stable by fsync(2) or close(2).
func (x *delegationTest) sync(m *modelMount, sync func() error) {
	err := sync()
	x.note("%s syncs: %v", m.name, err)
	if err == nil {
		x.model.stable(m)
		return
	}
	x.counts["failed"]++
	if failed := m.f.Sync(); failed != nil && !strings.Contains(failed.Error(), "closed") {
		x.Fatalf("%s: %v after %v\n%s", m.name, failed, err, x.steps.String())
	}
	x.check("after a failure")
	x.model.failed(m, x.content())
}

func (x *delegationTest) close(m *modelMount) {
	if m.f != nil {
		x.sync(m, m.f.Close)
		m.f = nil
	}
}

func (x *delegationTest) reopen(m *modelMount) {
	x.close(m)
	var err error
	m.f, err = os.OpenFile(m.path("f"), os.O_RDWR, 0)
	must(x, err)
	x.note("%s opens, delegated: %t", m.name, m.delegation("f") != nil)
}

// alone has one mount open the file, so that the server can delegate it.
func (x *delegationTest) alone(m *modelMount) {
	for _, m := range x.mounts {
		x.close(m)
	}
	x.later(time.Minute) // a file whose delegation was recalled is not delegated for a while
	x.reopen(m)
}

// later lets time pass. All clients renew their leases.
func (x *delegationTest) later(d time.Duration) {
	for ; d > 0; d -= 5 * time.Second {
		x.pass(5 * time.Second)
		for _, c := range []*client.Client{x.mounts[0].c, x.mounts[1].c, x.writer} {
			_, err := c.GetAttr(context.Background(), x.mounts[0].nodes.root.handle)
			must(x, err)
		}
	}
}

// other has the client without delegations write. during runs until its open is granted.
func (x *delegationTest) other(during func()) {
	ctx := context.Background()
	type result struct {
		release func() error
		err     error
	}
	opened := make(chan result, 1)
	go func() {
		release, err := x.writer.OpenHandle(ctx, x.h, client.ShareBoth)
		opened <- result{release, err}
	}()
	for {
		select {
		case r := <-opened:
			must(x, r.err)
			x.check("before another client writes")
			for range 1 + x.rnd.IntN(3) {
				i := x.rnd.IntN(regions)
				x.last++
				_, err := x.writer.Write(ctx, x.h, region(x.last), uint64(i*regionSize), blockstore.FileSync)
				must(x, err)
				x.note("the other client writes %d to %d", x.last, i)
				x.model.certain[i], x.model.open[i] = x.last, nil
			}
			x.check("after another client has written")
			must(x, r.release())
			return
		case <-time.After(5 * time.Millisecond):
			during()
		}
	}
}

// unanswered has the other client write while a mount does not answer the recall, so that the
// server revokes its delegation. The mount's session lives on.
func (x *delegationTest) unanswered(m *modelMount) {
	x.note("%s does not answer", m.name)
	deaf := make(chan struct{})
	m.deaf.Store(&deaf)
	x.other(func() { x.later(5 * time.Second) })
	m.deaf.Store(nil)
	close(deaf)
}

// evict ends the state of a client that has a delegation.
func (x *delegationTest) evict() {
	for _, c := range x.s.four.State().Clients(x.s.cfg.Now()) {
		if c.Delegations > 0 && x.s.four.State().Evict(c.ID) {
			x.note("a client is evicted")
			x.counts["evicted"]++
			return
		}
	}
}

// TestDelegationModel: two mounts and a client without delegations write one file. Recalls are
// answered or not, and clients are evicted. Nothing that was acknowledged as stable is overwritten by
// what is older, and what a program writes under a delegation does not overwrite what another client
// wrote after the delegation had ended.
func TestDelegationModel(t *testing.T) {
	total := make(map[string]int)
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runDelegationModel(t, seed, 120, total) })
	}
	if total["delegated"] < 30 || total["evicted"] < 3 || total["failed"] < 3 || total["revoked"] < 3 {
		t.Errorf("too little has happened: %v", total)
	}
	t.Log(total)
}

func runDelegationModel(t *testing.T, seed uint64, steps int, counts map[string]int) {
	s := newHost(t)
	var mu sync.Mutex
	now := time.Now()
	s.cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s.stop()
	s.start()
	x := &delegationTest{
		T: t, s: s, rnd: rand.New(rand.NewPCG(seed, 1)), counts: counts,
		pass: func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) },
	}
	must(t, os.WriteFile(s.dir+"/f", make([]byte, regions*regionSize), 0o666))
	quiet := func(c *Config) { c.Log, c.Times = slog.New(slog.DiscardHandler), CacheTimes{} }
	x.writer = s.mount("tcp", client.Version42, func(c *Config) { c.NoDelegations = true }).c
	for _, name := range []string{"a", "b"} {
		m := &modelMount{mounted: s.mount("tcp", client.Version42, quiet), name: name}
		m.c.UseDelegations(m)
		x.mounts = append(x.mounts, m)
	}
	x.pass(time.Minute) // the grace period has ended
	n, err := x.writer.Resolve(context.Background(), "/data/f")
	must(t, err)
	x.h = n.Handle
	for _, m := range x.mounts {
		t.Cleanup(func() {
			if m.f != nil {
				_ = m.f.Close()
			}
		})
		must(t, os.WriteFile(s.dir+"/"+m.name, nil, 0o666))
		must(t, m.hasDelegation(m.name, os.O_RDWR).Close()) // its backchannel is known to work
	}
	x.alone(x.mounts[0])
	for range steps {
		m := x.mounts[x.rnd.IntN(2)]
		switch k := x.rnd.IntN(20); {
		case k < 3:
			x.alone(m)
		case m.f == nil && k < 12:
			m = x.mounts[0]
			if m.f == nil {
				m = x.mounts[1]
			}
			x.write(m)
		case k < 12:
			x.write(m)
		case k < 14 && m.f != nil:
			x.sync(m, m.f.Sync)
		case k < 15:
			x.reopen(m)
		case k < 17:
			x.other(func() {})
		case k < 18:
			x.evict()
		case m.delegation("f") != nil:
			x.unanswered(m)
			counts["revoked"]++
		}
	}
	for _, m := range x.mounts {
		x.close(m)
	}
	x.check("at the end")
}
