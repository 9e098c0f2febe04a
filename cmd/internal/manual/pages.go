package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/ctl"
	"github.com/rstored/rstored/cmd/internal/daemon"
)

// configurationPage has the tables of settings, between markers.
const configurationPage = "docs/configuration.md"

// write makes all files anew below the top of the tree.
func write(top string) error {
	files, err := generate(top)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate is the text of every file by its name.
func generate(top string) (map[string]string, error) {
	old, err := os.ReadFile(filepath.Join(top, configurationPage))
	if err != nil {
		return nil, err
	}
	conf := string(old)
	for name, perf := range map[string]bool{"settings": false, "perf": true} {
		if conf, err = between(conf, name, table(perf)); err != nil {
			return nil, fmt.Errorf("%s: %w", configurationPage, err)
		}
	}
	return map[string]string{
		configurationPage:         conf,
		"docs/man/rstored.8":      daemonPage(),
		"docs/man/rstorectl.1":    controlPage(),
		"docs/man/rstored.yaml.5": filePage(),
	}, nil
}

// between puts text between the markers of a name.
func between(page, name, text string) (string, error) {
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->\n"
	before, rest, ok := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		return "", errors.New("the markers of " + name + " are missing")
	}
	return before + begin + text + end + after, nil
}

const perfSection = "perf."

// table is the settings as a table of Markdown: those of perf, or the others.
func table(perf bool) string {
	var b strings.Builder
	b.WriteString("| key | default | reload | meaning |\n| --- | --- | --- | --- |\n")
	for _, s := range config.Settings() {
		if strings.HasPrefix(s.Key, perfSection) != perf {
			continue
		}
		text := s.Text
		if s.See != "" {
			at := strings.TrimPrefix(s.See, filepath.Base(configurationPage))
			page, _, _ := strings.Cut(s.See, "#")
			if at != s.See {
				page = "below"
			}
			text += fmt.Sprintf(", see [%s](%s)", page, at)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, s.Default(), reload(&s), text)
	}
	return b.String()
}

func reload(s *config.Setting) string {
	if s.Reload {
		return "yes"
	}
	return "no"
}

func quiet() *cli.Globals { return &cli.Globals{Out: io.Discard, Err: io.Discard} }

func daemonPage() string {
	root := daemon.Root(quiet())
	p := newPage("rstored", 8, "serve directories by NFS over RDMA and TCP")
	p.section("Synopsis")
	p.line("%s", inline("`rstored` [*flags*]"))
	for _, c := range root.Commands() {
		subs := []*cobra.Command{c}
		if c.HasSubCommands() {
			subs = c.Commands()
		}
		for _, s := range subs {
			p.line(".br\n%s", inline("`"+s.CommandPath()+"` [*flags*]"))
		}
	}
	p.section("Description")
	p.text(root.Long)
	p.section("Commands")
	for _, c := range root.Commands() {
		if !c.HasSubCommands() {
			p.item("`"+c.CommandPath()+"`", c.Short+".")
		}
		for _, s := range c.Commands() {
			p.item("`"+s.CommandPath()+"`", s.Short+".")
		}
	}
	p.section("Flags")
	p.text("Each flag has a key in `rstored.yaml`(5), which says more.")
	flags(p, root.PersistentFlags())
	p.section("Signals")
	p.item("`SIGTERM`, `SIGINT`",
		"Stop: calls in progress are finished, for as long as `stop_timeout` allows. A second signal stops at once.")
	p.item("`SIGHUP`", "Read the configuration again. A bad one changes nothing, and the log says why.")
	p.section("Environment")
	for _, s := range config.Settings() {
		p.item("`"+s.Env()+"`", "The setting `"+s.Key+"`.")
	}
	p.item("`RSTORED_CONFIG`", "The configuration file, where `--config` does not name it.")
	p.item("`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `LISTEN_FDS`, `STATE_DIRECTORY`, `RUNTIME_DIRECTORY`",
		"Set by systemd: readiness and watchdog, sockets that outlive the process, the places of state and control socket.")
	exitCodes(p)
	p.section("Files")
	p.item("`"+config.SystemFile+"`", "The configuration that is read when no other is named.")
	p.item("`/var/lib/rstored`",
		"State of root's daemon: numbers of exports, the secret of file handles, clients that may reclaim.")
	p.item("`/run/rstored/rstored.sock`", "Control socket of root's daemon, and of the service.")
	p.section("See also")
	p.text("`rstorectl`(1), `rstored.yaml`(5), exports(5), nfs(5)")
	return p.String()
}

func controlPage() string {
	root := ctl.Root(quiet())
	root.InitDefaultCompletionCmd("completion") // Execute does that
	p := newPage("rstorectl", 1, "control rstored, and move files over RDMA or TCP")
	p.section("Synopsis")
	p.line("%s", inline("`rstorectl` [*flags*] *command* [*arguments*]"))
	p.section("Description")
	p.text(root.Long)
	p.section("Flags of every command")
	flags(p, root.PersistentFlags())
	for _, g := range root.Groups() {
		p.section(strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				command(p, c)
			}
		}
	}
	p.section("Other commands")
	for _, c := range root.Commands() {
		if c.GroupID == "" && c.Name() != "help" {
			p.item("`"+c.UseLine()+"`", c.Short+".")
		}
	}
	p.section("Environment")
	p.item("`RSTORED_CONTROL`", "The control socket, where `--control` does not name it.")
	p.item("`RSTORECTL_SERVER`, `RSTORECTL_CERT`, `RSTORECTL_KEY`, `RSTORECTL_CA`",
		"What `--server`, `--cert`, `--key` and `--ca` are without the flags. `--control` goes before them.")
	exitCodes(p)
	p.section("Files")
	p.item("`/run/rstored/rstored.sock`", "Control socket of root's daemon, and of the service. Others use it too, "+
		"unless they have a server of their own at `$XDG_RUNTIME_DIR/rstored/rstored.sock`.")
	p.section("See also")
	p.text("`rstored`(8), `rstored.yaml`(5)")
	return p.String()
}

// command describes a command and those below it.
func command(p *page, c *cobra.Command) {
	if c.HasSubCommands() {
		for _, s := range c.Commands() {
			command(p, s)
		}
		return
	}
	p.subsection(strings.TrimPrefix(strings.TrimSuffix(c.UseLine(), " [flags]"), "rstorectl "))
	if c.Long != "" {
		p.text(c.Long)
	} else {
		p.text(c.Short + ".")
	}
	flags(p, c.NonInheritedFlags())
	if c.Example != "" {
		p.example(c.Example)
	}
}

// flags describes a set of flags. Defaults that depend on who runs the program are in the text.
func flags(p *page, set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		term := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			term = "`-" + f.Shorthand + "`, " + term
		}
		if name != "" {
			term += " *" + name + "*"
		}
		switch f.DefValue {
		case "", "[]", "false", "0", "0s":
		default:
			if f.Name != "control" && f.Name != "state-dir" {
				usage += " (default " + f.DefValue + ")"
			}
		}
		p.item(term, usage)
	})
}

func exitCodes(p *page) {
	p.section("Exit status")
	for _, c := range []struct {
		code int
		text string
	}{
		{cli.ExitOK, "Success; of the daemon, a stop that was asked for."},
		{cli.ExitFailed, "The operation failed, wholly or for some of its files."},
		{cli.ExitUsage, "The command line makes no sense."},
		{cli.ExitConfig, "The configuration is bad."},
	} {
		p.item(fmt.Sprintf("`%d`", c.code), c.text)
	}
}

func filePage() string {
	p := newPage("rstored.yaml", 5, "configuration of rstored")
	p.section("Synopsis")
	p.line("%s", inline("`"+config.SystemFile+"`"))
	p.section("Description")
	p.text("The file is YAML. Every key is optional. A key that is not known is an error. " +
		"The variable of the environment that each key has counts before the file, and its flag before both. " +
		"Lists in the environment are separated by commas; an empty one means none.\n\n" +
		"`rstored config validate` checks a file, `rstored config default` prints one with the defaults, " +
		"and `rstored config dump` what file, environment and flags make together.\n\n" +
		"Who has rstored reload (`rstorectl reload`, `SIGHUP`) has the keys marked *Reload* follow the file at once. " +
		"Changes of the others are named in the log and wait for the next start.")
	p.section("Settings")
	for _, s := range config.Settings() {
		how := ""
		if s.Reload {
			how = " *Reload*."
		}
		p.item("`"+s.Key+"`", upper(s.Text)+". Default: "+s.Default()+". Flag `--"+s.Flag()+"`."+how)
	}
	p.section("Exports")
	p.text("Each entry of `exports` has these keys.")
	parts(p, config.ExportParts())
	p.section("Clients")
	p.text("Each entry of `clients` of an export has these. Of several rules the most specific that matches counts.")
	parts(p, config.ClientParts())
	p.section("Example")
	p.text("One directory, for one network to write and for everybody else to read, and metrics on this host:")
	p.example(`exports:
  - path: /srv/data
    pseudo: /data
    clients:
      - cidr: 10.0.0.0/8
        squash: no_root_squash
      - cidr: "*"
        read_only: true
ops_listen: ["127.0.0.1:9049"]`)
	p.section("See also")
	p.text("`rstored`(8), `rstorectl`(1), exports(5)")
	return p.String()
}

func parts(p *page, list []config.Part) {
	for _, k := range list {
		p.item("`"+k.Key+"`", upper(k.Text)+".")
	}
}

// upper begins a sentence, unless with code.
func upper(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
