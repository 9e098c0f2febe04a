package krb5

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rstored/rstored/rpcrdma/gss"
)

// SkewMax is how far the clocks of client and server may differ.
const SkewMax = 5 * time.Minute

// Acceptor is the server's side. It implements gss.Acceptor, and may be used from any goroutine.
type Acceptor struct {
	// Keytab returns the keys of the server. It is called for each token.
	Keytab func() (*keytab.Keytab, error)
	// Service is the first component of the principals that the server has, such as "nfs". A ticket
	// for another one is refused, also if its key is in the keytab.
	Service string
	// RC4 reports whether tickets may be encrypted with RC4 (RFC 4757); nil: they may not. The session
	// key and the keys of the context are of AES in any case. It is called for each such token.
	RC4 func() bool
	// RequirePAC reports whether a ticket must have a PAC with the name of the account; nil: it need
	// not. It is called for each ticket without one.
	RequirePAC func() bool

	replays replays
}

// minorBase is the first error code of Kerberos in the minor status of MIT's and Heimdal's GSS-API,
// as an unsigned number: ERROR_TABLE_BASE_krb5. Their programs on the client print the text of the
// code.
const minorBase = 0x96c73a00

// refuse makes an error with which a client is refused. code is of RFC 4120 section 7.5.9.
func refuse(major uint32, code int32, principal, format string, args ...any) error {
	minor := uint32(0)
	if code != 0 {
		minor = minorBase + uint32(code)
	}
	return &gss.InitError{Major: major, Minor: minor, Principal: principal, Err: fmt.Errorf(format, args...)}
}

// Accept implements gss.Acceptor. It checks an AP-REQ as RFC 4120 section 3.2.3 says, and answers
// with an AP-REP.
//
//	what is wrong                                  code to the client
//	the token does not decode                      KRB_AP_ERR_MSG_TYPE
//	the ticket is for another service              KRB_AP_ERR_NOT_US
//	the keytab lacks the principal or enctype      KRB_AP_ERR_NOKEY
//	the keytab has another version of the key      KRB_AP_ERR_BADKEYVER
//	the ticket does not decrypt                    KRB_AP_ERR_BAD_INTEGRITY
//	the ticket is too young or has expired         KRB_AP_ERR_TKT_NYV, KRB_AP_ERR_TKT_EXPIRED
//	authenticator and ticket name two principals   KRB_AP_ERR_BADMATCH
//	the clocks differ                              KRB_AP_ERR_SKEW
//	the authenticator was seen                     KRB_AP_ERR_REPEAT
//
// The key of the context is a new one of the server: messages of an earlier context are useless for
// it, even if the server has forgotten the authenticator.
func (a *Acceptor) Accept(token []byte, now time.Time) (gss.Established, error) {
	var est gss.Established
	req, err := parseAPReq(token)
	if err != nil {
		return est, refuse(gss.DefectiveToken, errorcode.KRB_AP_ERR_MSG_TYPE, "", "%w", err)
	}
	who, acceptor, err := a.openTicket(req)
	if err != nil {
		return est, err
	}
	t := &req.Ticket.DecryptedEncPart
	start := t.StartTime
	if start.IsZero() {
		start = t.AuthTime // RFC 4120 section 5.3
	}
	switch {
	case types.IsFlagSet(&t.Flags, flags.Invalid), start.Sub(now) > SkewMax:
		return est, refuse(gss.Failure, errorcode.KRB_AP_ERR_TKT_NYV, who,
			"the ticket of %s is valid only in %v: the clocks of KDC and server differ", who,
			start.Sub(now).Round(time.Second))
	case now.Sub(t.EndTime) > SkewMax:
		return est, refuse(gss.CredentialExpired, errorcode.KRB_AP_ERR_TKT_EXPIRED, who,
			"the ticket of %s expired %v ago", who, now.Sub(t.EndTime).Round(time.Second))
	}
	auth, err := openAuthenticator(req)
	if err != nil {
		return est, refuse(gss.DefectiveToken, errorcode.KRB_AP_ERR_BAD_INTEGRITY, who,
			"the authenticator of %s does not decrypt: %w", who, err)
	}
	if !auth.CName.Equal(t.CName) || auth.CRealm != t.CRealm {
		return est, refuse(gss.DefectiveToken, errorcode.KRB_AP_ERR_BADMATCH, who,
			"the ticket is of %s, and the authenticator of %s", principal(t.CName, t.CRealm), principal(auth.CName, auth.CRealm))
	}
	at := auth.CTime.Add(time.Duration(auth.Cusec) * time.Microsecond)
	if skew := at.Sub(now); skew.Abs() > SkewMax {
		ahead := "ahead of"
		if skew < 0 {
			ahead = "behind"
		}
		return est, refuse(gss.Failure, errorcode.KRB_AP_ERR_SKEW, who,
			"the clock of the client of %s is %v %s the server's; at most %v are allowed", who,
			skew.Abs().Round(time.Second), ahead, SkewMax)
	}
	if err := checkBinding(auth); err != nil {
		return est, refuse(gss.DefectiveToken, errorcode.KRB_AP_ERR_INAPP_CKSUM, who, "the token of %s: %w", who, err)
	}
	if !a.replays.admit(req.EncryptedAuthenticator.Cipher, now) {
		return est, refuse(gss.Failure|gss.DuplicateToken, errorcode.KRB_AP_ERR_REPEAT, who,
			"the token of %s was used before", who)
	}
	return a.establish(req, auth, who, acceptor)
}

// establish chooses the key of the context and makes the answer.
func (a *Acceptor) establish(req *messages.APReq, auth *types.Authenticator, who, acceptor string) (
	gss.Established, error,
) {
	t := &req.Ticket.DecryptedEncPart
	key := t.Key
	if len(auth.SubKey.KeyValue) > 0 {
		key = auth.SubKey
	}
	kind := gss.EncType(key.KeyType)
	if !kind.Supported() {
		return gss.Established{}, refuse(gss.Failure, errorcode.KRB_AP_ERR_NOKEY, who,
			"%s asks for a context of %v, which is not supported", who, kind)
	}
	sub := types.EncryptionKey{KeyType: key.KeyType, KeyValue: make([]byte, kind.KeyLen())}
	var seq [4]byte
	_, _ = rand.Read(sub.KeyValue) // does not fail: crypto/rand ends the program instead
	_, _ = rand.Read(seq[:])
	first := binary.BigEndian.Uint32(seq[:]) >> 2
	c, err := gss.NewContext(gss.Key{Type: kind, Value: sub.KeyValue},
		gss.Role{Acceptor: true, AcceptorSubkey: true, Seq: uint64(first)})
	if err != nil {
		return gss.Established{}, refuse(gss.Failure, 0, who, "%w", err)
	}
	rep, err := marshalAPRep(encAPRepPart{CTime: auth.CTime, Cusec: auth.Cusec, Subkey: sub, Seq: int64(first)}, t.Key)
	if err != nil {
		return gss.Established{}, refuse(gss.Failure, 0, who, "answering %s: %w", who, err)
	}
	return gss.Established{
		Context: c, Principal: who, Acceptor: acceptor, Token: wrap(idAPRep, rep),
		Expires: t.EndTime,
	}, nil
}

// parseAPReq decodes a token. It checks what gokrb5 takes for granted.
func parseAPReq(token []byte) (*messages.APReq, error) {
	id, msg, err := unwrap(token)
	if err != nil {
		return nil, err
	}
	if id != idAPReq {
		return nil, fmt.Errorf("%w: type %#x instead of AP-REQ", errToken, id)
	}
	var req messages.APReq
	if err := req.Unmarshal(msg); err != nil {
		return nil, fmt.Errorf("%w: %w", errToken, err)
	}
	if len(req.Ticket.SName.NameString) == 0 {
		return nil, fmt.Errorf("%w: the ticket is for nobody", errToken)
	}
	return &req, nil
}

// openTicket decrypts the ticket with a key of the keytab. It returns the principals of the client
// and of this server.
func (a *Acceptor) openTicket(req *messages.APReq) (who, acceptor string, err error) {
	kt, err := a.Keytab()
	if err != nil {
		return "", "", refuse(gss.NoCred, errorcode.KRB_AP_ERR_NOKEY, "", "%w", err)
	}
	t := &req.Ticket
	service, kind := principal(t.SName, t.Realm), gss.EncType(t.EncPart.EType)
	if t.SName.NameString[0] != a.Service {
		return "", "", refuse(gss.Failure, errorcode.KRB_AP_ERR_NOT_US, "",
			"a client has a ticket for %s, and this service is %s/...", service, a.Service)
	}
	switch {
	case kind == gss.RC4HMAC && (a.RC4 == nil || !a.RC4()):
		return "", "", refuse(gss.Failure, errorcode.KRB_AP_ERR_NOKEY, "",
			"a ticket for %s is encrypted with %v, which is weak: give the principal AES keys, or set kerberos.rc4", service,
			kind)
	case kind != gss.RC4HMAC && !kind.Supported():
		return "", "", refuse(gss.Failure, errorcode.KRB_AP_ERR_NOKEY, "",
			"a ticket for %s is encrypted with %v, which is not supported: give the principal AES keys", service, kind)
	}
	entries, err := find(kt, t)
	if err != nil {
		return "", "", err
	}
	for _, i := range entries {
		e := &kt.Entries[i]
		var b []byte
		if b, err = decrypt(t.EncPart, e.Key, keyusage.KDC_REP_TICKET); err != nil {
			continue
		}
		var part messages.EncTicketPart
		if err = part.Unmarshal(b); err != nil || len(part.CName.NameString) == 0 {
			continue
		}
		t.DecryptedEncPart = part
		if who, err = a.clientOf(&part, e.Key); err != nil {
			return "", "", refuse(gss.DefectiveToken, errorcode.KRB_AP_ERR_MODIFIED, who, "the ticket of %s: %w", who, err)
		}
		return who, unparse(e.Principal.Components, e.Principal.Realm), nil
	}
	return "", "", refuse(gss.Failure, errorcode.KRB_AP_ERR_BAD_INTEGRITY, "",
		"a ticket for %s does not decrypt with the key of the keytab: was the key changed under the same version?",
		service)
}

// clientOf returns the principal of the client of a ticket. A client of Active Directory is the
// account in the PAC: the name in the ticket has the case that the client typed, may be another
// name of the account (UPN), also one with a slash, and may lack the last character of an account
// NAME$. Each user of a domain can make such accounts, also with the name of a user of this host.
//
// The account must be of the ticket's realm: two domains can have accounts of the same name.
func (a *Acceptor) clientOf(t *messages.EncTicketPart, key types.EncryptionKey) (string, error) {
	who := principal(t.CName, t.CRealm)
	account, domain, err := accountOf(t.AuthorizationData, key)
	switch {
	case err != nil:
		return who, err
	case account != "" && domain != "" && !strings.EqualFold(domain, t.CRealm):
		return who, fmt.Errorf("its PAC is of the account %s of the domain %s", account, domain)
	case account != "":
		return unparse([]string{account}, t.CRealm), nil
	case a.RequirePAC != nil && a.RequirePAC():
		return who, errNoPAC
	}
	return who, nil
}

// find returns the entries of kt with whose keys a ticket may be encrypted: those of its principal,
// enctype and version. A ticket without a version may have any. Upper and lower case in the names
// of hosts are equal, as for Active Directory: which of them a ticket has, the client has chosen.
func find(kt *keytab.Keytab, t *messages.Ticket) (entries []int, err error) {
	var versions, kinds, names []string
	for i := range kt.Entries {
		e := &kt.Entries[i]
		if e.Principal.Realm != t.Realm || !slices.EqualFunc(e.Principal.Components, t.SName.NameString, strings.EqualFold) {
			names = append(names, unparse(e.Principal.Components, e.Principal.Realm))
			continue
		}
		if e.Key.KeyType != t.EncPart.EType {
			kinds = append(kinds, gss.EncType(e.Key.KeyType).String())
			continue
		}
		if t.EncPart.KVNO != 0 && e.KVNO != uint32(t.EncPart.KVNO) {
			versions = append(versions, fmt.Sprint(e.KVNO))
			continue
		}
		entries = append(entries, i)
	}
	service := principal(t.SName, t.Realm)
	switch {
	case len(entries) > 0:
		return entries, nil
	case len(versions) > 0:
		return nil, refuse(gss.Failure, errorcode.KRB_AP_ERR_BADKEYVER, "",
			"a ticket for %s has key version %d, and the keytab has %s: renew the keytab, or the client's ticket",
			service, t.EncPart.KVNO, list(versions))
	case len(kinds) > 0:
		return nil, refuse(gss.Failure, errorcode.KRB_AP_ERR_NOKEY, "",
			"a ticket for %s is encrypted with %v, and the keytab has only %s", service, gss.EncType(t.EncPart.EType),
			list(kinds))
	case len(names) == 0:
		return nil, refuse(gss.NoCred, errorcode.KRB_AP_ERR_NOKEY, "", "the keytab is empty")
	}
	return nil, refuse(gss.Failure, errorcode.KRB_AP_ERR_NOT_US, "",
		"a client has a ticket for %s, and the keytab has only %s", service, list(names))
}

// list joins words, each once.
func list(words []string) string {
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ", ")
}

// principal is a name with its realm. What separates components is escaped in them, as by MIT's
// krb5_unparse_name: the one component "root/admin" is not the two of root/admin.
func principal(n types.PrincipalName, realm string) string { return unparse(n.NameString, realm) }

func unparse(components []string, realm string) string {
	var b strings.Builder
	for i, c := range components {
		if i > 0 {
			b.WriteByte('/')
		}
		_, _ = separators.WriteString(&b, c)
	}
	b.WriteByte('@')
	_, _ = separators.WriteString(&b, realm)
	return b.String()
}

var separators = strings.NewReplacer(`\`, `\\`, "/", `\/`, "@", `\@`)

// openAuthenticator decrypts the authenticator with the ticket's session key.
func openAuthenticator(req *messages.APReq) (*types.Authenticator, error) {
	b, err := decrypt(req.EncryptedAuthenticator, req.Ticket.DecryptedEncPart.Key, keyusage.AP_REQ_AUTHENTICATOR)
	if err != nil {
		return nil, err
	}
	var auth types.Authenticator
	return &auth, auth.Unmarshal(b)
}

// The checksum of an authenticator of GSS-API (RFC 4121 section 4.1.1):
//
//	 0            4                              20      24
//	+------------+------------------------------+-------+-----------------------+
//	| Lgth of    | Bnd: hash of the channel     | Flags | delegated credentials |   little-endian
//	| Bnd, 16    | bindings                     |       | (optional)            |
//	+------------+------------------------------+-------+-----------------------+
const (
	checksumGSS = 0x8003
	checksumLen = 4 + 16 + 4

	flagMutual = 2
	flagConf   = 16
	flagInteg  = 32
)

// checkBinding checks that an authenticator is one of GSS-API. The channel bindings are not
// checked: a server without bindings of its own does not look at the client's.
func checkBinding(auth *types.Authenticator) error {
	c := auth.Cksum
	if c.CksumType != checksumGSS || len(c.Checksum) < checksumLen || binary.LittleEndian.Uint32(c.Checksum) != 16 {
		return errors.New("the authenticator is not one of GSS-API")
	}
	if binary.LittleEndian.Uint32(c.Checksum[20:])&flagMutual == 0 {
		return errors.New("the client does not ask for mutual authentication")
	}
	return nil
}

// replaysMax bounds the authenticators that are remembered. Each lives for two SkewMax.
const replaysMax = 1 << 16

// replays is the cache of authenticators that were used, in two generations. A generation ends
// after two SkewMax, or when it is full.
type replays struct {
	mu       sync.Mutex
	now, old map[[16]byte]struct{}
	since    time.Time
}

// admit reports whether an encrypted authenticator is new. The end of it is its checksum, which
// differs between two authenticators even of the same time, because each has a confounder.
func (r *replays) admit(cipher []byte, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil || now.Sub(r.since) > 2*SkewMax || len(r.now) >= replaysMax/2 {
		r.old, r.now, r.since = r.now, make(map[[16]byte]struct{}), now
	}
	var k [16]byte
	copy(k[:], cipher[max(0, len(cipher)-len(k)):])
	_, old := r.old[k]
	_, is := r.now[k]
	if old || is {
		return false
	}
	r.now[k] = struct{}{}
	return true
}
