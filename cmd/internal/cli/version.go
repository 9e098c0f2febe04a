package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/rdma/provider"
)

// version is set at link time for releases.
var version = ""

// Build identifies a program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	RDMACore bool   `json:"rdma_core"` // it was built to use RDMA devices, not only RDMA in software
}

// ReadBuild collects what the linker and the go command recorded.
func ReadBuild() Build {
	b := Build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, RDMACore: rdmaCore}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b Build) String() string {
	s := b.Version + " " + b.Go + " " + b.Platform
	if b.Revision != "" {
		s += " " + b.Revision
	}
	if b.Modified {
		s += " modified"
	}
	if b.RDMACore {
		s += " rdma-core"
	}
	return s
}

// VersionCommand is the version subcommand of either binary.
func VersionCommand(g *Globals, name string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Build
				Missing string `json:"rdma_core_error,omitempty"` // why it does not work all the same
			}{Build: ReadBuild()}
			if v.RDMACore {
				if err := provider.System().Available(); err != nil {
					v.Missing = err.Error()
				}
			}
			return g.Print(v, func(w io.Writer) {
				fmt.Fprintln(w, name, v.Build)
				if v.Missing != "" {
					fmt.Fprintln(w, v.Missing)
				}
			})
		},
	}
}
