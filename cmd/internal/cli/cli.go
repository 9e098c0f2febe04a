package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// Exit codes of both commands.
const (
	ExitOK     = 0
	ExitFailed = 1  // the operation failed, wholly or for some of its files
	ExitUsage  = 2  // the command line makes no sense
	ExitConfig = 78 // EX_CONFIG of sysexits.h: the configuration is bad
)

// Output formats of the -o flag.
const (
	FormatTable = "table"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
)

// Globals are the flags of every subcommand, and its streams. A command tree shares one value. The
// flag parser fills it before a subcommand runs.
type Globals struct {
	Control string // the daemon's control socket
	// Server is the daemon of another host, HOST:PORT, in place of Control. Cert, Key and CA are PEM
	// files for it.
	Server, Cert, Key, CA string
	Output                string // FormatTable, FormatJSON or FormatYAML
	Quiet                 bool   // no progress, no confirmations
	Out                   io.Writer
	Err                   io.Writer
}

// NewGlobals returns Globals that talk to the standard streams.
func NewGlobals() *Globals {
	return &Globals{Output: FormatTable, Out: os.Stdout, Err: os.Stderr}
}

// Check validates the output format.
func (g *Globals) Check() error {
	switch g.Output {
	case FormatTable, FormatJSON, FormatYAML:
		return nil
	}
	return Usagef("unknown output format %q: use table, json or yaml", g.Output)
}

// Print writes v as JSON or YAML, or calls table for people. table separates columns by tabs. YAML
// takes its field names from the json tags, so that both formats agree.
func (g *Globals) Print(v any, table func(w io.Writer)) error {
	switch g.Output {
	case FormatJSON:
		enc := json.NewEncoder(g.Out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case FormatYAML:
		return printYAML(g.Out, v)
	}
	w := tabwriter.NewWriter(g.Out, 0, 8, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// printYAML decodes the JSON form into a YAML node, which keeps the order of the fields.
func printYAML(out io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		return err
	}
	blockStyle(&n)
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return err
	}
	return enc.Close()
}

// blockStyle removes flow style, and quotes that YAML does not need.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}

// UsageError is a mistake in the command line; it ends the command with
// ExitUsage.
type UsageError struct{ Msg string }

func (e *UsageError) Error() string { return e.Msg }

// Usagef makes a UsageError.
func Usagef(format string, a ...any) error {
	return &UsageError{Msg: fmt.Sprintf(format, a...)}
}

// ConfigError is a bad configuration; it ends the command with ExitConfig.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// ExitError ends the command with a code of its own. Without Err nothing is printed.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Code is the exit code for the error a command tree returned.
func Code(err error) int {
	var usage *UsageError
	var conf *ConfigError
	var exit *ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &conf):
		return ExitConfig
	}
	return ExitFailed
}

// Args makes errors of a cobra argument check UsageErrors with the command's usage line.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usagef("%v\nusage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// Prepare sets up a root command. cobra returns errors and does not print them, and errors of flags
// are usage errors.
func Prepare(root *cobra.Command) {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%v\nsee '%s --help'", err, cmd.CommandPath())
	})
}

// noArguments refuses arguments to the commands that do not say how many they take.
func noArguments(c *cobra.Command) {
	if c.Args == nil && c.Runnable() {
		c.Args = Args(cobra.NoArgs)
	}
	for _, sub := range c.Commands() {
		noArguments(sub)
	}
}

// Run executes the tree, prints the error if there is one, and returns the exit code for os.Exit. A
// command without Args takes no arguments.
func Run(root *cobra.Command, stderr io.Writer) int {
	noArguments(root)
	err := root.Execute()
	if err != nil && err.Error() != "" {
		fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	}
	return Code(err)
}
