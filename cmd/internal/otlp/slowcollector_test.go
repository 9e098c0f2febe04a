package otlp

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// TestSlowCollector: calls do not wait for a collector that does not answer; those too many are
// counted, and the end does not wait for it either.
func TestSlowCollector(t *testing.T) {
	asked, open := make(chan struct{}, 100), make(chan struct{})
	k := collect(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		select {
		case <-open:
		case <-r.Context().Done():
		}
	})
	defer close(open)
	tr := newTracer(t, io.Discard)
	out, err := newExporter(k.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	const room, calls = 8, 100
	x := tr.newStream(out, 1, room, 1)
	tr.ended.Go(x.run)
	tr.change(x)
	tr.Observe(testCall(0), served, 1)
	<-asked
	for range calls {
		tr.Observe(testCall(0), served, 1)
	}
	if c := tr.Counts(); c != (Counts{Dropped: calls - room}) {
		t.Errorf("%+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr.Close(ctx)
	if c := tr.Counts(); c != (Counts{Dropped: calls - room, Failed: 1 + room}) {
		t.Errorf("after the end: %+v", c)
	}
	tr.Observe(testCall(0), served, 1) // comes too late, and harms nobody
}

// TestFailingCollector: what a collector does not take is counted, and it says why.
func TestFailingCollector(t *testing.T) {
	// The port is taken, so that nobody else listens there.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	absent := fmt.Sprintf("http://127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	partial := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 4)
	partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), "too old")
	partial = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
	for name, tc := range map[string]struct {
		url, want string
		answer    http.HandlerFunc
	}{
		"absent": {url: absent, want: "refused"},
		"500": {want: "500", answer: func(w http.ResponseWriter,
			_ *http.Request,
		) {
			w.WriteHeader(http.StatusInternalServerError)
		}},
		"moved": {want: "307", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/else", http.StatusTemporaryRedirect)
		}},
		"partial": {want: "too old", answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(partial) }},
		"garbage": {
			want:   errAnswer.Error(),
			answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte{0xff}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.url == "" {
				tc.url = collect(t, tc.answer).URL
			}
			var log bytes.Buffer
			tr := newTracer(t, &log)
			configure(t, tr, Settings{Endpoint: tc.url, Sample: 1})
			tr.Observe(testCall(0), served, 1)
			tr.Close(t.Context())
			if c := tr.Counts(); c != (Counts{Failed: 1}) {
				t.Errorf("%+v", c)
			}
			if n := strings.Count(log.String(), "does not take calls"); n != 1 || !strings.Contains(log.String(), tc.want) {
				t.Errorf("the log says %s", log.String())
			}
		})
	}
}

// TestTold: a collector that fails is told of once a minute, with how many calls were lost, and its
// return once.
func TestTold(t *testing.T) {
	var log bytes.Buffer
	tr := newTracer(t, &log)
	out, err := newExporter("http://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	x := tr.newStream(out, 1, 1, 1)
	at := time.Unix(1000, 0)
	bad := errors.New("no")
	for i, step := range []struct {
		after time.Duration
		err   error
		want  string
	}{
		{0, bad, `"calls":2`},
		{time.Second, bad, ""},
		{tellTime - 1, bad, ""},
		{tellTime, bad, `"calls":6`},
		{tellTime + 1, nil, "takes calls again"},
		{tellTime + 2, nil, ""},
	} {
		log.Reset()
		x.account(step.err, 2, at.Add(step.after))
		if got := log.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) ||
			strings.Count(got, "\n") > 1 {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	if c := tr.Counts(); c != (Counts{Sent: 4, Failed: 8}) {
		t.Errorf("%+v", c)
	}
}

// TestCA: a collector is believed by its authority, and settings that cannot be used change
// nothing.
func TestCA(t *testing.T) {
	k := new(collector)
	k.Server = httptest.NewTLSServer(k)
	defer k.Close()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.pem"), filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(good, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr := newTracer(t, io.Discard)
	configure(t, tr, Settings{Endpoint: k.URL + "/v1/traces", Sample: 1, CA: good})
	for _, ca := range []string{bad, filepath.Join(dir, "none.pem")} {
		if err := tr.Configure(Settings{Endpoint: k.URL, Sample: 1, CA: ca}); err == nil {
			t.Errorf("%s was taken", ca)
		}
	}
	tr.Observe(testCall(0), served, 1)
	tr.Close(t.Context())
	if c := tr.Counts(); c != (Counts{Sent: 1}) || len(k.got()) != 4 {
		t.Errorf("%+v, %d spans", c, len(k.got()))
	}
}

// TestConcurrently: settings change under calls, and no call is counted twice.
func TestConcurrently(t *testing.T) {
	a, b := collect(t, nil), collect(t, nil)
	tr := newTracer(t, io.Discard)
	configure(t, tr, Settings{Endpoint: a.URL, Sample: 1})
	var callers sync.WaitGroup
	const each, many = 500, 4
	for range many {
		callers.Go(func() {
			for range each {
				tr.Observe(testCall(0), served, 1)
			}
		})
	}
	for i := range 20 {
		configure(t, tr, []Settings{{Endpoint: b.URL, Sample: 1}, {}, {Endpoint: a.URL, Sample: 1}}[i%3])
	}
	callers.Wait()
	tr.Close(t.Context())
	c := tr.Counts()
	if c.Sent+c.Dropped+c.Failed > each*many || len(a.got())+len(b.got()) != 4*int(c.Sent) {
		t.Errorf("%+v, %d and %d spans", c, len(a.got()), len(b.got()))
	}
}

// FuzzRefused: whatever a collector answers does no harm.
func FuzzRefused(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x08, 0x04})
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := refused(b); err != nil && len(b) == 0 {
			t.Error(err)
		}
	})
}
