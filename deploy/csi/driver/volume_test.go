package driver

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestDirName(t *testing.T) {
	for _, name := range []string{"pvc-0b6e8c51-8d53-4b3b-9d8f-0f8e0f0a3c11", "a", "A.b_c-1"} {
		if got := dirName(name); got != name {
			t.Errorf("%q became %q", name, got)
		}
	}
	seen := make(map[string]string)
	for _, name := range []string{
		"", ".", "..", "../x", "/", "a/b", ".hidden", "-rf", "a\x00b", "a\nb", recordDir,
		strings.Repeat("x", 128), strings.Repeat("x", 127), "a#b", "ä", "a#retain",
	} {
		got := dirName(name)
		if !isDirName(got) || got == name || seen[got] != "" {
			t.Errorf("%q became %q, as %q did", name, got, seen[got])
		}
		seen[got] = name
	}
}

func TestIdentifiers(t *testing.T) {
	for _, tt := range []struct {
		transport, server, share string
		port                     uint16
		retain                   bool
		want                     string
	}{
		{"tcp", "10.0.0.1", "/data", 0, false, "nfs+tcp://10.0.0.1:2049/data#pvc-1"},
		{"rdma", "nas.example", "/", 0, true, "nfs+rdma://nas.example:20049/#pvc-1#retain"},
		{"rdma", "fd00::1", "/a b", 4711, false, "nfs+rdma://[fd00::1]:4711/a b#pvc-1"},
		{"tcp", "h", "/a#b%?c", 0, true, "nfs+tcp://h:2049/a%23b%25%3Fc#pvc-1#retain"},
	} {
		at, err := location(tt.transport, tt.server, tt.port, tt.share)
		if err != nil {
			t.Fatal(err)
		}
		v := volume{share: at, directory: "pvc-1", retain: tt.retain}
		id, err := v.id()
		if err != nil || id != tt.want {
			t.Errorf("%q, %v; want %q", id, err, tt.want)
		}
		if back, err := parseID(id); err != nil || back != v {
			t.Errorf("%q is %+v, %v; want %+v", id, back, err, v)
		}
	}
	for _, id := range []string{
		"", "#", "vol-1", "nfs+tcp://h:2049/data", "nfs+tcp://h:2049/data#", "nfs+tcp://h:2049/data#..",
		"nfs+tcp://h:2049/data#a/b",
		"nfs+tcp://h:2049/data#.rstored-csi", "nfs+tcp://h:2049/data/../etc#a", "nfs+tcp://h:2049/data/v/../#v",
		"nfs+tcp://h/data#a", "nfs://h:2049/data#a",
		"NFS+TCP://h:2049/data#a", "nfs+tcp://h:2049/data/#a", "nfs+tcp://h:2049/data#a#keep",
		"nfs+tcp://h:2049/data#a#retain#retain",
		"nfs+tcp://h:2049/%64ata#a", "ftp://h/data#a", "nfs+tcp://h:2049/" + strings.Repeat("d", idMax) + "#a",
	} {
		if v, err := parseID(id); err == nil {
			t.Errorf("%q was taken as %+v", id, v)
		}
	}
	at, err := location("tcp", strings.Repeat("h", 60)+"."+strings.Repeat("h", 60), 0, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (volume{share: at, directory: "a"}).id(); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("an identifier that is too long: %v", err)
	}
}

// FuzzParseID: whatever is taken is written again as it was read, and names one directory below the
// share.
func FuzzParseID(f *testing.F) {
	f.Add("nfs+tcp://10.0.0.1:2049/data#pvc-1")
	f.Add("nfs+rdma://[fd00::1]:20049/a%23b#pvc-1#retain")
	f.Fuzz(func(t *testing.T, id string) {
		v, err := parseID(id)
		if err != nil {
			return
		}
		if again, err := v.id(); err != nil || again != id || strings.ContainsAny(v.directory, "/\x00") ||
			strings.HasPrefix(v.directory, ".") {
			t.Errorf("%q: %+v, %q, %v", id, v, again, err)
		}
	})
}

func TestClass(t *testing.T) {
	ok := map[string]string{"server": "nas", "share": "/data"}
	with := func(kv ...string) map[string]string {
		m := map[string]string{}
		maps.Copy(m, ok)
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	c, err := parseClass(with("csi.storage.k8s.io/pvc/name", "x", "uid", "7", "mode", "2770", "onDelete", "retain",
		"controllerTransport", "rdma", "transport", "tcp", "port", "12049", "mount", "fuse", "topology", "net=a"))
	if err != nil {
		t.Fatal(err)
	}
	if *c.uid != 7 || c.gid != nil || c.mode != 0o2770 || !c.retain ||
		c.controller.String() != "nfs+rdma://nas:20049/data" || c.transport != "tcp" || c.port != 12049 {
		t.Errorf("%+v", c)
	}
	if m := c.context(); m["server"] != "nas" || m["share"] != "/data" || m["transport"] != "tcp" ||
		m["port"] != "12049" || m["mount"] != "fuse" || m["topology"] != "" || c.topology[0]["net"] != "a" {
		t.Errorf("%v", m)
	}
	for want, params := range map[string]map[string]string{
		"server is missing":      {"share": "/data"},
		`share ""`:               {"server": "nas"},
		`share "data"`:           with("share", "data"),
		`share "/data/../etc"`:   with("share", "/data/../etc"),
		`share "/data/"`:         with("share", "/data/"),
		`server "a,addr=b"`:      with("server", "a,addr=b"),
		`server "a:2049"`:        with("server", "a:2049"),
		"unknown parameter":      with("Share", "/x"),
		"directory":              with("directory", "/x"),
		`transport "udp"`:        with("transport", "udp"),
		`controllerTransport`:    with("controllerTransport", "udp"),
		`mount "nfs"`:            with("mount", "nfs"),
		`topology net`:           with("topology", "net"),
		`port "0"`:               with("port", "0"),
		`controllerPort "70000"`: with("controllerPort", "70000"),
		`onDelete "keep"`:        with("onDelete", "keep"),
		`mode "rwx"`:             with("mode", "rwx"),
		`uid "root"`:             with("uid", "root"),
		`gid "-1"`:               with("gid", "-1"),
	} {
		if _, err := parseClass(params); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %s", params, err, want)
		}
	}
}

func TestContext(t *testing.T) {
	for _, dir := range []string{"..", "../x", "a/../../x", "/x", "a//b", "a/", ".", "a\nb"} {
		if p, err := parsePlace(map[string]string{"server": "nas", "share": "/data", "directory": dir}); err == nil {
			t.Errorf("directory %q: %+v", dir, p)
		}
	}
	p, err := parsePlace(map[string]string{"server": "[fd00::1]", "share": "/data", "directory": "a/b"})
	if err != nil || p.source() != "[fd00::1]:/data/a/b" {
		t.Errorf("%q, %v", p.source(), err)
	}
	if p.directory = ""; p.source() != "[fd00::1]:/data" {
		t.Errorf("%q", p.source())
	}
}

func TestMountOptions(t *testing.T) {
	for _, tt := range []struct {
		p        place
		in       string
		readOnly bool
		flags    string
		data     string
		wrong    string
	}{
		{data: "rdma,port=20049,vers=4.2"},
		{in: "rdma,port=20049", data: "rdma,port=20049,vers=4.2"},
		{p: place{transport: "tcp"}, data: "tcp,port=2049,vers=4.2"},
		{p: place{transport: "tcp", port: 99}, in: "port=99", data: "tcp,port=99,vers=4.2"},
		{in: "tcp,nconnect=4,hard", data: "tcp,port=2049,vers=4.2,nconnect=4,hard"},
		{in: "proto=rdma6,vers=4.1", data: "rdma,port=20049,vers=4.1"},
		{
			in: "defaults,rw,_netdev,x-systemd.automount,noatime, nosuid", flags: "noatime,nosuid",
			data: "rdma,port=20049,vers=4.2",
		},
		{readOnly: true, flags: "ro", data: "rdma,port=20049,vers=4.2"},
		{in: "ro", flags: "ro", data: "rdma,port=20049,vers=4.2"},
		{in: "nfsvers=3,nolock", data: "rdma,port=20049,vers=3,nolock"},
		{in: "v4.0", data: "rdma,port=20049,vers=4.0"},
		{in: "vers=3", wrong: "nolock"},
		{in: "vers=2", wrong: "use 4.2"},
		{in: "udp", wrong: "use rdma or tcp"},
		{in: "proto=udp", wrong: "use rdma or tcp"},
		{in: "port=x", wrong: "port"},
		{in: "addr=10.0.0.1", wrong: "set by the driver"},
		{in: "bg", wrong: "tried again"},
		{in: "hard\nsoft", wrong: "cannot be one"},
		{p: place{fuse: true}, data: ""},
		{p: place{fuse: true}, in: "tcp,port=99,noatime,soft", flags: "noatime", data: "soft"},
		{p: place{fuse: true}, in: "vers=3", readOnly: true, flags: "ro", data: "vers=3"},
		{p: place{fuse: true}, in: "vers=4.0", wrong: "use 4.2, 4.1 or 3"},
		{p: place{transport: "tcp"}, in: "rdma", wrong: "contradicts transport tcp"},
		{p: place{transport: "rdma"}, in: "proto=tcp", wrong: "contradicts transport rdma"},
		{p: place{port: 1}, in: "port=2", wrong: "contradicts port 1"},
	} {
		// Together, and one by one, are the same.
		for _, in := range [][]string{{tt.in}, strings.Split(tt.in, ",")} {
			o, err := mountOptions(tt.p, in, tt.readOnly)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%q: %+v, %v; want %q", in, o, err, tt.wrong)
				}
				continue
			}
			if err != nil || strings.Join(o.Flags, ",") != tt.flags || strings.Join(o.Data, ",") != tt.data {
				t.Errorf("%q: %+v, %v; want %q and %q", in, o, err, tt.flags, tt.data)
			}
		}
	}
	for f := range flagOptions {
		if mountFlags[f] == 0 {
			t.Errorf("%s is no flag of mount(2)", f)
		}
	}
	if len(flagOptions) != len(mountFlags) {
		t.Errorf("%v, %v", flagOptions, mountFlags)
	}
}

func TestMountinfo(t *testing.T) {
	got, err := parseMountinfo(`22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:50 / /var/lib/a\040b\134c ro,noatime shared:9 master:2 - nfs4 [fd00::1]:/data/x rw,vers=4.2
`)
	want := []Mounted{{"/dev/vda", "/", "ext4", false}, {"[fd00::1]:/data/x", `/var/lib/a b\c`, "nfs4", true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	long := "30 22 0:60 / /run/x rw - overlay overlay rw,lowerdir=" + strings.Repeat("/layer:", 20_000)
	if got, err := parseMountinfo(long + "\n90 22 0:50 / /var/lib/v rw - nfs4 nas:/x rw\n"); err != nil || len(got) != 2 ||
		got[1].Source != "nas:/x" {
		t.Errorf("behind a long line: %d, %v", len(got), err)
	}
	for _, bad := range []string{"22 1 259:2 / / rw", "22 - ext4 x", "a b c d e f g - "} {
		if got, err := parseMountinfo(bad); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}
