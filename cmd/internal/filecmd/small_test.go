package filecmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/nfs/client"
)

// compounds is the number of COMPOUNDs that the server has answered.
func (r *rig) compounds() (n uint64) {
	for _, p := range r.srv.Stats().Procs {
		if p.Procedure == "COMPOUND" {
			n += p.Calls
		}
	}
	return n
}

// TestSmallFiles: several small files are one call. If that call fails, the old file of the name
// stays, with nothing beside it, and the failure is reported.
func TestSmallFiles(t *testing.T) {
	r := newRig(t)
	r.vers = client.Version42
	tree := filepath.Join(r.dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	const files = 100
	for i := range files {
		r.write(fmt.Sprintf("tree/file-%d", i), random(i*50, uint64(i)), 0o640)
	}
	const around = 20 // to begin and end a session, to find the target and to make the directory
	for range 2 {     // the second time the files replace those of before
		before := r.compounds()
		if err := r.copy(t.Context(), copyFlags{recursive: true}, resumeChunk, tree, r.url+"/tree"); err != nil {
			t.Fatal(err, r.said.String())
		}
		if n := r.compounds() - before; n > files/4+around {
			t.Errorf("%d calls for %d files", n, files)
		}
	}
	back := filepath.Join(r.dir, "back")
	for _, verify := range []bool{false, true} {
		before := r.compounds()
		err := r.copy(t.Context(), copyFlags{recursive: true, verify: verify}, resumeChunk, r.url+"/tree", back)
		if err != nil {
			t.Fatal(err, r.said.String())
		}
		if n := r.compounds() - before; !verify && n > files/10+around {
			t.Errorf("%d calls to read %d files", n, files)
		}
		if got, err := os.ReadDir(back); err != nil || len(got) != files {
			t.Fatalf("%d files came back, %v", len(got), err)
		}
	}
	for i := range files {
		p := filepath.Join(back, fmt.Sprintf("file-%d", i))
		st, err := os.Stat(p)
		b, _ := os.ReadFile(p)
		if err != nil || !bytes.Equal(b, random(i*50, uint64(i))) || st.Mode() != 0o640 {
			t.Fatalf("file %d: %d bytes, %v, %v", i, len(b), st.Mode(), err)
		}
	}

	old, bad := r.write("old", []byte("the old one"), 0o604), r.write("bad", random(5000, 1), 0o644)
	if err := r.copy(t.Context(), copyFlags{}, resumeChunk, old, r.url+"/file"); err != nil {
		t.Fatal(err, r.said.String())
	}
	r.store.from.Store(3000) // what is written from there on fails
	if err := r.copy(t.Context(), copyFlags{}, resumeChunk, bad, r.url+"/file"); err == nil {
		t.Error("no error")
	}
	if !bytes.Contains(r.said.Bytes(), []byte("input/output error")) {
		t.Errorf("the error is %q", r.said.String())
	}
	if b, a := r.remoteFile("file"); string(b) != "the old one" || a.Mode != 0o604 || len(r.names()) != 2 {
		t.Errorf("the target has %d bytes, %+v; there are %q", len(b), a, r.names())
	}
}

// TestSmallFilesFailed: one of the files that share a call fails, and the others are copied.
func TestSmallFilesFailed(t *testing.T) {
	for _, v := range []client.Version{client.Version3, client.Version42} {
		r := newRig(t)
		r.vers = v
		tree := filepath.Join(r.dir, "tree")
		if err := os.Mkdir(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		const files, bad = 40, 7
		for i := range files {
			n := 100
			if i == bad {
				n = 5000
			}
			r.write(fmt.Sprintf("tree/file-%d", i), random(n, uint64(i)), 0o640)
		}
		r.store.from.Store(3000) // what is written or read from there on fails
		if err := r.copy(t.Context(), copyFlags{recursive: true}, resumeChunk, tree, r.url+"/tree"); err == nil {
			t.Error("no error")
		}
		if got := bytes.Count(r.said.Bytes(), []byte("\n")); got != 1 {
			t.Errorf("version %v: %q", v, r.said.String())
		}
		r.store.from.Store(0)
		back := filepath.Join(r.dir, "back")
		if err := r.copy(t.Context(), copyFlags{recursive: true}, resumeChunk, r.url+"/tree", back); err != nil {
			t.Fatal(err, r.said.String())
		}
		all, err := os.ReadDir(back)
		if err != nil || len(all) != files-1 {
			t.Errorf("version %v: %d files, %v", v, len(all), err)
		}
		for i := range files {
			b, err := os.ReadFile(filepath.Join(back, fmt.Sprintf("file-%d", i)))
			if i == bad {
				if err == nil {
					t.Error("the file that failed is there")
				}
			} else if err != nil || !bytes.Equal(b, random(100, uint64(i))) {
				t.Errorf("version %v: file %d: %d bytes, %v", v, i, len(b), err)
			}
		}
		// On the way back the same.
		r.said.Reset()
		r.store.from.Store(99)
		if err := r.copy(t.Context(), copyFlags{recursive: true}, resumeChunk, r.url+"/tree", back+"2"); err == nil {
			t.Error("no error")
		}
		if all, err := os.ReadDir(back + "2"); err != nil || len(all) != 0 {
			t.Errorf("version %v: %d files are there, %v", v, len(all), err)
		}
		if got := bytes.Count(r.said.Bytes(), []byte("\n")); got != files-1 {
			t.Errorf("version %v: %d messages: %q", v, got, r.said.String())
		}
	}
}
