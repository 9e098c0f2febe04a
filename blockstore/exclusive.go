package blockstore

import (
	"encoding/binary"
	"time"
)

// ExclusiveAttr returns the atime and the mtime of a file that an exclusive create made. Each
// stores half of the verifier, so that a retry finds the verifier (RFC 1813 section 3.3.8).
func ExclusiveAttr(verf [8]byte) *SetAttr {
	return &SetAttr{
		AtimeHow: TimeClient, Atime: timeOfHalf(binary.BigEndian.Uint32(verf[4:])),
		MtimeHow: TimeClient, Mtime: timeOfHalf(binary.BigEndian.Uint32(verf[:4])),
	}
}

// timeOfHalf returns the time that stores half of a verifier. The seconds store the lower 31 bits,
// which fit into the times of every filesystem. The fraction of the second stores the upper bit: a
// quarter or a half, so that it survives in a filesystem that rounds times to hundredths.
func timeOfHalf(half uint32) time.Time {
	const lower = 1<<31 - 1
	return time.Unix(int64(half&lower), int64(half>>31+1)*int64(250*time.Millisecond))
}
