package krb5

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/iana/adtype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/test/testdata"
	"github.com/jcmturner/gokrb5/v8/types"
)

// windowsPAC is a PAC that Windows made for testuser1, and the key of its service.
func windowsPAC(tb testing.TB) ([]byte, types.EncryptionKey) {
	tb.Helper()
	b, err := hex.DecodeString(testdata.MarshaledPAC_AD_WIN2K_PAC)
	if err != nil {
		tb.Fatal(err)
	}
	keys, err := hex.DecodeString(testdata.KEYTAB_SYSHTTP_TEST_GOKRB5)
	if err != nil {
		tb.Fatal(err)
	}
	kt := keytab.New()
	if err := kt.Unmarshal(keys); err != nil {
		tb.Fatal(err)
	}
	name, _ := types.ParseSPNString("sysHTTP")
	key, _, err := kt.GetEncryptionKey(name, "TEST.GOKRB5", 2, 18)
	if err != nil {
		tb.Fatal(err)
	}
	return b, key
}

// authorization is authorization data as KDCs make it.
func authorization(tb testing.TB, kind int32, data []byte) types.AuthorizationData {
	tb.Helper()
	inner, err := asn1.Marshal(types.AuthorizationData{{ADType: kind, ADData: data}})
	if err != nil {
		tb.Fatal(err)
	}
	return types.AuthorizationData{{ADType: adtype.ADIfRelevant, ADData: inner}}
}

// TestPAC: the client of a ticket with a PAC is the account that the KDC has written there, whatever
// name the client has chosen for its ticket. A PAC that the KDC did not make is refused.
func TestPAC(t *testing.T) {
	b, key := windowsPAC(t)
	ticket := func(data types.AuthorizationData, names ...string) *messages.EncTicketPart {
		return &messages.EncTicketPart{
			CName: types.PrincipalName{NameString: names}, CRealm: "TEST.GOKRB5", AuthorizationData: data,
		}
	}
	of := func(t *messages.EncTicketPart, realm string) *messages.EncTicketPart {
		t.CRealm = realm
		return t
	}
	with := authorization(t, adtype.ADWin2KPAC, b)
	forged := bytes.Clone(b)
	name := bytes.Index(b, []byte("t\x00e\x00s\x00t\x00u\x00"))
	forged[name] = 'r'
	strict := func() bool { return true }
	const account = "testuser1@TEST.GOKRB5"
	for _, c := range []struct {
		what string
		*messages.EncTicketPart
		require func() bool
		who     string
		err     string
	}{
		{"the same name", ticket(with, "testuser1"), strict, account, ""},
		{"another case", ticket(with, "TestUser1"), nil, account, ""},
		{"a name of another user", ticket(with, "root"), nil, account, ""},
		{"a name of a machine", ticket(with, "host", "a.test"), nil, account, ""},
		{"the realm in another case", of(ticket(with, "testuser1"), "test.gokrb5"), nil, "testuser1@test.gokrb5", ""},
		{"a user of another realm", of(ticket(with, "testuser1"), "R"), nil, "testuser1@R", "of the domain TEST.GOKRB5"},
		{"no PAC", ticket(nil, "root"), nil, "root@TEST.GOKRB5", ""},
		{"no PAC, and one is required", ticket(nil, "root"), strict, "root@TEST.GOKRB5", errNoPAC.Error()},
		{"no PAC of a machine", ticket(nil, "host", "a"), strict, "host/a@TEST.GOKRB5", errNoPAC.Error()},
		{
			"other data", ticket(authorization(t, adtype.ADKDCIssued, b), "root"), strict, "root@TEST.GOKRB5",
			errNoPAC.Error(),
		},
		{
			"a forged PAC", ticket(authorization(t, adtype.ADWin2KPAC, forged), "root"), nil, "root@TEST.GOKRB5",
			errPAC.Error(),
		},
	} {
		a := &Acceptor{RequirePAC: c.require}
		who, err := a.clientOf(c.EncTicketPart, key)
		if who != c.who || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %s, %v", c.what, who, err)
		}
	}
	for n := range b {
		if _, _, err := pacAccount(b[:n], key); !errors.Is(err, errPAC) {
			t.Errorf("the first %d bytes of a PAC are accepted", n)
		}
	}
	other := types.EncryptionKey{KeyType: key.KeyType, KeyValue: make([]byte, len(key.KeyValue))}
	if _, _, err := pacAccount(b, other); !errors.Is(err, errPAC) {
		t.Error("the PAC of another service is accepted")
	}
}

// FuzzPAC: nothing but a PAC of the KDC is accepted. Nothing panics, or allocates by a number in it.
func FuzzPAC(f *testing.F) {
	b, key := windowsPAC(f)
	f.Add(b)
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, domain, err := pacAccount(b, key); err == nil && (name != "testuser1" || domain != "TEST.GOKRB5") {
			t.Errorf("an account %q of %q", name, domain)
		}
	})
}

// FuzzPACDomain: a malformed list of names is an error.
func FuzzPACDomain(f *testing.F) {
	f.Add([]byte("\x02\x00\x10\x00\x02\x00\x12\x00\x00\x00\x00\x00\x00\x00\x00\x00a\x00b\x00"))
	f.Add([]byte("\x02\x00\x10\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, err := pacDomain(b); err == nil && len(name) > 3*len(b) {
			t.Errorf("%d bytes of %d", len(name), len(b))
		}
	})
}
