package nfs4

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
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
	n, limit := 150, time.Hour
	if testing.Short() {
		n = 30
	}
	if s := os.Getenv("RSTORED_TORTURE"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("RSTORED_TORTURE: %v", err)
		}
		n, limit = 1<<40, d
	}
	begin := time.Now()
	done := make(map[string]int)
	for i := 0; i < n && time.Since(begin) < limit && !t.Failed(); i++ {
		seed := uint64(i)
		if i%2 == 1 && os.Getenv("RSTORED_SEEDS") != "fixed" {
			seed = rand.Uint64()
		}
		for k, v := range tryProgram(t, seed) {
			done[k] += v
		}
	}
	t.Log(done)
	// Programs that do next to nothing find nothing.
	for _, k := range []string{
		"OPEN OK", "LOCK OK", "LOCK DENIED", "OPEN SHARE_DENIED", "OPEN DELAY", "CLOSE OK", "OPEN_DOWNGRADE OK",
		"FREE_STATEID OK", "reclaimed", "delegated", "revoked",
		"lost", "sent again", "owner's request again", "version 3 granted", "version 3 denied", "LOCK BAD_SEQID",
		"OPEN_CONFIRM OK",
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
		w.held = append(w.held, make(map[holder][]uint8))
	}
	w.s.State().Evict(maker.client)
	for i, minor := range clientsOf {
		c := &modelClient{n: i, minor: minor, owner: fmt.Sprintf("client %d", i), verf: 1}
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

// expect fails unless st is one of must, or of may; without must, OK is.
func (w *randomWorld) expect(what string, st nfs.Status, must, may []nfs.Status) bool {
	w.note("    %s: %v", what, st)
	if len(must) == 0 {
		must = []nfs.Status{nfs.OK}
	}
	if !slices.Contains(must, st) && !slices.Contains(may, st) {
		panic(fmt.Sprintf("%s: %v instead of %v, or %v", what, st, must, may))
	}
	return st == nfs.OK
}

func (w *randomWorld) do(c *modelClient, kind string) {
	switch kind {
	case "join":
		w.join(c)
	case "reboot":
		c.verf++
		c.before = nil
		if c.minor == 0 {
			w.set40(c, w.chance(70))
		} else {
			w.exchange41(c)
			if w.chance(70) {
				w.newSession(c)
			}
		}
	case "session":
		if c.minor > 0 && c.id != 0 {
			w.sessionAgain(c)
		}
	case "destroy":
		if c.minor > 0 && c.id != 0 {
			w.destroy(c)
		}
	case "stranger":
		w.stranger(c)
	case "pass":
		w.pass()
	case "restart":
		w.restart()
	case "journal":
		w.broken = !w.broken && w.chance(60)
		w.stuck = w.stuck || w.broken
	case "handover":
		w.succeed(w.callees...)
		w.startHosts()
	case "complete":
		if c.minor > 0 && len(c.sessions) > 0 {
			w.run(c, w.completePiece(c))
		}
	case "reclaim":
		if c.id != 0 {
			w.reclaim(c)
		}
	case "version 3":
		w.version3()
	case "resend":
		w.resend(c)
	case "false retry":
		w.falseRetry(c)
	case "compound":
		if c.id != 0 && (c.minor == 0 || len(c.sessions) > 0) {
			w.compoundOf(c)
		}
	}
}

func (w *randomWorld) pass() {
	for _, c := range w.clients { // those that wait for a confirmation go after a lease
		for _, o := range c.live(anOpen) {
			if c.unconfirmed(o) {
				w.openConfirm(c, o)
			}
		}
	}
	d := time.Duration(w.rnd.IntN(50)) * time.Second
	if w.chance(10) {
		d = modelLease + time.Second
	}
	w.model.now = w.model.now.Add(d)
	w.rig.now = w.model.now
	w.note("    %v", d)
}

func (w *randomWorld) restart() {
	for _, c := range w.clients {
		if c.minor > 0 && c.complete || c.minor == 0 && !w.model.now.Before(w.until) {
			c.before = append(c.live(anOpen), c.live(aLock)...)
			for _, s := range c.before {
				s.segsOf(w, c)
			}
			for _, o := range c.live(anOpen) {
				if c.unconfirmed(o) {
					c.before = slices.DeleteFunc(c.before, func(s *modelState) bool { return s == o })
				}
			}
		} else if c.minor > 0 && !w.graceMaybe() && w.until.After(time.Time{}) {
			c.before = nil // it has not said in time that it is done
		}
		if !c.complete && w.stuck && !slices.Contains(w.rig.known, c.owner) {
			c.before = nil
		}
		if len(c.before) > 0 && !slices.Contains(w.rig.known, c.owner) {
			panic(fmt.Sprintf("client %d cannot reclaim %d states", c.n, len(c.before)))
		}
		for _, s := range c.before {
			s.reclaimed = false
		}
		before := c.before
		w.lost(c)
		c.before, c.back = before, nil
	}
	for f := range w.held {
		clear(w.held[f])
	}
	w.boot++
	w.locks = lock.New(0)
	w.model.known, w.finished = make(map[string]bool), make(map[string]bool)
	for _, o := range w.rig.known {
		w.model.known[o] = true
	}
	w.until, w.stuck = w.model.now.Add(modelLease), w.broken
	w.start(w.boot)
	w.startHosts()
}

// join makes a client that has none a record, and a session if it lacks one.
func (w *randomWorld) join(c *modelClient) {
	switch {
	case c.minor == 0:
		if c.id == 0 {
			w.set40(c, true)
		} else {
			st, _ := w.one(c, OpRenew, op(OpRenew, c.id))
			w.expect("RENEW", st, nil, nil)
			c.seen = w.model.now
		}
	case len(c.sessions) == 0:
		w.exchange41(c)
		w.newSession(c)
	}
}

func (w *randomWorld) set40(c *modelClient, confirm bool) {
	st, p := w.one(c, OpSetClientID, setClientOp(c.owner, c.verf, "tcp", uaddr))
	w.expect("SETCLIENTID", st, nil, nil)
	w.reconcile()
	c.pending, c.confirm = p.Uint64(), decodeVerifier(p.Decoder)
	if c.id != 0 && c.pending == c.id {
		w.note("    the same client")
	}
	wrong := c.confirm
	wrong[7]++
	if w.chance(20) {
		st, _ := w.one(c, OpSetClientIDConfirm, confirmOp(c.pending, wrong))
		w.expect("SETCLIENTID_CONFIRM of another", st, []nfs.Status{nfs.ErrStaleClientID}, nil)
	}
	if !confirm {
		return
	}
	st, _ = w.one(c, OpSetClientIDConfirm, confirmOp(c.pending, c.confirm))
	w.expect("SETCLIENTID_CONFIRM", st, nil, nil)
	if c.pending != c.id {
		w.lost(c)
		c.seen = w.model.now
	}
	c.id = c.pending
}

func (w *randomWorld) exchange41(c *modelClient) {
	st, p := w.one(c, OpExchangeID, exchangeArgs(c.owner, c.verf, exchMovedRefer))
	w.expect("EXCHANGE_ID", st, nil, nil)
	w.reconcile()
	id, seq, flags := p.Uint64(), p.Uint32(), p.Uint32()
	if (id == c.id) != (flags&exchConfirmed != 0) {
		panic(fmt.Sprintf("EXCHANGE_ID: client %x, flags %x, it was %x", id, flags, c.id))
	}
	if id == c.id && seq != c.creates+1 {
		panic(fmt.Sprintf("EXCHANGE_ID: sequence %d after %d", seq, c.creates))
	}
	c.pending = id
	if id != c.id && seq != 1 {
		c.pending = 0
		panic(fmt.Sprintf("sequence %d of a new client", seq))
	}
}

func createOp(id uint64, seq, flags uint32) args {
	return op(OpCreateSession, id, seq, flags, channelArgs(1<<20, 1<<20, 2048, 32, 8), channelArgs(4096, 4096, 0, 2, 16),
		uint32(0x40000000), uint32(1), uint32(0))
}

// newSession is CREATE_SESSION of what EXCHANGE_ID gave, sent twice now and then.
func (w *randomWorld) newSession(c *modelClient) {
	seq := uint32(1)
	if c.pending == c.id {
		seq = c.creates + 1
	}
	if w.chance(20) {
		st, _ := w.one(c, OpCreateSession, createOp(c.pending, seq+1, 2))
		w.expect("CREATE_SESSION out of order", st, []nfs.Status{nfs.ErrSeqMisordered}, nil)
	}
	if w.deleg {
		c.back = newCallee(w.j)
		w.callees = append(w.callees, c.back)
	}
	st, p := w.one(c, OpCreateSession, createOp(c.pending, seq, 2))
	w.expect("CREATE_SESSION", st, nil, nil)
	id := DecodeSessionID(p.Decoder)
	if c.pending != c.id {
		w.lost(c)
		c.id = c.pending
	}
	c.creates, c.seen = seq, w.model.now
	c.sessions = append(c.sessions, &modelSession{id: id})
	w.sameSession(c)
}

// sameSession sends the last CREATE_SESSION again.
func (w *randomWorld) sameSession(c *modelClient) {
	st, p := w.one(c, OpCreateSession, createOp(c.id, c.creates, 2))
	w.expect("CREATE_SESSION again", st, nil, nil)
	if id := DecodeSessionID(p.Decoder); c.creates > 0 && len(c.sessions) > 0 && id != c.sessions[len(c.sessions)-1].id {
		panic("another session")
	}
}

func (w *randomWorld) sessionAgain(c *modelClient) {
	if len(c.sessions) > 3 {
		return
	}
	c.pending = c.id
	w.newSession(c)
}

// destroy is DESTROY_SESSION, or DESTROY_CLIENTID.
func (w *randomWorld) destroy(c *modelClient) {
	if len(c.sessions) == 0 || w.chance(20) {
		st, _ := w.one(c, OpDestroyClientID, op(OpDestroyClientID, c.id))
		var must []nfs.Status
		if len(c.sessions) > 0 || slices.ContainsFunc(c.states, func(s *modelState) bool { return !s.gone }) {
			must = []nfs.Status{nfs.ErrClientIDBusy}
		}
		if w.expect("DESTROY_CLIENTID", st, must, nil) {
			w.lost(c)
			c.before = nil
		}
		return
	}
	i := w.rnd.IntN(len(c.sessions))
	id := c.sessions[i].id
	if w.chance(30) { // by somebody else
		w.as(c)
		w.uid = 77
		st := w.compound(c.minor, op(OpDestroySession, id)).next(OpDestroySession)
		c.xid = w.xid
		w.expect("DESTROY_SESSION by another user", st, []nfs.Status{nfs.ErrBadSession, nfs.ErrPerm, nfs.ErrAcces}, nil)
		return
	}
	if w.chance(50) {
		st, _ := w.one(c, OpDestroySession, op(OpDestroySession, id))
		w.expect("DESTROY_SESSION", st, nil, nil)
	} else {
		w.runIn(c, c.sessions[w.rnd.IntN(len(c.sessions))], piece{op: OpDestroySession, a: op(OpDestroySession, id)})
	}
	c.sessions = slices.DeleteFunc(c.sessions, func(x *modelSession) bool { return x.id == id })
	st, _ := w.one(c, OpDestroySession, op(OpDestroySession, id))
	w.expect("DESTROY_SESSION again", st, []nfs.Status{nfs.ErrBadSession}, nil)
}

// stranger has another user of the host ask for a client that is in use.
func (w *randomWorld) stranger(c *modelClient) {
	if c.id == 0 || w.expired(c) ||
		len(c.sessions) == 0 && !slices.ContainsFunc(c.states, func(s *modelState) bool { return !s.gone }) {
		return
	}
	w.as(c)
	w.uid = 77
	var st nfs.Status
	if c.minor == 0 {
		st = w.compound(0, setClientOp(c.owner, 99, "tcp", uaddr)).next(OpSetClientID)
	} else {
		st = w.compound(c.minor, exchangeArgs(c.owner, 99, 0)).next(OpExchangeID)
	}
	c.xid = w.xid
	w.expect("another user", st, []nfs.Status{nfs.ErrClientIDInUse}, nil)
}

// piece is an operation of a compound: what it may answer is asked for when the answers to those
// before it are known.
type piece struct {
	op   uint32
	a    args
	want func() (must, may []nfs.Status)
	ok   func(p *reply)
	bad  func(st nfs.Status, p *reply)
	text string
}

// run sends pieces in a slot of some session of a client.
func (w *randomWorld) run(c *modelClient, pieces ...piece) {
	w.runIn(c, c.sessions[w.rnd.IntN(len(c.sessions))], pieces...)
}

func (w *randomWorld) runIn(c *modelClient, x *modelSession, pieces ...piece) {
	n := uint32(w.rnd.IntN(len(x.slots)))
	slot := &x.slots[n]
	cache := w.chance(50)
	at := func(seq, slot uint32) args { return op(OpSequence, x.id, seq, slot, max(slot, 3), cache) }
	all := []args{at(slot.seq+1, n)}
	for _, p := range pieces {
		all = append(all, p.a)
	}
	if w.chance(3) {
		all[0] = at(slot.seq+2+uint32(w.rnd.IntN(3)), n)
		p, _ := w.call(c, bodyOf(c.minor, all...))
		w.expect("SEQUENCE out of order", p.next(OpSequence), []nfs.Status{nfs.ErrSeqMisordered}, nil)
		all[0] = at(slot.seq+1, 8)
		p, _ = w.call(c, bodyOf(c.minor, all...))
		w.expect("SEQUENCE in slot 8", p.next(OpSequence), []nfs.Status{nfs.ErrBadSlot}, nil)
		all[0] = at(slot.seq+1, n)
	}
	body := bodyOf(c.minor, all...)
	p, raw := w.call(c, body)
	w.expect("SEQUENCE", p.next(OpSequence), nil, nil)
	c.seen = w.model.now
	p.Skip(16 + 5*4)
	*slot = modelSlot{slot.seq + 1, body, raw, cache, 0}
	w.results(p, pieces)
}

// results holds the results of a compound against what each piece wants.
func (w *randomWorld) results(p *reply, pieces []piece) {
	w.current = state.Anonymous
	for i := range pieces {
		k := &pieces[i]
		st := p.next(k.op)
		w.count(table[k.op].name + " " + short(st))
		var must, may []nfs.Status
		if k.want != nil {
			must, may = k.want()
		}
		if w.broken { // a client that cannot be remembered, or not be forgotten, makes clients wait
			may = append(may, nfs.ErrJukebox, nfs.ErrGrace, nfs.ErrLocked)
		}
		good := w.expect(k.text+" "+table[k.op].name, st, must, may)
		switch {
		case good && k.ok != nil:
			k.ok(p)
		case !good && k.bad != nil:
			k.bad(st, p)
		}
		if !good {
			break
		}
	}
	p.end()
}

func (w *randomWorld) putFH(fh []byte) piece {
	return piece{op: OpPutFH, a: op(OpPutFH, fh), ok: func(*reply) { w.current = state.Anonymous }}
}

func (w *randomWorld) completePiece(c *modelClient) piece {
	return piece{op: OpReclaimComplete, a: op(OpReclaimComplete, false), want: func() (must, may []nfs.Status) {
		if c.complete {
			must = append(must, nfs.ErrCompleteAlready)
		}
		return must, nil
	}, ok: func(*reply) {
		c.complete, c.before = true, nil
		if w.finished == nil {
			w.finished = make(map[string]bool)
		}
		w.finished[c.owner] = true
	}}
}

// staying are the statuses after which the number of an owner stays as it is (RFC 7530 section
// 9.1.7).
var staying = []nfs.Status{
	nfs.ErrStaleClientID, nfs.ErrStaleStateID, nfs.ErrBadStateID, nfs.ErrBadSeqID, nfs.ErrBadXDR, nfs.ErrResource,
	nfs.ErrNoFileHandle, nfs.ErrMoved,
}

// turn40 is the number of an owner in a request of version 4.0.
type turn40 struct {
	owners map[string]*modelOwner
	name   string
	seq    uint32
	needs  *modelState // the stateid by which the owner is found; nil: it is not needed afterwards
}

// turn chooses the number of a request: mostly the next.
func (w *randomWorld) turn(owners map[string]*modelOwner, name string, needs *modelState) *turn40 {
	t := &turn40{owners, name, w.rnd.Uint32(), needs}
	if o := owners[name]; o != nil {
		t.seq = o.seq + 1
		if o.confirmed && w.chance(4) {
			t.seq += 1 + uint32(w.rnd.IntN(3))
		}
	}
	return t
}

// wrong says that a request is out of order. An open-owner without an open may be forgotten after a
// lease.
func (w *randomWorld) wrong(c *modelClient, t *turn40) (must, may []nfs.Status) {
	o := t.owners[t.name]
	switch {
	case t.owners == nil:
		return nil, []nfs.Status{nfs.ErrBadSeqID}
	case o == nil:
		return nil, nil
	case w.idle(c, t, o):
		o.confirmed = false // as far as is known
		return nil, []nfs.Status{nfs.ErrBadSeqID}
	case !o.confirmed || t.seq == o.seq+1:
		return nil, nil
	}
	return []nfs.Status{nfs.ErrBadSeqID}, nil
}

func (w *randomWorld) idle(c *modelClient, t *turn40, o *modelOwner) bool {
	return o.opens && w.model.now.Sub(o.used) > modelLease &&
		!slices.ContainsFunc(c.live(anOpen), func(s *modelState) bool { return s.owner == t.name })
}

// run40 sends pieces in a compound of version 4.0. The last one is the request of an owner, if
// there is a turn.
func (w *randomWorld) run40(c *modelClient, t *turn40, pieces ...piece) {
	last := &pieces[len(pieces)-1]
	if t != nil {
		want := last.want
		last.want = func() (must, may []nfs.Status) {
			must, may = want()
			first, maybe := w.wrong(c, t)
			return append(must, first...), append(may, maybe...)
		}
	}
	all := make([]args, len(pieces))
	for i := range pieces {
		all[i] = pieces[i].a
	}
	body := bodyOf(0, all...)
	var got nfs.Status
	ok, bad := last.ok, last.bad
	last.ok = func(p *reply) {
		if ok != nil {
			ok(p)
		}
	}
	last.bad = func(st nfs.Status, p *reply) {
		got = st
		if bad != nil {
			bad(st, p)
		}
	}
	p, raw := w.call(c, body)
	w.results(p, pieces)
	if t == nil || t.owners == nil || slices.Contains(staying, got) {
		return
	}
	o := t.owners[t.name]
	if o == nil {
		o = &modelOwner{opens: true} // a lock-owner comes with its first lock
		t.owners[t.name] = o
	}
	o.seq, o.used, o.last, o.answer, o.states = t.seq, w.model.now, body, raw, nil
	if t.needs != nil {
		o.states = []*modelState{t.needs}
	}
}

// renewed notes that a stateid renews the lease of a client of version 4.0.
func (w *randomWorld) renewed(c *modelClient, id state.Stateid) {
	if n := words(id.Other[:]); n[0] == w.boot && uint64(n[0])<<32|uint64(n[1]) == c.id {
		c.seen = w.model.now
	}
}

func owners(c *modelClient, rnd *rand.Rand) string { return []string{"p", "q"}[rnd.IntN(2)] }

// pick is a stateid for an operation: mostly the right one.
func (w *randomWorld) pick(c *modelClient, kind int, io bool) (id state.Stateid, s *modelState) {
	if list := c.live(kind); len(list) > 0 && w.chance(85) {
		s = list[w.rnd.IntN(len(list))]
		id = s.id
		if c.minor > 0 && w.chance(15) {
			id.Seq = 0
		}
		return id, s
	}
	all := c.states
	switch w.rnd.IntN(9) {
	case 0, 1:
		if len(all) > 0 { // of whatever kind, there or gone
			s = all[w.rnd.IntN(len(all))]
			return s.id, s
		}
	case 2:
		if len(all) > 0 {
			s = all[w.rnd.IntN(len(all))]
			id = s.id
			if id.Seq--; id.Seq == 0 && c.minor > 0 {
				id.Seq = 1<<32 - 1
			}
			return id, s
		}
	case 3:
		if len(all) > 0 {
			s = all[w.rnd.IntN(len(all))]
			id = s.id
			id.Seq += 1 + uint32(w.rnd.IntN(5))
			return id, s
		}
	case 4:
		if len(c.past) > 0 {
			return c.past[w.rnd.IntN(len(c.past))], nil
		}
	case 5:
		d := w.clients[w.rnd.IntN(len(w.clients))]
		if d != c && len(d.states) > 0 && (c.minor > 0 || d.minor > 0) {
			return d.states[w.rnd.IntN(len(d.states))].id, nil
		}
	case 6:
		return state.Anonymous, nil
	case 7:
		return state.Bypass, nil
	case 8:
		if c.minor > 0 {
			return state.Current, nil
		}
	}
	id.Seq = 1
	for i, n := range []uint32{w.boot, uint32(c.id), 1 << 30} {
		id.Other[4*i+0], id.Other[4*i+1], id.Other[4*i+2], id.Other[4*i+3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	}
	return id, nil
}

// fileOf is the file of a state, or now and then another.
func (w *randomWorld) fileOf(s *modelState) int {
	if s == nil || w.chance(4) {
		return w.rnd.IntN(randomFiles)
	}
	return s.file
}

// someRange is a range between edges, or now and then none.
func (w *randomWorld) someRange() (off, n uint64) {
	i := w.rnd.IntN(len(edges))
	off = edges[i]
	switch j := i + 1 + w.rnd.IntN(4); {
	case w.chance(3):
		return off, 0
	case w.chance(3) && off > 1:
		return off, -off // to the last byte, as a length that does not fit
	case w.chance(3) && off > 1:
		return off, 1<<64 - 2
	case j < len(edges):
		return off, edges[j] - off
	}
	return off, 1<<64 - 1
}

func (w *randomWorld) openPiece(c *modelClient, owner string, file int, access, deny, claim uint32, t *turn40) piece {
	want := access
	if !w.deleg && c.minor > 0 {
		want |= WantNoDeleg
	}
	seq := uint32(0)
	if t != nil {
		seq = t.seq
	}
	how := part(uint32(ClaimNull), fileNames[file:file+1])
	switch claim {
	case ClaimPrevious:
		how = part(uint32(ClaimPrevious), uint32(DelegNone))
	case ClaimFH:
		how = part(uint32(ClaimFH))
	}
	p := piece{op: OpOpen, a: op(OpOpen, seq, want, deny, c.id, owner, uint32(OpenNoCreate), how)}
	p.text = fmt.Sprintf("file %d, owner %s, access %d, deny %d, claim %d:", file, owner, access, deny, claim)
	var waits []*modelState
	forgotten := false // the owner may be
	p.want = func() (must, may []nfs.Status) {
		if c.minor == 0 {
			c.seen = w.model.now
			forgotten = c.owners[owner] != nil && w.idle(c, t, c.owners[owner])
			if o := c.owners[owner]; o != nil && !o.confirmed {
				for _, s := range c.live(anOpen) { // what it has not confirmed counts for nothing
					if s.owner == owner {
						w.drop(c, s)
					}
				}
			}
		}
		conflict := nfs.ErrShareDenied
		if claim == ClaimPrevious {
			conflict = nfs.ErrReclaimConflict
			if c.complete || !w.model.known[c.owner] || !w.graceMaybe() {
				must = append(must, nfs.ErrNoGrace, nfs.ErrReclaimBad)
			} else if !w.graceSure() {
				may = append(may, nfs.ErrNoGrace)
			}
		} else {
			if c.minor > 0 && !c.complete || w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
		}
		if w.shareConflict(c, file, access, deny) {
			must = append(must, conflict)
		}
		list, now, maybe := w.delegations(c, file, access&state.Write != 0 || deny != 0)
		waits = list
		if now {
			must = append(must, nfs.ErrJukebox)
		} else if maybe {
			may = append(may, nfs.ErrJukebox)
		}
		return must, may
	}
	p.bad = func(st nfs.Status, _ *reply) { w.waited(waits, st) }
	p.ok = func(p *reply) {
		w.takenAway(waits)
		var id state.Stateid
		confirm := false
		if c.minor == 0 {
			o := p.opened40()
			id, confirm = o.id, o.confirm
		} else {
			p.delegKind = 0
			id, _, _ = p.opened()
		}
		s := c.has(anOpen, owner, file)
		switch {
		case s != nil && (id.Other != s.id.Other || id.Seq != s.id.Seq+1):
			panic(fmt.Sprintf("stateid %v after %v", id, s.id))
		case s == nil && id.Seq != 1:
			panic(fmt.Sprintf("stateid %v is the first", id))
		case s == nil:
			s = &modelState{kind: anOpen, file: file, owner: owner}
			c.states = append(c.states, s)
		}
		s.id, s.access, s.deny = id, s.access|access, s.deny|deny
		s.accessed[access], s.denied[deny] = true, true
		w.current = id
		if c.minor == 0 {
			o := c.owners[owner]
			if o == nil {
				o = &modelOwner{opens: true}
				c.owners[owner] = o
			}
			if confirm && o.confirmed && !forgotten {
				panic("the owner was confirmed")
			}
			o.confirmed = !confirm
		}
		if c.minor > 0 && p.delegKind != 0 && p.delegKind != DelegNoneExt {
			w.count("delegated")
			d := &modelState{kind: aDelegation, id: p.deleg, file: file, write: p.delegKind == delegWrite}
			c.states = append(c.states, d)
		}
	}
	return p
}

// waited notes that delegations were asked for, and which were taken away before somebody had to
// wait, or was refused.
func (w *randomWorld) waited(list []*modelState, st nfs.Status) {
	there := w.s.State().DelegationList(1 << 10)
	for _, d := range list {
		switch {
		case d.recalled.IsZero():
			if st == nfs.ErrJukebox {
				d.recalled = w.model.now
			}
		case w.model.now.Sub(d.recalled) > modelLease && !slices.ContainsFunc(there, func(x state.DelegInfo) bool {
			return uint32(x.Client) == words(d.id.Other[:])[1] && x.File == w.files[d.file]
		}):
			w.takenAway([]*modelState{d}) // and somebody has to wait for another one
		}
	}
}

// takenAway notes that somebody did not have to wait for delegations any more.
func (w *randomWorld) takenAway(list []*modelState) {
	for _, d := range list {
		w.count("revoked")
		d.revoked = true
	}
}

func (w *randomWorld) openConfirm(c *modelClient, s *modelState) {
	o := c.owners[s.owner]
	t := &turn40{c.owners, s.owner, o.seq + 1, s}
	w.run40(c, t, w.putFH(w.fhs[s.file]), piece{
		op: OpOpenConfirm, a: op(OpOpenConfirm, s.id, t.seq), text: s.owner,
		want: func() (must, may []nfs.Status) { w.renewed(c, s.id); return nil, nil },
		ok: func(p *reply) {
			s.id, o.confirmed = DecodeStateid(p.Decoder), true
		},
	})
}

func (w *randomWorld) lockPiece(c *modelClient, byOpen bool, id state.Stateid, s *modelState, locker string, file int,
	off, n uint64, exclusive, reclaim bool, t, l *turn40,
) piece {
	kind, typ := aLock, uint32(LockRead)
	if exclusive {
		typ = LockWrite
	}
	var seq, lockSeq uint32
	if t != nil {
		seq = t.seq
	}
	if l != nil {
		lockSeq = l.seq
	}
	a := op(OpLock, typ, reclaim, off, n, false, id, seq)
	if byOpen {
		kind = anOpen
		a = op(OpLock, typ, reclaim, off, n, true, seq, id, lockSeq, c.id, locker)
	}
	p := piece{op: OpLock, a: a, text: fmt.Sprintf("file %d, %x by open %v, %s, %d+%d exclusive %v, reclaims %v:", file,
		id, byOpen, locker, off, n, exclusive, reclaim)}
	var from *modelState // the open
	var have *modelState // the lock
	i, j, fits := segments(off, n)
	p.want = func() (must, may []nfs.Status) {
		if byOpen && c.minor == 0 {
			c.seen = w.model.now
		}
		w.renewed(c, id)
		from, have = nil, nil
		of, errs := w.of(c, w.boot, id, kind, file)
		must = append(must, w.badOnly(errs, nfs.ErrDelegRevoked)...)
		switch {
		case of == nil:
		case byOpen:
			from, have = of, c.has(aLock, locker, file)
		default:
			from, have, locker = of.open, of, of.owner
		}
		if !fits {
			must = append(must, nfs.ErrInval)
		}
		if reclaim {
			if c.complete || !w.model.known[c.owner] || !w.graceMaybe() {
				must = append(must, nfs.ErrNoGrace, nfs.ErrReclaimBad)
			} else if !w.graceSure() {
				may = append(may, nfs.ErrNoGrace)
			}
		} else if c.minor > 0 && !c.complete || w.graceSure() {
			must = append(must, nfs.ErrGrace)
		} else if w.graceMaybe() {
			may = append(may, nfs.ErrGrace)
		}
		need := uint32(state.Read)
		if exclusive {
			need = state.Write
		}
		if from != nil && !reclaim {
			opens := []*modelState{from}
			if have != nil {
				opens = append(opens, have.open)
			}
			lacks := 0
			for _, o := range opens {
				if o.access&need == 0 {
					lacks++
				}
			}
			if lacks == len(opens) {
				must = append(must, nfs.ErrOpenMode)
			} else if lacks > 0 {
				may = append(may, nfs.ErrOpenMode)
			}
		}
		if from != nil && fits && w.lockConflict(holder{c.n, locker}, file, i, j, exclusive) {
			conflict := nfs.ErrDenied
			if reclaim {
				conflict = nfs.ErrReclaimConflict
			}
			must = append(must, conflict)
		}
		if l != nil && byOpen {
			first, _ := w.wrong(c, l)
			must = append(must, first...)
		}
		return must, may
	}
	p.bad = func(st nfs.Status, p *reply) {
		if l != nil && byOpen && t.owners != nil && !slices.Contains(staying, st) && c.lockers[locker] != nil {
			c.lockers[locker].seq, c.lockers[locker].last = l.seq, nil
		}
		if st == nfs.ErrDenied {
			w.deniedBy(p, c, file, i, j, exclusive)
		}
	}
	p.ok = func(p *reply) {
		id := DecodeStateid(p.Decoder)
		switch {
		case have != nil && (id.Other != have.id.Other || id.Seq != have.id.Seq+1):
			panic(fmt.Sprintf("stateid %v after %v", id, have.id))
		case have == nil && id.Seq != 1:
			panic(fmt.Sprintf("stateid %v is the first", id))
		case have == nil:
			have = &modelState{kind: aLock, file: file, owner: locker, open: from}
			c.states = append(c.states, have)
		}
		have.id = id
		w.current = id
		kind := uint8(1)
		if exclusive {
			kind = 2
		}
		w.setLock(holder{c.n, locker}, file, i, j, kind)
		if l != nil && byOpen {
			o := c.lockers[locker]
			if o == nil {
				o = &modelOwner{confirmed: true}
				c.lockers[locker] = o
			}
			o.seq, o.used, o.last = l.seq, w.model.now, nil
		}
	}
	return p
}

// badOnly has one status stand for another that an operation must not return.
func (w *randomWorld) badOnly(list []nfs.Status, not nfs.Status) (out []nfs.Status) {
	for _, st := range list {
		if st == not {
			st = nfs.ErrBadStateID
		}
		out = append(out, st)
	}
	return out
}

// deniedBy checks that a LOCK4denied is of a lock that stands against the one that was asked for.
func (w *randomWorld) deniedBy(p *reply, c *modelClient, file, from, to int, exclusive bool) {
	off, n, typ, client, owner := p.Uint64(), p.Uint64(), p.Uint32(), p.Uint64(), p.String(OwnerMax)
	i, j, ok := segments(off, n)
	if !ok {
		panic(fmt.Sprintf("denied by %d+%d", off, n))
	}
	for h, segs := range w.held[file] {
		if h.client >= 0 && (w.clients[h.client].id != client || h.owner != owner) || h.client < 0 && client != 0 {
			continue
		}
		for k := max(i, from); k < min(j, to); k++ {
			if segs[k] == uint8(typ) && (exclusive || typ == LockWrite) {
				return
			}
		}
	}
	panic(fmt.Sprintf("client %d is denied file %d by %d+%d of type %d, client %x, owner %q, which nobody holds", c.n,
		file, off, n, typ, client, owner))
}

// action is what a client does with a file: a few pieces, and in version 4.0 the turn of the last.
func (w *randomWorld) action(c *modelClient) (pieces []piece, t *turn40) {
	v40 := c.minor == 0
	n := w.rnd.IntN(100)
	if n >= 65 && n < 76 && len(c.live(aLock)) == 0 && w.chance(85) {
		n -= 20 // there is nothing to unlock
	}
	switch {
	case n < 27 || len(c.live(anOpen)) == 0 && n < 60:
		owner, file := owners(c, w.rnd), w.rnd.IntN(randomFiles)
		access, deny := 1+w.rnd.Uint32N(3), uint32(0)
		if w.chance(25) {
			deny = w.rnd.Uint32N(4)
		}
		if v40 {
			t = w.turn(c.owners, owner, nil)
		}
		if !v40 && w.chance(40) {
			return []piece{w.putFH(w.fhs[file]), w.openPiece(c, owner, file, access, deny, ClaimFH, t)}, t
		}
		return []piece{w.putFH(w.dir), w.openPiece(c, owner, file, access, deny, ClaimNull, t)}, t
	case n < 37:
		return w.closeAction(c)
	case n < 42:
		return w.downgradeAction(c)
	case n < 65:
		byOpen := w.chance(60) || len(c.live(aLock)) == 0
		kind := aLock
		if byOpen {
			kind = anOpen
		}
		id, s := w.pick(c, kind, false)
		file := w.fileOf(s)
		off, n := w.someRange()
		locker := owners(c, w.rnd)
		var l *turn40
		if v40 {
			l = w.turn(c.lockers, locker, nil)
			if byOpen {
				t = w.turnOf(c, s, anOpen)
			} else {
				t = w.turnOf(c, s, aLock)
			}
		}
		return []piece{w.putFH(w.fhs[file]), w.lockPiece(c, byOpen, id, s, locker, file, off, n, w.chance(50), false, t, l)},
			t
	case n < 76:
		return w.unlockAction(c)
	case n < 82:
		return w.testAction(c), nil
	case n < 88 || v40:
		return w.ioAction(c), nil
	case n < 95:
		return w.freeAction(c), nil
	case n < 97:
		return w.testStateids(c), nil
	}
	return w.returnAction(c), nil
}

// turnOf is the turn of the owner of a stateid in version 4.0.
func (w *randomWorld) turnOf(c *modelClient, s *modelState, kind int) *turn40 {
	if s == nil || s.gone || s.kind != kind {
		return &turn40{name: "", seq: 1} // nobody's, or that of the stateid that was closed last
	}
	if kind == aLock {
		return w.turn(c.lockers, s.owner, s)
	}
	return w.turn(c.owners, s.owner, s)
}

func (w *randomWorld) closeAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, anOpen, false)
	file := w.fileOf(s)
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, anOpen)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpClose, a: op(OpClose, seq, id), text: fmt.Sprintf("file %d, %x:", file, id),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, anOpen, file)
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			DecodeStateid(p.Decoder)
			w.drop(c, of)
			w.current = state.Invalid
			if t != nil {
				t.needs = nil
			}
		},
	}}, t
}

func (w *randomWorld) downgradeAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, anOpen, false)
	file := w.fileOf(s)
	access, deny := 1+w.rnd.Uint32N(3), w.rnd.Uint32N(4)
	if w.chance(60) {
		deny = 0
	}
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, anOpen)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpOpenDowngrade, a: op(OpOpenDowngrade, id, seq, access, deny),
		text: fmt.Sprintf("file %d, %x, access %d, deny %d:", file, id, access, deny),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, anOpen, file)
			if of != nil && (!mayDowngrade(of.accessed, access) || !mayDowngrade(of.denied, deny)) {
				must = append(must, nfs.ErrInval)
			}
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			of.id, of.access, of.deny = w.next(p, of), access, deny
			for mode := range uint32(4) {
				of.accessed[mode] = of.accessed[mode] && mode&^access == 0
				of.denied[mode] = of.denied[mode] && mode&^deny == 0
			}
		},
	}}, t
}

// next reads the stateid after another.
func (w *randomWorld) next(p *reply, s *modelState) state.Stateid {
	id := DecodeStateid(p.Decoder)
	if id.Other != s.id.Other || id.Seq != s.id.Seq+1 {
		panic(fmt.Sprintf("stateid %v after %v", id, s.id))
	}
	w.current = id
	return id
}

func (w *randomWorld) unlockAction(c *modelClient) ([]piece, *turn40) {
	id, s := w.pick(c, aLock, false)
	file := w.fileOf(s)
	off, n := w.someRange()
	if w.chance(40) {
		off, n = 0, 1<<64-1
	}
	i, j, fits := segments(off, n)
	var t *turn40
	seq := uint32(0)
	if c.minor == 0 {
		t = w.turnOf(c, s, aLock)
		seq = t.seq
	}
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpLockU, a: op(OpLockU, uint32(LockWrite), seq, id, off, n),
		text: fmt.Sprintf("file %d, %x, %d+%d:", file, id, off, n),
		want: func() (must, may []nfs.Status) {
			w.renewed(c, id)
			of, must = w.of(c, w.boot, id, aLock, file)
			if !fits {
				must = append(must, nfs.ErrInval)
			}
			return w.badOnly(must, nfs.ErrDelegRevoked), nil
		},
		ok: func(p *reply) {
			of.id = w.next(p, of)
			w.setLock(holder{c.n, of.owner}, file, i, j, 0)
		},
	}}, t
}

func (w *randomWorld) testAction(c *modelClient) []piece {
	file, owner := w.rnd.IntN(randomFiles), owners(c, w.rnd)
	off, n := w.someRange()
	i, j, fits := segments(off, n)
	exclusive := w.chance(50)
	typ := uint32(LockRead)
	if exclusive {
		typ = LockWrite
	}
	return []piece{w.putFH(w.fhs[file]), {
		op: OpLockT, a: op(OpLockT, typ, off, n, c.id, owner), text: fmt.Sprintf("file %d, %s, %d+%d:", file, owner, off, n),
		want: func() (must, may []nfs.Status) {
			if c.minor == 0 {
				c.seen = w.model.now
			}
			if !fits {
				return []nfs.Status{nfs.ErrInval}, []nfs.Status{nfs.ErrGrace}
			}
			if w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
			if w.lockConflict(holder{c.n, owner}, file, i, j, exclusive) {
				must = append(must, nfs.ErrDenied)
			}
			return must, may
		},
		bad: func(st nfs.Status, p *reply) {
			if st == nfs.ErrDenied {
				w.deniedBy(p, c, file, i, j, exclusive)
			}
		},
	}}
}

func (w *randomWorld) ioAction(c *modelClient) []piece {
	id, s := w.pick(c, w.rnd.IntN(3), true)
	file, write := w.fileOf(s), w.chance(50)
	k := piece{op: OpRead, a: op(OpRead, id, uint64(0), uint32(1)), text: fmt.Sprintf("file %d, %x:", file, id)}
	if write {
		k.op, k.a = OpWrite, op(OpWrite, id, uint64(0), uint32(2), "x")
	}
	var waits []*modelState
	k.want = func() (must, may []nfs.Status) {
		waits = nil
		given := id
		if c.minor > 0 && given == state.Current {
			given = w.current
		}
		w.renewed(c, given)
		if given == state.Anonymous || given == state.Bypass {
			if w.graceSure() {
				must = append(must, nfs.ErrGrace)
			} else if w.graceMaybe() {
				may = append(may, nfs.ErrGrace)
			}
			access := uint32(state.Read)
			if write {
				access = state.Write
			}
			// in version 4.0 nobody knows who it is
			if w.shareConflict(nil, file, access, 0) && (write || given == state.Anonymous) {
				must = append(must, nfs.ErrLocked)
			}
			list, now, maybe := w.delegations(c, file, write)
			waits = list
			if now {
				must = append(must, nfs.ErrJukebox)
			} else if maybe {
				may = append(may, nfs.ErrJukebox)
			}
			return must, may
		}
		s, must := w.find(c, w.boot, given)
		if s == nil {
			return must, nil
		}
		if s.file != file || s.kind != aDelegation && c.unconfirmed(s) {
			must = append(must, nfs.ErrBadStateID)
		}
		if len(must) > 0 {
			return must, nil
		}
		if s.kind == aLock {
			s = s.open
		}
		if write && (s.kind == aDelegation && !s.write || s.kind == anOpen && s.access&state.Write == 0) {
			must = append(must, nfs.ErrOpenMode)
		}
		if !write && s.kind == anOpen && s.access&state.Read == 0 {
			may = append(may, nfs.ErrOpenMode)
		}
		return must, may
	}
	k.bad = func(st nfs.Status, _ *reply) { w.waited(waits, st) }
	k.ok = func(p *reply) {
		w.takenAway(waits)
		if write {
			p.Uint32()
			p.Uint32()
			p.Skip(8)
			return
		}
		p.Bool()
		p.Opaque(10)
	}
	return []piece{w.putFH(w.fhs[file]), k}
}

func (w *randomWorld) freeAction(c *modelClient) []piece {
	id, _ := w.pick(c, aLock, false)
	for _, s := range c.states {
		if (s.revoked || s.kind == aLock && !s.gone && w.held[s.file][holder{c.n, s.owner}] == nil) && w.chance(50) {
			id = s.id
		}
	}
	var of *modelState
	return []piece{{
		op: OpFreeStateID, a: op(OpFreeStateID, id), text: fmt.Sprintf("%x:", id),
		want: func() (must, may []nfs.Status) {
			of, must = w.find(c, w.boot, id)
			switch {
			case of != nil && of.revoked:
				return nil, nil
			case len(must) > 0:
				return must, nil
			case of.kind != aLock || w.held[of.file][holder{c.n, of.owner}] != nil:
				return []nfs.Status{nfs.ErrLocksHeld}, nil
			}
			return nil, nil
		},
		ok: func(*reply) { of.revoked = false; w.drop(c, of) },
	}}
}

// testStateids asks for what the client had and has.
func (w *randomWorld) testStateids(c *modelClient) []piece {
	ids := []state.Stateid{state.Anonymous, state.Bypass}
	for _, s := range c.states[max(0, len(c.states)-30):] {
		ids = append(ids, s.id)
	}
	ids = append(ids, c.past...)
	list := []any{uint32(len(ids))}
	for _, id := range ids {
		list = append(list, id)
	}
	return []piece{{op: OpTestStateID, a: op(OpTestStateID, list...), ok: func(p *reply) {
		if n := p.Uint32(); int(n) != len(ids) {
			panic(fmt.Sprintf("TEST_STATEID: %d results of %d", n, len(ids)))
		}
		for _, id := range ids {
			_, must := w.find(c, w.boot, id)
			w.expect(fmt.Sprintf("TEST_STATEID of %x", id), nfs.Status(p.Uint32()), must, nil)
		}
	}}}
}

func (w *randomWorld) returnAction(c *modelClient) []piece {
	id, s := w.pick(c, aDelegation, false)
	file := w.fileOf(s)
	var of *modelState
	return []piece{w.putFH(w.fhs[file]), {
		op: OpDelegReturn, a: op(OpDelegReturn, id), text: fmt.Sprintf("file %d, %x:", file, id),
		want: func() (must, may []nfs.Status) {
			of, must = w.of(c, w.boot, id, aDelegation, file)
			return must, nil
		},
		ok: func(*reply) { w.drop(c, of) },
	}}
}

func (w *randomWorld) compoundOf(c *modelClient) {
	if c.minor == 0 {
		if w.chance(6) {
			w.releaseOwner(c)
			return
		}
		pieces, t := w.action(c)
		w.run40(c, t, pieces...)
		for _, o := range c.live(anOpen) {
			if c.unconfirmed(o) && w.chance(80) {
				w.openConfirm(c, o)
			}
		}
		return
	}
	var all []piece
	for range 1 + w.rnd.IntN(4) {
		pieces, _ := w.action(c)
		all = append(all, pieces...)
	}
	w.run(c, all...)
}

func (w *randomWorld) releaseOwner(c *modelClient) {
	name := owners(c, w.rnd)
	var must []nfs.Status
	var list []*modelState
	for _, l := range c.live(aLock) {
		if l.owner == name {
			list = append(list, l)
			if w.held[l.file][holder{c.n, name}] != nil {
				must = []nfs.Status{nfs.ErrLocksHeld}
			}
		}
	}
	st, _ := w.one(c, OpReleaseLockOwner, op(OpReleaseLockOwner, c.id, name))
	c.seen = w.model.now
	if w.expect("RELEASE_LOCKOWNER "+name, st, must, nil) {
		for _, l := range list {
			w.drop(c, l)
		}
	}
}

func (s *modelState) segsOf(w *randomWorld, c *modelClient) {
	if s.kind == aLock {
		s.segs = slices.Clone(w.held[s.file][holder{c.n, s.owner}])
	}
}

// reclaim has a client reclaim some of what it had: in versions 4.1 and later all in one compound,
// each owner's opens with the locks of them. Without any it tries what it may not.
func (w *randomWorld) reclaim(c *modelClient) {
	if c.minor > 0 && len(c.sessions) == 0 {
		return
	}
	var opens []*modelState
	for _, o := range c.before {
		if o.kind == anOpen && !o.reclaimed && w.chance(80) {
			opens = append(opens, o)
		}
	}
	allowed := !c.complete && w.model.known[c.owner] && w.graceMaybe()
	if !allowed || len(opens) == 0 {
		if !allowed && w.chance(30) {
			file := w.rnd.IntN(randomFiles)
			if c.minor > 0 {
				w.run(c, w.putFH(w.fhs[file]), w.openPiece(c, "p", file, state.Read, 0, ClaimPrevious, nil))
			} else {
				t := w.turn(c.owners, "p", nil)
				w.run40(c, t, w.putFH(w.fhs[file]), w.openPiece(c, "p", file, state.Read, 0, ClaimPrevious, t))
			}
		}
		return
	}
	var all []piece
	save := piece{op: OpSaveFH, a: op(OpSaveFH)}
	var saved state.Stateid
	save.ok = func(*reply) { saved = w.current }
	restore := piece{op: OpRestoreFH, a: op(OpRestoreFH), ok: func(*reply) { w.current = saved }}
	for _, o := range opens {
		var locks []*modelState
		n := 0
		for _, l := range c.before {
			if l.kind == aLock && l.open == o {
				locks = append(locks, l)
				for i, k := range l.segs {
					if k != 0 && (i == 0 || l.segs[i-1] != k) {
						n++
					}
				}
			}
		}
		if len(all)+4+2*len(locks)+n > 30 {
			break
		}
		o.reclaimed = true
		w.count("reclaimed")
		if c.minor == 0 {
			w.reclaim40(c, o, locks)
			continue
		}
		all = append(all, w.putFH(w.fhs[o.file]), w.openPiece(c, o.owner, o.file, o.access, o.deny, ClaimPrevious, nil), save)
		for _, l := range locks {
			all = append(all, restore)
			byOpen := true
			l.eachRange(func(off, n uint64, exclusive bool) {
				all = append(all, w.lockPiece(c, byOpen, state.Current, nil, l.owner, o.file, off, n, exclusive, true, nil, nil))
				byOpen = false
			})
		}
	}
	if len(all) > 0 {
		w.run(c, all...)
	}
}

// eachRange calls do with each range of a lock's segments.
func (s *modelState) eachRange(do func(off, n uint64, exclusive bool)) {
	for i := 0; i < len(s.segs); i++ {
		if s.segs[i] == 0 {
			continue
		}
		j := i
		for j < len(s.segs) && s.segs[j] == s.segs[i] {
			j++
		}
		n := uint64(1<<64 - 1)
		if j < len(s.segs) {
			n = edges[j] - edges[i]
		}
		do(edges[i], n, s.segs[i] == 2)
		i = j - 1
	}
}

func (w *randomWorld) reclaim40(c *modelClient, o *modelState, locks []*modelState) {
	t := w.turn(c.owners, o.owner, nil)
	w.run40(c, t, w.putFH(w.fhs[o.file]), w.openPiece(c, o.owner, o.file, o.access, o.deny, ClaimPrevious, t))
	open := c.has(anOpen, o.owner, o.file)
	for _, l := range locks {
		l.eachRange(func(off, n uint64, exclusive bool) {
			if open == nil {
				return
			}
			if have := c.has(aLock, l.owner, o.file); have != nil {
				t := w.turnOf(c, have, aLock)
				w.run40(c, t, w.putFH(w.fhs[o.file]),
					w.lockPiece(c, false, have.id, have, l.owner, o.file, off, n, exclusive, true, t, nil))
				return
			}
			t, lt := w.turnOf(c, open, anOpen), w.turn(c.lockers, l.owner, nil)
			w.run40(c, t, w.putFH(w.fhs[o.file]),
				w.lockPiece(c, true, open.id, open, l.owner, o.file, off, n, exclusive, true, t, lt))
		})
	}
}

// version3 is a lock by NLM.
func (w *randomWorld) version3() {
	host := 1 + w.rnd.IntN(2)
	who, file := holder{-host, []string{"x", "y"}[w.rnd.IntN(2)]}, w.rnd.IntN(randomFiles)
	i := w.rnd.IntN(len(edges))
	j := i + 1 + w.rnd.IntN(4)
	l := nlm.Lock{
		Caller: fmt.Sprintf("host%d", host), Handle: w.fhs[file], Owner: []byte(who.owner), SVID: 1,
		Offset: edges[i],
	}
	if j < len(edges) {
		l.Length = edges[j] - edges[i]
	} else {
		j = len(edges)
	}
	exclusive := w.chance(50)
	proc := []uint32{nlm.ProcLock, nlm.ProcLock, nlm.ProcUnlock, nlm.ProcTest}[w.rnd.IntN(4)]
	var e xdr.Encoder
	rpc.EncodeCall(&e, 7, nlm.Program, nlm.Version, proc, nil)
	e.Opaque([]byte("cookie"))
	switch proc {
	case nlm.ProcLock:
		e.Bool(false)
		e.Bool(exclusive)
	case nlm.ProcTest:
		e.Bool(exclusive)
	}
	nlm.EncodeLock(&e, &l)
	if proc == nlm.ProcLock {
		e.Bool(false)
		e.Uint32(3)
	}
	done := make(chan []byte, 1)
	k := &rpc.Call{Peer: rpc.Peer{
		Addr:  netip.MustParseAddrPort("10.0.0.1:600"),
		Local: netip.MustParseAddrPort("10.0.0.100:2049"),
	}, BulkMax: -1}
	k.Reply = func(k *rpc.Call, _ bool) { done <- k.Res.AppendFlat(nil) }
	w.hosts.Dispatch(k, xdr.NewDecoder(e.AppendFlat(nil)), true)
	d := xdr.NewDecoder(<-done)
	if err := rpc.DecodeReply(&d, 7); err != nil {
		panic(err)
	}
	d.Opaque(10)
	st := nlm.Stat(d.Uint32())
	w.note("    procedure %d of %v, file %d, segments %d to %d, exclusive %v: %d", proc, who, file, i, j, exclusive, st)
	want := nlm.Granted
	if proc != nlm.ProcUnlock {
		switch {
		case w.graceSure(), w.graceMaybe() && st == nlm.DeniedGrace:
			want = nlm.DeniedGrace
		case w.lockConflict(who, file, i, j, exclusive):
			want = nlm.Denied
			w.count("version 3 denied")
		}
	}
	if w.broken && (st == nlm.Denied || st == nlm.DeniedGrace) {
		return // a silent client has it
	}
	if st != want {
		panic(fmt.Sprintf("version 3: status %d instead of %d", st, want))
	}
	switch {
	case st == nlm.Granted && proc == nlm.ProcLock:
		w.count("version 3 granted")
		kind := uint8(1)
		if exclusive {
			kind = 2
		}
		w.setLock(who, file, i, j, kind)
	case proc == nlm.ProcUnlock:
		w.setLock(who, file, i, j, 0)
	}
}

// resend sends a request again: it has to be answered as before, and to change nothing.
func (w *randomWorld) resend(c *modelClient) {
	if c.id == 0 {
		return
	}
	if c.minor > 0 {
		for _, x := range c.sessions {
			for i := range x.slots {
				if s := &x.slots[i]; s.request != nil && w.chance(50) {
					w.resendSlot(c, s)
				}
			}
		}
		return
	}
	if len(c.calls) > 0 && w.chance(60) {
		k := c.calls[w.rnd.IntN(len(c.calls))]
		if w.chance(30) {
			c.conn++ // a new connection from the same port
		}
		w.as(c)
		w.xid = k.xid - 1
		w.send(k.request)
		if !bytes.Equal(w.raw, k.want) {
			panic(fmt.Sprintf("call %d sent again:\n%x\ninstead of\n%x", k.xid, w.raw, k.want))
		}
		w.count("sent again")
		return
	}
	for _, owners := range []map[string]*modelOwner{c.owners, c.lockers} {
		for _, name := range []string{"p", "q"} {
			o := owners[name]
			if o == nil || o.last == nil || w.model.now.Sub(o.used) > modelLease ||
				slices.ContainsFunc(o.states, func(s *modelState) bool { return s.gone }) {
				continue
			}
			w.as(c)
			w.send(o.last)
			c.xid = w.xid
			c.seen = w.model.now
			if !bytes.Equal(w.raw[4:], o.answer[4:]) {
				panic(fmt.Sprintf("the last request of %s sent again:\n%x\ninstead of\n%x", name, w.raw[4:], o.answer[4:]))
			}
			w.count("owner's request again")
		}
	}
}

func (w *randomWorld) resendSlot(c *modelClient, s *modelSlot) {
	w.as(c)
	if w.chance(50) {
		w.xid = words(s.reply)[0] - 1
	}
	w.conn.Conn += int64(w.rnd.IntN(2))
	d, st := w.send(s.request)
	c.xid = max(c.xid, w.xid)
	c.seen = w.model.now
	w.count("sent again")
	if bytes.Equal(w.raw[4:], s.reply[4:]) {
		return
	}
	p := w.parse(d, st)
	if s.cache || p.status != nfs.ErrRetryUncachedRep {
		panic(fmt.Sprintf("a request sent again:\n%x\ninstead of\n%x", w.raw[4:], s.reply[4:]))
	}
}

// falseRetry sends other requests with the number of the last one of a slot.
func (w *randomWorld) falseRetry(c *modelClient) {
	for _, x := range c.sessions {
		for i := range x.slots {
			s := &x.slots[i]
			if s.request == nil {
				continue
			}
			try := func(uid uint32, body []byte) {
				w.as(c)
				w.uid = uid
				st := w.parse(w.send(body)).next(OpSequence)
				c.xid, c.seen = w.xid, w.model.now
				w.expect("another request in the place of the last", st, []nfs.Status{nfs.ErrSeqFalseRetry}, nil)
			}
			try(77, s.request)
			other := bytes.Clone(s.request)
			at := len(other) - 1 - w.rnd.IntN(len(other)-52) // behind the SEQUENCE
			other[at] ^= 1 << w.rnd.IntN(8)
			try(0, other)
		}
	}
}

// TestRandomNotices: the model fails where the server is wrong.
func TestRandomNotices(t *testing.T) {
	for name, harm := range map[string]func(w *randomWorld) bool{
		"a lock is gone": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if c.id != 0 && w.locks.Drop(fmt.Sprintf("nfs4 %016x", c.id)) {
					return true
				}
			}
			return false
		},
		"a lock is there that nobody asked for": func(w *randomWorld) bool {
			_, ok, _ := w.locks.Lock(w.files[0],
				lock.Lock{Owner: lock.Owner{Client: "10.0.0.9 host", ID: "x"}, Start: 5, End: 1<<32 - 1})
			return ok
		},
		"a live client is gone": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if c.id != 0 && !w.expired(c) {
					return w.s.State().Evict(c.id)
				}
			}
			return false
		},
		"an open was given back": func(w *randomWorld) bool {
			for _, c := range w.clients {
				if list := c.live(anOpen); len(list) > 0 && c.minor > 0 {
					at, st := w.s.State().Client(c.id)
					return st == nfs.OK && at.Close(list[0].id, w.files[list[0].file]) == nfs.OK
				}
			}
			return false
		},
	} {
		harmed := false
		var err error
		for seed := uint64(1); seed < 50 && !harmed; seed++ {
			_, err = playWith(t, seed, program(seed), func(w *randomWorld, i int) {
				if i > 40 && !harmed {
					harmed = harm(w)
				}
			})
		}
		if !harmed || err == nil {
			t.Errorf("%s: %v, %v", name, harmed, err)
		}
	}
}
