package control

import (
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Peer identifies a client of the interface: on the socket by the credentials that the kernel
// recorded at connect, from another host by its certificate.
type Peer struct {
	PID int32
	UID uint32
	GID uint32
	// Remote is the address of another host. On the socket it is empty, and so are Subject and
	// Serial, which are those of the certificate.
	Remote  string
	Subject string
	Serial  string
}

func (p Peer) String() string {
	if p.Remote != "" {
		return "certificate " + p.Subject
	}
	return "user " + strconv.FormatUint(uint64(p.UID), 10)
}

// peerOf gets the peer's credentials from the kernel (SO_PEERCRED, unix(7)).
func peerOf(c net.Conn) (Peer, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("%T is not a Unix socket", c)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

// Access decides who may use the socket: root, the user of the daemon, and the members of one
// group.
type Access struct {
	self     uint32
	group    uint32
	hasGroup bool
}

// NewAccess looks the group up by name or number; an empty name means none.
func NewAccess(group string) (Access, error) {
	a := Access{self: uint32(os.Geteuid())}
	if group == "" {
		return a, nil
	}
	id := group
	if _, err := strconv.ParseUint(group, 10, 32); err != nil {
		g, err := user.LookupGroup(group)
		if err != nil {
			return a, fmt.Errorf("control group: %w", err)
		}
		id = g.Gid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return a, fmt.Errorf("control group %q: %w", group, err)
	}
	a.group, a.hasGroup = uint32(n), true
	return a, nil
}

// Allows reports whether the peer may use the socket.
func (a Access) Allows(p Peer) bool {
	if p.UID == 0 || p.UID == a.self {
		return true
	}
	if !a.hasGroup {
		return false
	}
	if p.GID == a.group {
		return true
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(p.UID), 10))
	if err != nil {
		return false
	}
	ids, err := u.GroupIds()
	return err == nil && slices.Contains(ids, strconv.FormatUint(uint64(a.group), 10))
}
