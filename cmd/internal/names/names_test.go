package names

import (
	"errors"
	"os/user"
	"slices"
	"strconv"
	"testing"

	"github.com/rstored/rstored/nfs/idmap"
)

// TestHostUsers asks the database of the host for the user and the group of the test.
func TestHostUsers(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Skip(err)
	}
	g, err := user.LookupGroupId(me.Gid)
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		name, id string
		group    bool
	}{{me.Username, me.Uid, false}, {g.Name, g.Gid, true}} {
		id, err := hostUsers{}.ID(c.name, c.group)
		if err != nil || strconv.FormatUint(uint64(id), 10) != c.id {
			t.Errorf("%s is %d, %v", c.name, id, err)
		}
		if name, err := (hostUsers{}).Name(id, c.group); err != nil || name != c.name {
			t.Errorf("%d is %q, %v", id, name, err)
		}
		if _, err := (hostUsers{}).ID("no such name", c.group); !errors.Is(err, idmap.ErrUnknown) {
			t.Errorf("nobody: %v", err)
		}
		if _, err := (hostUsers{}).Name(4_000_000_017, c.group); !errors.Is(err, idmap.ErrUnknown) {
			t.Errorf("nobody by number: %v", err)
		}
		if _, err := (hostUsers{}).ID(c.id, c.group); !errors.Is(err, idmap.ErrUnknown) {
			t.Errorf("a number is a name: %v", err)
		}
		// What getent says is the same.
		if name, id, err := getent(c.name, c.group); err == nil && (name != c.name || id != c.id) {
			t.Errorf("getent: %s is %s, %s", c.name, name, id)
		}
	}
	if _, _, err := getent("-V", false); !errors.Is(err, idmap.ErrUnknown) {
		t.Errorf("an option: %v", err)
	}
}

func TestResolvDomain(t *testing.T) {
	for _, c := range []struct{ conf, want string }{
		{"", noDomain},
		{"nameserver 10.0.0.1\n", noDomain},
		{"search a.example. b.example\n", "a.example"},
		{"domain x.example\nsearch y.example\n", "y.example"},
		{"# search z.example\n", noDomain},
		{"search\nsearch .\n", noDomain},
	} {
		if got := resolvDomain([]byte(c.conf)); got != c.want {
			t.Errorf("%q: %q", c.conf, got)
		}
	}
}

func TestNetgroupHosts(t *testing.T) {
	const out = "ours                  (a.example.org,,) ( b ,user,nis.example.org) (,u,) (-,,) (c"
	if got := netgroupHosts(out); !slices.Equal(got, []string{"a.example.org", "b"}) {
		t.Errorf("%q", got)
	}
}

// TestHostGroups looks up a user that every host has.
func TestHostGroups(t *testing.T) {
	list, err := hostUsers{}.Groups(0)
	if err != nil || !slices.Contains(list, 0) {
		t.Errorf("root is in %v, %v", list, err)
	}
	if list, err := (hostUsers{}).Groups(4294967290); err == nil {
		t.Errorf("nobody is in %v", list)
	}
}
