package lint

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackageDocs: doc.go of each package says what the package is for, what it knows nothing of,
// where to begin reading, and which goroutines may use it. It has an example, unless the package
// has runnable ones. A file that it names exists.
func TestPackageDocs(t *testing.T) {
	parts := map[string]*regexp.Regexp{
		"what it knows nothing of": regexp.MustCompile(`[Kk]nows? (nothing|no|neither|how|only|calls|links|the contract)\b|` +
			`not know|not talk to|[Nn]othing of|imports nothing`),
		"where to begin reading": regexp.MustCompile(`[Bb]egin|log\.go first`),
		"concurrency":            regexp.MustCompile(`goroutine|concurren|loop|plain (data|values)|any order`),
	}
	file := regexp.MustCompile(`(?:^|[\s(])([a-z0-9_]+\.go)\b`)
	for _, p := range packages(t, "./...") {
		if slices.Contains(p.GoFiles, "main.go") {
			continue
		}
		name := filepath.Join(p.Dir, "doc.go")
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil || f.Doc == nil {
			t.Errorf("%s has no doc.go with a comment: %v", p.rel(), err)
			continue
		}
		text := f.Doc.Text()
		words := strings.Join(strings.Fields(text), " ")
		if !strings.HasPrefix(words, "Package "+f.Name.Name+" ") {
			t.Errorf("%s: doc.go does not begin with what the package is for", p.rel())
		}
		for part, re := range parts {
			if !re.MatchString(words) {
				t.Errorf("%s: doc.go does not say: %s", p.rel(), part)
			}
		}
		runnable, _ := filepath.Glob(filepath.Join(p.Dir, "example*_test.go"))
		if len(runnable) == 0 && !strings.Contains(text, "\n\t") {
			t.Errorf("%s: doc.go has no example", p.rel())
		}
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(p.Dir, m[1])); err != nil {
				t.Errorf("%s: doc.go names a file that is not there: %s", p.rel(), m[1])
			}
		}
	}
}
