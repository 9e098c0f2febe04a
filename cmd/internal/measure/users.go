package measure

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// users records which client has used which export, so that a plan can name the clients of a
// changed export. Calls of a known client take no lock. They write only what has changed: the
// current second, or the first change of something.
type users struct {
	index  atomic.Pointer[[]atomic.Pointer[user]] // a hash table, as that of clients
	missed atomic.Bool                            // a user found no room since the last rotation

	mu    sync.Mutex
	list  []*user
	begun time.Time // the time from which transportUse.seen counts seconds
}

type userKey struct {
	addr   netip.Addr
	export uint32
}

type user struct {
	userKey
	transports [len(transports)]transportUse
}

// transportUse is the use over one transport.
type transportUse struct {
	seen     atomic.Int64 // the second of the last call, from 1; 0: there was none
	from     atomic.Uint32
	marks    atomic.Uint32
	security atomic.Uint32 // of the last call's connection
}

// Marks of a transportUse.
const (
	markWrote = 1 << iota
	markRoot
)

const (
	// usersMax bounds the pairs of clients and exports; one takes some 150 bytes.
	usersMax = 1 << 14
	// usersKept is the time for which a user is recorded.
	usersKept = 24 * time.Hour
)

func (u *users) init() {
	u.begun = time.Now()
	u.build()
}

// build makes the hash table from the list. The caller holds mu, or is alone.
func (u *users) build() {
	n := 64
	for n < 4*len(u.list) {
		n *= 2
	}
	for ; ; n *= 2 {
		t := make([]atomic.Pointer[user], n)
		fits := true
		for _, x := range u.list {
			fits = x.put(t) && fits
		}
		if fits || n >= 64*usersMax {
			u.index.Store(&t)
			return
		}
	}
}

func (k userKey) slot() int { return slot(k.addr) + int(k.export)*0x9e3779b1 }

// put gives a user a slot of the hash table. ok is false if all its slots are taken.
func (x *user) put(t []atomic.Pointer[user]) (ok bool) {
	at := x.slot()
	for i := range probes {
		if p := &t[(at+i)&(len(t)-1)]; p.Load() == nil {
			p.Store(x)
			return true
		}
	}
	return false
}

// note records a successful call.
func (u *users) note(c *rpc.Call, t int, at time.Duration, wrote bool) {
	k := userKey{c.Peer.Addr.Addr().Unmap(), c.Meta.Export}
	var x *user
	table := *u.index.Load()
	for i, s := 0, k.slot(); i < probes; i++ {
		y := table[(s+i)&(len(table)-1)].Load()
		if y == nil {
			break
		}
		if y.userKey == k {
			x = y
			break
		}
	}
	if x == nil {
		if x = u.miss(k); x == nil {
			return
		}
	}
	l := &x.transports[t]
	if s := int64(at/time.Second) + 1; l.seen.Load() != s {
		l.seen.Store(s)
	}
	const half = 16
	if from := uint32(c.Peer.Addr.Port())<<half | uint32(c.Peer.PKey); l.from.Load() != from {
		l.from.Store(from)
	}
	if how := uint32(c.Peer.Security); l.security.Load() != how {
		l.security.Store(how)
	}
	var marks uint32
	if wrote {
		marks |= markWrote
	}
	if c.Cred.Flavor == rpc.AuthSys && c.Cred.UID == 0 {
		marks |= markRoot
	}
	if l.marks.Load()&marks != marks {
		l.marks.Or(marks)
	}
}

// miss adds a user. It returns nil if there is no room.
func (u *users) miss(k userKey) *user {
	if u.missed.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range u.list {
		if x.userKey == k {
			return x // another call added it, or it has no slot
		}
	}
	if len(u.list) >= usersMax {
		u.missed.Store(true)
		return nil
	}
	x := &user{userKey: k}
	u.list = append(u.list, x)
	if t := *u.index.Load(); len(t) < 2*len(u.list) || !x.put(t) {
		u.build()
	}
	return x
}

// keep removes all users that are not wanted.
func (u *users) keep(wanted func(*user) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var next []*user
	for _, x := range u.list {
		if wanted(x) {
			next = append(next, x)
		}
	}
	if len(next) < len(u.list) {
		u.list = next
		u.build()
	}
}

// rotate removes users that were not active for usersKept.
func (u *users) rotate(now time.Time) {
	u.missed.Store(false)
	oldest := int64(now.Add(-usersKept).Sub(u.begun) / time.Second)
	u.keep(func(x *user) bool {
		for t := range x.transports {
			if x.transports[t].seen.Load() > oldest {
				return true
			}
		}
		return false
	})
}

// User is a client that has used an export over a transport.
type User struct {
	Client    netip.Addr
	Export    uint32 // number
	Transport rpc.Transport
	Seen      time.Time // to the second
	// Port, PKey and Security are those of the last call.
	Port, PKey uint16
	Security   rpc.Security
	// Wrote: it has changed something. Root: it has used the credential of root.
	Wrote, Root bool
}

// Users lists the users of exports since the start, for a day at most. all is false if there was no
// room for some of them.
func (r *Recorder) Users() (list []User, all bool) {
	u := &r.users
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range u.list {
		for i, t := range transports {
			l := &x.transports[i]
			seen := l.seen.Load()
			if seen == 0 {
				continue
			}
			from, marks := l.from.Load(), l.marks.Load()
			list = append(list, User{
				Client: x.addr, Export: x.export, Transport: t, Seen: u.begun.Add(time.Duration(seen-1) * time.Second),
				Port: uint16(from >> 16), PKey: uint16(from), Security: rpc.Security(l.security.Load()),
				Wrote: marks&markWrote != 0, Root: marks&markRoot != 0,
			})
		}
	}
	return list, !u.missed.Load()
}
