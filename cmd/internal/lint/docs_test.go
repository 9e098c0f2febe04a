package lint

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/ctl"
	"github.com/rstored/rstored/cmd/internal/daemon"
)

func trees() map[string]*cobra.Command {
	g := &cli.Globals{Out: io.Discard, Err: io.Discard}
	return map[string]*cobra.Command{
		"rstorectl": ctl.Root(g),
		"rstored":   daemon.Root(&cli.Globals{Out: io.Discard, Err: io.Discard}),
	}
}

// TestDocumentedCommands: every command line that the documentation shows
// parses: the subcommand exists and knows the flags.
func TestDocumentedCommands(t *testing.T) {
	targets := makeTargets(t)
	n := 0
	eachDoc(t, func(name string, text string) {
		for _, line := range shellLines(text) {
			words := splitWords(line)
			for len(words) > 0 && (words[0] == "sudo" || strings.Contains(words[0], "=") && !strings.HasPrefix(words[0], "-")) {
				words = words[1:]
			}
			if len(words) == 0 {
				continue
			}
			if words[0] == "make" {
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !targets[w] {
						t.Errorf("%s: there is no target %q: %s", name, w, line)
					}
				}
				n++
				continue
			}
			tree := trees()[filepath.Base(words[0])]
			if tree == nil {
				continue
			}
			n++
			tree.InitDefaultCompletionCmd(words[1:]...)
			cmd, rest, err := tree.Find(words[1:])
			if err == nil && cmd == tree && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: there is no such command: %s", name, line)
				continue
			}
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err != nil && !errors.Is(err, pflag.ErrHelp) {
				t.Errorf("%s: %v: %s", name, err, line)
			}
		}
	})
	if n == 0 {
		t.Error("the documentation shows no command; is it still being read?")
	}
}

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

// TestDocumentedLinks: relative links lead somewhere.
func TestDocumentedLinks(t *testing.T) {
	eachDoc(t, func(name string, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: dead link: %v", name, err)
			}
		}
	})
}

func eachDoc(t *testing.T, f func(name, text string)) {
	t.Helper()
	sources(t, func(name string, text []byte) {
		if filepath.Ext(name) == ".md" {
			f(name, string(text))
		}
	})
}

// shellLines are the commands of the code blocks marked sh, continuation lines
// joined and prompts, comments and redirections cut off.
func shellLines(text string) []string {
	var out []string
	in := false
	carry := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if fence, ok := strings.CutPrefix(line, "```"); ok {
			in = !in && fence == "sh"
			continue
		}
		if !in || strings.HasPrefix(line, "#") {
			continue
		}
		if part, more := strings.CutSuffix(line, `\`); more {
			carry += part
			continue
		}
		line, carry = carry+line, ""
		for _, part := range regexp.MustCompile(`\s(?:\||&&|;|&|>|<|#)(?:\s|$)`).Split(line, -1) {
			out = append(out, strings.TrimSpace(strings.TrimPrefix(part, "$ ")))
		}
	}
	return out
}

// splitWords splits as a shell would, as far as single and double quotes go.
func splitWords(s string) []string {
	var words []string
	var w strings.Builder
	var quote rune
	begun := false
	for _, r := range s {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				words = append(words, w.String())
				w.Reset()
				begun = false
			}
		default:
			w.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, w.String())
	}
	return words
}

func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(b), -1) {
		set[m[1]] = true
	}
	return set
}
