package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestSilentClient: a client that was silent for longer than its lease loses what
// others want, and opens anew what they do not. One that renews keeps it all.
func TestSilentClient(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	now := time.Now()
	s.cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s.restart()
	c, other := s.client(), s.client()
	ctx := context.Background()
	var files [2]*File
	for i := range files {
		name := fmt.Sprint("/data/", i)
		put(t, c, name, fill(1, 10))
		f, err := c.OpenShare(ctx, name, ShareBoth, ShareWrite)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = f
	}
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	for range 4 {
		pass(60 * time.Second)
		if err := four(t, c).do(ctx, &compound4{}); err != nil {
			t.Fatal(err)
		}
		if _, err := other.OpenShare(ctx, "/data/0", ShareWrite, 0); !IsStatus(err, nfs.ErrShareDenied) {
			t.Errorf("of a client that renews: %v", err)
		}
	}
	pass(100 * time.Second)
	g, err := other.OpenShare(ctx, "/data/0", ShareWrite, ShareWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files[0].WriteAt([]byte("x"), 0); err == nil {
		t.Error("a write to a file that another client denies")
	}
	if _, err := files[1].WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := files[0].WriteAt([]byte("x"), 0); err != nil {
		t.Error(err)
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNothingIsLeft: a client that is closed has left nothing at the server.
func TestNothingIsLeft(t *testing.T) {
	s := newServer(t)
	c := s.client()
	put(t, c, "/data/f", fill(1, 3<<20))
	var b bytes.Buffer
	n, err := c.Resolve(context.Background(), "/data/f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stream(context.Background(), n.Handle, &b, 0); err != nil || b.Len() != 3<<20 {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
	if got := s.four.State().Counts(); got.Opens != 0 || got.Clients != 1 {
		t.Errorf("%+v", got)
	}
	if _, err := c.Open(context.Background(), "/data/f"); err != nil { // and not closed
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := s.four.State().Counts(); got != (state.Counts{}) {
		t.Errorf("%+v", got)
	}
	if _, err := c.GetAttr(context.Background(), n.Handle); !errors.Is(err, rpc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestVersionIsChosen: the highest that both sides speak, and version 3 for paths that
// mean something there alone.
func TestVersionIsChosen(t *testing.T) {
	minorOf := func(r *rpc.Request) uint32 {
		var e xdr.Encoder
		r.Args(&e)
		d := xdr.NewDecoder(e.B)
		d.Opaque(tagMax)
		return d.Uint32()
	}
	upTo := func(most uint32) func(context.Context, *rpc.Request, func(*rpc.Request) error) error {
		return func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
			if r.Vers != nfs4.Version || minorOf(r) <= most {
				return call(r)
			}
			var e xdr.Encoder
			e.Uint32(uint32(nfs.ErrMinorVersMismatch))
			e.Uint32(0)
			e.Uint32(0)
			d := xdr.NewDecoder(e.B)
			return r.Res(&d)
		}
	}
	none := func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		if r.Vers == nfs4.Version && r.Prog == nfs4.Program {
			return &rpc.AcceptError{Stat: rpc.ProgMismatch, Low: 3, High: 3}
		}
		return call(r)
	}
	for _, c := range []struct {
		name    string
		f       func(context.Context, *rpc.Request, func(*rpc.Request) error) error
		asked   Version
		path    string
		want    Version
		missing bool // the path
		refused bool // the version
	}{
		{name: "all", f: upTo(2), path: "/data", want: Version42},
		{name: "not 4.2", f: upTo(1), path: "/data", want: Version41},
		{name: "not 4.1", f: upTo(0), path: "/data", want: Version3},
		{name: "only 3", f: none, path: "/data", want: Version3},
		{name: "3 wanted", f: upTo(2), asked: Version3, path: "/data", want: Version3},
		{name: "4.1 wanted", f: upTo(2), asked: Version41, path: "/data", want: Version41},
		{name: "4.2 wanted", f: upTo(1), asked: Version42, path: "/data", refused: true},
		{name: "the root of the first export", f: upTo(2), path: "/", want: Version3},
		{name: "a name in the first export", f: upTo(2), path: "/sub", want: Version3},
		{name: "the root of version 4", f: upTo(2), asked: Version42, path: "/", want: Version42},
		{name: "a name that is nowhere", f: upTo(2), path: "/nowhere", want: Version3, missing: true},
		{name: "a name that is not there", f: upTo(2), path: "/data/nowhere", want: VersionAuto, missing: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			x := s.cfg.Exports.Exports()[0]
			alias := *x
			alias.Pseudo = "/"
			if err := s.cfg.Exports.Replace([]*nfs.Export{x, &alias}); err != nil {
				t.Fatal(err)
			}
			three := s.meddled(Version3, upTo(2))
			root, err := three.Resolve(context.Background(), "/data")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := three.Mkdir(context.Background(), root.Handle, "sub", nil); err != nil {
				t.Fatal(err)
			}
			cl := s.meddled(c.asked, c.f)
			_, err = cl.Resolve(context.Background(), c.path)
			switch {
			case c.refused:
				if err == nil || errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
				return
			case c.missing != errors.Is(err, fs.ErrNotExist), !c.missing && err != nil:
				t.Error(err)
			}
			if c.want == VersionAuto {
				return
			}
			if got := cl.Version(); got != c.want {
				t.Errorf("version %v instead of %v", got, c.want)
			}
		})
	}
}

func TestDenialsNeedVersion4(t *testing.T) {
	s := newServer(t)
	s.vers = Version3
	c := s.client()
	put(t, c, "/data/f", nil)
	if _, err := c.OpenShare(context.Background(), "/data/f", ShareRead, ShareWrite); !IsStatus(err, nfs.ErrNotSupp) {
		t.Error(err)
	}
	f, err := c.OpenShare(context.Background(), "/data/f", ShareRead, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); err != io.EOF {
		t.Error(err)
	}
}

func TestParseVersion(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Version
	}{{"", VersionAuto}, {"3", Version3}, {"4", Version42}, {"4.1", Version41}, {"4.2", Version42}} {
		v, err := ParseVersion(c.in)
		if err != nil || v != c.want {
			t.Errorf("%q: %v, %v", c.in, v, err)
		}
		if again, err := ParseVersion(v.String()); err != nil || again != v {
			t.Errorf("%v does not survive printing: %v, %v", v, again, err)
		}
	}
	for _, s := range []string{"2", "4.0", "4.3", "x"} {
		if v, err := ParseVersion(s); err == nil {
			t.Errorf("%q is %v", s, v)
		}
	}
}

// everyOp is a compound with the decoder of every operation that the client uses. The
// numbers of bytes and entries that were decoded are added up.
func everyOp(total *int) []op4 {
	seq := &sequence4{x: &live{}}
	var a attrs4
	var o opened4
	var w copied
	var h Handle
	p := proc4{}
	_ = p
	bulk := op4{num: nfs4.OpRead, res: func(d *xdr.Decoder) { d.Bool(); *total += len(d.Bulk(1 << 20)) }}
	return []op4{
		{nfs4.OpSequence, seq.encode, seq.decode},
		bindOp(state.SessionID{}),
		{num: nfs4.OpPutRootFH},
		getFH(&h), a.get(ofObject),
		openOp(1|nfs4.WantNoDeleg, 0, claimFH, &o), closeOp(state.Anonymous), bulk,
		{num: nfs4.OpCopy, res: w.decode},
		(&locks4{f: new(open4)}).lockOp(lockRange{}, false, false, new(state.Stateid)),
		unlockOp(state.Anonymous, lockRange{}),
		createOp(blockstore.TypeDir, func(*xdr.Encoder) {}, "n", nil),
		{num: nfs4.OpReadDir, res: func(d *xdr.Decoder) {
			page, _ := decodePage(d, nil)
			*total += len(page)
			for _, e := range page {
				*total += len(e.Name) + len(e.Handle)
			}
		}},
	}
}

// FuzzReplies: no reply of a server makes the client fall over, or take more than it
// was sent.
func FuzzReplies(f *testing.F) {
	var e xdr.Encoder
	e.Uint32(0)
	e.Uint32(0)
	e.Uint32(2)
	e.Uint32(nfs4.OpSequence)
	e.Uint32(0)
	e.Fixed(make([]byte, 16+5*4))
	e.Uint32(nfs4.OpReadDir)
	e.Uint32(0)
	e.Fixed(make([]byte, nfs3.VerifierLen))
	e.Bool(true)
	e.Uint64(7)
	e.String("name")
	nfs4.BitmapOf(nfs4.AttrType).Encode(&e)
	e.Opaque([]byte{0, 0, 0, 1})
	e.Bool(false)
	e.Bool(true)
	f.Add(e.B, []byte{0, 10})
	for i := range len(everyOp(new(int))) {
		f.Add(append([]byte(nil), e.B...), []byte{byte(i)})
	}
	f.Fuzz(func(t *testing.T, b, which []byte) {
		total := 0
		all := everyOp(&total)
		q := compound4{}
		for _, i := range which[:min(len(which), 64)] {
			q.ops = append(q.ops, all[int(i)%len(all)])
		}
		d := xdr.NewDecoder(b)
		var head *op4
		if len(which) > 0 && which[0]%2 == 0 && len(q.ops) > 0 {
			head = &q.ops[0]
			q.ops = q.ops[1:]
		}
		_, st, err := q.decode(&d, head)
		if total > len(b) {
			t.Errorf("%d bytes out of %d", total, len(b))
		}
		if err == nil && st == nfs.OK && q.executed != len(q.ops) {
			t.Errorf("%d of %d operations", q.executed, len(q.ops))
		}
	})
}

// TestGraceEndsEarly: a client that waits for the end of the grace period notices soon that it is
// over.
func TestGraceEndsEarly(t *testing.T) {
	s := newServer(t)
	s.known, s.cfg.Grace = []string{"a client that does not come"}, time.Minute
	s.restart()
	c := s.client()
	made := make(chan error, 1)
	go func() {
		f, err := c.CreateFile(context.Background(), "/data/f", 0o644)
		if err == nil {
			err = f.Close()
		}
		made <- err
	}()
	select {
	case err := <-made:
		t.Fatalf("made in the grace period: %v", err)
	case <-time.After(2800 * time.Millisecond): // doubled delays would go on until 5.1 s
	}
	end := time.Now()
	if err := s.four.State().EndGrace(end); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(end); took > 2*time.Second {
		t.Errorf("made %v after the end of the grace period", took)
	}
}
