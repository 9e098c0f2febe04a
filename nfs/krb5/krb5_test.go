package krb5

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/gss"
)

// peer is MIT's GSS-API in another process.
type peer struct {
	tb  testing.TB
	in  io.Writer
	out *bufio.Reader
}

func newPeer(tb testing.TB, env []string) *peer {
	tb.Helper()
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import gssapi").Run(); err != nil {
		tb.Skip("python3-gssapi is missing")
	}
	cmd := exec.Command(python, "testdata/peer.py")
	cmd.Env, cmd.Stderr = env, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &peer{tb, in, bufio.NewReaderSize(out, 4<<20)}
}

func (p *peer) ask(cmd string, args ...any) string {
	p.tb.Helper()
	line := cmd
	for _, a := range args {
		if b, ok := a.([]byte); ok {
			a = hex.EncodeToString(b)
		}
		line += fmt.Sprint(" ", a)
	}
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.tb.Fatal(err)
	}
	out, err := p.out.ReadString('\n')
	if err != nil {
		p.tb.Fatal(err)
	}
	out = strings.TrimSpace(out)
	if strings.HasPrefix(out, "error: ") {
		p.tb.Fatalf("MIT's %s: %s", cmd, out)
	}
	return out
}

func (p *peer) bytes(cmd string, args ...any) []byte {
	p.tb.Helper()
	b, err := hex.DecodeString(strings.TrimPrefix(p.ask(cmd, args...), "-"))
	if err != nil {
		p.tb.Fatal(err)
	}
	return b
}

func acceptor(tb testing.TB, path string) *Acceptor {
	tb.Helper()
	kt, err := keytab.Load(path)
	if err != nil {
		tb.Fatal(err)
	}
	return &Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return kt, nil }}
}

const service = "nfs/server.rstored.test"

// kinds are the encryption types, as MIT's programs and as we name them.
var kinds = map[string]gss.EncType{
	"aes128-cts:normal": gss.AES128SHA1, "aes256-cts:normal": gss.AES256SHA1,
	"aes128-sha2:normal": gss.AES128SHA256, "aes256-sha2:normal": gss.AES256SHA384,
}

// exchange passes messages of many lengths both ways.
func exchange(t *testing.T, p *peer, c *gss.Context) {
	t.Helper()
	for _, n := range []int{1, 4, 15, 16, 17, 31, 32, 33, 100, 4096, 100_003} {
		msg := bytes.Repeat([]byte{byte(n)}, n)
		msg[n/2] ^= 0x55
		p.ask("check", msg, c.AppendMIC(nil, msg[:n/3], msg[n/3:]))
		if err := c.VerifyMIC(p.bytes("mic", msg), msg[:n/2], msg[n/2:]); err != nil {
			t.Errorf("MIC token of %d bytes: %v", n, err)
		}
		if got := p.bytes("unwrap", c.Seal(nil, msg[:n/3], msg[n/3:])); !bytes.Equal(got, msg) {
			t.Errorf("MIT decrypts %d bytes as others", n)
		}
		got, err := c.Open(p.bytes("wrap", msg))
		if err != nil || !bytes.Equal(got, msg) {
			t.Errorf("decrypting %d bytes: %v", n, err)
		}
	}
}

// TestRC4: a ticket that is encrypted with RC4 is accepted if the administrator asks for it.
func TestRC4(t *testing.T) {
	kdc := krbtest.Start(t)
	kdc.User("alice", "secret")
	keys := kdc.Keytab("arcfour-hmac:normal", service)
	a := acceptor(t, keys)
	asked := false
	a.RC4 = func() bool { return asked }
	kdc.Run("kadmin.local", "-r", krbtest.Realm, "-q", "setstr "+service+" session_enctypes aes256-cts")
	p := newPeer(t, kdc.Env("KRB5CCNAME=FILE:"+kdc.Login("alice", "secret")))
	token := p.bytes("init", service+"@"+krbtest.Realm)
	if _, err := a.Accept(token, time.Now()); err == nil || !strings.Contains(err.Error(), "set kerberos.rc4") {
		t.Errorf("RC4 without being asked: %v", err)
	}
	asked = true
	est, err := a.Accept(token, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p.ask("finish", est.Token)
	exchange(t, p, est.Context)
}

// TestAcceptsMIT: MIT's GSS-API as a client.
func TestAcceptsMIT(t *testing.T) {
	kdc := krbtest.Start(t)
	kdc.User("alice", "secret")
	for name, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			principal := service + "-" + strings.Split(name, ":")[0]
			a := acceptor(t, kdc.Keytab(name, principal))
			p := newPeer(t, kdc.Env("KRB5CCNAME=FILE:"+kdc.Login("alice", "secret")))
			token := p.bytes("init", principal+"@"+krbtest.Realm)
			est, err := a.Accept(token, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if est.Principal != "alice@"+krbtest.Realm {
				t.Errorf("the client is %q", est.Principal)
			}
			if d := time.Until(est.Expires); d < 50*time.Minute || d > 70*time.Minute {
				t.Errorf("expires in %v", d)
			}
			if got := p.ask("finish", est.Token); got != "True" {
				t.Fatalf("MIT's context is complete: %s", got)
			}
			exchange(t, p, est.Context)
			var refused *gss.InitError
			if _, err := a.Accept(token, time.Now()); !errors.As(err, &refused) || refused.Minor != minorBase+34 {
				t.Errorf("the same token again: %v", err)
			}
		})
	}
}

// TestInitiatesToMIT: MIT's GSS-API as a server.
func TestInitiatesToMIT(t *testing.T) {
	kdc := krbtest.Start(t)
	kdc.User("alice", "secret")
	for name, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			principal := service + "-" + strings.Split(name, ":")[0]
			keys := kdc.Keytab(name, principal)
			cl := login(t, kdc, kdc.Login("alice", "secret"))
			ticket, session, err := cl.GetServiceTicket(principal)
			if err != nil {
				t.Fatal(err)
			}
			i, token, err := NewInitiator(cl.Credentials.CName(), cl.Credentials.Domain(), ticket, session, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			p := newPeer(t, kdc.Env("KRB5_KTNAME=FILE:"+keys, "KRB5RCACHENAME=none:"))
			c, err := i.Finish(p.bytes("accept", token))
			if err != nil {
				t.Fatal(err)
			}
			if who := p.ask("who"); who != "alice@"+krbtest.Realm {
				t.Errorf("MIT says that the client is %q", who)
			}
			exchange(t, p, c)
		})
	}
}

func login(tb testing.TB, kdc *krbtest.KDC, cache string) *client.Client {
	tb.Helper()
	cfg, err := config.Load(kdc.Config)
	if err != nil {
		tb.Fatal(err)
	}
	cc, err := credentials.LoadCCache(cache)
	if err != nil {
		tb.Fatal(err)
	}
	cl, err := client.NewFromCCache(cc, cfg, client.DisablePAFXFAST(true))
	if err != nil {
		tb.Fatal(err)
	}
	return cl
}

// TestRefusals: what is wrong is said to the client by a code, and in the log by a sentence.
func TestRefusals(t *testing.T) {
	kdc := krbtest.Start(t)
	kdc.User("alice", "secret")
	keys := kdc.Keytab("", service)
	other := kdc.Keytab("", "nfs/another.rstored.test")
	cifs := kdc.Keytab("", "cifs/server.rstored.test")
	cl := login(t, kdc, kdc.Login("alice", "secret"))
	token := func(spn string, now time.Time) []byte {
		ticket, session, err := cl.GetServiceTicket(spn)
		if err != nil {
			t.Fatal(err)
		}
		_, b, err := NewInitiator(cl.Credentials.CName(), cl.Credentials.Domain(), ticket, session, now)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	old := token(service, time.Now())
	newKeys := kdc.Keytab("aes256-cts:normal", service) // another version
	const weak = "nfs/weak.rstored.test"
	weakKeys := kdc.Keytab("arcfour-hmac:normal", weak)
	kdc.Run("kadmin.local", "-r", krbtest.Realm, "-q", "setstr "+weak+" session_enctypes aes256-cts")
	others := kdc.Keytab("aes256-cts:normal", "nfs/kind.rstored.test")
	kdc.Keytab("aes128-cts:normal", "nfs/kind.rstored.test") // the KDC has no other key of it now
	now := time.Now()
	for name, c := range map[string]struct {
		keys  string
		token []byte
		at    time.Time
		code  uint32
		text  string
	}{
		"clock behind": {keys, token(service, now.Add(-17*time.Minute)), now, 37, "17m0s behind the server's"},
		"clock ahead":  {keys, token(service, now.Add(time.Hour)), now, 37, "1h0m0s ahead of the server's"},
		"expired":      {keys, old, now.Add(3 * time.Hour), 32, "expired"},
		"not yet":      {keys, old, now.Add(-3 * time.Hour), 33, "the clocks of KDC and server differ"},
		"other host":   {other, old, now, 35, "the keytab has only nfs/another"},
		"other service": {
			cifs, token("cifs/server.rstored.test", now), now, 35, "has a ticket for cifs/server",
		},
		"new keys": {newKeys, old, now, 44, "has key version"},
		"another enctype": {
			others, token("nfs/kind.rstored.test", now), now, 45,
			"is encrypted with aes128-cts-hmac-sha1-96, and the keytab has only aes256-cts-hmac-sha1-96",
		},
		"RC4":     {weakKeys, token(weak, now), now, 45, "is encrypted with arcfour-hmac, which is weak"},
		"garbage": {keys, []byte("no token"), now, 40, "malformed token"},
		"empty":   {keys, nil, now, 40, "malformed token"},
	} {
		_, err := acceptor(t, c.keys).Accept(c.token, c.at)
		var e *gss.InitError
		if !errors.As(err, &e) || e.Minor != minorBase+c.code || !strings.Contains(e.Error(), c.text) {
			t.Errorf("%s: %v (%+v)", name, err, e)
		}
	}
	for n := range old {
		if _, err := acceptor(t, keys).Accept(old[:n], now); err == nil {
			t.Errorf("%d of %d bytes of a token are accepted", n, len(old))
		}
	}
	for i := range old {
		b := bytes.Clone(old)
		b[i] ^= 1 << (i % 8)
		// Some of the token is not protected, such as the type of a name, and changes nothing.
		if est, err := acceptor(t, keys).Accept(b, now); err == nil && est.Principal != "alice@"+krbtest.Realm {
			t.Errorf("byte %d changed: the client is %s", i, est.Principal)
		}
	}
}

func FuzzAccept(f *testing.F) {
	kt := keytab.New()
	if err := kt.AddEntry(service, krbtest.Realm, "secret", time.Now(), 1, 18); err != nil {
		f.Fatal(err)
	}
	a := &Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return kt, nil }}
	f.Add([]byte("`\x0b" + string(gss.OIDKrb5)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := a.Accept(b, time.Now()); err == nil {
			t.Error("accepted")
		}
		if len(b) > 0 {
			_, _ = (&Initiator{}).Finish(b)
		}
		_, _ = a.Accept(wrap(idAPReq, b), time.Now())
		_, _ = (&Initiator{}).Finish(wrap(idAPRep, b))
		_, _ = (&Initiator{}).Finish(wrap(idError, b))
	})
}
