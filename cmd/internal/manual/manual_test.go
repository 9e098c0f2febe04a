package main

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/ctl"
)

const top = "../../.."

// TestCheckedIn: what lies in docs is what the code says.
func TestCheckedIn(t *testing.T) {
	files, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Error(err)
		} else if string(have) != want {
			t.Errorf("%s is not what the code says; 'make manual' writes it anew", name)
		}
	}
}

// TestAnywhere: the text does not depend on who makes it, and where.
func TestAnywhere(t *testing.T) {
	before, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"RUNTIME_DIRECTORY", "STATE_DIRECTORY", "RSTORED_CONTROL", "HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(v, "/elsewhere")
	}
	after, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("%s depends on the environment", name)
		}
	}
}

// TestEveryCommand: each command of rstorectl that does something is in its page.
func TestEveryCommand(t *testing.T) {
	text := controlPage()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, s := range c.Commands() {
			walk(s)
		}
		name := strings.TrimPrefix(c.CommandPath(), "rstorectl ")
		if !c.HasSubCommands() && !strings.Contains(text, escape(name)) {
			t.Errorf("%q is not in the page", name)
		}
	}
	walk(ctl.Root(quiet()))
}

func TestInline(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                  "plain",
		"`--a-b` and *WORD*":     `\fB\-\-a\-b\fP and \fIWORD\fP`,
		"see [exports](a.md#b).": "see exports.",
		`\040`:                   `\e040`,
		".hidden":                `\&.hidden`,
		"'quoted'":               `\(aqquoted\(aq`,
		"2 * 3 * 4":              "2 * 3 * 4",
		"`\"*\"` all, * too":     `\fB"*"\fP all, * too`,
		"`~/.local` a^b":         `\fB\(ti/.local\fP a\(hab`,
	} {
		if got := inline(in); got != want {
			t.Errorf("inline(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestBetween(t *testing.T) {
	const page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
	got, err := between(page, "x", "new\n")
	if want := strings.Replace(page, "old", "new", 1); err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "<!-- begin x -->\n", "<!-- end x -->\n"} {
		if _, err := between(bad, "x", ""); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestProgram: the Go program of the quick start compiles.
func TestProgram(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs/quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```go\n")
	program, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no program")
	}
	name := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(name, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", os.DevNull, name)
	build.Dir = top // whose module has the packages
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMessages: what the page about troubleshooting quotes is what programs say. The pieces
// of a message, between dots, are in one string of the source, in that order.
func TestMessages(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	said := literals(t)
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	if len(rows) == 0 {
		t.Error("no message is quoted; is the table still being read?")
	}
	for _, m := range rows {
		if !slices.ContainsFunc(said, func(s string) bool { return inOrder(s, strings.Split(m[1], "...")) }) {
			t.Errorf("nothing says %q", m[1])
		}
	}
}

func inOrder(s string, pieces []string) bool {
	for _, p := range pieces {
		_, after, ok := strings.Cut(s, strings.TrimSpace(p))
		if !ok {
			return false
		}
		s = after
	}
	return true
}

// literals are the strings of the source.
func literals(t *testing.T) (out []string) {
	t.Helper()
	for _, dir := range []string{"cmd", "rdma", "nfs", "blockstore", "rpcrdma"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			var s scanner.Scanner
			set := token.NewFileSet()
			s.Init(set.AddFile(name, -1, len(text)), text, nil, 0)
			var before [2]token.Token // a string that goes on behind a + is one
			for {
				_, kind, lit := s.Scan()
				if kind == token.EOF {
					return nil
				}
				if kind == token.STRING {
					if lit, err = strconv.Unquote(lit); err != nil {
						return err
					}
					if before == [2]token.Token{token.STRING, token.ADD} {
						out[len(out)-1] += lit
					} else {
						out = append(out, lit)
					}
				}
				before = [2]token.Token{before[1], kind}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
