package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// showEdited is an export with everything that an edit can change.
func showEdited(e *Export) string {
	rules := make([]string, len(e.Clients))
	for i := range e.Clients {
		rules[i] = e.Clients[i].String()
	}
	return strings.Join(e.Options(), ",") + " " + strings.Join(rules, " ")
}

func TestEdit(t *testing.T) {
	const before = `/d(pkey=0x8001,export_iops=9) 10.0.0.7(rw,no_root_squash,sec=sys) 10.0.0.0/8(ro) *.example.org(rw)`
	rules := func(s string) []Client {
		e, err := ParseExport("/- " + s)
		if err != nil {
			t.Fatal(err)
		}
		return e.Clients
	}
	for name, c := range map[string]struct {
		edit       ExportEdit
		want, fail string
	}{
		"add": {
			edit: ExportEdit{AddClients: rules("192.0.2.1(ro)")},
			want: "export_iops=9,pkey=0x8001 10.0.0.7/32(rw,no_root_squash,sec=sys) 10.0.0.0/8(ro,root_squash) " +
				"*.example.org(rw,root_squash) 192.0.2.1/32(ro,root_squash)",
		},
		"replace": {
			edit: ExportEdit{AddClients: rules("10.1.2.3/8(rw,all_squash)")},
			want: "export_iops=9,pkey=0x8001 10.0.0.7/32(rw,no_root_squash,sec=sys) 10.0.0.0/8(rw,all_squash) " +
				"*.example.org(rw,root_squash)",
		},
		"remove": {
			edit: ExportEdit{RemoveClients: []string{"10.0.0.7", "*.EXAMPLE.org"}},
			want: "export_iops=9,pkey=0x8001 10.0.0.0/8(ro,root_squash)",
		},
		"remove all but add one": {
			edit: ExportEdit{
				RemoveClients: []string{"10.0.0.7", "10.0.0.0/8", "*.example.org"}, AddClients: rules("*"),
			},
			want: "export_iops=9,pkey=0x8001 *(rw,root_squash)",
		},
		"remove all": {
			edit: ExportEdit{RemoveClients: []string{"10.0.0.7", "10.0.0.0/8", "*.example.org"}},
			fail: "no client left",
		},
		"remove unknown": {
			edit: ExportEdit{RemoveClients: []string{"10.0.0.9"}},
			fail: "its rules are for: 10.0.0.7/32, 10.0.0.0/8, *.",
		},
		"remove options": {edit: ExportEdit{RemoveClients: []string{"10.0.0.7(rw)"}}, fail: "without options"},
		"options": {
			edit: ExportEdit{Options: []string{"direct", "crossmnt", "fsid=7", "sec=sys", "bandwidth=2M", "pkey=0x8002"}},
			want: "direct,fsid=7,crossmnt,export_iops=9,pkey=0x8001,pkey=0x8002 " +
				"10.0.0.7/32(rw,no_root_squash,sec=sys,bandwidth=2M) 10.0.0.0/8(ro,root_squash,sec=sys,bandwidth=2M) " +
				"*.example.org(rw,root_squash,sec=sys,bandwidth=2M)",
		},
		"unset": {
			edit: ExportEdit{Unset: []string{"sec", "pkey", "export_iops"}},
			want: " 10.0.0.7/32(rw,no_root_squash) 10.0.0.0/8(ro,root_squash) *.example.org(rw,root_squash)",
		},
		"another partition": {
			edit: ExportEdit{Unset: []string{"pkey"}, Options: []string{"pkey=0x8003"}},
			want: "export_iops=9,pkey=0x8003 10.0.0.7/32(rw,no_root_squash,sec=sys) 10.0.0.0/8(ro,root_squash) " +
				"*.example.org(rw,root_squash)",
		},
		"unset a flag":   {edit: ExportEdit{Unset: []string{"direct"}}, fail: "cannot be unset"},
		"unknown option": {edit: ExportEdit{Options: []string{"fast"}}, fail: "unknown export option"},
		"bad value":      {edit: ExportEdit{Options: []string{"bandwidth=much"}}, fail: "bandwidth"},
		"bad rule":       {edit: ExportEdit{AddClients: []Client{{Host: "10.0.0.300"}}}, fail: "10.0.0.300"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseExport(before)
			if err != nil {
				t.Fatal(err)
			}
			was := showEdited(&e)
			err = e.Edit(&c.edit)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) || showEdited(&e) != was {
					t.Fatalf("%v, want %q; the export is %s", err, c.fail, showEdited(&e))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := showEdited(&e); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestEditOwnHost: an option of rules on an export that names no client keeps it for the own host.
func TestEditOwnHost(t *testing.T) {
	e := Export{Path: "/d"}
	if err := e.Normalize(); err != nil {
		t.Fatal(err)
	}
	if err := e.Edit(&ExportEdit{Options: []string{"direct"}}); err != nil || len(e.Clients) != 0 {
		t.Errorf("%v: %s", err, showEdited(&e))
	}
	more := e
	if err := more.Edit(&ExportEdit{AddClients: []Client{{Host: "10.0.0.7"}}}); err != nil ||
		showEdited(&more) != "direct 127.0.0.0/8(rw,root_squash) ::1/128(rw,root_squash) 10.0.0.7/32(rw,root_squash)" {
		t.Errorf("%v: %s", err, showEdited(&more))
	}
	if err := e.Edit(&ExportEdit{Options: []string{"no_root_squash"}}); err != nil {
		t.Fatal(err)
	}
	if got := showEdited(&e); got != "direct 127.0.0.0/8(rw,no_root_squash) ::1/128(rw,no_root_squash)" {
		t.Error(got)
	}
}

// TestWholeOptions: the list of options of whole exports is what the options do.
func TestWholeOptions(t *testing.T) {
	values := map[string]string{
		"fsid": "7", "mountpoint": "/m", "mp": "/m", "pkey": "0x8001", "export_bandwidth": "1M", "export_iops": "5",
		"anonuid": "1", "anongid": "1", "sec": "sys", "transport": "tcp", "xprtsec": "tls", "rsize": "1024",
		"wsize": "1024", "bandwidth": "1M", "iops": "5", "refer": "/a@b", "replicas": "/a@b", "quota": "1G",
	}
	for name := range options {
		o := name
		if v := values[name]; v != "" {
			o += "=" + v
		}
		// A flag has no effect on what it is already: two starting points.
		whole, rule := false, false
		for _, start := range []Export{{}, {Async: true, CrossMnt: true, Direct: true, SecurityLabel: true}} {
			for _, c := range []Client{{}, {ReadOnly: true, Secure: true, NoHide: true, ManageGIDs: true, Squash: AllSquash}} {
				e, r := start, c
				if e.ApplyOptions(&r, []string{o}) != nil {
					continue
				}
				whole = whole || !reflect.DeepEqual(e, start)
				rule = rule || !reflect.DeepEqual(r, c)
			}
		}
		if got := len(WholeOptions([]string{o})) > 0; got != whole || whole && rule {
			t.Errorf("%s: is listed as an option of the whole export: %v; changes the export: %v, the rule: %v",
				o, got, whole, rule)
		}
	}
}

// TestWrittenAsTable: an export that is written as a table is the same when it is read.
func TestWrittenAsTable(t *testing.T) {
	for _, spec := range []string{
		"/d 10.0.0.0/8", "/d(async,fsid=7,crossmnt) 10.0.0.7(ro,all_squash,anonuid=5) *.example.org(secure,sec=none)",
		"/d(no_host_locks,direct,pkey=0x8001,export_iops=9) *(bandwidth=5M,transport=tcp,nohide)",
	} {
		e, err := ParseExport(spec)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for i := range e.Clients {
			c := &e.Clients[i]
			text.WriteString("/d " + c.Name() + "(" + strings.Join(e.TableOptions(c), ",") + ")\n")
		}
		file := filepath.Join(t.TempDir(), "exports")
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		list, warnings, err := ReadExports(file)
		if err != nil || len(list) != 1 || len(warnings) > 0 {
			t.Fatalf("%v, %v, %v\n%s", list, warnings, err, text.String())
		}
		got := list[0]
		got.FirstMatch, got.Source = false, ""
		for i := range e.Clients {
			if e.Clients[i].Sec == nil {
				e.Clients[i].Sec = []string{FlavorSys, FlavorNone}
			}
		}
		if !reflect.DeepEqual(got, e) {
			t.Errorf("%s became\n%s\n%+v", spec, text.String(), got)
		}
	}
}
