//go:build cephfs && linux && cgo

package rados

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(t *testing.T) *Client {
	t.Helper()
	if os.Getenv("RSTORED_CEPH") == "" {
		t.Skip("RSTORED_CEPH is not set: there is no cluster (make test-ceph)")
	}
	c, err := Open(Options{Pool: "data", Namespace: t.Name(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestChange: a change happens only over the values that it expects, and then as a whole.
func TestChange(t *testing.T) {
	c := open(t)
	if p, err := c.Pairs("object", ""); err != nil || len(p) != 0 {
		t.Fatalf("an object that does not exist: %v, %v", p, err)
	}
	missing := Change{Is: Pairs{"a": nil}, Set: Pairs{"a": []byte("1"), "b\xff": []byte("x\x00y")}}
	must(t, c.Change("object", missing))
	if err := c.Change("object", missing); !errors.Is(err, ErrChanged) {
		t.Fatalf("a key that is not missing any more: %v", err)
	}
	wrong := Change{Is: Pairs{"a": []byte("2")}, Set: Pairs{"c": []byte("3")}, Remove: []string{"a"}}
	if err := c.Change("object", wrong); !errors.Is(err, ErrChanged) {
		t.Fatalf("another value: %v", err)
	}
	p, err := c.Pairs("object", "")
	must(t, err)
	if len(p) != 2 || string(p["a"]) != "1" || string(p["b\xff"]) != "x\x00y" {
		t.Fatalf("%q", p)
	}
	must(t, c.Change("object", Change{
		Is: Pairs{"a": []byte("1")}, Set: Pairs{"a": []byte("2")},
		Remove: []string{"b\xff"},
	}))
	if p, err := c.Pairs("object", ""); err != nil || len(p) != 1 || string(p["a"]) != "2" {
		t.Fatalf("%q, %v", p, err)
	}
	must(t, c.Delete("object"))
	must(t, c.Delete("object"))
	if p, err := c.Pairs("object", ""); err != nil || len(p) != 0 {
		t.Fatalf("%q, %v", p, err)
	}
}

// TestManyPairs: more pairs than one request has.
func TestManyPairs(t *testing.T) {
	c := open(t)
	set := make(Pairs)
	for i := range 5000 {
		set[fmt.Sprint(i%2, "/", i)] = fmt.Append(nil, i)
		if len(set) == 1000 {
			must(t, c.Change("object", Change{Set: set}))
			set = make(Pairs)
		}
	}
	p, err := c.Pairs("object", "1/")
	must(t, err)
	if len(p) != 2500 {
		t.Fatalf("%d pairs", len(p))
	}
	for k, v := range p {
		if k != "1/"+string(v) {
			t.Fatalf("%q is %q", k, v)
		}
	}
}

// TestConcurrentChanges: of many processes that count up, each count is taken by one.
func TestConcurrentChanges(t *testing.T) {
	c := open(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for done := 0; done < 25; {
				p, err := c.Pairs("object", "n")
				if err != nil {
					t.Error(err)
					return
				}
				n := 0
				_, _ = fmt.Sscan(string(p["n"]), &n)
				err = c.Change("object", Change{Is: Pairs{"n": p["n"]}, Set: Pairs{"n": fmt.Append(nil, n+1)}})
				if err == nil {
					done++
				} else if !errors.Is(err, ErrChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if p, err := c.Pairs("object", ""); err != nil || string(p["n"]) != "200" {
		t.Fatalf("%q, %v", p, err)
	}
}

func TestCommand(t *testing.T) {
	c := open(t)
	out, err := c.Command(`{"prefix": "health", "format": "json"}`)
	if err != nil || !strings.Contains(string(out), "HEALTH_") {
		t.Fatalf("%s, %v", out, err)
	}
	if _, err := c.Command(`{"prefix": "no such command"}`); err == nil {
		t.Fatal("a command that there is not has no error")
	}
}

func TestOpenFails(t *testing.T) {
	open(t)
	_, err := Open(Options{Pool: "missing", Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), `"missing"`) {
		t.Fatal(err)
	}
}
