package peers

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// quotaFS is a store in which user 4711 has a quota.
type quotaFS struct{ blockstore.FS }

func (s quotaFS) Limits() blockstore.Limits {
	l := s.FS.Limits()
	l.Quotas = true
	return l
}

func (s quotaFS) Quota(c *blockstore.Cred, _ blockstore.Handle) (q blockstore.Quota, err error) {
	if c.UID == 4711 {
		q = blockstore.Quota{Used: 4 << 20, Soft: 8 << 20, Hard: 16 << 20, Files: 7, FilesSoft: 70, FilesHard: 90}
	}
	return q, nil
}

// TestQuotaTool: quota(1) of Linux distributions asks by UDP. It looks for NFS mounts in
// /proc/mounts, in whose place it sees a file with one.
func TestQuotaTool(t *testing.T) {
	for _, p := range []string{"quota", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace and port 111 need root")
	}
	host := loopback()
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{
		ID: 1, Pseudo: "/data", FS: quotaFS{memfs.New(memfs.Options{RootMode: 0o777})},
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	}); err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(host, portmap.Port)
	services := []portmap.Service{
		{Program: rquota.Program, Version: rquota.Version1, Transport: rpc.TransportUDP, Addr: at},
		{Program: rquota.Program, Version: rquota.Version2, Transport: rpc.TransportUDP, Addr: at},
	}
	cfg := nfs.Config{Exports: table, Codec: nfs.NewCodec([]byte("a secret of thirty-two bytes ...."))}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(
		rquota.Programs(cfg, time.Now), portmap.Programs(func() []portmap.Service { return services })...)})
	t.Cleanup(srv.Close)
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", at.String())
	if err != nil {
		t.Skip(err)
	}
	l, err := udp.Config{
		Route: func(_, _, _ uint32) *rpc.Server { return srv }, Admits: table.AdmitsHost,
	}.Serve(c.(*net.UDPConn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Shutdown(t.Context()) })

	dir := t.TempDir()
	mounts := filepath.Join(dir, "mounts")
	line := host.String() + ":/data " + dir + " nfs rw,vers=3 0 0\n"
	if err := os.WriteFile(mounts, []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c",
		`mount --bind "$0" /proc/$$/mounts && exec quota -v -p -w -u 4711`, mounts).CombinedOutput()
	fields := strings.Join(strings.Fields(string(out)), " ")
	if want := host.String() + ":/data 4096 8192 16384 0 7 70 90 0"; err != nil || !strings.Contains(fields, want) {
		t.Errorf("quota says no %q: %v\n%s\n%+v", want, err, out, l.Counters())
	}
}
