package lint

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unfinished matches what a finished source does not say. The halves are apart
// so that this file does not match itself.
var unfinished = regexp.MustCompile(`\b(` +
	strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}, "|") + `)\b|\bfor ` + `now\b`)

// sources calls f for every file of the tree whose text people write.
func sources(t *testing.T, f func(name string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", ".bin", "bin", "out", "testdata":
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".md", ".yaml", ".yml", ".service", ".conf", ".sh", ".mod":
		default:
			if d.Name() != "Makefile" {
				return nil
			}
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f(name, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestText: nothing unfinished, no trailing blanks, a newline at the end.
func TestText(t *testing.T) {
	sources(t, func(name string, text []byte) {
		for i, line := range bytes.Split(text, []byte("\n")) {
			if m := unfinished.Find(line); m != nil {
				t.Errorf("%s:%d says %q", name, i+1, m)
			}
			if len(line) > 0 && (line[len(line)-1] == ' ' || line[len(line)-1] == '\t') {
				t.Errorf("%s:%d ends with a blank", name, i+1)
			}
		}
		if len(text) > 0 && text[len(text)-1] != '\n' {
			t.Errorf("%s does not end with a newline", name)
		}
	})
}
