package ops

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a Chromium without a window and one page in it, spoken to by the DevTools protocol
// over pipes: JSON with a zero byte behind each message.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string
	ended   chan struct{}

	mu      sync.Mutex
	next    int
	answers map[int]chan message
	faults  []string // errors in the page and in the browser's log
	urls    []string // what was asked for
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// browserTime bounds the time for an answer, on a busy host.
const browserTime = 60 * time.Second

func newBrowser(t *testing.T) *browser {
	t.Helper()
	need(t, "chromium")
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "rstored-browser")
	if err != nil {
		t.Fatal(err)
	}
	// --no-sandbox: it runs as root and sees our own page only.
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--no-proxy-server", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+home, "about:blank")
	cmd.ExtraFiles = []*os.File{inR, outW} // 3 and 4
	cmd.Env = append(os.Environ(), "HOME="+home)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	b := &browser{t: t, to: inW, answers: make(map[int]chan message), ended: make(chan struct{})}
	go b.read(outR)
	t.Cleanup(func() {
		_, _ = b.try("", "Browser.close", nil)
		stuck := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		stuck.Stop()
		inW.Close()
		_ = os.RemoveAll(home)
		if t.Failed() {
			t.Logf("chromium:\n%s", log.String())
		}
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(b.session, domain+".enable", nil, nil)
	}
	return b
}

func (b *browser) read(r io.Reader) {
	defer close(b.ended)
	for in := bufio.NewReader(r); ; {
		text, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if c := b.answers[m.ID]; m.ID != 0 && c != nil {
			c <- m.message
			delete(b.answers, m.ID)
		}
		b.event(m.Method, m.Params)
		b.mu.Unlock()
	}
}

// event keeps what the test asks about. Call with mu held.
func (b *browser) event(method string, params json.RawMessage) {
	var p struct {
		Type  string `json:"type"`
		Entry struct {
			Level string `json:"level"`
		} `json:"entry"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	_ = json.Unmarshal(params, &p)
	switch {
	case method == "Network.requestWillBeSent":
		b.urls = append(b.urls, p.Request.URL)
	case method == "Runtime.exceptionThrown",
		method == "Runtime.consoleAPICalled" && (p.Type == "error" || p.Type == "warning" || p.Type == "assert"),
		method == "Log.entryAdded" && (p.Entry.Level == "error" || p.Entry.Level == "warning"):
		b.faults = append(b.faults, method+" "+string(params))
	}
}

func (b *browser) try(session, method string, params any) (json.RawMessage, error) {
	b.mu.Lock()
	b.next++
	id, c := b.next, make(chan message, 1)
	b.answers[id] = c
	b.mu.Unlock()
	text, err := json.Marshal(message{ID: id, SessionID: session, Method: method, Params: params})
	if err != nil {
		return nil, err
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		return nil, err
	}
	select {
	case m := <-c:
		if m.Error != nil {
			return nil, errors.New(m.Error.Message)
		}
		return m.Result, nil
	case <-b.ended:
		return nil, errors.New("the browser has ended")
	case <-time.After(browserTime):
		return nil, errors.New("no answer")
	}
}

func (b *browser) call(session, method string, params, result any) {
	b.t.Helper()
	got, err := b.try(session, method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(got, result)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// eval is the value of an expression in the page, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception *json.RawMessage `json:"exceptionDetails"`
	}
	b.call(b.session, "Runtime.evaluate",
		map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.Exception != nil {
		b.t.Fatalf("%s: %s", expression, *r.Exception)
	}
	return fmt.Sprint(r.Result.Value)
}

// wait waits until an expression is true.
func (b *browser) wait(what, expression string) {
	b.t.Helper()
	for until := time.Now().Add(browserTime); ; time.Sleep(50 * time.Millisecond) {
		if b.eval(expression) == "true" {
			return
		}
		if time.Now().After(until) {
			b.t.Fatalf("%s: %s is not true; the page:\n%s", what, expression, b.eval("document.body.innerText"))
		}
	}
}

// key presses a key, as somebody at a keyboard does.
func (b *browser) key(name string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call(b.session, "Input.dispatchKeyEvent",
			map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code}, nil)
	}
}

// look sets the colors and the size of the window.
func (b *browser) look(scheme string, width, height int) {
	b.t.Helper()
	b.call(b.session, "Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call(b.session, "Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

func (b *browser) screenshot() []byte {
	b.t.Helper()
	var shot struct {
		Data string `json:"data"`
	}
	b.call(b.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
