package nfs3

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
)

// TestDocumented holds docs/protocols.md against the tables of procedures: each procedure has a
// row, and each row is of a procedure.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocols.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[uint32]string{
		Program: "NFS version 3", MountProgram: "MOUNT version 3", ACLProgram: "NFSACL version 3",
	}
	for _, p := range Programs(nfs.Config{}) {
		_, section, _ := strings.Cut(string(page), "\n## "+sections[p.Prog]+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		rows := make(map[string]bool)
		for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z, ]+) \| yes \|`).FindAllStringSubmatch(section, -1) {
			for name := range strings.SplitSeq(m[1], ", ") {
				rows[name] = true
			}
		}
		for i := range p.Procs {
			name := p.Procs[i].Name
			if !rows[name] {
				t.Errorf("%s: %s has no row", p.Name, name)
			}
			delete(rows, name)
		}
		for name := range rows {
			t.Errorf("%s: there is no procedure %s", p.Name, name)
		}
	}
}
