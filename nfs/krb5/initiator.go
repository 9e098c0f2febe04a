package krb5

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rstored/rstored/rpcrdma/gss"
)

// Initiator is the client's side of one establishment.
type Initiator struct {
	session types.EncryptionKey
	sub     types.EncryptionKey
	seq     uint32
	ctime   time.Time
	cusec   int
}

// NewInitiator makes the token for a server from a ticket for its service and the ticket's session
// key. client is the ticket's principal.
func NewInitiator(client types.PrincipalName, realm string, ticket messages.Ticket, session types.EncryptionKey,
	now time.Time,
) (*Initiator, []byte, error) {
	kind := gss.EncType(session.KeyType)
	if !kind.Supported() {
		return nil, nil, fmt.Errorf("krb5: the ticket has a session key of %v, which is not supported", kind)
	}
	if len(ticket.SName.NameString) == 0 {
		return nil, nil, errToken
	}
	i := &Initiator{session: session, ctime: now.UTC().Truncate(time.Second), cusec: now.Nanosecond() / 1000}
	i.sub = types.EncryptionKey{KeyType: session.KeyType, KeyValue: make([]byte, kind.KeyLen())}
	var seq [4]byte
	_, _ = rand.Read(i.sub.KeyValue) // does not fail: crypto/rand ends the program instead
	_, _ = rand.Read(seq[:])
	i.seq = binary.BigEndian.Uint32(seq[:]) >> 2
	sum := make([]byte, checksumLen)
	binary.LittleEndian.PutUint32(sum, 16)
	binary.LittleEndian.PutUint32(sum[20:], flagMutual|flagConf|flagInteg)
	req, err := messages.NewAPReq(ticket, session, types.Authenticator{
		AVNO: iana.PVNO, CRealm: realm, CName: client, Cksum: types.Checksum{CksumType: checksumGSS, Checksum: sum},
		Cusec: i.cusec, CTime: i.ctime, SubKey: i.sub, SeqNumber: int64(i.seq),
	})
	if err != nil {
		return nil, nil, err
	}
	types.SetFlag(&req.APOptions, flags.APOptionMutualRequired)
	b, err := req.Marshal()
	if err != nil {
		return nil, nil, err
	}
	return i, wrap(idAPReq, b), nil
}

// Finish makes the context from the server's answer. The answer proves that the server has the key
// of the ticket.
func (i *Initiator) Finish(token []byte) (*gss.Context, error) {
	id, msg, err := unwrap(token)
	if err != nil {
		return nil, err
	}
	switch id {
	case idAPRep:
	case idError:
		var e messages.KRBError
		if err := e.Unmarshal(msg); err != nil {
			return nil, errToken
		}
		return nil, e
	default:
		return nil, errToken
	}
	var rep messages.APRep
	if err := rep.Unmarshal(msg); err != nil {
		return nil, fmt.Errorf("%w: %w", errToken, err)
	}
	b, err := decrypt(rep.EncPart, i.session, keyusage.AP_REP_ENCPART)
	if err != nil {
		return nil, fmt.Errorf("krb5: the server's answer does not decrypt: %w", err)
	}
	var part messages.EncAPRepPart
	if err := part.Unmarshal(b); err != nil {
		return nil, err
	}
	if !part.CTime.Equal(i.ctime) || part.Cusec != i.cusec {
		return nil, fmt.Errorf("%w: the server answers to another token", errToken)
	}
	key, role := i.sub, gss.Role{Seq: uint64(i.seq)}
	if len(part.Subkey.KeyValue) > 0 {
		key, role.AcceptorSubkey = part.Subkey, true
	}
	return gss.NewContext(gss.Key{Type: gss.EncType(key.KeyType), Value: key.KeyValue}, role)
}
