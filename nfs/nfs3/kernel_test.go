package nfs3_test

import (
	"bufio"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs3/nfs3test"
)

// TestKernel: what the kernel's client and server say to each other is decoded to
// its last byte and encoded to the same bytes.
func TestKernel(t *testing.T) {
	file, err := os.Open("testdata/kernel.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := make(map[uint32]int)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if field[0] == "#" {
			continue
		}
		n, err := strconv.ParseUint(field[0], 10, 32)
		if err != nil || len(field) != 3 {
			t.Fatalf("line %q", lines.Text())
		}
		proc := uint32(n)
		var b [2][]byte
		for i := range b {
			if field[1+i] == "-" {
				continue
			}
			if b[i], err = hex.DecodeString(field[1+i]); err != nil {
				t.Fatal(err)
			}
		}
		seen[proc]++
		if err := nfs3test.Args(nfs3.Program, proc, b[0]); err != nil {
			t.Errorf("arguments of procedure %d: %v", proc, err)
		}
		if err := nfs3test.Results(nfs3.Program, proc, b[1]); err != nil {
			t.Errorf("results of procedure %d: %v", proc, err)
		}
	}
	if len(seen) < 18 {
		t.Errorf("%d procedures", len(seen))
	}
	t.Logf("calls by procedure: %v", seen)
}
