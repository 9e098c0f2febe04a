package ops

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// load writes and reads a file over and over until ctx ends.
func load(ctx context.Context, t *testing.T, at string) {
	dl := dial.Dialer{MountPort: 2049, GiveUp: 20 * time.Second}
	defer dl.Close()
	u, err := client.ParseURL(at)
	if err != nil {
		t.Error(err)
		return
	}
	f, err := dl.Client(u).CreateFile(ctx, u.Path, 0o644)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for ctx.Err() == nil {
		if _, err := f.WriteAt(buf, 0); err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		for range 3 {
			if _, err := f.ReadAt(buf, 0); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
		// A share of the host only: others run beside it.
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestPage: a browser shows the page of a server that works: the numbers move, tables have who does
// it, what names contain is text, nothing is asked of another origin, and nothing goes wrong in the
// page.
func TestPage(t *testing.T) {
	need(t, "chromium")
	s := newServer(t)
	const odd = "/<img src=x>"
	if err := os.Mkdir(filepath.Join(s.dir, "odd"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.run("--ops-listen", s.ops, "--export",
		filepath.Join(s.dir, "odd")+"="+strings.ReplaceAll(odd, " ", `\040`)+"(rw,no_root_squash)")
	b := newBrowser(t)
	b.look("light", 1280, 900)
	origin := "http://" + s.ops
	b.call(b.session, "Page.navigate", map[string]any{"url": origin + "/"}, nil)
	b.wait("the page loads", `["running", "warnings", "problems"].includes(document.getElementById("state")?.textContent)`)
	b.wait("nothing happens", `document.getElementById("note").textContent !== ""`)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		both := make(chan struct{})
		go func() {
			defer close(both)
			load(ctx, t, "nfs+tcp://"+s.tcp+(&url.URL{Path: odd + "/by-tcp"}).EscapedPath())
		}()
		load(ctx, t, "nfs+rdma://"+s.rdma+"/data/by-rdma")
		<-both
	}()
	defer func() {
		stop()
		<-ended
	}()

	text := func(id string) string { return `document.getElementById("` + id + `").textContent` }
	b.wait("bytes come in", `parseFloat(`+text("tile-in")+`) > 0 && parseFloat(`+text("tile-out")+`) > 0`)
	b.wait("latency", `parseFloat(`+text("tile-p99")+`) > 0`)
	b.wait("the charts have lines",
		`[...document.querySelectorAll("#charts svg")].length === 3 && [...document.querySelectorAll("#charts `+
			`svg")].every((s) => (s.querySelector("path")?.getAttribute("d") ?? "").split("L").length > 3)`)
	first := b.eval(text("tile-in"))
	b.wait("the numbers move", text("tile-in")+` !== "`+first+`"`)
	b.wait("the client over RDMA and TCP",
		`[...document.querySelectorAll("#body tr")].filter((r) => r.cells[0].textContent.startsWith("127.") && `+
			`parseFloat(r.cells[2].textContent) > 0).map((r) => r.cells[1].textContent).sort().join() === "rdma,tcp"`)

	// Is it healthy, who is slow, and why.
	b.wait("the health in words", `/^(Healthy: |Warning: |Problem: )/.test(`+text("problems")+`)`)
	b.wait("the exports with their free space", `[...document.querySelectorAll("#volumes tr")].some((r) => `+
		`r.cells[0].textContent === "/data" && r.cells[1].textContent === "served" && `+
		`/^[0-9.]+ [KMGT]?i?B$/.test(r.cells[2].textContent) && /^[0-9]+ %/.test(r.cells[3].textContent))`)
	b.wait("the slowest calls with where their time went", `[...document.querySelectorAll("#slow tr")].some((r) => `+
		`/^(nfs|mount)/.test(r.cells[1].textContent) && r.cells[7].querySelectorAll("svg rect").length > 0)`)
	b.eval(`document.getElementById("range-60").click()`)
	b.wait("an hour", `[...document.querySelectorAll("#charts svg text")].some((e) => e.textContent === "60 min ago")`)
	b.eval(`document.getElementById("range-5").click()`)
	b.wait("five minutes",
		`![...document.querySelectorAll("#charts svg text")].some((e) => e.textContent === "60 min ago")`)

	// By the keyboard to each table.
	b.eval(`document.getElementById("tab-clients").focus()`)
	b.key("ArrowRight", 39)
	b.wait("exports", `document.activeElement.id === "tab-exports" && `+
		`document.activeElement.getAttribute("aria-selected") === "true"`)
	b.wait("the export", `[...document.querySelectorAll("#body tr")].some((r) => r.cells[0].textContent === "/data" && `+
		`r.cells[1].textContent === "write")`)
	b.key("ArrowRight", 39)
	b.wait("operations", `[...document.querySelectorAll("#body tr")].some((r) => `+
		`r.cells[0].textContent.endsWith(".READ") && parseFloat(r.cells[4].textContent) > 0)`)
	b.key("End", 35)
	b.wait("queue pairs", `[...document.querySelectorAll("#body tr")].some((r) => r.cells[3].textContent === "RTS" && `+
		`parseFloat(r.cells[6].textContent) > 0)`)
	b.eval(`document.querySelector("#head button").click()`)
	b.wait("sorted by the other column", `document.querySelector("#head th").getAttribute("aria-sort") === "ascending"`)
	b.key("Home", 36) // of the tab list, which still has the focus
	b.wait("back", `document.getElementById("tab-clients").getAttribute("aria-selected") === "true"`)
	b.eval(`const f = document.getElementById("filter"); f.value = "rdma"; f.dispatchEvent(new Event("input"))`)
	b.wait("filtered", `document.querySelectorAll("#body tr").length === 1`)
	b.eval(`f.value = ""; f.dispatchEvent(new Event("input"))`)

	// Names are text.
	b.eval(`document.getElementById("tab-exports").click()`)
	b.wait("the odd export", `[...document.querySelectorAll("#body tr")].some((r) => r.cells[0].textContent === "`+odd+
		`")`)
	if n := b.eval(`document.querySelectorAll("img").length`); n != "0" {
		t.Errorf("%s elements of names", n)
	}
	b.eval(`document.getElementById("tab-clients").click()`)

	for name, v := range map[string]struct {
		scheme        string
		width, height int
	}{
		"light": {"light", 1280, 900}, "dark": {"dark", 1280, 900}, "narrow": {"light", 400, 812},
		"narrow-dark": {"dark", 400, 812},
	} {
		b.look(v.scheme, v.width, v.height)
		b.wait("it is drawn for its width",
			`[...document.querySelectorAll("#charts svg")].every((s) => Math.abs(s.querySelector("line").getAttribute("x2") `+
				`- s.clientWidth) < 2)`)
		if wide := b.eval(`document.documentElement.scrollWidth > document.documentElement.clientWidth`); wide != "false" {
			t.Errorf("%s: the page is wider than its window", name)
		}
		// Nothing has to be scrolled sideways on a narrow screen, and every number has its name beside
		// it.
		if v.width < 500 {
			b.wait("rows are cards", `[...document.querySelectorAll("#panel, .card")].every((e) => `+
				`e.scrollWidth <= e.clientWidth + 1) && [...document.querySelectorAll(".stack td")].every((e) => e.dataset.label)`)
		}
		png := b.screenshot()
		if dir := os.Getenv("RSTORED_SCREENSHOTS"); dir != "" {
			if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	b.mu.Lock()
	faults, urls := b.faults, b.urls
	b.mu.Unlock()
	for _, f := range faults {
		t.Error(f)
	}
	for _, u := range urls {
		if !strings.HasPrefix(u, origin+"/") && u != "about:blank" {
			t.Errorf("asks for %s", u)
		}
	}
	if len(urls) < 5 {
		t.Errorf("only %q were asked for; are they still being seen?", urls)
	}

	// What would run scripts of others is refused by the browser itself.
	b.eval(`const e = document.createElement("script"); e.textContent = "window.injected = 1"; ` +
		`document.body.append(e); const i = document.createElement("img"); i.src = "http://127.0.0.1:1/x.png"; ` +
		`document.body.append(i); 0`)
	if got := b.eval(`String(window.injected)`); got != "undefined" {
		t.Error("a script in the page runs")
	}
	b.wait("the policy is told of", `true`)
	b.mu.Lock()
	refused := strings.Join(b.faults[len(faults):], "\n")
	b.mu.Unlock()
	if !strings.Contains(refused, "Content Security Policy") && !strings.Contains(refused, "Content-Security-Policy") {
		t.Errorf("the policy does not act: %s", refused)
	}

	stop()
	<-ended
	b.wait("load that ends", `parseFloat(`+text("tile-calls")+`) === 0`)
	s.stop()
	b.wait("a server that is gone", text("state")+` === "no answer"`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, origin+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		t.Error(errors.New("it answers still"))
	}
}
