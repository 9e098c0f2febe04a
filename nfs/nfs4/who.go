package nfs4

import (
	"strconv"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// byNumber is the idmap without names: a user or group is its decimal number (RFC 8881 section
// 5.9). It is the default of Config.Names. With AUTH_SYS the Linux client sends and accepts numbers
// unless its module parameter nfs4_disable_idmapping is off. A client that sends a name gets
// BADOWNER.
type byNumber struct{}

func (byNumber) Append(b []byte, id uint32, _ bool) []byte {
	return strconv.AppendUint(b, uint64(id), 10)
}

func (byNumber) Parse(who []byte, _ bool) (uint32, bool) { return DecodeID(who) }

// encodeWho appends the name of an owner or of a group (RFC 8881 section 5.9). The buffer is on the
// stack for names of up to 64 bytes: GETATTR and READDIR come here up to twice for each object.
func (k *compound) encodeWho(e *xdr.Encoder, id uint32, group bool) {
	var b [64]byte
	e.Opaque(k.s.cfg.Names.Append(b[:0], id, group))
}

// EncodeID appends an owner or group as a decimal number. 10 digits are enough for 2^32-1.
func EncodeID(e *xdr.Encoder, id uint32) {
	var b [10]byte
	e.Opaque(strconv.AppendUint(b[:0], uint64(id), 10))
}

// DecodeID reads what EncodeID writes: digits without sign and without leading zeros (RFC 8881
// section 5.9). A string like "007" is a name, and may be that of a user. Numbers above 2^32-1 are
// refused: truncated they would become another user, or root.
func DecodeID(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 1 && b[0] == '0' || b[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	return uint32(n), err == nil
}
