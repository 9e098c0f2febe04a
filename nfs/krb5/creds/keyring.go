package creds

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/jcmturner/gokrb5/v8/credentials"
	"golang.org/x/sys/unix"
)

// Keys of MIT's credential caches in the kernel:
//
//	persistent keyring of the user | user or session keyring
//	  keyring _krb                 |   keyring _krb_NAME
//	    user krb_ccache:primary         version 1, length, name of a cache
//	    keyring NAME                    a cache
//	      user __krb5_princ__           the principal
//	      user, big_key PRINCIPAL       a ticket for it
const (
	keyPrimary   = "krb_ccache:primary"
	keyPrincipal = "__krb5_princ__"
)

// readKeyring reads the cache with a residual name: persistent:UID, user:NAME or session:NAME, each
// with :CACHE for another one than the primary.
func readKeyring(residual string) (*credentials.CCache, error) {
	// The kernel lets the thread read what it possesses, which may change with the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	anchor, rest, _ := strings.Cut(residual, ":")
	name, cache, _ := strings.Cut(rest, ":")
	collection := "_krb_" + name
	ring := unix.KEY_SPEC_USER_KEYRING
	var err error
	switch anchor {
	case "persistent":
		uid, perr := strconv.ParseUint(name, 10, 31)
		if name == "" {
			uid, perr = uint64(os.Geteuid()), nil
		}
		if perr != nil {
			return nil, fmt.Errorf("KEYRING:%s: %q is not a user", residual, name)
		}
		collection = "_krb"
		ring, err = unix.KeyctlInt(unix.KEYCTL_GET_PERSISTENT, int(uid), unix.KEY_SPEC_PROCESS_KEYRING, 0, 0)
	case "user":
	case "session":
		ring = unix.KEY_SPEC_SESSION_KEYRING
	default:
		return nil, fmt.Errorf("KEYRING:%s: this kind of keyring is not read: use persistent, user or session", residual)
	}
	if err == nil {
		ring, err = unix.KeyctlSearch(ring, "keyring", collection, 0)
	}
	if err == nil && cache == "" {
		cache, err = primary(ring)
	}
	if err == nil {
		ring, err = unix.KeyctlSearch(ring, "keyring", cache, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("KEYRING:%s: %w", residual, err)
	}
	return cacheOf(ring)
}

// primary is the name of the primary cache of a collection.
func primary(ring int) (string, error) {
	id, err := unix.KeyctlSearch(ring, "user", keyPrimary, 0)
	if err != nil {
		return "", err
	}
	b, err := readKey(id)
	c := cursor{b: b}
	c.u32() // version
	return string(c.data()), err
}

// cacheOf makes a cache of the keys in a keyring.
func cacheOf(ring int) (*credentials.CCache, error) {
	keys, err := readKey(ring)
	if err != nil {
		return nil, err
	}
	b := []byte{5, 4, 0, 0}
	var tickets []byte
	for ; len(keys) >= 4; keys = keys[4:] {
		id := int(int32(binary.NativeEndian.Uint32(keys)))
		about, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
		if err != nil {
			return nil, err
		}
		kind, _, _ := strings.Cut(about, ";")
		name := about[strings.LastIndexByte(about, ';')+1:]
		if kind != "user" && kind != "big_key" || strings.HasPrefix(name, "__krb5_") && name != keyPrincipal {
			continue
		}
		v, err := readKey(id)
		switch {
		case err != nil:
			return nil, err
		case name == keyPrincipal:
			b = append(b, v...)
		default:
			tickets = append(tickets, v...)
		}
	}
	return parseCache(append(b, tickets...))
}

// readKey returns the payload of a key, or the serial numbers in a keyring.
func readKey(id int) ([]byte, error) {
	b := make([]byte, 4096)
	for {
		n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, b, 0)
		switch {
		case err != nil:
			return nil, err
		case n <= len(b):
			return b[:n], nil
		case n > cacheMax:
			return nil, errCache
		}
		b = make([]byte, n)
	}
}
