package handover

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pair is two ends in this process.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = Open(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

func TestParts(t *testing.T) {
	a, b := pair(t)
	dir := t.TempDir()
	var files []*os.File
	for i := range 3*batch + 1 {
		f, err := os.Create(filepath.Join(dir, string(rune('A'+i%26))+strings.Repeat("x", i)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		defer func() { _ = f.Close() }()
	}
	parts := []*Part{
		{Name: "nothing"},
		{Name: "files", Version: 3, Files: files},
		{Name: "all", Version: 1 << 20, Data: bytes.Repeat([]byte("0123456789"), 1<<17), Files: files[:batch]},
		{Name: strings.Repeat("n", NameMax), Data: []byte{1}},
	}
	sent := make(chan error, 1)
	go func() {
		for _, p := range parts {
			if err := a.Send(p); err != nil {
				sent <- err
				return
			}
		}
		sent <- a.Close()
	}()
	for _, want := range parts {
		got, err := b.Receive()
		if err != nil {
			t.Fatalf("part %q: %v", want.Name, err)
		}
		if got.Name != want.Name || got.Version != want.Version || !bytes.Equal(got.Data, want.Data) ||
			len(got.Files) != len(want.Files) {
			t.Fatalf("part %q, version %d, %d bytes, %d files; want %q, %d, %d, %d", got.Name, got.Version, len(got.Data),
				len(got.Files),
				want.Name, want.Version, len(want.Data), len(want.Files))
		}
		for i, f := range got.Files {
			is, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if was, err := want.Files[i].Stat(); err != nil || !os.SameFile(is, was) {
				t.Fatalf("part %q: file %d is another (%v)", want.Name, i, err)
			}
		}
		got.Close()
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
}

func TestBounds(t *testing.T) {
	a, _ := pair(t)
	for _, p := range []*Part{
		{Name: strings.Repeat("n", NameMax+1)},
		{Name: "version", Version: -1},
		{Name: "files", Files: make([]*os.File, FilesMax+1)},
	} {
		if err := a.Send(p); err == nil {
			t.Errorf("part %.10q was sent", p.Name)
		}
	}
}

// TestEndInPart: a process that ends in the middle is not one that has no more to say.
func TestEndInPart(t *testing.T) {
	whole, err := header(&Part{Name: "cut", Data: []byte("data")})
	if err != nil {
		t.Fatal(err)
	}
	whole = append(whole, "data"...)
	for n := range whole {
		_, err := decode(bytes.NewReader(whole[:n]), nil)
		if n == 0 && !errors.Is(err, io.EOF) || n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestFilesMissing: files that do not come with their byte are an error, and those that came are
// closed.
func TestFilesMissing(t *testing.T) {
	a, b := pair(t)
	h, err := header(&Part{Name: "files", Files: make([]*os.File, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.c.Write(append(h, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Receive(); !errors.Is(err, ErrFormat) {
		t.Fatalf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range []*Part{
		{Name: "a"},
		{Name: "b", Version: 1, Data: []byte("data")},
		{Name: "c", Files: make([]*os.File, 70), Data: []byte("x")},
	} {
		b, err := header(p)
		if err != nil {
			f.Fatal(err)
		}
		b = append(b, make([]byte, (len(p.Files)+batch-1)/batch)...)
		f.Add(append(b, p.Data...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		p, err := decode(r, func(n int) ([]*os.File, error) {
			if _, err := r.ReadByte(); err != nil {
				return nil, err
			}
			return make([]*os.File, n), nil
		})
		if err != nil {
			return
		}
		again, err := header(p)
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, make([]byte, (len(p.Files)+batch-1)/batch)...)
		if n := len(again); len(b) < n || !bytes.Equal(again[:headerSize+len(p.Name)], b[:headerSize+len(p.Name)]) {
			t.Fatalf("decoded %+v of %x", p, b)
		}
		if rest := b[len(again) : len(b)-r.Len()]; !bytes.Equal(rest, p.Data) {
			t.Fatalf("data %x, want %x", p.Data, rest)
		}
	})
}
