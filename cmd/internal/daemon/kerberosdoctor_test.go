package daemon

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestKerberosDoctor: doctor names the step of the exchange that fails, and what to do.
func TestKerberosDoctor(t *testing.T) {
	k := newKerberized(t, t.TempDir()+"=/e(rw,sec=krb5p,insecure)")
	wrong := k.kdc.Keytab("", "nfs/other.rstored.test")
	good := k.cfg.Kerberos.Keytab
	old := k.who["alice"]
	if _, err := old.Initiate(t.Context(), kerberosHost); err != nil {
		t.Fatal(err)
	}
	u := func() client.URL {
		u, err := client.ParseURL(k.url("tcp") + "/e")
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	d, _ := startDaemon(t, k.cfg)
	r := doctor.Client(t.Context(), doctor.This(), u(), nil)
	stopDaemon(t, d)
	if f := reportOf(r, "fsinfo"); f.Level != doctor.Fail || !strings.Contains(f.Do, "--sec") {
		t.Errorf("without --sec: %+v", r)
	}
	for name, c := range map[string]struct {
		keytab string
		of     func() (*creds.Creds, error)
		host   string
		level  doctor.Level
		check  string
		what   string
		do     string
	}{
		"good":         {good, nil, kerberosHost, doctor.OK, "krb5-context", "a call with sec=krb5p: answered", ""},
		"no ticket":    {good, fromCache("/none"), kerberosHost, doctor.Fail, "krb5-ticket", "kinit gets one", "'klist'"},
		"no principal": {good, nil, "nobody.rstored.test", doctor.Fail, "krb5-ticket", "no principal nfs/nobody", "'kvno"},
		"other keytab": {wrong, nil, kerberosHost, doctor.Fail, "krb5-context", "another service", "as its principal does"},
		"no keytab":    {"", nil, kerberosHost, doctor.Fail, "krb5-context", "sec=krb5p", "server"},
	} {
		k.cfg.Kerberos.Keytab, k.cfg.Kerberos.Users = c.keytab, nil
		d, _ := startDaemon(t, k.cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		initiate := func(ctx context.Context, _ string, _ uint32) (rpc.Initiation, error) {
			cr := old
			if c.of != nil {
				var err error
				if cr, err = c.of(); err != nil {
					return rpc.Initiation{}, err
				}
			}
			return cr.Initiate(ctx, c.host)
		}
		sec := &dial.Secure{Service: gss.Privacy, Initiate: initiate}
		r := doctor.Client(ctx, doctor.This(), u(), sec)
		cancel()
		stopDaemon(t, d)
		f := r[len(r)-1]
		if f.Level != c.level || f.Check != c.check || !strings.Contains(f.What, c.what) || !strings.Contains(f.Do, c.do) {
			t.Errorf("%s: %+v", name, r)
		}
		// The calls of version 3 have the flavor, too: the export takes no other.
		if r.Failed() == (c.level == doctor.OK) || (reportOf(r, "fsinfo").Level == doctor.OK) != (c.level == doctor.OK) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// reportOf returns the last finding of a check.
func reportOf(r doctor.Report, check string) doctor.Finding {
	for _, f := range slices.Backward(r) {
		if f.Check == check {
			return f
		}
	}
	return doctor.Finding{}
}

func fromCache(name string) func() (*creds.Creds, error) {
	return func() (*creds.Creds, error) { return creds.FromCache(name) }
}
