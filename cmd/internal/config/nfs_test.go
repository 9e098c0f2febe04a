package config

import (
	"reflect"
	"testing"
)

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		file   string
		args   []string
		want   []string
		minors []uint32
	}{
		{"", nil, []string{"3", "4.0", "4.1", "4.2"}, []uint32{0, 1, 2}},
		{"nfs_versions: [4.2, 3]\n", nil, []string{"3", "4.2"}, []uint32{2}},
		{"nfs_versions: [4.0]\n", nil, []string{"4.0"}, []uint32{0}}, // the number 4
		{"nfs_versions: ['4.0', \"v4.1\", 4.1]\n", nil, []string{"4.0", "4.1"}, []uint32{0, 1}},
		{"nfs_versions: [3]\n", nil, []string{"3"}, nil},
		{"nfs_versions: [3]\n", []string{"--nfs-versions", "4.1,4.2"}, []string{"4.1", "4.2"}, []uint32{1, 2}},
	} {
		got, err := load(t, c.file, c.args...)
		if err != nil || !reflect.DeepEqual(got.NFSVersions, c.want) || !reflect.DeepEqual(got.Minors(), c.minors) {
			t.Errorf("%q %v: %v, %v", c.file, c.args, got, err)
		}
	}
	t.Setenv("RSTORED_NFS_VERSIONS", "3,4.2")
	t.Setenv("RSTORED_IDMAP_DOMAIN", "example.org")
	got, err := load(t, "idmap: {method: names, domain: x}\nutf8: strict\n")
	if err != nil || len(got.NFSVersions) != 2 || got.IDMap != (IDMap{"example.org", IDNames}) || got.UTF8 != UTF8Strict {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestHostLocksOption(t *testing.T) {
	for _, c := range []struct {
		spec string
		want any
	}{{"/d", nil}, {"/d(no_host_locks)", false}, {"/d(no_host_locks,host_locks)", true}} {
		e, err := ParseExport(c.spec)
		if err != nil || (e.HostLocks == nil) != (c.want == nil) || e.HostLocks != nil && *e.HostLocks != c.want {
			t.Errorf("%s: %v, %v", c.spec, e.HostLocks, err)
		}
	}
}

func TestDirectOption(t *testing.T) {
	for spec, want := range map[string]bool{
		"/d": false, "/d(direct)": true, "/d(direct,no_direct)": false,
		"/d 10.0.0.0/8(rw,direct)": true,
	} {
		e, err := ParseExport(spec)
		if err != nil || e.Direct != want {
			t.Errorf("%s: %v, %v", spec, e.Direct, err)
		}
	}
	if _, err := ParseExport("/d(direct=1)"); err == nil {
		t.Error("direct takes no value")
	}
}

func TestNFS4Memory(t *testing.T) {
	for file, want := range map[string][2]int64{
		"": {1 << 30, 256 << 20},
		"nfs4_memory: 64M\nnfs4_client_memory: 1M\n": {64 << 20, 1 << 20},
	} {
		c, err := load(t, file)
		if err != nil {
			t.Fatal(err)
		}
		if all, client := c.NFS4MemoryBytes(); all != want[0] || client != want[1] {
			t.Errorf("%q: %d and %d", file, all, client)
		}
	}
	for _, file := range []string{
		"nfs4_memory: 1M\n", "nfs4_memory: much\n", "nfs4_client_memory: 2G\n",
		"nfs4_client_memory: 1\n", "nfs4_memory: ''\n",
	} {
		if _, err := load(t, file); err == nil {
			t.Errorf("%q is accepted", file)
		}
	}
}

func TestMappedMemory(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "4M": 4 << 20, "4G": 4 << 30, "64G": 64 << 30} {
		c := Default()
		c.StateDir, c.Control = "/", "/"
		c.MappedMemory = in
		if err := c.Validate(); err != nil || c.MappedBytes() != want {
			t.Errorf("%q: %d, %v", in, c.MappedBytes(), err)
		}
	}
	for _, in := range []string{"", "1M", "65G", "-1", "much"} {
		c := Default()
		c.StateDir, c.Control = "/", "/"
		c.MappedMemory = in
		if err := c.Validate(); err == nil {
			t.Errorf("%q is a bound", in)
		}
	}
}
