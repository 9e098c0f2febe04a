package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/wire"
)

// Daemon is the part of the control interface that the doctor uses.
type Daemon interface {
	Status(context.Context) (control.Status, error)
	Exports(context.Context) ([]control.Export, error)
	Ports(context.Context) ([]control.Port, error)
	Devices(context.Context) ([]control.Device, error)
	Stats(context.Context) (control.Stats, error)
	PostMortems(context.Context) ([]control.PostMortem, error)
	Denials(context.Context) ([]control.Denial, error)
	Drift(context.Context) (control.Drift, error)
	ClusterHealth(context.Context) (control.ClusterHealth, error)
}

const (
	// recent is the greatest age of a post-mortem that is shown, recentMax the most that are shown.
	recent    = 24 * time.Hour
	recentMax = 8

	portmapPort = 111
	nfsPort     = 2049
	// jumboMTU is an interface MTU that has room for the largest path MTU, 4096.
	jumboMTU = 4200
	pathMax  = 4096
)

// Server checks the server of this host.
func Server(ctx context.Context, h *Host, d Daemon) Report {
	var r Report
	st, err := d.Status(ctx)
	if err != nil {
		r.add(Fail, "daemon",
			"start it ('systemctl start rstored', or 'rstored --export DIR'), or name its socket with --control", "%v", err)
		r.fixStart(h, err)
		r.udpPort(h, 0, nil)
		r.receiveLimit(h)
		r.firewall(h)
		return r
	}
	r.ok("daemon", "rstored %s is %s, pid %d", st.Version, st.State, st.PID)
	r.tls(st.TLS, time.Now())
	r.providers(h, st.Providers)
	ports := ask(ctx, &r, "port", "the ports cannot be listed", d.Ports, func(p []control.Port) { r.ports(h, p, st.PID) })
	devices := ask(ctx, &r, "device", "the devices cannot be listed", d.Devices, nil)
	r.devices(h, devices)
	r.udpPort(h, st.PID, devices)
	ask(ctx, &r, "counters", "the counters cannot be read", d.Stats, func(s control.Stats) { r.counters(h, devices, s) })
	ask(ctx, &r, "export", "the exports cannot be listed", d.Exports, func(e []control.Export) {
		r.exports(h, e, public(ports))
		r.wantTLS(st.TLS, e)
	})
	ask(ctx, &r, "config-drift", "what is written cannot be compared", d.Drift, func(x control.Drift) { r.drift(&x) })
	ask(ctx, &r, "cluster", "the health of the cluster cannot be read", d.ClusterHealth, r.cluster)
	r.firewall(h)
	r.askDenials(ctx, d)
	r.askPostMortems(ctx, d)
	return r
}

// ask calls get, which asks the daemon. look adds the findings about the answer, and may be nil.
func ask[T any](
	ctx context.Context, r *Report, topic, failure string, get func(context.Context) (T, error), look func(T),
) T {
	v, err := get(ctx)
	if err != nil {
		r.add(Fail, topic, "", "%s: %v", failure, err)
	} else if look != nil {
		look(v)
	}
	return v
}

func (r *Report) askDenials(ctx context.Context, d Daemon) {
	ask(ctx, r, "denied", "the clients that were denied cannot be listed", d.Denials, func(list []control.Denial) {
		r.denials(list, time.Now())
	})
}

func (r *Report) askPostMortems(ctx context.Context, d Daemon) {
	ask(ctx, r, "post-mortem", "the post-mortems cannot be listed", d.PostMortems, func(list []control.PostMortem) {
		r.postMortems(list, time.Now())
	})
}

// providers checks the RDMA providers.
func (r *Report) providers(h *Host, list []control.Provider) {
	i := slices.IndexFunc(list, func(p control.Provider) bool { return p.Name == string(provider.Verbs) })
	var devices []string
	for _, d := range h.rdmaDevices() {
		devices = append(devices, d.Name)
	}
	switch {
	case i >= 0 && list[i].Error != "":
		r.add(Warn, "provider",
			"install libibverbs and librdmacm (Debian: libibverbs1 librdmacm1 ibverbs-providers), and restart rstored",
			"RDMA devices cannot be used, and RDMA is in software: %s", list[i].Error)
	case i >= 0:
		r.ok("provider", "RDMA by devices of the kernel (verbs) and in software (soft)")
	case len(devices) > 0:
		r.add(OK, "provider", "the package rstored-rdma, to use "+strings.Join(devices, ", "),
			"RDMA in software alone (soft)")
	case len(list) > 0:
		r.ok("provider", "RDMA in software alone (soft)")
	}
}

// expiring is the time before the end of a certificate from which on the doctor warns.
const expiring = 14 * 24 * time.Hour

// tls checks the certificates, if TLS is offered.
func (r *Report) tls(t *control.TLS, now time.Time) {
	if t == nil {
		return
	}
	if t.Error != "" {
		r.add(Fail, "tls", "put a certificate with its key in place; they are used at once",
			"the files as they are cannot be used, and those of %s still are: %s", t.Loaded.Local().Format(time.DateTime),
			t.Error)
	}
	renew := fmt.Sprintf("renew %s and %s; they are used at once", t.Certificate, t.Key)
	switch left := t.NotAfter.Sub(now); {
	case now.Before(t.NotBefore):
		r.add(Fail, "tls", "set the clock, or wait", "the certificate is not valid before %s: clients refuse it",
			t.NotBefore.Local().Format(time.DateTime))
	case left <= 0:
		r.add(Fail, "tls", renew, "the certificate has expired at %s: clients refuse it",
			t.NotAfter.Local().Format(time.DateTime))
	case left < expiring:
		r.add(Warn, "tls", renew, "the certificate expires at %s", t.NotAfter.Local().Format(time.DateTime))
	default:
		r.ok("tls", "TLS by a certificate of %s, valid until %s", strings.Join(t.Names, " "),
			t.NotAfter.Local().Format(time.DateTime))
	}
	if len(t.Names) == 0 {
		r.add(Fail, "tls", "have the certificate issued with the server's name as subjectAltName",
			"the certificate has no name and no address: clients refuse it")
	}
	if end := t.ClientCANotAfter; end != nil && now.Add(expiring).After(*end) {
		r.add(Warn, "tls", "put new authorities into "+t.ClientCA, "the authorities of clients expire at %s",
			end.Local().Format(time.DateTime))
	}
}

// wantTLS finds rules of exports that no client over TCP can meet.
func (r *Report) wantTLS(t *control.TLS, exports []control.Export) {
	for _, e := range exports {
		for _, c := range e.Clients {
			switch {
			case t == nil && config.OnlyTLS(c.XprtSec):
				r.add(Fail, "tls", "set tls.certificate and tls.key, and reload",
					"%s wants xprtsec=%s of %s, but TLS is not offered", e.Pseudo, strings.Join(c.XprtSec, ":"), c.Name())
			case t != nil && t.ClientCA == "" && slices.Equal(c.XprtSec, []string{config.XprtMutual}):
				r.add(Fail, "tls", "set tls.client_ca, and reload",
					"%s wants xprtsec=%s of %s, but no certificate of a client is verified", e.Pseudo, config.XprtMutual, c.Name())
			}
		}
	}
}

// Remote checks a server of another host, as far as it reports about itself.
func Remote(ctx context.Context, d Daemon) Report {
	var r Report
	st, err := d.Status(ctx)
	if err != nil {
		r.add(Fail, "daemon", "on its host 'rstorectl doctor' says more", "%v", err)
		return r
	}
	r.ok("daemon", "rstored %s is %s, pid %d", st.Version, st.State, st.PID)
	ports := ask(ctx, &r, "port", "the ports cannot be listed", d.Ports,
		func(p []control.Port) { r.ports(nil, p, st.PID) })
	ask(ctx, &r, "export", "the exports cannot be listed", d.Exports, func(e []control.Export) {
		r.exports(nil, e, public(ports))
	})
	r.askDenials(ctx, d)
	r.askPostMortems(ctx, d)
	r.add(OK, "host", "run 'rstorectl doctor' there",
		"interfaces, UDP port %d, buffers and packet filters of its host cannot be seen from here", wire.Port)
	return r
}

func (r *Report) exports(h *Host, exports []control.Export, public bool) {
	if len(exports) == 0 {
		r.add(Fail, "export", "rstorectl export add DIR --client CIDR", "nothing is exported")
	}
	for _, e := range exports {
		switch {
		case e.Error != "":
			r.add(Fail, "export", fmt.Sprintf("correct it and 'rstorectl reload', or 'rstorectl export remove %s'", e.Pseudo),
				"export %s: %s", e.Pseudo, e.Error)
			continue
		case e.Type == config.TypePosix && h != nil:
			st, err := os.Stat(h.path(e.Path))
			if errors.Is(err, fs.ErrNotExist) {
				r.add(Fail, "export", fmt.Sprintf("mount or make it, or 'rstorectl export remove %s'", e.Pseudo),
					"export %s: %s does not exist", e.Pseudo, e.Path)
				continue
			}
			if err == nil && !st.IsDir() {
				r.add(Fail, "export", "export the directory that it is in", "export %s: %s is not a directory", e.Pseudo, e.Path)
				continue
			}
		}
		if e.Warning != "" {
			r.add(Warn, "export", "see 'df -h', 'df -i' and dmesg on the server", "export %s: %s", e.Pseudo, e.Warning)
		}
		switch e.Identity {
		case control.IdentityDevice:
			r.add(Warn, "export-identity", "give the export the option fsid= with a number of its own before clients mount it",
				"export %s: the filesystem of %s has no UUID: file handles become stale when its device gets another number",
				e.Pseudo, e.Path)
		case control.IdentityState:
			r.add(OK, "export-identity",
				"keep the state directory with the data, or give the export the option fsid= before clients mount it",
				"export %s: file handles need the state directory: the UUID of the filesystem of %s does not tell it "+
					"from others", e.Pseudo, e.Path)
		}
		remedy := fmt.Sprintf("rstorectl export set %s --client CIDR", e.Pseudo)
		exposed := e.Exposure()
		switch {
		case !public:
		case len(e.Clients) == 0 && !e.Derived():
			r.ok("export", "export %s (%s) names no clients: it is for this host alone until '%s'", e.Pseudo, e.Path, remedy)
			continue
		case len(exposed) > 0 && !e.Derived():
			for _, why := range exposed {
				r.add(Warn, "export", remedy, "%s", why)
			}
			continue
		}
		r.ok("export", "export %s (%s), client rules: %d", e.Pseudo, e.Path, len(e.Clients))
	}
}

func (r *Report) drift(x *control.Drift) {
	for _, p := range x.Problems {
		r.add(Warn, "config-drift", "correct it; until then a reload or a restart fails", "%s", p)
	}
	against := strings.Join(x.Against, " and ")
	if n := len(x.Changes); n > 0 {
		advice := "'rstorectl drift' shows them"
		if x.Unread {
			advice += "; 'rstorectl reload' loads what was written since"
		}
		if x.RunTime {
			advice += "; changes made at run time stay over reloads: write them down, or undo them by " +
				"'rstorectl apply FILE' or 'rstorectl apply --configuration'"
		}
		r.add(Warn, "config-drift", advice, "%d exports and ports that run differ from %s", n, against)
	} else if len(x.Problems) == 0 {
		r.ok("config-drift", "the running exports and ports are those of %s", against)
	}
	if len(x.Shadowed) > 0 {
		r.add(Warn, "config-shadowed", "'rstorectl apply --configuration' puts the configuration in force again, "+
			"'rstorectl plan --configuration' says what that would change; or remove them from the configuration",
			"%s of the configuration are not in force: %s stands in their place", strings.Join(x.Shadowed, ", "), x.Against[0])
	}
}

func (r *Report) postMortems(list []control.PostMortem, now time.Time) {
	shown := 0
	for _, p := range list {
		if now.Sub(p.Time) > recent {
			continue
		}
		if shown++; shown > recentMax {
			continue
		}
		times := ""
		if p.Count > 1 {
			times = fmt.Sprintf(", %d times", p.Count)
		}
		r.add(Warn, "post-mortem", p.Hint, "%s %s on %s: %s: %s%s", p.Time.Local().Format(time.DateTime), p.Peer, p.Local,
			p.Outcome, p.Reason, times)
	}
	switch {
	case shown > recentMax:
		r.add(Warn, "post-mortem", "rstorectl connections --failed", "%d more RDMA connections failed lately",
			shown-recentMax)
	case shown == 0:
		r.ok("post-mortem", "no RDMA connection has failed lately")
	}
}
