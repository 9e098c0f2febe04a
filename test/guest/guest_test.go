package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestInterop runs the cases whose names match RSTORED_GUEST_CASES, all if it is
// empty, and all but the slow ones if it is "quick". A run of all writes the table
// of results to RSTORED_GUEST_TABLE. RSTORED_GUEST_JOBS cases, one if it is not set, are run at a
// time. It needs root and what the script build has made, and thus runs only where RSTORED_GUEST=1
// asks for it: make interop.
func TestInterop(t *testing.T) {
	if os.Getenv("RSTORED_GUEST") != "1" {
		t.Skip("guests are booted by make interop")
	}
	if os.Getuid() != 0 {
		t.Fatal("needs root, for namespaces and taps")
	}
	pattern := os.Getenv("RSTORED_GUEST_CASES")
	quick := pattern == "quick"
	if quick {
		pattern = ""
	}
	which, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := Cache()
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{Cache: cache, Bin: t.TempDir(), Keep: filepath.Join("..", "..", "out", "interop")}
	for _, args := range [][]string{
		{"-C", "../..", "-o", r.Bin, "./cmd/rstored", "./cmd/rstorectl"},
		{"-o", r.Bin, "../rdma/rping", "../rdma/cmatose", "../rdma/udaddy", "../rdma/verbs"},
	} {
		if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	chosen := func(c *Case) bool { return which.MatchString(c.Name) && !(quick && c.slowly()) }
	if slices.ContainsFunc(cases, func(c Case) bool { return chosen(&c) && (c.RDMACore || c.servedByGuest()) }) {
		if err := buildVerbs(filepath.Join(r.Bin, rdmaPrograms)); err != nil {
			t.Fatal(err)
		}
	}
	jobs := 1
	if n, err := strconv.Atoi(os.Getenv("RSTORED_GUEST_JOBS")); err == nil && n > 0 {
		jobs = n
	}
	begin := time.Now()
	var (
		all     []outcome
		running sync.WaitGroup
		turn    = make(chan struct{}, jobs)
	)
	for i := range cases {
		if chosen(&cases[i]) {
			all = append(all, outcome{c: &cases[i]})
		}
	}
	for i := range all {
		o := &all[i]
		turn <- struct{}{}
		running.Go(func() {
			defer func() { <-turn }()
			start := time.Now()
			o.err = r.Run(context.Background(), o.c)
			line := fmt.Sprintf("%-32s %s %6.1f s\n", o.c.Name, "pass", time.Since(start).Seconds())
			if o.err != nil {
				line = fmt.Sprintf("%-32s %s %6.1f s\n    %v\n", o.c.Name, "FAIL", time.Since(start).Seconds(), o.err)
			}
			fmt.Print(line)
		})
	}
	running.Wait()
	ran := len(all)
	var failed []string
	for _, o := range all {
		if o.err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", o.c.Name, o.err))
			t.Fail()
		}
	}
	if table := os.Getenv("RSTORED_GUEST_TABLE"); table != "" && ran == len(cases) {
		if err := writeTable(table, r.Kernel(), all); err != nil {
			t.Error(err)
		}
	}
	fmt.Printf("%d cases, %d failed, %.0f s\n", ran, len(failed), time.Since(begin).Seconds())
	if len(failed) > 0 {
		// Once more at the end: a log that was cut has its last lines.
		fmt.Printf("consoles, logs and packets are under out/interop\n%s\n", strings.Join(failed, "\n"))
	}
}

// buildVerbs builds what has the provider of rdma-core.
func buildVerbs(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"build", "-C", "../..", "-tags", "rdmacore", "-o", dir, "./cmd/rstored", "./cmd/rstorectl"},
		{"build", "-tags", "rdmacore", "-o", dir, "./reconnect"},
		{"test", "-C", "../..", "-c", "-tags", "rdmacore", "-o", filepath.Join(dir, "verbs.test"), "./rdma/verbs"},
		{"test", "-C", "../..", "-c", "-tags", "rdmacore", "-o", filepath.Join(dir, "rpcrdma.test"), "./rpcrdma"},
		{"test", "-C", "../..", "-c", "-tags", "rdmacore", "-o", filepath.Join(dir, "dial.test"), "./nfs/dial"},
	} {
		build := exec.Command("go", args...)
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if _, err := output(build); err != nil {
			return err
		}
	}
	_, err := output(exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
		filepath.Join(dir, "dmabuf.so"), filepath.Join("dmabuf", "dmabuf.c")))
	return err
}

// TestCases: names are directories under out/interop.
func TestCases(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range cases {
		if seen[c.Name] || !regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`).MatchString(c.Name) {
			t.Errorf("%q is not a name, or is there twice", c.Name)
		}
		seen[c.Name] = true
		if c.what() == "" {
			t.Errorf("%s is not described", c.Name)
		}
		if c.Script == "" {
			t.Errorf("%s has no script", c.Name)
		}
	}
}
