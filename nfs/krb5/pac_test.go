package krb5

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
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
			CName: types.PrincipalName{NameString: names}, CRealm: "R", AuthorizationData: data,
		}
	}
	with := authorization(t, adtype.ADWin2KPAC, b)
	forged := bytes.Clone(b)
	name := bytes.Index(b, []byte("t\x00e\x00s\x00t\x00u\x00"))
	forged[name] = 'r'
	strict := func() bool { return true }
	for _, c := range []struct {
		what string
		*messages.EncTicketPart
		require func() bool
		who     string
		err     error
	}{
		{"the same name", ticket(with, "testuser1"), strict, "testuser1@R", nil},
		{"another case", ticket(with, "TestUser1"), nil, "testuser1@R", nil},
		{"a name of another user", ticket(with, "root"), nil, "testuser1@R", nil},
		{"a service", ticket(with, "nfs", "host"), strict, "nfs/host@R", nil},
		{"no PAC", ticket(nil, "root"), nil, "root@R", nil},
		{"no PAC, and one is required", ticket(nil, "root"), strict, "root@R", errNoPAC},
		{"other data", ticket(authorization(t, adtype.ADKDCIssued, b), "root"), strict, "root@R", errNoPAC},
		{"a forged PAC", ticket(authorization(t, adtype.ADWin2KPAC, forged), "root"), nil, "root@R", errPAC},
	} {
		a := &Acceptor{RequirePAC: c.require}
		if who, err := a.clientOf(c.EncTicketPart, key); who != c.who || !errors.Is(err, c.err) {
			t.Errorf("%s: %s, %v", c.what, who, err)
		}
	}
	for n := range b {
		if _, err := pacAccount(b[:n], key); !errors.Is(err, errPAC) {
			t.Errorf("the first %d bytes of a PAC are accepted", n)
		}
	}
	other := types.EncryptionKey{KeyType: key.KeyType, KeyValue: make([]byte, len(key.KeyValue))}
	if _, err := pacAccount(b, other); !errors.Is(err, errPAC) {
		t.Error("the PAC of another service is accepted")
	}
}

// FuzzPAC: nothing but a PAC of the KDC is accepted. Nothing panics, or allocates by a number in it.
func FuzzPAC(f *testing.F) {
	b, key := windowsPAC(f)
	f.Add(b)
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, err := pacAccount(b, key); err == nil && name != "testuser1" {
			t.Errorf("an account %q", name)
		}
	})
}
