package tshark

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/kernel-kinds.txt from the captures in RSTORED_CAPTURES")

// limit is far more than any capture here needs.
const limit = time.Minute

// TestKernel: the kinds in testdata are those of the kernel's packets in the captures of
// RSTORED_CAPTURES.
func TestKernel(t *testing.T) {
	dir := os.Getenv("RSTORED_CAPTURES")
	if dir == "" {
		t.Skip("RSTORED_CAPTURES names no directory of captures")
	}
	if _, err := exec.LookPath("tshark"); errors.Is(err, exec.ErrNotFound) {
		t.Skip("tshark is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	files, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	all := make(map[string]int)
	for _, name := range files {
		kinds, err := Kinds(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		for k, n := range kinds {
			all[k] += n
		}
	}
	kinds := slices.Sorted(maps.Keys(all))
	for _, k := range kinds {
		t.Logf("%5d %s", all[k], k)
	}
	if *update {
		var b bytes.Buffer
		b.WriteString("# What tshark holds against the Linux kernel's own packets, client and server.\n" +
			"# Written by: RSTORED_CAPTURES=dir go test ./rdma/wire/wiretest/tshark -run Kernel -update\n")
		for _, k := range kinds {
			fmt.Fprintln(&b, k)
		}
		if err := os.WriteFile(filepath.Join("testdata", "kernel-kinds.txt"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if kept := slices.Sorted(maps.Keys(Allowed())); !slices.Equal(kept, kinds) {
		t.Errorf("the captures give\n%s\nand testdata/kernel-kinds.txt has\n%s", strings.Join(kinds, "\n"),
			strings.Join(kept, "\n"))
	}
}
