package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
)

// denials lists the clients that the rules of exports have denied lately, and what would let them
// in.
func (r *Report) denials(list []control.Denial, now time.Time) {
	shown := 0
	for _, n := range list {
		if now.Sub(n.Last) > recent {
			continue
		}
		if shown++; shown > recentMax {
			continue
		}
		times := ""
		if n.Count > 1 {
			times = fmt.Sprintf(", %d times", n.Count)
		}
		what := "export " + n.Export
		if n.Export == "" {
			what = "service"
		}
		r.add(Warn, "denied", letIn(n), "%s %s was denied %s: %s%s", n.Last.Local().Format(time.DateTime), n.Client, what,
			n.Reason, times)
	}
	if shown > recentMax {
		r.add(Warn, "denied", "read the audit log", "%d more clients were denied lately", shown-recentMax)
	}
}

// letIn says what to change for a client that was denied. The reason begins with the option.
func letIn(n control.Denial) string {
	option, _, _ := strings.Cut(n.Reason, ",")
	show := fmt.Sprintf("'rstorectl export show %s'", n.Export)
	switch {
	case strings.HasPrefix(n.Reason, "version:"):
		return "nothing, if the client goes on with another version; else mount with vers= of one that is served, or add " +
			"the version to nfs_versions"
	case strings.HasPrefix(n.Reason, "pkey:"):
		return fmt.Sprintf("connect in a partition of the export, which %s lists under pkeys", show)
	case option == "secure":
		return "let the client mount as root (the kernel's client does, without noresvport), or have the rule say insecure"
	case option == "transport":
		return fmt.Sprintf("let the client come by another transport, or change the rule: %s", show)
	case option == "xprtsec":
		return "mount with xprtsec=tls or xprtsec=mtls, as the rule wants it"
	case option == "sec":
		if _, accepted, ok := strings.Cut(n.Reason, "are not accepted, but "); ok {
			return fmt.Sprintf("mount with sec=%s, or change sec= of the rule", strings.ReplaceAll(accepted, ":", " or "))
		}
		return "mount with another sec, or change sec= of the rule"
	}
	return fmt.Sprintf("%s lists the rules; 'rstorectl export set %s --client %s', with the rules to keep, lets it in",
		show, n.Export, n.Client)
}
