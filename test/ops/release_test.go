package ops

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRelease: make release builds packages twice, and apt and rpm accept what it signs. apt refuses
// an index that was changed afterwards.
func TestRelease(t *testing.T) {
	need(t, "gpg", "apt-get", "apt-ftparchive", "createrepo_c", "rpmsign", "rpmkeys")
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", keys)
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--kill", "all").Run() })
	const who = "test@rstored.example"
	command(t, "gpg", "--batch", "--passphrase", "", "--quick-gen-key", who, "rsa3072", "sign", "never")

	// A clone: the tree itself may have changes.
	tree, out := filepath.Join(dir, "tree"), filepath.Join(dir, "out")
	command(t, "git", "clone", "-q", root, tree)
	command(t, "make", "-C", tree, "release", "KEY="+who, "VERSION=v1.0.0", "OUT="+out, "ARCHES="+runtime.GOARCH,
		"FORMATS=deb rpm", "RDMA=no", "URL=file://"+out+"/release")
	repo := filepath.Join(out, "release")

	for _, d := range []string{"etc/sources.list.d", "lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sources, err := os.ReadFile(filepath.Join(repo, "rstored.sources"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(sources), "/usr/share/keyrings", repo)
	if err := os.WriteFile(filepath.Join(dir, "etc/sources.list.d/rstored.sources"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	apt := func(args ...string) (string, error) {
		c := exec.Command("apt-get", append([]string{
			"-o", "Dir::Etc=" + dir + "/etc", "-o", "Dir::State::lists=" + dir + "/lists", "-o", "Dir::Cache=" + dir + "/cache",
			"-o", "Dir::State::status=/dev/null", "-o", "APT::Sandbox::User=root", "-o", "APT::Update::Error-Mode=any",
		}, args...)...)
		c.Dir = dir
		b, err := c.CombinedOutput()
		return string(b), err
	}
	for _, args := range [][]string{{"update"}, {"download", "rstored"}} {
		if s, err := apt(args...); err != nil {
			t.Fatalf("apt-get %q: %v\n%s", args, err, s)
		}
	}
	one(t, filepath.Join(dir, "rstored_1.0.0_*.deb"))
	for _, index := range []string{"Packages", "Packages.gz"} {
		f := filepath.Join(repo, "apt/dists/stable/main/binary-"+runtime.GOARCH, index)
		if err := os.WriteFile(f, []byte("Package: rstored\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "find", filepath.Join(dir, "lists"), "-type", "f", "-delete")
	if s, err := apt("update"); err == nil {
		t.Errorf("apt takes an index that is not the signed one:\n%s", s)
	}

	db := filepath.Join(dir, "rpmdb")
	command(t, "rpmkeys", "--dbpath", db, "--import", filepath.Join(repo, "rstored.asc"))
	p := one(t, filepath.Join(repo, "rpm/*/rstored-1.0.0-*.rpm"))
	if s := command(t, "rpmkeys", "--dbpath", db, "-Kv", p); !strings.Contains(s, "Signature, key ID") {
		t.Errorf("%s has no signature:\n%s", p, s)
	}
	meta := one(t, filepath.Join(repo, "rpm/*/repodata/repomd.xml"))
	command(t, "gpg", "--verify", meta+".asc", meta)
}
