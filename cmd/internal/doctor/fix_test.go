package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
)

const systemd = "usr/lib/systemd/system/rstored.service"

// TestFixes: which findings have a remedy, and which.
func TestFixes(t *testing.T) {
	service := files{"run/systemd/system/x": "", systemd: ""}
	with := func(more files) files {
		all := make(files)
		for _, f := range []files{service, more} {
			maps.Copy(all, f)
		}
		return all
	}
	gone := errors.New("no rstored answers")
	for _, c := range []struct {
		name  string
		files files
		err   error // of the daemon
		want  []string
	}{
		{"well", service, nil, nil},
		{"not running", service, gone, []string{"systemctl start rstored"}},
		{"not running, no service", nil, gone, nil},
		{"not for this user", service, fs.ErrPermission, nil},
		{"buffers", with(files{"proc/sys/net/core/rmem_max": "212992\n"}), gone, []string{
			"systemctl start rstored", "sh -c 'echo net.core.rmem_max=67108864 > /etc/sysctl.d/60-rstored.conf'",
			"sysctl -p /etc/sysctl.d/60-rstored.conf", "systemctl restart rstored",
		}},
		{"MTU", with(files{"sys/class/net/eth0/mtu": "9000"}), nil, []string{"systemctl restart rstored"}},
	} {
		d := well()
		d.err = c.err
		var got []string
		for _, f := range Server(t.Context(), host(t, c.files), d) {
			for _, s := range f.Fix {
				got = append(got, s.String())
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestFixesOpenNothing: no remedy of any finding that tests know exports, admits or listens.
func TestFixesOpenNothing(t *testing.T) {
	for _, f := range []files{nil, {"sys/class/net/eth0/mtu": "9000"}, {"sys/class/net/eth0/mtu": "300"}, rxe} {
		var r Report
		r.local(host(t, f), serverAddr, true)
		r = append(r, Server(t.Context(), host(t, f), well())...)
		for _, f := range r {
			for _, s := range f.Fix {
				line := s.String()
				for _, bad := range []string{"export", "port add", "reload", "apply", "nft", "iptables", "firewall", "rstored --"} {
					if strings.Contains(line, bad) {
						t.Errorf("%s: %s", f.What, line)
					}
				}
			}
		}
	}
}

func TestFix(t *testing.T) {
	one, two, three := Step{"one"}, Step{"two", "it's"}, Step{"three"}
	r := Report{
		{Level: OK, What: "well", Fix: []Step{{"never"}}},
		{Level: Warn, What: "first", Fix: []Step{one, two}},
		{Level: Fail, What: "no remedy"},
		{Level: Fail, What: "second", Fix: []Step{one, three}},
	}
	for _, c := range []struct {
		answers, fail string
		ran           []string
	}{
		{"", "", nil},
		{"n\nno\n", "", nil},
		{"y\nYES\ny", "", []string{"one", `two 'it'\''s'`, "three"}},
		{"y\nn\ny\n", "", []string{"one", "three"}},
		{"n\ny\n", "", nil}, // both begin with the same step
		{"y\ny\ny\n", "one", []string{"one"}},
	} {
		var ran []string
		var out strings.Builder
		x := &Fixer{In: strings.NewReader(c.answers), Out: &out, Run: func(_ context.Context, s Step) error {
			ran = append(ran, s.String())
			if s[0] == c.fail {
				return errors.New("it broke")
			}
			return nil
		}}
		done, err := x.Fix(t.Context(), r)
		if !slices.Equal(ran, c.ran) || (err != nil) != (c.fail != "") || done > len(ran) {
			t.Errorf("%q: ran %q, done %d, %v\n%s", c.answers, ran, done, err, &out)
		}
		if strings.Contains(out.String(), "well") || !strings.Contains(out.String(), "run 'one'? [y/N]") {
			t.Errorf("%s", &out)
		}
	}
	if b, err := json.Marshal(r[1]); err != nil || !strings.Contains(string(b), `"fix":[["one"],["two","it's"]]`) {
		t.Errorf("%s, %v", b, err)
	}
}
