package krb5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"

	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/crypto/etype"
	"github.com/jcmturner/gokrb5/v8/iana/adtype"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/pac"
	"github.com/jcmturner/gokrb5/v8/types"
)

// A PAC (MS-PAC section 2.3) is in tickets of Active Directory, Samba and FreeIPA. All numbers are
// little-endian:
//
//	number of buffers, 4 | version, 4 | for each: type, 4 | length, 4 | offset, 8 | the buffers
//
//	type 1      logon information: the name of the account (NDR, MS-PAC section 2.5)
//	type 6      checksum by the key of the service
//	type 7      checksum by the key of the KDC
//	type 12     names: length, 2 | offset, 2 of the UPN | length, 2 | offset, 2 of the domain | ...
//	            (MS-PAC section 2.10). The domain is its DNS name, in UTF-16
//
//	checksum    type, 4 | bytes of the checksum | perhaps more
const (
	pacLogon  = 1
	pacServer = 6
	pacKDC    = 7
	pacNames  = 12
)

var errPAC = errors.New("krb5: the PAC of the ticket is malformed, or was not made by the KDC")

var errNoPAC = errors.New("it has no PAC that names the account (kerberos.require_pac)")

// accountOf returns the name of the client's account and the DNS name of its domain, or "" for what
// the ticket does not have. The PAC must have a checksum by key, the key of the ticket: clients can
// put authorization data into their tickets too.
func accountOf(data types.AuthorizationData, key types.EncryptionKey) (account, domain string, err error) {
	for i := range data {
		if data[i].ADType != adtype.ADIfRelevant {
			continue
		}
		var inner types.AuthorizationData
		if inner.Unmarshal(data[i].ADData) != nil {
			continue
		}
		for j := range inner {
			if inner[j].ADType == adtype.ADWin2KPAC {
				return pacAccount(inner[j].ADData, key)
			}
		}
	}
	return "", "", nil
}

// pacAccount checks a PAC, and returns the account and the domain in it.
func pacAccount(b []byte, key types.EncryptionKey) (account, domain string, err error) {
	const header, entry = 8, 16
	if len(b) < header || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-header)/entry {
		return "", "", errPAC
	}
	n := int(binary.LittleEndian.Uint32(b))
	var logon, names, sum []byte
	var service etype.EType
	signed := bytes.Clone(b) // with zeros in the place of both checksums
	for e := range slices.Chunk(b[header:header+n*entry], entry) {
		size, at := uint64(binary.LittleEndian.Uint32(e[4:])), binary.LittleEndian.Uint64(e[8:])
		if at > uint64(len(b)) || size > uint64(len(b))-at {
			return "", "", errPAC
		}
		part := b[at : at+size]
		switch t := binary.LittleEndian.Uint32(e); {
		case t == pacLogon && logon == nil:
			logon = part
		case t == pacNames && names == nil:
			names = part
		case t == pacServer && sum == nil, t == pacKDC:
			if len(part) < 4 {
				return "", "", errPAC
			}
			kind, err := crypto.GetChksumEtype(int32(binary.LittleEndian.Uint32(part)))
			length := len(part) - 4
			if err == nil {
				length = min(length, kind.GetHMACBitLength()/8)
			}
			if t == pacServer {
				service, sum = kind, part[4:4+length]
			}
			clear(signed[at+4:][:length])
		}
	}
	if service == nil || service.GetETypeID() != key.KeyType ||
		!service.VerifyChecksum(key.KeyValue, signed, sum, keyusage.KERB_NON_KERB_CKSUM_SALT) {
		return "", "", errPAC
	}
	if logon == nil { // MIT's KDC
		return "", "", nil
	}
	var info pac.KerbValidationInfo
	if err := info.Unmarshal(logon); err != nil {
		return "", "", fmt.Errorf("%w: %w", errPAC, err)
	}
	if names != nil {
		if domain, err = pacDomain(names); err != nil {
			return "", "", err
		}
	}
	return info.EffectiveName.Value, domain, nil
}

// pacDomain returns the DNS name of the account's domain.
func pacDomain(names []byte) (string, error) {
	const header = 8
	if len(names) < header {
		return "", errPAC
	}
	size, at := int(binary.LittleEndian.Uint16(names[4:])), int(binary.LittleEndian.Uint16(names[6:]))
	if at+size > len(names) {
		return "", errPAC
	}
	text := make([]uint16, size/2)
	for i := range text {
		text[i] = binary.LittleEndian.Uint16(names[at+2*i:])
	}
	return string(utf16.Decode(text)), nil
}
