package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rivo/uniseg"

	"github.com/rstored/rstored/cmd/internal/live"
)

var update = flag.Bool("update", false, "write the golden screens")

// golden holds text against a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

// view is a busy server.
func view() *live.View {
	until := time.Date(2026, 3, 4, 5, 7, 30, 0, time.UTC)
	return &live.View{
		Host: "store1", State: "running", Taken: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Uptime: 273_600, Interval: 1,
		Server: live.Server{
			RDMAConnections: 12, TCPConnections: 3, Clients: 5, Sessions: 6, SlotsBusy: 9, Opens: 1234, Delegations: 17,
			LocksHeld: 4, LocksWaiting: 1,
			Grace: true, GraceUntil: &until, GraceWaiting: 2, Memory: 12<<20 + 300_000, Regions: 48, Credits: 384,
			CreditsInUse: 31, Workers: 16, WorkersBusy: 3,
			Problems: []string{"export /gone: no such\x1b[31m directory"},
		},
		RDMAWritten: 3.4e9, RDMARead: 120e6, Retransmits: 12, Errors: 0.5,
		Total: live.Row{Calls: 54321, Ops: 54321, In: 125e6, Out: 3.41e9, Mean: 143, P99: 950, Depth: 7.77, Failed: 3},
		Clients: []live.Row{
			{
				Name: "10.0.0.7", Transport: "rdma", Calls: 40_000, Ops: 40_000, In: 5e6, Out: 3.2e9, Mean: 150, P99: 900,
				Depth: 6,
			},
			{
				Name: "10.0.0.8", Transport: "rdma", Calls: 14_000, Ops: 14_000, In: 119e6, Out: 210e6, Mean: 120, P99: 1800,
				Depth: 1.68, Failed: 3,
			},
			{
				Name: "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff", Transport: "tcp", Calls: 321, Ops: 321, In: 1e6, Out: 30e3,
				Mean: 300, P99: 123_456, Depth: 0.09,
			},
			{Name: "10.0.0.9", Transport: "tcp"},
		},
		Exports: []live.Row{
			{
				Name: "/data", Kind: "read", Transport: "rdma", Calls: 50_000, Ops: 50_000, Out: 3.4e9, Mean: 150, P99: 900,
				Depth: 7.5,
			},
			{
				Name: "/data/\u6570\u636e\x1b[2J\xff", Kind: "write", Transport: "rdma", Calls: 321, Ops: 321, In: 120e6, Mean: 800,
				P99: 1_950_000, Depth: 0.2,
			},
		},
		Operations: []live.Row{
			{Name: "nfs4.READ", Transport: "rdma", Calls: 50_000, Ops: 50_000, Out: 3.4e9, Mean: 150, P99: 900, Depth: 7.5},
			{
				Name: "nfs4.GETATTR", Transport: "rdma", Calls: 4321, Ops: 4321, In: 0.6e6, Out: 0.9e6, Mean: 9.5, P99: 15,
				Depth: 0.04, Failed: 3,
			},
		},
		QPs: []live.QPRow{
			{
				QPN: "0x4f2a10", Type: "RC", State: "RTS", Device: "10.0.0.1", Remote: "10.0.0.7:40000", SendQueued: 12,
				SendDepth: 128, RTT: 25, In: 5e6, Out: 3.2e9, PacketsIn: 40_000, PacketsOut: 2_200_000, Retransmits: 12,
			},
			{
				QPN: "0x4f2a11", Type: "RC", State: "RTS", Device: "10.0.0.1", Remote: "10.0.0.8:40000", In: 119e6, Out: 210e6,
				PacketsIn: 90_000, PacketsOut: 50_000, RNRs: 1.5,
			},
			{QPN: "0x1", Type: "UD", State: "RTS", Device: "10.0.0.1"},
		},
		Mounts: []live.MountRow{
			{Directory: "/mnt/idle", Source: "nfs+tcp://store2:2049/b", State: "ok"},
			{
				Directory: "/mnt/a\x1b[2J", Source: "nfs+rdma://store2:20049/a", State: "waiting", Ops: 1234, Read: 1.2e9,
				Written: 3e6, Mean: 150, Depth: 1.5, Failed: 2,
			},
		},
	}
}

// TestScreens: what keys make of a screen.
func TestScreens(t *testing.T) {
	for _, tc := range []struct {
		name   string
		keys   []string
		width  int
		height int
		color  bool
	}{
		{name: "clients"},
		{name: "clients-by-name-reversed", keys: []string{"left", "left", "r", "z"}},
		{name: "clients-by-p99", keys: []string{"right", "right", "right", "right"}},
		{name: "clients-wide", width: 120},
		{name: "clients-narrow", width: 50},
		{name: "clients-color", color: true},
		{name: "clients-short", height: 11, keys: []string{"down"}},
		{name: "clients-end", height: 11, keys: []string{"end", "up", "up", "page-down"}},
		{name: "tiny", width: 12, height: 3},
		{name: "exports", keys: []string{"2"}},
		{name: "operations", keys: []string{"tab", "tab"}},
		{name: "qps", keys: []string{"shift-tab", "shift-tab"}},
		{name: "mounts", keys: []string{"shift-tab", "z"}},
		{name: "qps-by-retransmits-with-idle", keys: []string{"4", ">", ">", "z"}},
		{name: "filter-typed", keys: []string{"/", "D", "B", "x", "backspace", "8"}},
		{name: "filter", keys: []string{"/", "R", "d", "M", "enter"}},
		{name: "filter-left", keys: []string{"/", "R", "d", "esc", "p", "+"}},
		{name: "help", keys: []string{"?"}, height: 30},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := NewModel("", "")
			if err != nil {
				t.Fatal(err)
			}
			m.Color = tc.color
			if tc.width > 0 {
				m.Width = tc.width
			}
			if tc.height > 0 {
				m.Height = tc.height
			}
			m.Show(view())
			for _, k := range tc.keys {
				if m.Key(k) {
					t.Fatalf("%s leaves", k)
				}
				m.Lines()
			}
			lines := m.Lines()
			if len(lines) >= m.Height {
				t.Errorf("%d lines on a screen of %d", len(lines), m.Height)
			}
			for _, l := range lines {
				if plain := strings.NewReplacer("\x1b[1m", "", "\x1b[2m", "", "\x1b[7m", "", "\x1b[1;31m", "", "\x1b[0m",
					"").Replace(l); uniseg.StringWidth(plain) > m.Width || strings.Contains(plain, "\x1b") {
					t.Errorf("a line of %d characters on a screen of %d: %q", uniseg.StringWidth(plain), m.Width, l)
				}
			}
			golden(t, tc.name, strings.Join(lines, "\n")+"\n")
		})
	}
}

// TestNothingYet: before the first answer, without one, and when answers end.
func TestNothingYet(t *testing.T) {
	m, _ := NewModel("", "")
	if s := strings.Join(m.Lines(), "\n"); !strings.Contains(s, "waiting for the server") {
		t.Errorf("before the first answer:\n%s", s)
	}
	m.Fail(errors.New("no rstored\x1b[2J answers"))
	if s := strings.Join(m.Lines(), "\n"); !strings.Contains(s, "no answer: no rstored?[2J answers") ||
		strings.Contains(s, "waiting") {
		t.Errorf("without an answer:\n%s", s)
	}
	m.Show(view())
	m.Fail(errors.New("gone"))
	if s := strings.Join(m.Lines(), "\n"); !strings.Contains(s, "no answer: gone") || !strings.Contains(s, "10.0.0.7") {
		t.Errorf("after the last answer:\n%s", s)
	}
	m.Show(view())
	if s := strings.Join(m.Lines(), "\n"); strings.Contains(s, "no answer") {
		t.Errorf("answers again:\n%s", s)
	}
	m.Key("p")
	later := view()
	later.Host = "another"
	m.Show(later)
	if s := strings.Join(m.Lines(), "\n"); strings.Contains(s, "another") || !strings.Contains(s, "paused") {
		t.Errorf("paused:\n%s", s)
	}
}

// TestModelArguments: tables and columns by name.
func TestModelArguments(t *testing.T) {
	for _, tc := range []struct {
		table, sort string
		ok          bool
	}{
		{"", "", true},
		{"qps", "", true},
		{"", "p99", true},
		{"qps", "retx", true},
		{"clients", "in", true},
		{"clients", "OPS/S", true},
		{"pqs", "", false},
		{"", "px", false},
		{"clients", "retx", false},
	} {
		if _, err := NewModel(tc.table, tc.sort); (err == nil) != tc.ok {
			t.Errorf("%q by %q: %v", tc.table, tc.sort, err)
		}
	}
}

// TestInterval: keys change it within its limits.
func TestInterval(t *testing.T) {
	m, _ := NewModel("", "")
	for range 20 {
		m.Key("+")
	}
	if m.Interval != MaxInterval {
		t.Errorf("at most %v", m.Interval)
	}
	for range 20 {
		m.Key("-")
	}
	if m.Interval != MinInterval {
		t.Errorf("at least %v", m.Interval)
	}
	for _, k := range []string{"q", "ctrl-c"} {
		if !m.Key(k) {
			t.Errorf("%s does not leave", k)
		}
	}
}

// TestKeys: what terminals send.
func TestKeys(t *testing.T) {
	for in, want := range map[string][]string{
		"q":                       {"q"},
		"\x03\x1a":                {"ctrl-c", "ctrl-z"},
		"\x1b[A\x1bOB\x1b[5~":     {"up", "down", "page-up"},
		"\x1b":                    {"esc"},
		"\x1b[1;5C":               nil,
		"\x1b[200~a\x1b[Z":        {"a", "shift-tab"},
		"\x1b\x1b[D":              {"esc", "left"},
		"\t\r\x7f/\u00e9":         {"tab", "enter", "backspace", "/", "\u00e9"},
		"\xff\xfea":               {"a"},
		"\x1b[":                   {"esc", "["},
		"\x1b[12;" + "\x1b[12;3;": nil,
	} {
		if got := keys([]byte(in)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzKeys: nothing that a terminal sends panics, or becomes a key with no name.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"q\x1b[A", "\x1b[1;5C\xff", "/a\r"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, _ := NewModel("", "")
		m.Show(view())
		for _, k := range keys(b) {
			if k == "" {
				t.Error("a key without a name")
			}
			m.Key(k)
		}
		if n := len(m.Lines()); n >= m.Height {
			t.Errorf("%d lines", n)
		}
	})
}

// TestBatch: plain text of two views, and the same as JSON.
func TestBatch(t *testing.T) {
	n := uint64(0)
	fetch := func(context.Context) (*live.Sample, error) {
		n++
		if n > 3 {
			return nil, errors.New("gone")
		}
		return &live.Sample{
			Host: "store1", State: "running", Started: time.Unix(1e9, 0), Taken: time.Unix(1e9+int64(n), 0).UTC(),
			UptimeNS: int64(n * 1e9),
			Operations: []live.Point{{
				Name: "nfs3.READ", Transport: "tcp", Out: n * n * 1e6, TookNS: n * 1e6,
				Took: []uint64{n * 10},
			}},
			Exports: []live.Point{{
				Name: "/a", Kind: "read", Transport: "tcp", Out: n * n * 1e6, TookNS: n * 1e6,
				Took: []uint64{n * 10},
			}},
			Clients: []live.Point{
				{Name: "10.0.0.7", Transport: "tcp", Out: n * n * 1e6, TookNS: n * 1e6, Took: []uint64{n * 10}},
				{Name: "10.0.0.8", Transport: "tcp", TookNS: n * 1e6, Took: []uint64{n * 9}},
			},
		}, nil
	}
	m, _ := NewModel("", "")
	m.Width = 1 << 16
	var out bytes.Buffer
	if err := (&Batch{Fetch: fetch, Interval: time.Millisecond, Count: 2, All: true, Rows: 1, Model: m}).Run(t.Context(),
		&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "batch", out.String())

	n = 0
	out.Reset()
	err := (&Batch{Fetch: fetch, Interval: time.Millisecond, JSON: true, Model: m}).Run(t.Context(), &out)
	if err == nil || err.Error() != "gone" {
		t.Errorf("a server that goes away: %v", err)
	}
	var got []live.View
	for _, l := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var v live.View
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if len(got) != 2 || got[0].Total.Out != 3e6 || got[1].Total.Out != 5e6 || got[1].SinceStart {
		t.Errorf("%+v", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n = 0
	if err := (&Batch{Fetch: fetch, Interval: time.Hour, Model: m}).Run(ctx, &out); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}
