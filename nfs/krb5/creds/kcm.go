package creds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/jcmturner/gokrb5/v8/credentials"
	"golang.org/x/sys/unix"
)

// The protocol of the credential cache daemon (KCM), as MIT's library speaks it with sssd-kcm and
// Heimdal's kcm (src/include/kcm.h). The daemon knows the user by the socket's credentials.
//
//	request   length | 2, 0 (version) | operation (2 bytes) | arguments
//	reply     length | 0 | error code | results; length is that of code and results
//
//	operation           arguments                results
//	getPrincipal        cache                    principal, as in files
//	getTicketList       cache                    UUIDs of 16 bytes
//	getTicket           cache, UUID              ticket, as in files
//	getDefault                                   cache
//
// A cache is its name with a zero byte behind it.
const (
	kcmPrincipal  = 8
	kcmTicketList = 9
	kcmTicket     = 10
	kcmDefault    = 20

	kcmSocket = "/var/run/.heim_org.h5l.kcm-socket"
	kcmTime   = 10 * time.Second
	kcmUUID   = 16
)

// Error codes of the daemon that mean that there is no such cache.
const (
	kcmNoFile   = -1765328189 // KRB5_FCC_NOFILE
	kcmNotFound = -1765328243 // KRB5_CC_NOTFOUND
)

// readKCM reads the cache of a user by its name, or the user's default one if the name is empty.
func readKCM(name string, owner int) (*credentials.CCache, error) {
	conn, err := dialKCM(owner)
	if err == nil {
		defer func() { _ = conn.Close() }()
		var cc *credentials.CCache
		if cc, err = cacheOfKCM(conn, name); err == nil {
			return cc, nil
		}
	}
	return nil, fmt.Errorf("the credential cache KCM:%s: %w", name, err)
}

// dialKCM connects to the daemon as a user. The kernel tells the daemon the effective user of the
// thread that connects.
func dialKCM(owner int) (net.Conn, error) {
	path := libDefault("kcm_socket")
	if path == "" {
		path = kcmSocket
	}
	if path == "-" {
		return nil, errors.New("kcm_socket of krb5.conf says that there is no KCM")
	}
	if self := os.Geteuid(); owner != anybody && owner != self {
		runtime.LockOSThread()
		// Without glibc the call is about this thread alone.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(owner), ^uintptr(0)); e != 0 {
			runtime.UnlockOSThread()
			return nil, fmt.Errorf("becoming user %d: %w", owner, e)
		}
		defer func() {
			// A thread that does not become what it was stays locked, and ends with its goroutine.
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(self), ^uintptr(0)); e == 0 {
				runtime.UnlockOSThread()
			}
		}()
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("no KCM listens on %s: %w", path, err)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(kcmTime))
}

// cacheOfKCM asks for the parts of a cache, and reads them as the parts of a file.
func cacheOfKCM(conn io.ReadWriter, name string) (*credentials.CCache, error) {
	if name == "" {
		b, err := askKCM(conn, kcmDefault, nil)
		if err != nil || len(b) == 0 {
			return nil, errors.Join(err, errNoTickets)
		}
		name = string(b[:len(b)-1])
	}
	cache := append([]byte(name), 0)
	principal, err := askKCM(conn, kcmPrincipal, cache)
	if err != nil {
		return nil, err
	}
	list, err := askKCM(conn, kcmTicketList, cache)
	if err != nil {
		return nil, err
	}
	b := append([]byte{5, 4, 0, 0}, principal...)
	for ; len(list) >= kcmUUID; list = list[kcmUUID:] {
		ticket, err := askKCM(conn, kcmTicket, append(cache[:len(cache):len(cache)], list[:kcmUUID]...))
		if err != nil {
			return nil, err
		}
		if b = append(b, ticket...); len(b) > cacheMax {
			return nil, errCache
		}
	}
	return parseCache(b)
}

// askKCM sends a request and returns the results.
func askKCM(conn io.ReadWriter, op uint16, args []byte) ([]byte, error) {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(args)))
	b = binary.BigEndian.AppendUint16(append(b, 2, 0), op)
	if _, err := conn.Write(append(b, args...)); err != nil {
		return nil, err
	}
	var head [12]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size, status, code := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:]),
		int32(binary.BigEndian.Uint32(head[8:]))
	switch {
	case status != 0 || size < 4 || size > cacheMax:
		return nil, errCache
	case code == kcmNoFile, code == kcmNotFound:
		return nil, fmt.Errorf("%w: %w", errNoTickets, fs.ErrNotExist)
	case code != 0:
		return nil, fmt.Errorf("the KCM answers error %d", code)
	}
	out, err := io.ReadAll(io.LimitReader(conn, int64(size-4)))
	if err == nil && len(out) != int(size-4) {
		err = io.ErrUnexpectedEOF
	}
	return out, err
}
