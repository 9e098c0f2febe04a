package creds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/types"
	"golang.org/x/sys/unix"
)

// cacheMax bounds the size of a credential cache in bytes.
const cacheMax = 1 << 20

// anybody, as the owner, allows files of every user.
const anybody = -1

var errCache = errors.New("the credential cache is malformed")

// readCache reads the credential cache with a name of the form of KRB5CCNAME. Its files must belong
// to owner, unless owner is anybody: in a directory for all users, such as /tmp, another user may
// have made them.
func readCache(name string, owner int) (*credentials.CCache, error) {
	kind, path, ok := strings.Cut(name, ":")
	if !ok || strings.Contains(kind, "/") {
		kind, path = "FILE", name
	}
	switch kind {
	case "FILE":
	case "DIR":
		if sub, ok := strings.CutPrefix(path, ":"); ok { // DIR::path is one cache of a directory
			path = sub
			break
		}
		primary, err := readOwned(filepath.Join(path, "primary"), owner)
		if err != nil {
			return nil, err
		}
		path = filepath.Join(path, filepath.Base(strings.TrimSpace(string(primary))))
	case "KEYRING":
		return readKeyring(path)
	case "KCM":
		return readKCM(path, owner)
	default:
		return nil, fmt.Errorf("the credential cache %s is of a kind that only MIT's library reads: use kinit -c "+
			"FILE:PATH and KRB5CCNAME=FILE:PATH", name)
	}
	b, err := readOwned(path, owner)
	if err != nil {
		return nil, err
	}
	return parseCache(b)
}

// readOwned reads a regular file of a user. It follows no symbolic link if the owner counts.
func readOwned(path string, owner int) ([]byte, error) {
	flags := os.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if owner != anybody {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch st, ok := info.Sys().(*syscall.Stat_t); {
	case !info.Mode().IsRegular() || info.Size() > cacheMax:
		return nil, fmt.Errorf("%s: %w", path, errCache)
	case owner != anybody && (!ok || int(st.Uid) != owner):
		return nil, fmt.Errorf("%s is not of user %d: %w", path, owner, fs.ErrPermission)
	}
	return io.ReadAll(io.LimitReader(f, cacheMax))
}

// cursor reads a credential cache. After a failure everything is empty.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n uint32) []byte {
	if c.bad || uint64(n) > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) data() []byte { return c.take(c.u32()) }

func (c *cursor) time() time.Time { return time.Unix(int64(c.u32()), 0) }

// principal reads a principal, big-endian:
//
//	 0           4              8
//	+-----------+--------------+-----------------+-----------------+-----+
//	| name type | number of    | realm (length,  | component       | ... |
//	|           | components   | bytes)          | (length, bytes) |     |
//	+-----------+--------------+-----------------+-----------------+-----+
func (c *cursor) principal() (realm string, name types.PrincipalName) {
	name.NameType = int32(c.u32())
	n := c.u32()
	realm = string(c.data())
	for ; n > 0 && !c.bad; n-- {
		name.NameString = append(name.NameString, string(c.data()))
	}
	return realm, name
}

// credential reads one ticket with its session key. Fields with a length have it in 4 bytes:
//
//	client and server          principals
//	key                        enctype (2 bytes; in version 3 twice), key (length, bytes)
//	times                      authtime, starttime, endtime, renew_till (4 bytes each)
//	is_skey                    1 byte
//	ticket flags               4 bytes
//	addresses                  count; for each: type (2 bytes), address (length, bytes)
//	authorization data         count; for each: type (2 bytes), data (length, bytes)
//	ticket, second ticket      length, bytes each
func (c *cursor) credential(version byte) *credentials.Credential {
	x := &credentials.Credential{}
	x.Client.Realm, x.Client.PrincipalName = c.principal()
	x.Server.Realm, x.Server.PrincipalName = c.principal()
	x.Key.KeyType = int32(c.u16())
	if version == 3 {
		c.u16() // again
	}
	x.Key.KeyValue = c.data()
	x.AuthTime, x.StartTime, x.EndTime, x.RenewTill = c.time(), c.time(), c.time(), c.time()
	c.take(1) // whether the key is of another ticket
	x.TicketFlags = types.NewKrbFlags()
	x.TicketFlags.Bytes = c.take(4)
	for range 2 { // addresses and authorization data, which nothing here needs
		for n := c.u32(); n > 0 && !c.bad; n-- {
			c.u16()
			c.data()
		}
	}
	x.Ticket, x.SecondTicket = c.data(), c.data()
	return x
}

// parseCache decodes a credential cache of version 3 or 4. The decoder of gokrb5 trusts the lengths
// in the file. parseCache does not, because a process of root reads files of other users.
//
//	 0   1         2
//	+---+---------+---------------------------+-----------+------------+-----+
//	| 5 | version | version 4 only: header    | principal | credential | ... |
//	|   |         | (length in 2 bytes, data) |           |            |     |
//	+---+---------+---------------------------+-----------+------------+-----+
func parseCache(b []byte) (*credentials.CCache, error) {
	c := &cursor{b: b}
	head := c.take(2)
	if head == nil || head[0] != 5 || head[1] < 3 || head[1] > 4 {
		return nil, errCache
	}
	cc := &credentials.CCache{Version: head[1]}
	if cc.Version == 4 {
		c.take(uint32(c.u16()))
	}
	cc.DefaultPrincipal.Realm, cc.DefaultPrincipal.PrincipalName = c.principal()
	for len(c.b) > 0 {
		cc.Credentials = append(cc.Credentials, c.credential(cc.Version))
	}
	if c.bad {
		return nil, errCache
	}
	return cc, nil
}

// expiry is when the ticket for the KDC of a cache ends, or zero if there is none.
func expiry(cc *credentials.CCache) time.Time {
	if tgt, ok := ticketOfKDC(cc); ok {
		return tgt.EndTime
	}
	return time.Time{}
}

// ticketOfKDC is the ticket for the KDC of the cache's own realm.
func ticketOfKDC(cc *credentials.CCache) (*credentials.Credential, bool) {
	return cc.GetEntry(types.NewPrincipalName(0, "krbtgt/"+cc.DefaultPrincipal.Realm))
}
