package lint

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// architecture is a part of ARCHITECTURE.md, from a heading to the next.
func architecture(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("ARCHITECTURE.md has no section %q", heading)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	return part
}

// forTests reports whether a package serves tests alone: those are not in the drawing.
func forTests(rel string) bool {
	return rel == "cmd/internal/lint" || rel == "blockstore/fault" || strings.HasSuffix(path.Base(rel), "test") ||
		under(rel, "rdma/rdmatest") || under(rel, "rdma/wire/wiretest") || under(rel, "rdma/sim")
}

// TestDrawing: the drawing of ARCHITECTURE.md has every package, and each imports only what stands
// on lines below it.
func TestDrawing(t *testing.T) {
	_, drawing, _ := strings.Cut(architecture(t, "Layers"), "```\n")
	drawing, _, _ = strings.Cut(drawing, "```")
	name := regexp.MustCompile(`\b(?:cmd|deploy|nfs|rpcrdma|rdma|blockstore)\b[\w/]*`)
	at := make(map[string]int)
	for i, line := range strings.Split(drawing, "\n") {
		for _, name := range name.FindAllString(line, -1) {
			if at[name] > 0 {
				t.Errorf("%s is drawn twice", name)
			}
			at[name] = i + 1
		}
	}
	for _, p := range packages(t, "./...") {
		rel := p.rel()
		if forTests(rel) {
			continue
		}
		line := at[rel]
		if line == 0 {
			t.Errorf("%s is not in the drawing: it belongs on a line above all that it imports", rel)
			continue
		}
		for _, imp := range p.Imports {
			ours, ok := strings.CutPrefix(imp, module+"/")
			if below := at[ours]; ok && below > 0 && below <= line {
				t.Errorf("%s imports %s, which is drawn on line %d, not below line %d", rel, ours, below, line)
			}
		}
		delete(at, rel)
	}
	for name := range at {
		t.Errorf("the drawing has %s, which is no package", name)
	}
}

// TestPackages: every package has a row in the table of packages, its own or that of a package
// above it which serves tests, and every row is of a package.
func TestPackages(t *testing.T) {
	rows := make(map[string]bool)
	name := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(architecture(t, "Packages")) {
		cell, ok := strings.CutPrefix(line, "| `")
		if !ok {
			continue
		}
		cell, _, _ = strings.Cut("`"+cell, " | ")
		for _, m := range name.FindAllStringSubmatch(cell, -1) {
			rows[strings.TrimSuffix(m[1], "/")] = false
		}
	}
	for _, p := range packages(t, "./...") {
		rel := p.rel()
		if _, ok := rows[rel]; ok {
			rows[rel] = true
			continue
		}
		found := false
		for up := rel; up != "." && forTests(rel); up = path.Dir(up) {
			if _, ok := rows[up]; ok {
				rows[up], found = true, true
			}
		}
		if !found && !strings.HasSuffix(rel, "test") {
			t.Errorf("%s has no row in the table of packages", rel)
		}
	}
	for name, seen := range rows {
		if _, err := os.Stat(filepath.Join(root, name)); !seen && err != nil {
			t.Errorf("the table of packages has %s, which is no package", name)
		}
	}
}
