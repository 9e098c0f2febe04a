package postmortem

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// size is how many failure records a Log keeps.
const size = 64

// Log keeps the latest failure records of connections. Soft and Kernel run on the loops of the
// devices, so they only store the record; List puts it into words.
type Log struct {
	// Programs gives names to the procedures of calls. It is set before the first List.
	Programs []rpc.Program
	// Refused, if not nil, is called for each connection request that was refused.
	Refused func(client, local netip.AddrPort, reason string)

	mu      sync.Mutex
	entries []entry // the latest last
}

// record is what a provider recorded of a connection that failed.
type record interface {
	// refusal identifies a refused request; ok is false for other failures.
	refusal() (r refusal, ok bool)
	// established reports whether there was a connection.
	established() bool
	// fill describes the record.
	fill(*control.PostMortem)
	note() *rdma.Note
}

// refusal is a connection request that was refused.
type refusal struct {
	local, remote netip.AddrPort
	reason        uint16
	why           string // from the user of the device
	words         string // reason and why, for people
}

// same reports whether two refusals are of the same client, port and reason.
func (a refusal) same(b refusal) bool {
	return a.local == b.local && a.remote.Addr() == b.remote.Addr() && a.reason == b.reason && a.why == b.why
}

// entry is a record, and how often it repeated.
type entry struct {
	record
	first, last time.Time
	count       int
}

func (e entry) neverConnected() bool { return !e.established() }

// Soft records a failed connection of a device in user space.
func (l *Log) Soft(r roce.Record) { l.add(&softRecord{r}) }

// Kernel records a failed connection of a device of the kernel.
func (l *Log) Kernel(r verbs.Record) { l.add(&kernelRecord{r}) }

func (l *Log) add(r record) {
	k, refused := r.refusal()
	l.store(r, k, refused)
	if refused && l.Refused != nil {
		l.Refused(k.remote, k.local, k.words)
	}
}

func (l *Log) store(r record, k refusal, refused bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := entry{record: r, first: now, last: now, count: 1}
	if refused {
		// A refused client retries every few seconds. Its attempts share one entry.
		i := slices.IndexFunc(l.entries, func(o entry) bool { x, ok := o.refusal(); return ok && x.same(k) })
		if i >= 0 {
			e.first, e.count = l.entries[i].first, l.entries[i].count+1
			l.entries = slices.Delete(l.entries, i, i+1)
		}
	}
	if len(l.entries) == size {
		oldest := 0
		// Anybody can cause refusals, from any number of addresses. They get at most half of the
		// log.
		if count(l.entries, entry.neverConnected) > size/2 {
			oldest = slices.IndexFunc(l.entries, entry.neverConnected)
		}
		l.entries = slices.Delete(l.entries, oldest, oldest+1)
	}
	l.entries = append(l.entries, e)
}

func count(entries []entry, is func(entry) bool) (n int) {
	for _, e := range entries {
		if is(e) {
			n++
		}
	}
	return n
}

// List describes the records, the latest first.
func (l *Log) List() []control.PostMortem {
	l.mu.Lock()
	entries := slices.Clone(l.entries)
	l.mu.Unlock()
	slices.Reverse(entries)
	out := make([]control.PostMortem, len(entries))
	for i := range entries {
		out[i] = l.describe(&entries[i])
	}
	return out
}

func (l *Log) describe(e *entry) control.PostMortem {
	p := control.PostMortem{Time: e.last, First: e.first, Count: e.count}
	e.fill(&p)
	if o, ok := e.note().Detail.(rpcrdma.FailureDetail); ok {
		p.RPC = &control.PostMortemCalls{
			Calls: o.Calls, InProgress: o.InProgress, RDMAWriteBytes: o.RDMAWriteBytes, RDMAReadBytes: o.RDMAReadBytes,
			InlineIn: o.InlineIn, InlineOut: o.InlineOut, First: l.call(o.First), Last: l.call(o.Last),
		}
	}
	return p
}

func (l *Log) call(c rpcrdma.RPC) *control.PostMortemCall {
	if c == (rpcrdma.RPC{}) {
		return nil
	}
	p := &control.PostMortemCall{Program: c.Prog, Version: c.Vers, Procedure: c.Proc, Flavor: uint32(c.Flavor)}
	if c.HasUID {
		p.UID = &c.UID
	}
	for _, g := range l.Programs {
		if g.Prog == c.Prog && g.Vers == c.Vers && int(c.Proc) < len(g.Procs) {
			p.Name = g.Name + "." + g.Procs[c.Proc].Name
		}
	}
	return p
}
