package lint

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDependencyLaw holds every import against the table.
func TestDependencyLaw(t *testing.T) {
	for _, p := range packages(t, "./...") {
		rel := p.rel()
		row := -1
		for i := range law {
			if under(rel, law[i].dir) && (row < 0 || len(law[i].dir) > len(law[row].dir)) {
				row = i
			}
		}
		if row < 0 {
			t.Errorf("%s is in no room of the dependency law", rel)
			continue
		}
		for _, imp := range p.Imports {
			if imp == "golang.org/x/sys/unix" && !law[row].unix {
				t.Errorf("%s makes system calls of its own; that is for %s", rel,
					"the link, TCP, the clock of the reply cache, the arena, the host stores, FUSE, keyrings and commands")
			}
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok {
				continue
			}
			if !allowed(rel, ours, law[row].allow) {
				t.Errorf("%s imports %s, which the law does not allow", rel, ours)
			}
			if base := path.Base(ours); (base == "sim" || strings.HasSuffix(base, "test")) && !strings.HasSuffix(rel, "test") &&
				!under(rel, "rdma/sim") {
				t.Errorf("%s imports %s, which is for tests", rel, ours)
			}
		}
	}
}

// notLinked are what the driver for Kubernetes or the adapters of nfs/gonfs need, and the two
// programs do without.
var notLinked = []string{
	"google.golang.org/grpc", "google.golang.org/genproto", "github.com/container-storage-interface", "k8s.io",
	"sigs.k8s.io",
	"github.com/willscott", "github.com/vmware", "github.com/go-git",
}

// TestLinked: what deploy/csi needs is in its own program alone.
func TestLinked(t *testing.T) {
	linked := func(cmd string) (list []string) {
		for _, p := range packages(t, "-deps", cmd) {
			if slices.ContainsFunc(notLinked, func(m string) bool { return under(p.ImportPath, m) }) {
				list = append(list, p.ImportPath)
			}
		}
		return list
	}
	for _, cmd := range []string{"./cmd/rstored", "./cmd/rstorectl"} {
		if list := linked(cmd); len(list) > 0 {
			t.Errorf("%s is linked with %q", cmd, list)
		}
	}
	if len(linked("./deploy/csi")) == 0 {
		t.Error("the driver has no gRPC; is this test looking at what it should?")
	}
}

// TestFewDependencies: a program that imports the transport, RPC, a server of NFS, the client or
// the contract of stores downloads golang.org/x/sys and nothing else.
func TestFewDependencies(t *testing.T) {
	seen := 0
	for _, p := range packages(t, "-deps", "./rdma/...", "./rpcrdma/...", "./nfs", "./nfs/nfs3", "./nfs/nfs4",
		"./nfs/client", "./nfs/dial",
		"./blockstore", "./blockstore/memfs") {
		switch {
		case p.Standard || under(p.ImportPath, module):
			seen++
		case !under(p.ImportPath, "golang.org/x/sys"):
			t.Errorf("%s is needed", p.ImportPath)
		}
	}
	if seen < 100 {
		t.Errorf("only %d packages were looked at", seen)
	}
}

// TestPurity holds the pure packages to their rules, with type information to
// tell a map from a slice.
func TestPurity(t *testing.T) {
	args := []string{"-export", "-deps"}
	for _, d := range pure {
		args = append(args, "./"+d)
	}
	all := packages(t, args...)
	exports := make(map[string]string)
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range all {
		if !slices.Contains(pure, p.rel()) {
			continue
		}
		for _, i := range p.Imports {
			if slices.Contains(impureImports, i) {
				t.Errorf("%s imports %s, but is a pure package", p.rel(), i)
			}
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue)}
		conf := types.Config{Importer: imp}
		if _, err := conf.Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				if what := impurity(n, info); what != "" {
					t.Errorf("%s: %s in a pure package", fset.Position(n.Pos()), what)
				}
				return true
			})
		}
	}
}

func impurity(n ast.Node, info *types.Info) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "go statement"
	case *ast.SelectStmt:
		return "select statement"
	case *ast.ChanType:
		return "channel"
	case *ast.SendStmt:
		return "channel send"
	case *ast.RangeStmt:
		if tv, ok := info.Types[n.X]; ok {
			if _, isMap := tv.Type.Underlying().(*types.Map); isMap {
				return "range over a map"
			}
		}
	}
	return ""
}

// TestMains: a main package parses, calls and exits; what could be tested is
// elsewhere.
func TestMains(t *testing.T) {
	const maxLines = 40
	err := filepath.WalkDir(filepath.Join(root, "cmd"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "main.go" {
			return err
		}
		b, err := os.ReadFile(name)
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines; a main.go has at most %d", name, n, maxLines)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
