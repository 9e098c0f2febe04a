package nfs4

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestRandom runs programs made from seeds against the server's dispatch and the model: clients of
// versions 4.0, 4.1 and 4.2, and hosts with locks of version 3, which open, lock, are called for
// delegations, fall silent, restart, send requests again, and name what is not theirs or not there
// any more. The server restarts, too. Some hundred programs run, or as many as fit into
// RSTORED_TORTURE (a duration); RSTORED_SEED runs one again.
func TestRandom(t *testing.T) {
	if s := os.Getenv("RSTORED_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("RSTORED_SEED: %v", err)
		}
		tryProgram(t, seed)
		return
	}
	n, limit, long := 150, time.Hour, false
	if testing.Short() {
		n = 30
	}
	if s := os.Getenv("RSTORED_TORTURE"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("RSTORED_TORTURE: %v", err)
		}
		n, limit, long = 1<<40, d, true
	}
	begin, first := time.Now(), rand.Uint64()
	done := make(map[string]int)
	i := 0
	for ; i < n && time.Since(begin) < limit && !t.Failed(); i++ {
		seed := uint64(i)
		if long || i%2 == 1 && os.Getenv("RSTORED_SEEDS") != "fixed" {
			seed += first
		}
		for k, v := range tryProgram(t, seed) {
			done[k] += v
		}
	}
	t.Logf("%d programs, random ones from seed %d on: %v", i, first, done)
	// Programs that do next to nothing find nothing.
	for _, k := range []string{
		"OPEN OK", "LOCK OK", "LOCK DENIED", "OPEN SHARE_DENIED", "OPEN DELAY", "CLOSE OK", "OPEN_DOWNGRADE OK",
		"FREE_STATEID OK", "reclaimed", "delegated", "revoked",
		"lost", "sent again", "owner's request again", "version 3 granted", "version 3 denied", "LOCK BAD_SEQID",
		"OPEN_CONFIRM OK", "WRITE_SAME OK", "directory delegated", "directory notified", "CREATE DELAY", "RENAME OK",
	} {
		if !t.Failed() && limit == time.Hour && !testing.Short() && done[k] == 0 {
			t.Errorf("there was no %q", k)
		}
	}
}

// act is one thing that happens; its seed decides the rest.
type act struct {
	kind   string
	client int
	seed   uint64
}

var actKinds = []struct {
	kind   string
	weight int
}{
	{"compound", 60},
	{"resend", 8},
	{"join", 6},
	{"session", 3},
	{"destroy", 2},
	{"reboot", 1},
	{"pass", 6},
	{"restart", 1},
	{"handover", 1},
	{"journal", 1},
	{"reclaim", 6},
	{"complete", 3},
	{"version 3", 8},
	{"stranger", 1},
	{"false retry", 2},
}

func program(seed uint64) (acts []act) {
	rnd := rand.New(rand.NewPCG(seed, 7530))
	total := 0
	for _, k := range actKinds {
		total += k.weight
	}
	for c := range clientsOf {
		acts = append(acts, act{"join", c, rnd.Uint64()}, act{"complete", c, rnd.Uint64()})
	}
	for range 150 {
		n := rnd.IntN(total)
		for _, k := range actKinds {
			if n -= k.weight; n < 0 {
				acts = append(acts, act{k.kind, rnd.IntN(len(clientsOf)), rnd.Uint64()})
				break
			}
		}
	}
	return acts
}

// tryProgram runs the program of a seed, and if it fails shows a smaller one that does too.
func tryProgram(t *testing.T, seed uint64) map[string]int {
	acts := program(seed)
	whole, err := play(t, seed, acts)
	if err == nil {
		return whole.done
	}
	smaller := func(fewer []act) bool {
		_, err := play(t, seed, fewer)
		return err != nil
	}
	small, budget := acts, 300
	for size := len(small) / 2; size > 0 && budget > 0; size /= 2 {
		for at := 0; at+size <= len(small) && budget > 0; budget-- {
			if fewer := slices.Delete(slices.Clone(small), at, at+size); smaller(fewer) {
				small = fewer
			} else {
				at += size
			}
		}
	}
	w, again := play(t, seed, small)
	t.Errorf("RSTORED_SEED=%d: %v\nsmaller (%d acts of %d): %v\n%s", seed, err, len(small), len(acts), again,
		strings.Join(w.trace, "\n"))
	return whole.done
}

// judge is the testing.TB of a program: what fails ends it.
type judge struct {
	testing.TB
	mu       sync.Mutex
	failed   string
	cleanups []func()
}

func (j *judge) Helper()                   {}
func (j *judge) Cleanup(f func())          { j.cleanups = append(j.cleanups, f) }
func (j *judge) Error(a ...any)            { j.fail(fmt.Sprint(a...)) }
func (j *judge) Errorf(f string, a ...any) { j.fail(fmt.Sprintf(f, a...)) }
func (j *judge) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (j *judge) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func (j *judge) fail(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == "" {
		j.failed = s
	}
}

// clientsOf are the minor versions of the clients.
var clientsOf = []uint32{0, 0, 1, 2}

const (
	randomFiles = 3
	fileNames   = "abc"
)

// randomWorld is the server, the model, and what is random.
type randomWorld struct {
	model
	*rig
	j     *judge
	nlm   *nlm.Server
	hosts *rpc.Server
	xid3  uint32 // of the last call of version 3
	boot  uint32
	dir   []byte
	fhs   [][]byte
	rnd   *rand.Rand
	trace []string
	done  map[string]int
	deleg bool
	// callees are the connections that were bound to sessions for callbacks.
	callees []*callee
}

func play(t *testing.T, seed uint64, acts []act) (*randomWorld, error) {
	return playWith(t, seed, acts, func(*randomWorld, int) {})
}

// playWith has between called after every act.
func playWith(t *testing.T, seed uint64, acts []act, between func(w *randomWorld, i int)) (w *randomWorld, err error) {
	j := &judge{TB: t}
	w = &randomWorld{j: j, done: make(map[string]int), deleg: seed%3 == 0}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		for _, f := range j.cleanups {
			f()
		}
	}()
	w.rig = newRig(j)
	w.setUp()
	for i, a := range acts {
		w.rnd = rand.New(rand.NewPCG(a.seed, seed))
		w.note("%d: %s, client %d", i, a.kind, a.client)
		w.do(w.clients[a.client], a.kind)
		between(w, i)
		w.reconcile()
		j.mu.Lock()
		failed := j.failed
		j.mu.Unlock()
		if failed != "" {
			return w, fmt.Errorf("act %d: %s", i, failed)
		}
		if err := w.agree(w.s.State(), w.locks); err != nil {
			return w, fmt.Errorf("after act %d: %w", i, err)
		}
		if err := errors.Join(w.sameData(), w.sameDirs()); err != nil {
			return w, fmt.Errorf("after act %d: %w", i, err)
		}
	}
	return w, nil
}

func (w *randomWorld) note(f string, a ...any) { w.trace = append(w.trace, fmt.Sprintf(f, a...)) }
func (w *randomWorld) count(what string)       { w.done[what]++ }
func (w *randomWorld) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func (w *randomWorld) setUp() {
	w.boot, w.model.now = 7, w.rig.now
	w.dir = w.rig.root()
	maker := w.rig.session(1, "maker")
	for i := range randomFiles {
		p := maker.do(op(OpPutFH, w.dir), openCreateOp(state.Both, "maker", fileNames[i:i+1], CreateUnchecked,
			attrs(BitmapOf(AttrMode), uint32(0o666))), op(OpGetFH))
		id, _, _ := p.ok(OpPutFH).ok(OpOpen).opened()
		fh := bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
		maker.do(op(OpPutFH, fh), op(OpClose, uint32(0), id)).ok(OpPutFH).ok(OpClose)
		export, h, err := w.codec.Parse(fh)
		if err != nil {
			panic(err)
		}
		w.fhs, w.files = append(w.fhs, fh), append(w.files, lock.File{Export: export, Handle: h})
		w.held, w.data = append(w.held, make(map[holder][]uint8)), append(w.data, nil)
	}
	w.setUpDir(maker)
	w.s.State().Evict(maker.client)
	for i, minor := range clientsOf {
		c := &modelClient{n: i, minor: minor, owner: fmt.Sprintf("client %d", i), verf: 1}
		c.xid = uint32(i) << 24 // they are of one host: the server takes a call of another with the same XID for a retry
		w.clients = append(w.clients, c)
		w.lost(c)
	}
	w.startHosts()
}

// startHosts starts the lock manager over the table of the server.
func (w *randomWorld) startHosts() {
	w.nlm = nlm.New(nlm.Config{
		Exports: w.table, Codec: w.codec, Locks: w.locks,
		OthersReclaim: func() bool { return w.s.State().Grace(w.model.now) },
		EndExpired:    func(client string) bool { return w.s.State().EndExpired(w.model.now, client) },
	})
	w.hosts = rpc.NewServer(rpc.ServerConfig{Programs: w.nlm.Programs(), Workers: 1})
	w.j.Cleanup(w.nlm.Close)
	w.j.Cleanup(w.hosts.Close)
}

// reconcile follows where the server had a choice: a client that was silent may have lost what it
// had. Nobody else may.
func (w *randomWorld) reconcile() {
	for _, c := range w.clients {
		if c.id == 0 {
			continue
		}
		if _, st := w.s.State().Client(c.id); st == nfs.OK {
			continue
		}
		if !w.expired(c) {
			panic(fmt.Sprintf("client %d lost its state, and was here %v ago", c.n, w.model.now.Sub(c.seen)))
		}
		w.lose(c)
	}
}

func (w *randomWorld) lose(c *modelClient) {
	w.count("lost")
	if len(c.states) > 0 && slices.Contains(w.remembered(), c.owner) {
		panic(fmt.Sprintf("client %d has lost its state and could reclaim it", c.n))
	}
	w.lost(c)
	c.before = nil
}

// remembered is the journal.
func (w *randomWorld) remembered() []string { return w.rig.known }

// as has the calls that follow come from a client.
func (w *randomWorld) as(c *modelClient) {
	w.peer = fmt.Sprintf("10.0.0.1:%d", 700+c.n)
	w.conn = rpc.Peer{Transport: rpc.TransportTCP, Conn: int64(1000*(c.n+1)) + int64(c.conn)}
	w.uid, w.xid = 0, c.xid
	w.back = nil
	if c.back != nil {
		w.back = c.back
	}
}

// call sends a call of a client and returns its reply.
func (w *randomWorld) call(c *modelClient, body []byte) (p *reply, raw []byte) {
	w.as(c)
	d, st := w.send(body)
	c.xid = w.xid
	p = w.parse(d, st)
	if body := xdr.NewDecoder(body); Once(body) {
		c.calls = append(c.calls, call40{w.xid, bytes.Clone(w.body(body)), bytes.Clone(w.raw)})
		c.calls = c.calls[max(0, len(c.calls)-4):]
	}
	return p, bytes.Clone(w.raw)
}

func (w *randomWorld) body(d xdr.Decoder) []byte { return d.AppendRest(nil) }

func bodyOf(minor uint32, ops ...args) []byte {
	var e xdr.Encoder
	encodeCompound(&e, "tag", minor, ops...)
	return e.B
}

// one sends a compound of one operation.
func (w *randomWorld) one(c *modelClient, n uint32, a args) (nfs.Status, *reply) {
	p, _ := w.call(c, bodyOf(c.minor, a))
	st := p.next(n)
	w.count(fmt.Sprintf("%s %s", table[n].name, short(st)))
	return st, p
}

func short(st nfs.Status) string {
	if st == nfs.OK {
		return "OK"
	}
	if st == nfs.ErrJukebox {
		return "DELAY"
	}
	return strings.TrimPrefix(st.String(), "NFS status ")
}
