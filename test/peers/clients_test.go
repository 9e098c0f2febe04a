package peers

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	vmware "github.com/vmware/go-nfs-client/nfs"
	vmrpc "github.com/vmware/go-nfs-client/nfs/rpc"
	willscott "github.com/willscott/go-nfs-client/nfs"
	wsrpc "github.com/willscott/go-nfs-client/nfs/rpc"

	gonfsrdma "github.com/rstored/rstored/nfs/gonfs"
)

// target is what both clients offer under different types.
type target interface {
	Mkdir(path string, perm os.FileMode) ([]byte, error)
	Remove(path string) error
	RmDir(path string) error
	RemoveAll(path string) error
}

// fronts are the ways in which a TCP client reaches our server: at its TCP port,
// and at the bridge with RDMA behind it.
func fronts(t *testing.T, test func(t *testing.T, s *ours, bulk uint64)) {
	t.Run("tcp", func(t *testing.T) { test(t, serveOurs(t), 0) })
	t.Run("bridge", func(t *testing.T) { test(t, serveOurs(t).bridged(t), 4<<20) })
}

func TestVMwareClient(t *testing.T) {
	fronts(t, func(t *testing.T, s *ours, bulk uint64) {
		if !s.portmapped {
			t.Skip("this client asks portmap at port 111, which cannot be bound here")
		}
		m, err := vmware.DialMount(s.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		v, err := m.Mount("/data", vmrpc.NewAuthUnix("vmware", 0, 0).Auth())
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if info, err := v.FSInfo(); err != nil || info.WTPref == 0 {
			t.Errorf("FSINFO: %+v, %v", info, err)
		}
		s.overRDMA(t, bulk, func() {
			exercise(t, v, func(name string, perm os.FileMode) (io.ReadWriteCloser, error) { return v.OpenFile(name, perm) },
				func(dir string) (names []string, err error) {
					list, err := v.ReadDirPlus(dir)
					for _, e := range list {
						names = append(names, e.FileName)
					}
					return names, err
				})
		})
		if _, _, err := v.Lookup("/nothing"); !os.IsNotExist(err) {
			t.Errorf("lookup of nothing: %v", err)
		}
		if err := m.Unmount(); err != nil {
			t.Error(err)
		}
	})
}

func TestWillscottClient(t *testing.T) {
	fronts(t, func(t *testing.T, s *ours, bulk uint64) {
		c, err := wsrpc.DialTCP("tcp", s.nfs.String(), false)
		for tries := 0; errors.Is(err, syscall.EADDRINUSE) && tries < 20; tries++ { // it guesses a port of its own
			c, err = wsrpc.DialTCP("tcp", s.nfs.String(), false)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m := willscott.Mount{Client: c}
		v, err := m.Mount("/data", wsrpc.NewAuthUnix("willscott", 0, 0).Auth())
		if err != nil {
			t.Fatal(err)
		}
		workAsWillscott(t, s, bulk, v)
		if err := m.Unmount(); err != nil {
			t.Error(err)
		}
	})
}

// TestWillscottClientDialsRDMA has the client reach the server by its RDMA URL.
func TestWillscottClientDialsRDMA(t *testing.T) {
	s := serveOurs(t)
	c, err := gonfsrdma.Dial(t.Context(), nil, "nfs+rdma://"+s.rdma.String()+"/data")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	v, err := c.Mount(wsrpc.NewAuthUnix("willscott", 0, 0).Auth())
	if err != nil {
		t.Fatal(err)
	}
	workAsWillscott(t, s, 4<<20, v)
	_, err = gonfsrdma.Dial(t.Context(), nil, "nfs+rdma://"+netip.AddrPortFrom(s.addr, portRDMA+1).String()+"/data")
	if err == nil {
		t.Error("a port without a server was dialed")
	}
}

// workAsWillscott does what the client can do on a mounted export, bulk bytes of it at least by
// RDMA each way.
func workAsWillscott(t *testing.T, s *ours, bulk uint64, v *willscott.Target) {
	t.Helper()
	s.overRDMA(t, bulk, func() {
		exercise(t, v, func(name string, perm os.FileMode) (io.ReadWriteCloser, error) { return v.OpenFile(name, perm) },
			func(dir string) (names []string, err error) {
				list, err := v.ReadDirPlus(dir)
				for _, e := range list {
					names = append(names, e.FileName)
				}
				return names, err
			})
	})
	if _, err := v.Create("/from", 0o640); err != nil {
		t.Fatal(err)
	}
	if err := v.Rename("/from", "/to"); err != nil {
		t.Error(err)
	}
	a, err := v.Getattr("/to")
	if err != nil || a.Mode().Perm() != 0o640 {
		t.Errorf("after the rename: %+v, %v", a, err)
	}
	if err := v.Symlink("/to", "/link"); err != nil {
		t.Error(err)
	}
	mtime := time.Unix(1234567890, 0)
	err = v.Setattr("/to", willscott.Sattr3{
		Mode:  willscott.SetMode{SetIt: true, Mode: 0o600},
		Mtime: willscott.SetTime{SetIt: willscott.SetToClientTime, Time: willscott.NFS3Time{Seconds: uint32(mtime.Unix())}},
	})
	if err != nil {
		t.Error(err)
	}
	if got, err := v.Access("/to", 1|4); err != nil || got != 1|4 {
		t.Errorf("access %#x, %v", got, err)
	}
}

// exercise makes, writes, lists, reads and removes as both clients can.
func exercise(t *testing.T, v target, open func(string, os.FileMode) (io.ReadWriteCloser, error),
	list func(string) ([]string, error),
) {
	t.Helper()
	if _, err := v.Mkdir("/dir", 0o755); err != nil {
		t.Fatal(err)
	}
	data := random(3, 3<<20+5)
	for _, name := range []string{"/big", "/dir/big"} {
		f, err := open(name, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := f.Write(data); err != nil || n != len(data) {
			t.Fatalf("write of %s: %d, %v", name, n, err)
		}
		if err := f.Close(); err != nil { // COMMIT
			t.Errorf("close of %s: %v", name, err)
		}
		if f, err = open(name, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(io.LimitReader(f, int64(len(data))))
		if err != nil {
			t.Errorf("read of %s: %v", name, err)
		}
		same(t, name, got, data)
	}
	var want []string
	for i := range 300 {
		name := fmt.Sprintf("entry-%03d", i)
		want = append(want, name)
		f, err := open("/dir/"+name, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	names, err := list("/dir")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "." || n == ".." || n == "big" })
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("%d names listed, want %d", len(names), len(want))
	}
	if err := v.RmDir("/dir"); err == nil {
		t.Error("a directory that is not empty was removed")
	}
	if err := v.Remove("/big"); err != nil {
		t.Error(err)
	}
	if err := v.Remove("/big"); err == nil || !errors.Is(err, os.ErrNotExist) && !os.IsNotExist(err) {
		t.Errorf("second remove: %v", err)
	}
	if err := v.RemoveAll("/dir"); err != nil {
		t.Error(err)
	}
}
