//go:build !amd64

package wire

func crcBlocks(c uint32, _ *[crcHead]byte, _, _ []byte) (crc uint32, n, copied int, ok bool) {
	return c, 0, 0, false
}

func mulmod(a, b uint32) uint32 { return mulmodGo(a, b) }
