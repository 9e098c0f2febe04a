package creds

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// DefaultKeytab has the keys of this host.
const DefaultKeytab = "/etc/krb5.keytab"

// Users has the credentials of all users of this host, found as rpc.gssd(8) finds them. Its methods
// may be called from any goroutine.
//
//	user              credentials
//	root              the key of this host in Keytab; without the file as other users
//	of this process   the cache that KRB5CCNAME names, if it does
//	other             of these caches of the user the one that is valid for the longest time:
//	                  default_ccache_name of krb5.conf, /tmp/krb5cc_UID, /tmp/krb5cc_UID_*,
//	                  /run/user/UID/krb5cc*, KEYRING:persistent:UID
type Users struct {
	// Keytab is a file with the key of this host. Empty means DefaultKeytab, which may be missing.
	Keytab string

	mu      sync.Mutex
	machine *Creds
}

// Initiate begins a context of a user with the NFS service of a host.
func (u *Users) Initiate(ctx context.Context, host string, uid uint32) (rpc.Initiation, error) {
	if uid == 0 {
		if c, err := u.ofMachine(); c != nil || err != nil {
			if err != nil {
				return rpc.Initiation{}, err
			}
			out, err := c.Initiate(ctx, host)
			if err != nil {
				u.forget(c) // the keytab may have been renewed
			}
			return out, err
		}
	}
	cfg, err := conf()
	if err != nil {
		return rpc.Initiation{}, err
	}
	c := &Creds{login: func() (*client.Client, error) {
		cc, err := cacheOfUser(uid)
		if err != nil {
			return nil, err
		}
		return loginByCache(cc, fmt.Sprintf("user %d", uid), cfg)
	}}
	return c.Initiate(ctx, host)
}

// ofMachine returns the credentials of this host, or nil if there is no keytab.
func (u *Users) ofMachine() (*Creds, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.machine != nil {
		return u.machine, nil
	}
	if u.Keytab == "" {
		if _, err := os.Stat(DefaultKeytab); err != nil {
			return nil, nil //nolint:nilnil,nilerr // there is none
		}
	}
	c, err := FromKeytab(cmp.Or(u.Keytab, DefaultKeytab), "")
	if err == nil {
		u.machine = c
	}
	return c, err
}

func (u *Users) forget(c *Creds) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.machine == c {
		u.machine = nil
	}
}

// cacheOfUser chooses the cache of a user.
func cacheOfUser(uid uint32) (best *credentials.CCache, err error) {
	if name := os.Getenv("KRB5CCNAME"); name != "" && int64(uid) == int64(os.Geteuid()) {
		return readCache(name, anybody)
	}
	for _, name := range cachesOfUser(uid) {
		cc, rerr := readCache(name, int(uid))
		if rerr != nil {
			if !errors.Is(rerr, os.ErrNotExist) && !strings.HasPrefix(name, "KEYRING:") {
				err = fmt.Errorf("%w; %w", rerr, cmp.Or(err, errNoTickets))
			}
			continue
		}
		if best == nil || expiry(cc).After(expiry(best)) {
			best = cc
		}
	}
	if best != nil {
		return best, nil
	}
	return nil, fmt.Errorf("user %d: %w", uid, cmp.Or(err, errNoTickets))
}

var errNoTickets = errors.New("there are no Kerberos tickets; kinit gets one")

// cachesOfUser lists the names of the caches that a user may have.
func cachesOfUser(uid uint32) (list []string) {
	if name := defaultCache(uid); name != "" {
		list = append(list, name)
	}
	own := fmt.Sprintf("/tmp/krb5cc_%d", uid)
	list = append(list, own)
	for _, pattern := range []string{own + "_*", fmt.Sprintf("/run/user/%d/krb5cc*", uid)} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if info, err := os.Lstat(name); err == nil && info.IsDir() {
				name = "DIR:" + name
			}
			list = append(list, name)
		}
	}
	return append(list, fmt.Sprintf("KEYRING:persistent:%d", uid))
}

// defaultCache is default_ccache_name of krb5.conf(5) for a user, or empty if the file has none, or
// one of a kind that only MIT's library reads.
func defaultCache(uid uint32) string {
	v := libDefault("default_ccache_name")
	id := strconv.FormatUint(uint64(uid), 10)
	v = strings.NewReplacer("%{uid}", id, "%{euid}", id, "%{USERID}", id, "%{TEMP}", "/tmp", "%{null}", "").Replace(v)
	if strings.Contains(v, "%{username}") {
		if u, err := user.LookupId(id); err == nil {
			v = strings.ReplaceAll(v, "%{username}", u.Username)
		}
	}
	if strings.HasPrefix(v, "MEMORY:") || strings.Contains(v, "%{") {
		return ""
	}
	return v
}

// libDefault is a relation of krb5.conf(5) whose name is in one section alone, or empty.
func libDefault(key string) string {
	f, err := os.Open(confPath())
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), "="); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// loginByCache makes a client of a cache. of names the cache in errors.
func loginByCache(cc *credentials.CCache, of string, cfg *config.Config) (*client.Client, error) {
	if left := time.Until(expiry(cc)); left < 0 && !expiry(cc).IsZero() {
		return nil, fmt.Errorf("the ticket of %s expired %v ago; kinit gets another", of, (-left).Round(time.Second))
	}
	cl, err := client.NewFromCCache(cc, cfg, client.DisablePAFXFAST(true))
	if err != nil {
		return nil, fmt.Errorf("the tickets of %s: %w; kinit gets others", of, err)
	}
	return cl, nil
}
