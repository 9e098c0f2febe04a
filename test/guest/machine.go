package guest

import (
	"path/filepath"
	"strconv"
)

// Machine is what a guest boots with.
type Machine struct {
	Cache   string // what the script build has made
	Name    string // $GUEST of its script
	Dir     string // for the socket of User-Mode Linux
	Share   string // /run/host of the guest, with the files script and env. It leaves its status in NAME.rc there
	MemMB   int
	MTU     int
	IP4     string // of eth0
	IP6     string
	Taps    []Tap    // of eth0, vec1 and so on
	Further []string // parameters of the kernel
	suffix  string   // of the names of kernel and root file system
}

// Tap is the host's end of an interface of a guest.
type Tap struct{ Name, MAC string }

// Command is the program that is the guest, with its arguments. Its console is standard output, and
// what the script prints is descriptor 3.
func (m *Machine) Command() []string {
	mtu := strconv.Itoa(m.MTU)
	args := []string{
		filepath.Join(m.Cache, "linux"+m.suffix),
		"mem=" + strconv.Itoa(m.MemMB) + "M", "umid=" + m.Name, "uml_dir=" + m.Dir,
		"ubd0r=" + filepath.Join(m.Cache, "root"+m.suffix+".ext4"), "root=/dev/ubda", "ro", "rootfstype=ext4",
		"init=/guest/init",
		"loglevel=4", "panic=-1", "con=null", "con0=null,fd:1", "con1=null,fd:3", "ssl=null",
		"g.name=" + m.Name, "g.dir=" + m.Share, "g.mtu=" + mtu, "g.ip4=" + m.IP4, "g.ip6=" + m.IP6,
	}
	for w, t := range m.Taps {
		args = append(args, "vec"+strconv.Itoa(w)+":transport=tap,ifname="+t.Name+",depth=128,gro=1,mtu="+mtu+",mac="+t.MAC)
	}
	return append(args, m.Further...)
}
