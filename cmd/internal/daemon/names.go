package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/idmap"
)

func newNames(c *config.IDMap) *idmap.Map {
	domain := c.Domain
	if domain == "" {
		domain = hostDomain()
	}
	return idmap.New(idmap.Config{Domain: domain, Names: c.Method == config.IDNames, Source: hostUsers{}})
}

// noDomain is that of a host without one.
const noDomain = "localdomain"

// hostDomain is the DNS domain of the host, as far as it is known without asking anybody.
func hostDomain() string {
	name, _ := os.Hostname()
	if _, domain, ok := strings.Cut(name, "."); ok && domain != "" {
		return domain
	}
	b, _ := os.ReadFile("/etc/resolv.conf")
	return resolvDomain(b)
}

// resolvDomain is the domain in a resolv.conf(5).
func resolvDomain(conf []byte) string {
	domain := noDomain
	for line := range bytes.Lines(conf) {
		f := strings.Fields(string(line))
		if len(f) >= 2 && (f[0] == "domain" || f[0] == "search") {
			if d := strings.TrimSuffix(f[1], "."); d != "" {
				domain = d // the last counts
			}
		}
	}
	return domain
}

// hostUsers is the user database of the host: its files, and by getent(1) what else
// nsswitch.conf(5) names.
type hostUsers struct{}

// getentLimit bounds one question, as a directory service may not answer.
const getentLimit = 5 * time.Second

// Name implements idmap.Source.
func (hostUsers) Name(id uint32, group bool) (string, error) {
	s := strconv.FormatUint(uint64(id), 10)
	if group {
		if g, err := user.LookupGroupId(s); err == nil {
			return g.Name, nil
		}
	} else if u, err := user.LookupId(s); err == nil {
		return u.Username, nil
	}
	name, _, err := getent(s, group)
	return name, err
}

// ID implements idmap.Source.
func (hostUsers) ID(name string, group bool) (uint32, error) {
	if _, ok := idmap.Number([]byte(name)); ok {
		return 0, idmap.ErrUnknown // getent would take it for a number
	}
	var s string
	if group {
		if g, err := user.LookupGroup(name); err == nil {
			s = g.Gid
		}
	} else if u, err := user.Lookup(name); err == nil {
		s = u.Uid
	}
	if s == "" {
		got, id, err := getent(name, group)
		if err != nil {
			return 0, err
		}
		if got != name {
			return 0, idmap.ErrUnknown
		}
		s = id
	}
	n, ok := idmap.Number([]byte(s))
	if !ok {
		return 0, idmap.ErrUnknown
	}
	return n, nil
}

// getent asks for a user or a group by name or number.
func getent(key string, group bool) (name, id string, err error) {
	const notFound = 2
	if strings.HasPrefix(key, "-") {
		return "", "", idmap.ErrUnknown
	}
	path, err := exec.LookPath("getent")
	if err != nil {
		return "", "", idmap.ErrUnknown
	}
	ctx, cancel := context.WithTimeout(context.Background(), getentLimit)
	defer cancel()
	table := "passwd"
	if group {
		table = "group"
	}
	out, err := exec.CommandContext(ctx, path, table, key).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == notFound {
		return "", "", idmap.ErrUnknown
	}
	if err != nil {
		return "", "", err
	}
	f := strings.Split(strings.TrimSpace(string(out)), ":")
	if len(f) < 3 || f[0] == "" {
		return "", "", idmap.ErrUnknown
	}
	return f[0], f[2], nil
}
