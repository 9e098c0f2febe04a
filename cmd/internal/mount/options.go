package mount

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/fusefs"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// options are the settings that the options of a mount make.
type options struct {
	fs      fusefs.Config
	dial    *dial.Dialer
	hard    bool
	timeo   time.Duration
	retrans int
	retry   time.Duration
	rdma    *bool // transport, for a device that is no URL
	port    string
	bg      bool
	tls     certs.Files
	// kerberos has the tickets of all users.
	kerberos creds.Users
}

// newOptions returns the defaults: those of nfs(5), and of mount(8) for root.
func newOptions(d *dial.Dialer, root bool) *options {
	return &options{
		fs:   fusefs.Config{Times: fusefs.DefaultCacheTimes, AllowOther: root, NoDelegations: true},
		dial: d, hard: true, timeo: time.Minute, retrans: 2,
	}
}

// option is a row of the table of options. set applies the option.
type option struct {
	name  string
	value string // name of the value in messages; empty: the option has no value
	set   func(o *options, v string) error
}

func flag(f func(o *options)) func(*options, string) error {
	return func(o *options, _ string) error {
		f(o)
		return nil
	}
}

func ignored(*options, string) error { return nil }

func kernel(name string) option {
	return option{name: name, set: flag(func(o *options) { o.fs.Options = append(o.fs.Options, name) })}
}

// seconds is an option whose value is a number of seconds.
func seconds(f func(o *options) []*time.Duration) func(*options, string) error {
	return func(o *options, v string) error {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil {
			return fmt.Errorf("%q is not a number of seconds", v)
		}
		for _, d := range f(o) {
			*d = time.Duration(n) * time.Second
		}
		return nil
	}
}

// connectMax bounds the option nconnect, as nfs(5) does.
const connectMax = 16

// number is an option whose value is a number between two bounds.
func number(least, most uint64, f func(o *options, n uint64)) func(*options, string) error {
	return func(o *options, v string) error {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is not a number from %d to %d", v, least, most)
		}
		f(o, n)
		return nil
	}
}

// table are the options. Those of nfs(5) and mount(8) have their meaning there.
var table = []option{
	{"ro", "", flag(func(o *options) { o.fs.ReadOnly = true })},
	{"rw", "", flag(func(o *options) { o.fs.ReadOnly = false })},
	{"sync", "", flag(func(o *options) { o.fs.Sync = true })},
	{"async", "", flag(func(o *options) { o.fs.Sync = false })},
	{"cto", "", flag(func(o *options) { o.fs.NoCTO = false })},
	{"nocto", "", flag(func(o *options) { o.fs.NoCTO = true })},
	{"ac", "", ignored},
	{"noac", "", flag(func(o *options) {
		o.fs.Times, o.fs.Sync, o.fs.NoDelegations = fusefs.CacheTimes{}, true, true
	})},
	{"deleg", "", flag(func(o *options) { o.fs.NoDelegations = false })},
	{"nodeleg", "", flag(func(o *options) { o.fs.NoDelegations = true })},
	{"actimeo", "SECONDS", seconds(func(o *options) []*time.Duration {
		t := &o.fs.Times
		return []*time.Duration{&t.RegMin, &t.RegMax, &t.DirMin, &t.DirMax}
	})},
	{"acregmin", "SECONDS", seconds(func(o *options) []*time.Duration { return []*time.Duration{&o.fs.Times.RegMin} })},
	{"acregmax", "SECONDS", seconds(func(o *options) []*time.Duration { return []*time.Duration{&o.fs.Times.RegMax} })},
	{"acdirmin", "SECONDS", seconds(func(o *options) []*time.Duration { return []*time.Duration{&o.fs.Times.DirMin} })},
	{"acdirmax", "SECONDS", seconds(func(o *options) []*time.Duration { return []*time.Duration{&o.fs.Times.DirMax} })},
	{"lookupcache", "all|pos", func(o *options, v string) error {
		switch v {
		case "all":
			o.fs.NoNegative = false
		case "pos", "positive":
			o.fs.NoNegative = true
		default:
			return fmt.Errorf("%q is not all or pos", v)
		}
		return nil
	}},
	{"hard", "", flag(func(o *options) { o.hard = true })},
	{"soft", "", flag(func(o *options) { o.hard = false })},
	{"timeo", "TENTHS", number(1, 36000, func(o *options, n uint64) { o.timeo = time.Duration(n) * time.Second / 10 })},
	{"retrans", "NUMBER", number(0, 100, func(o *options, n uint64) { o.retrans = int(n) })},
	{"retry", "MINUTES", number(0, 1<<20, func(o *options, n uint64) { o.retry = time.Duration(n) * time.Minute })},
	{"fg", "", flag(func(o *options) { o.bg = false })},
	{"bg", "", flag(func(o *options) { o.bg = true })},
	{"vers", "VERSION", version},
	{"nfsvers", "VERSION", version},
	{"proto", "rdma|tcp", transport},
	{"rdma", "", func(o *options, _ string) error { return transport(o, "rdma") }},
	{"tcp", "", func(o *options, _ string) error { return transport(o, "tcp") }},
	{"port", "PORT", number(1, 65535, func(o *options, n uint64) { o.port = fmt.Sprint(n) })},
	{"mountport", "PORT", number(1, 65535, func(o *options, n uint64) { o.dial.MountPort = uint16(n) })},
	{"xprtsec", "none|tls|mtls", func(o *options, v string) (err error) {
		o.dial.Security, err = client.ParseSecurity(v)
		return err
	}},
	{"ca", "FILE", func(o *options, v string) error { o.tls.CA = v; return nil }},
	{"cert", "FILE", func(o *options, v string) error { o.tls.Cert = v; return nil }},
	{"key", "FILE", func(o *options, v string) error { o.tls.Key = v; return nil }},
	{"provider", "auto|soft|verbs", func(o *options, v string) error { return o.dial.Provider.Set(v) }},
	{"clientaddr", "ADDRESS", source},
	{"source", "ADDRESS", source},
	{"pkey", "KEY", func(o *options, v string) (err error) {
		o.dial.PKey, err = config.ParsePKey(v)
		return err
	}},
	{"dscp", "DSCP", number(1, 63, func(o *options, n uint64) { o.dial.DSCP = uint8(n) })},
	{"sec", "sys|krb5|krb5i|krb5p", func(o *options, v string) error {
		service, ok := gss.ParseService(v)
		switch {
		case ok:
			o.dial.Secure = &dial.Secure{Service: service, Initiate: o.kerberos.Initiate}
		case v == "sys":
			o.dial.Secure = nil
		default:
			return fmt.Errorf("%q is not sys, krb5, krb5i or krb5p", v)
		}
		return nil
	}},
	{"keytab", "FILE", func(o *options, v string) (err error) {
		o.kerberos.Keytab, err = filepath.Abs(v) // the process reads it after it has left the directory
		return err
	}},
	{"acl", "", flag(func(o *options) { o.fs.NoACL = false })},
	{"noacl", "", flag(func(o *options) { o.fs.NoACL = true })},
	{"lock", "", flag(func(o *options) { o.fs.LocalLocks = false })},
	{"nolock", "", flag(func(o *options) { o.fs.LocalLocks = true })},
	{"allow_other", "", flag(func(o *options) { o.fs.AllowOther = true })},
	{"noallow_other", "", flag(func(o *options) { o.fs.AllowOther = false })},
	{"uid", "UID", number(0, 1<<32-1, func(o *options, n uint64) { o.fs.UID = new(uint32(n)) })},
	{"gid", "GID", number(0, 1<<32-1, func(o *options, n uint64) { o.fs.GID = new(uint32(n)) })},
	{"nconnect", "NUMBER", number(1, connectMax, func(o *options, n uint64) { o.dial.Connections = int(n) })},
	{"buffers", "MIB", number(8, 65536, func(o *options, n uint64) { o.fs.Memory = int(n) << 20 })},
	{"readahead", "MIB", number(1, 4096, func(o *options, n uint64) { o.fs.ReadAhead = int(n) << 20 })},
	kernel("noexec"), kernel("exec"), kernel("nosuid"), kernel("suid"), kernel("nodev"), kernel("dev"),
	// Options of mount(8) and nfs(5) that concern other programs, or that apply here anyway.
	{"defaults", "", ignored},
	{"auto", "", ignored},
	{"noauto", "", ignored},
	{"user", "", ignored},
	{"users", "", ignored},
	{"nouser", "", ignored},
	{"owner", "", ignored},
	{"group", "", ignored},
	{"nofail", "", ignored},
	{"_netdev", "", ignored},
	{"relatime", "", ignored},
	{"noatime", "", ignored},
	{"nodiratime", "", ignored},
	{"atime", "", ignored},
	{"nosharecache", "", ignored},
	{"sharecache", "", ignored},
	{"rdirplus", "", ignored},
	{"intr", "", ignored},
	{"nointr", "", ignored},
	{"resvport", "", ignored},
	{"noresvport", "", ignored},
	{"rsize", "BYTES", ignored},
	{"wsize", "BYTES", ignored},
}

func version(o *options, v string) (err error) {
	o.dial.Version, err = client.ParseVersion(v)
	return err
}

func transport(o *options, v string) error {
	switch v {
	case "rdma", "rdma6":
		o.rdma = new(true)
	case "tcp", "tcp6":
		o.rdma = new(false)
	default:
		return fmt.Errorf("%q is not rdma or tcp", v)
	}
	return nil
}

func source(o *options, v string) (err error) {
	if o.dial.Source, err = netip.ParseAddr(v); err != nil {
		return fmt.Errorf("%q is no IP address", v)
	}
	return nil
}

// parse applies a list of options, separated by commas.
func (o *options) parse(list string) error {
	for item := range strings.SplitSeq(list, ",") {
		name, v, has := strings.Cut(item, "=")
		if item == "" || strings.HasPrefix(name, "x-") || name == "comment" {
			continue
		}
		i := slices.IndexFunc(table, func(x option) bool { return x.name == name })
		switch {
		case i < 0:
			return fmt.Errorf("unknown mount option %q", name)
		case has && table[i].value == "":
			return fmt.Errorf("the mount option %s takes no value", name)
		case !has && table[i].value != "":
			return fmt.Errorf("the mount option %s needs a value: %s=%s", name, name, table[i].value)
		}
		if err := table[i].set(o, v); err != nil {
			return fmt.Errorf("mount option %s: %w", name, err)
		}
	}
	return nil
}

// finish derives the settings that follow from several options.
func (o *options) finish() {
	o.fs.Times.RegMax = max(o.fs.Times.RegMax, o.fs.Times.RegMin)
	o.fs.Times.DirMax = max(o.fs.Times.DirMax, o.fs.Times.DirMin)
	o.dial.GiveUp = forever
	load := sync.OnceValues(func() (*certs.Store, error) { return certs.Load(o.tls, nil) })
	o.dial.TLS = func(server string) (*tls.Config, error) {
		store, err := load()
		if err != nil {
			return nil, err
		}
		return store.Client(server, tcp.ALPN), nil
	}
	if !o.hard {
		o.fs.Timeout = o.timeo * time.Duration(o.retrans+1)
		o.dial.GiveUp = o.fs.Timeout
	}
}

// forever is how long a hard mount waits for its server.
const forever = 100 * 365 * 24 * time.Hour

// device parses the device: a URL, or server:/path as in nfs(5).
func (o *options) device(s string) (client.URL, error) {
	if client.IsURL(s) {
		u, err := client.ParseURL(s)
		if err == nil && o.rdma != nil && *o.rdma != (u.Transport == rpc.TransportRDMA) {
			err = fmt.Errorf("%s and the option proto name different transports", s)
		}
		if err == nil && o.port != "" {
			host, _, _ := net.SplitHostPort(u.Host)
			u.Host = net.JoinHostPort(host, o.port)
		}
		return u, err
	}
	host, path, ok := strings.Cut(s, ":/")
	if !ok || host == "" || strings.HasPrefix(path, "/") {
		return client.URL{}, fmt.Errorf("%q is neither a URL (nfs+rdma://server/path) nor server:/path", s)
	}
	scheme := "nfs+tcp://"
	if o.rdma != nil && *o.rdma {
		scheme = "nfs+rdma://"
	}
	if o.port != "" {
		host = net.JoinHostPort(strings.Trim(host, "[]"), o.port)
	}
	return client.ParseURL(scheme + host + "/" + strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23").Replace(path))
}
