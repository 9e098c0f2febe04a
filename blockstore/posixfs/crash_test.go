package posixfs

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// TestCrash kills a server in the middle of stable writes, creations and
// renames, and checks that everything acknowledged is there under the handles
// that were given out.
func TestCrash(t *testing.T) {
	if dir := os.Getenv("POSIXFS_CRASH_DIR"); dir != "" {
		crashChild(dir, os.Getenv("POSIXFS_CRASH_STATE"), os.Getenv("POSIXFS_CRASH_TABLE") != "")
		return
	}
	for name, opts := range map[string]Options{"auto": {}, "table": {Handles: Server}} {
		t.Run(name, func(t *testing.T) {
			for round := range 4 {
				crashOnce(t, opts, uint64(round))
			}
		})
	}
}

// The child's acknowledgements, one a line: what the client now relies on.
const (
	ackFile   = "file"   // handle, name
	ackWrite  = "write"  // handle, block number, its generation
	ackRename = "rename" // handle, new name
	ackVerf   = "verf"
	ackExcl   = "excl" // handle, name
)

const crashBlock = 8192

func crashFill(p []byte, h string, block, gen int) {
	line := fmt.Sprintf("%s %d %d|", h, block, gen)
	for i := range p {
		p[i] = line[i%len(line)]
	}
}

func crashChild(dir, state string, table bool) {
	opts := Options{StateDir: state}
	if table {
		opts.Handles = Server
	}
	f, err := Open(dir, opts)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	r, _ := f.Root()
	v := f.Verifier()
	fmt.Println(ackVerf, hex.EncodeToString(v[:]))
	p := make([]byte, crashBlock)
	for i := 0; ; i++ {
		name := fmt.Sprintf("f%d", i)
		h, _, _, err := f.Create(nil, r, name, blockstore.Guarded, nil, [8]byte{})
		fail(err)
		id := hex.EncodeToString(h.Bytes())
		fmt.Println(ackFile, id, name)
		for gen := range 3 {
			for block := range 3 {
				crashFill(p, id, block, gen)
				_, _, _, err := f.WriteAt(nil, h, p, uint64(block*crashBlock), blockstore.Stability(1+gen%2))
				fail(err)
				fmt.Println(ackWrite, id, block, gen)
			}
		}
		_, _, err = f.Rename(nil, r, name, r, "r"+name)
		fail(err)
		fmt.Println(ackRename, id, "r"+name)
		x, _, _, err := f.Create(nil, r, "x"+name, blockstore.Exclusive, nil,
			[8]byte{1, byte(i), 3, 4, 5, 6, 7, byte(i >> 8)})
		fail(err)
		fmt.Println(ackExcl, hex.EncodeToString(x.Bytes()), "x"+name)
	}
}

func crashOnce(t *testing.T, opts Options, seed uint64) {
	s := newSite(t, opts)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
	cmd.Env = append(os.Environ(), "POSIXFS_CRASH_DIR="+s.dir, "POSIXFS_CRASH_STATE="+s.state)
	if opts.Handles == Server {
		cmd.Env = append(cmd.Env, "POSIXFS_CRASH_TABLE=1")
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	wait := time.Duration(rand.New(rand.NewPCG(seed, 7)).IntN(300)+150) * time.Millisecond
	var timer *time.Timer // from the first file on, which a busy host may take long to come to
	var acks []string
	for sc := bufio.NewScanner(out); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "error") {
			t.Fatal(sc.Text())
		}
		acks = append(acks, sc.Text())
		if timer == nil && strings.HasPrefix(sc.Text(), ackFile) {
			timer = time.AfterFunc(wait, func() { cmd.Process.Kill() })
			defer timer.Stop()
		}
	}
	cmd.Wait()
	f := s.open(t)
	defer f.Close()
	r, _ := f.Root()
	type file struct {
		gen  map[int]int
		name string
	}
	files := map[string]*file{}
	handle := func(text string) blockstore.Handle {
		b, err := hex.DecodeString(text)
		must(t, err)
		h, _ := blockstore.MakeHandle(b)
		return h
	}
	for _, line := range acks {
		w := strings.Fields(line)
		switch w[0] {
		case ackVerf:
			v := f.Verifier()
			if w[1] == hex.EncodeToString(v[:]) {
				t.Error("the write verifier survived the crash")
			}
		case ackFile:
			files[w[1]] = &file{gen: map[int]int{}, name: w[2]}
		case ackWrite:
			var block, gen int
			fmt.Sscan(w[2], &block)
			fmt.Sscan(w[3], &gen)
			files[w[1]].gen[block] = gen
		case ackRename:
			files[w[1]].name = w[2]
		case ackExcl:
			h, _, err := f.Lookup(nil, r, w[2])
			must(t, err)
			if h != handle(w[1]) {
				t.Errorf("%s has another handle", w[2])
			}
			var i int
			fmt.Sscanf(w[2], "xf%d", &i)
			again, _, _, err := f.Create(nil, r, w[2], blockstore.Exclusive, nil,
				[8]byte{1, byte(i), 3, 4, 5, 6, 7, byte(i >> 8)})
			if err != nil || again != h {
				t.Errorf("the retry of an exclusive create after the crash: %v", err)
			}
		}
	}
	writes := 0
	for text, x := range files {
		h := handle(text)
		data := readAll(t, f, h)
		for block, gen := range x.gen {
			// A later generation may have been written and not acknowledged.
			found := false
			for g := gen; g < 3 && !found; g++ {
				p := make([]byte, crashBlock)
				crashFill(p, text, block, g)
				found = len(data) >= (block+1)*crashBlock && data[block*crashBlock:(block+1)*crashBlock] == string(p)
			}
			if !found {
				t.Errorf("%s: block %d generation %d was acknowledged and is not there", x.name, block, gen)
			}
			writes++
		}
		got, _, err := f.Lookup(nil, r, x.name)
		if errors.Is(err, blockstore.ErrNotExist) && x.name[0] == 'f' {
			got, _, err = f.Lookup(nil, r, "r"+x.name) // renamed, not acknowledged
		}
		if err != nil || got != h {
			t.Errorf("%s: %v, same handle %v", x.name, err, got == h)
		}
	}
	t.Logf("seed %d: killed after %v, %d files, %d stable writes, all there", seed, wait, len(files), writes)
	if len(files) == 0 {
		t.Error("killed before anything happened")
	}
}
