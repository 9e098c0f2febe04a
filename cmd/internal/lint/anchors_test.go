package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// anchor is what a heading is linked by, as GitHub makes it.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// TestDocumentedAnchors: a link to a section of a page of the documentation leads to one.
func TestDocumentedAnchors(t *testing.T) {
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	to := regexp.MustCompile(`\]\(([^)#:]*)#([^)]+)\)`)
	n := 0
	eachDoc(t, func(name, text string) {
		for _, m := range to.FindAllStringSubmatch(text, -1) {
			page := text
			if m[1] != "" {
				b, err := os.ReadFile(filepath.Join(filepath.Dir(name), m[1]))
				if err != nil {
					continue // TestDocumentedLinks says so
				}
				page = string(b)
			}
			found := false
			for _, h := range heading.FindAllStringSubmatch(page, -1) {
				found = found || anchor(h[1]) == m[2]
			}
			if n++; !found {
				t.Errorf("%s: there is no section %s#%s", name, m[1], m[2])
			}
		}
	})
	if n == 0 {
		t.Error("there is no link to a section; is the documentation still being read?")
	}
}

// wide are pages that a program writes, and the list of changes.
var wide = []string{"docs/bench", "docs/interop.md", "docs/monitoring.md", "CHANGELOG.md"}

// TestDocumentedWidth: lines of the documentation have at most 120 characters, tables and examples
// apart.
func TestDocumentedWidth(t *testing.T) {
	const most = 120
	eachDoc(t, func(name, text string) {
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wide {
			if under(filepath.ToSlash(rel), w) {
				return
			}
		}
		code := false
		for i, line := range strings.Split(text, "\n") {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				code = !code
			case !code && !strings.HasPrefix(line, "|") && utf8.RuneCountInString(line) > most:
				t.Errorf("%s:%d has %d characters", rel, i+1, utf8.RuneCountInString(line))
			}
		}
	})
}
