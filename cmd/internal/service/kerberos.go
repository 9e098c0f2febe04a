package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"
	"go.uber.org/zap"

	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
)

// kerberos has the keys of the server, and knows which users principals are.
type kerberos struct {
	s        *Service
	log      *zap.Logger
	contexts *gss.Server

	mu     sync.Mutex
	path   string
	info   fs.FileInfo // of the file that was read
	keys   *keytab.Keytab
	err    error // of the last reading
	realms []string
	// callers are the credentials of this server by principal, for callbacks, from keys.
	callers map[string]*creds.Creds

	logged  time.Time // last warning, see warn
	skipped int
}

const (
	nfsService    = "nfs"
	maxKeytab     = 1 << 20
	logEvery      = 10 * time.Second
	keytabSettled = 2 * time.Second // as the certificates, see certs
)

// newKerberos makes the contexts of the server. Whether there is a keytab may change at any time.
func (s *Service) newKerberos() *gss.Server {
	k := &kerberos{s: s, log: s.Log.Library("kerberos")}
	if s.Settings().Kerberos.On() {
		if _, err := k.load(); err != nil {
			k.log.Error("no client can use Kerberos", zap.Error(err))
		}
	}
	if conf := s.Settings().Kerberos.AuthToLocal; conf != "" {
		if _, err := krb5.ReadLocalNames(os.DirFS("/"), conf); err != nil {
			k.log.Error(noLocalNames, zap.String("auth_to_local", conf), zap.Error(err))
		}
	}
	k.contexts = gss.NewServer(gss.ServerConfig{
		Acceptor: &krb5.Acceptor{
			Service: nfsService, Keytab: k.load, RC4: func() bool { return s.Settings().Kerberos.RC4 },
			RequirePAC: func() bool { return s.Settings().Kerberos.RequirePAC },
		},
		Identify: k.identify, Outcome: k.outcome,
	})
	s.kerberos = k
	return k.contexts
}

var errNoKeytab = errors.New("a client tried Kerberos, and there is no keytab (kerberos.keytab)")

// load reads the keytab again if it is another file than last time.
func (k *kerberos) load() (*keytab.Keytab, error) {
	path := k.s.Settings().Kerberos.Keytab
	if path == "" {
		return nil, errNoKeytab
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(path)
	if err != nil {
		return k.keys, k.fail(fmt.Errorf("the keytab cannot be read: %w", err))
	}
	if path == k.path && k.info != nil && os.SameFile(info, k.info) && info.Size() == k.info.Size() &&
		info.ModTime().Equal(k.info.ModTime()) && time.Since(info.ModTime()) > keytabSettled {
		return k.keys, k.err
	}
	k.path, k.info = path, info
	if !info.Mode().IsRegular() || info.Size() > maxKeytab {
		return nil, k.fail(fmt.Errorf("%s is no keytab", path))
	}
	keys, err := keytab.Load(path)
	if err != nil {
		return nil, k.fail(fmt.Errorf("%s is no keytab: %w", path, err))
	}
	if info.Mode().Perm()&0o077 != 0 && (k.keys == nil || k.err != nil) {
		k.log.Warn("others can read the keytab: they can read and forge everything that Kerberos protects",
			zap.String("keytab", path), zap.Stringer("mode", info.Mode()))
	}
	var realms, principals []string
	for i := range keys.Entries {
		p := &keys.Entries[i].Principal
		if len(p.Components) > 0 && p.Components[0] == nfsService {
			realms = append(realms, p.Realm)
			principals = append(principals, strings.Join(p.Components, "/")+"@"+p.Realm)
		}
	}
	if len(principals) == 0 {
		return nil, k.fail(fmt.Errorf("%s has no key of a principal %s/HOST@REALM", path, nfsService))
	}
	slices.Sort(realms)
	slices.Sort(principals)
	principals = slices.Compact(principals)
	k.keys, k.err, k.realms, k.callers = keys, nil, slices.Compact(realms), make(map[string]*creds.Creds)
	k.log.Info("keytab loaded", zap.String("keytab", path), zap.Strings("principals", principals))
	return keys, nil
}

// fail notes an error. Until the file is readable again no client gets a context. The contexts that
// clients have are not touched.
func (k *kerberos) fail(err error) error {
	k.err, k.info = err, nil
	return err
}

const noLocalNames = "the rules of kerberos.auth_to_local cannot be applied: principals are the anonymous user"

// identify says which user of the host a principal is:
//
//	principal                             user
//	in kerberos.users                     as it is there
//	any, with kerberos.auth_to_local      as the rules say, if the host has the user
//	name@REALM, of kerberos.realms        name, if the host has the user
//	others, such as host/client@REALM     none: the anonymous user of each export
func (k *kerberos) identify(principal string) gss.Identity {
	none := gss.Identity{Unmapped: true}
	name := k.user(principal)
	uid, ok := k.s.IDMap.User(name)
	if !ok {
		return none
	}
	groups, ok, _ := k.s.IDMap.Groups(uid, true)
	if !ok || len(groups) == 0 {
		return none
	}
	return gss.Identity{UID: uid, GID: groups[0], Groups: slices.Clone(groups)}
}

// user returns the name of the user for a principal, or an empty string.
func (k *kerberos) user(principal string) string {
	cfg := &k.s.Settings().Kerberos
	if name, ok := cfg.User(principal); ok {
		return name
	}
	if conf := cfg.AuthToLocal; conf != "" {
		var name string
		rules, err := krb5.ReadLocalNames(os.DirFS("/"), conf)
		if err == nil {
			name, err = rules.User(principal)
		}
		if err != nil && !errors.Is(err, krb5.ErrNoUser) {
			k.warn(noLocalNames, zap.String("auth_to_local", conf), zap.String("principal", principal), zap.Error(err))
		}
		return name
	}
	user, realm, _ := strings.Cut(principal, "@")
	realms := cfg.Realms
	if len(realms) == 0 {
		k.mu.Lock()
		realms = k.realms
		k.mu.Unlock()
	}
	if strings.ContainsAny(user, `/\`) || !slices.Contains(realms, realm) {
		return ""
	}
	return user
}

// warn logs what clients cause, once in logEvery: a peer could fill the log otherwise.
func (k *kerberos) warn(msg string, fields ...zap.Field) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.logged) < logEvery {
		k.skipped++
		return
	}
	k.log.Warn(msg, append(fields, zap.Int("not_logged", k.skipped))...)
	k.logged, k.skipped = time.Now(), 0
}

// outcome writes the audit log, and the log for what an administrator has to mend.
func (k *kerberos) outcome(peer netip.Addr, principal string, err error) {
	result := "OK"
	if err != nil {
		result = err.Error()
	}
	if a := k.s.Audit; a != nil {
		a.LogAttrs(context.Background(), slog.LevelInfo, "kerberos", slog.String("client", peer.String()),
			slog.String("principal", principal), slog.String("result", result))
	}
	if err == nil {
		k.log.Debug("a client has a Kerberos context", zap.Stringer("client", peer), zap.String("principal", principal))
		return
	}
	k.warn("a Kerberos token was refused", zap.Stringer("client", peer), zap.Error(err))
}
