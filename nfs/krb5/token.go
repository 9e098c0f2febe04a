package krb5

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/iana"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/iana/msgtype"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rstored/rstored/rpcrdma/gss"
)

// Tokens of an establishment (RFC 4121 section 4.1; RFC 2743 section 3.1):
//
//	+------+--------------+-----------------+-----------+----------------------------+
//	| 0x60 | length (DER) | OID of Kerberos | TOK_ID    | AP-REQ, AP-REP or          |
//	|      |              | (DER)           | (2 bytes) | KRB-ERROR (DER)            |
//	+------+--------------+-----------------+-----------+----------------------------+
const (
	idAPReq = 0x0100
	idAPRep = 0x0200
	idError = 0x0300
)

var errToken = errors.New("krb5: malformed token")

// unwrap returns the TOK_ID and the message of a token. The message aliases it.
func unwrap(token []byte) (id int, msg []byte, err error) {
	var outer asn1.RawValue
	rest, err := asn1.Unmarshal(token, &outer)
	if err != nil || len(rest) > 0 || outer.Class != asn1.ClassApplication || outer.Tag != 0 {
		return 0, nil, errToken
	}
	body, ok := bytes.CutPrefix(outer.Bytes, gss.OIDKrb5)
	if !ok {
		return 0, nil, fmt.Errorf("%w: the mechanism is not Kerberos", errToken)
	}
	if len(body) < 2 {
		return 0, nil, errToken
	}
	return int(body[0])<<8 | int(body[1]), body[2:], nil
}

// wrap makes a token.
func wrap(id int, msg []byte) []byte {
	return asn1tools.AddASNAppTag(bytes.Join([][]byte{gss.OIDKrb5, {byte(id >> 8), byte(id)}, msg}, nil), 0)
}

// decrypt decrypts and checks data. gokrb5 needs data that is not too short.
func decrypt(data types.EncryptedData, key types.EncryptionKey, usage uint32) ([]byte, error) {
	e, err := crypto.GetEtype(key.KeyType)
	if err != nil {
		return nil, err
	}
	if data.EType != key.KeyType || len(data.Cipher) < e.GetConfounderByteSize()+e.GetHMACBitLength()/8 {
		return nil, errToken
	}
	const rc4KeyLen = 16
	kind := gss.EncType(key.KeyType)
	rc4 := kind == gss.RC4HMAC && usage == keyusage.KDC_REP_TICKET && len(key.KeyValue) == rc4KeyLen
	if !rc4 && (!kind.Supported() || len(key.KeyValue) != kind.KeyLen()) {
		return nil, fmt.Errorf("krb5: %v is not supported", kind)
	}
	return e.DecryptMessage(key.KeyValue, data.Cipher, usage)
}

// encAPRepPart is the encrypted part of an AP-REP (RFC 4120 section 5.5.2).
type encAPRepPart struct {
	CTime  time.Time           `asn1:"generalized,explicit,tag:0"`
	Cusec  int                 `asn1:"explicit,tag:1"`
	Subkey types.EncryptionKey `asn1:"optional,explicit,tag:2"`
	Seq    int64               `asn1:"optional,explicit,tag:3"`
}

// marshalAPRep makes an AP-REP. Its encrypted part repeats the time of the authenticator, which
// proves that the server could read it.
func marshalAPRep(part encAPRepPart, session types.EncryptionKey) ([]byte, error) {
	b, err := asn1.Marshal(part)
	if err != nil {
		return nil, err
	}
	b = asn1tools.AddASNAppTag(b, asnAppTag.EncAPRepPart)
	enc, err := crypto.GetEncryptedData(b, session, keyusage.AP_REP_ENCPART, 0)
	if err != nil {
		return nil, err
	}
	b, err = asn1.Marshal(messages.APRep{PVNO: iana.PVNO, MsgType: msgtype.KRB_AP_REP, EncPart: enc})
	if err != nil {
		return nil, err
	}
	return asn1tools.AddASNAppTag(b, asnAppTag.APREP), nil
}
