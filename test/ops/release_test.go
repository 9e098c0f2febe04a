package ops

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRelease: make release builds packages twice, and apt, rpm and dnf accept what it signs. apt
// and dnf refuse what was changed afterwards.
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
	t.Run("dnf", func(t *testing.T) { viaDNF(t, repo, who) })
}

// viaDNF installs the RPM package in a clean system by dnf from the repository, reinstalls it, and
// removes it. dnf refuses a package and an index that are not the signed ones.
func viaDNF(t *testing.T, repo, who string) {
	c := boot(t)
	const at = "/srv/repository"
	command(t, "cp", "-r", repo, filepath.Join(c.dir, at))
	text, err := os.ReadFile(filepath.Join(repo, "rstored.repo"))
	if err != nil {
		t.Fatal(err)
	}
	c.write("/etc/yum.repos.d/rstored.repo", strings.ReplaceAll(string(text), "file://"+repo, "file://"+at))
	// The package needs systemd, which dpkg has installed here.
	c.write("/srv/systemd.spec", "Name: systemd\nVersion: 252\nRelease: 1\nSummary: that of dpkg\nLicense: none\n"+
		"BuildArch: noarch\n%description\nthat of dpkg\n%files\n")
	c.run("mkdir -p /var/lib/rpm && rpm --initdb && rpmbuild -bb --define '_rpmdir /srv' /srv/systemd.spec && " +
		"rpm -i /srv/noarch/systemd-*.rpm")
	before := c.files()
	const dnf = "dnf -y --setopt=cachedir=/var/cache/dnf "
	c.run(dnf + "install rstored && rpm -q rstored && systemctl enable --now rstored && rstorectl status")
	c.run("rpm -qi rstored | grep -q '^Signature.*RSA'")
	key := c.run("sha256sum /var/lib/rstored/handle.key")
	if s := c.run(dnf + "reinstall rstored && rpm -V rstored && rstorectl status >/dev/null && sha256sum " +
		"/var/lib/rstored/handle.key"); !strings.HasSuffix(s, key) {
		t.Errorf("another state: %s, was %s", s, key)
	}
	c.run(dnf + "remove rstored")
	if s, _ := c.try("systemctl is-active rstored; command -v rstored"); s != "inactive" {
		t.Errorf("after the removal: %q", s)
	}
	onlyState(t, c, before)

	refused := func(what string) {
		t.Helper()
		c.run("dnf clean all")
		if s, err := c.try(dnf + "install rstored"); err == nil {
			t.Errorf("dnf takes %s:\n%s", what, s)
		}
		if s, err := c.try("rpm -q rstored"); err == nil {
			t.Errorf("%s is installed: %s", what, s)
		}
	}
	// A package without a signature, in an index that is signed as it should be.
	dir := filepath.Dir(one(t, filepath.Join(c.dir, at, "rpm/*/repodata")))
	p := one(t, filepath.Join(dir, "rstored-1.0.0-*.rpm"))
	command(t, "rpmsign", "--delsign", p)
	command(t, "createrepo_c", "-q", dir)
	index := filepath.Join(dir, "repodata/repomd.xml")
	command(t, "gpg", "--batch", "--yes", "--local-user", who, "--armor", "--detach-sign", "--output", index+".asc", index)
	refused("a package without a signature")
	// An index that is not the signed one.
	command(t, "sh", "-c", "echo >>"+index)
	refused("an index that was changed")
}
