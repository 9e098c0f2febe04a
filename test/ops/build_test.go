package ops

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// linked is what a program needs to start: its interpreter, libraries, and the newest version of
// the C library.
func linked(t *testing.T, file string) (interpreter string, libraries []string, glibc string) {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		t.Fatalf("%s is no program: %v", file, f.Type)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				t.Fatal(err)
			}
			interpreter = strings.TrimRight(string(b), "\x00")
		}
	}
	if interpreter == "" {
		return "", nil, ""
	}
	if libraries, err = f.ImportedLibraries(); err != nil {
		t.Fatal(err)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && newer(v, glibc) {
			glibc = v
		}
	}
	return interpreter, libraries, glibc
}

// newer compares versions such as 2.4 and 2.34.
func newer(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if len(x[i]) != len(y[i]) {
			return len(x[i]) > len(y[i])
		}
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return len(x) > len(y)
}

// TestBuilds: what make build makes needs nothing of the host, and what make build-rdma makes needs
// the C library, and opens those of rdma-core itself.
func TestBuilds(t *testing.T) {
	need(t, "make", "gcc")
	bin := binaries(t)
	for _, p := range []string{"rstored", "rstorectl"} {
		if i, l, _ := linked(t, filepath.Join(bin, p)); i != "" || l != nil {
			t.Errorf("%s is not static: it needs %s, %q", p, i, l)
		}
	}
	out := t.TempDir()
	build := func(env ...string) (string, error) {
		cmd := exec.Command("../../deploy/rdma.sh", "v1.0.0", out)
		cmd.Env = append(os.Environ(), env...)
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	if s, err := build(); err != nil {
		t.Fatalf("%v\n%s", err, s)
	}
	for _, p := range []string{"rstored", "rstorectl"} {
		_, libraries, glibc := linked(t, filepath.Join(out, p))
		for _, l := range libraries {
			if !slices.Contains([]string{
				"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2",
				"ld-linux-aarch64.so.1",
			}, l) {
				t.Errorf("%s needs %s", p, l)
			}
		}
		t.Logf("%s needs %q, glibc %s", p, libraries, glibc)
	}
	if s := command(t, filepath.Join(out, "rstored"), "version"); !strings.HasPrefix(s, "rstored v1.0.0 ") ||
		!strings.HasSuffix(s, " rdma-core") {
		t.Errorf("version %q", s)
	}
	// What is missing is named.
	for env, want := range map[string]string{
		"CC=no-such-compiler": "no C compiler no-such-compiler",
		"CC=false":            "libibverbs-dev",
	} {
		if s, err := build(env); err == nil || !strings.Contains(s, want) || !strings.Contains(s, runtime.GOARCH) {
			t.Errorf("%s: %v\n%s", env, err, s)
		}
	}
	// Both together: the static one gives way, unless it is told not to.
	dir := t.TempDir()
	command(t, "mkdir", "-p", dir+"/sbin", dir+"/lib/rstored")
	command(t, "cp", filepath.Join(bin, "rstored"), dir+"/sbin/rstored")
	command(t, "cp", "-r", out, dir+"/lib/rstored/rdma")
	if s := command(t, dir+"/sbin/rstored", "version"); !strings.HasSuffix(s, " rdma-core") {
		t.Errorf("the program for RDMA devices was not taken: %q", s)
	}
	if s := command(t, "env", "RSTORED_PROGRAM=static", dir+"/sbin/rstored", "version"); strings.HasSuffix(s,
		" rdma-core") {
		t.Errorf("the static program was not taken: %q", s)
	}
}
