package roce

// cipher is a secret permutation of the 32-bit numbers: a Feistel network of four rounds. It turns
// slot and generation into a key, and back without a search. A peer cannot guess another key from
// the keys that it was given.
type cipher [4]uint32

func newCipher(r *source) (c cipher) {
	for i := range c {
		c[i] = r.uint32()
	}
	return c
}

// mix is the round function. It makes 16 bits of 16 bits and a round key.
func mix(h uint16, k uint32) uint16 {
	x := (uint32(h) ^ k) * 0x9e3779b1
	x ^= x >> 15
	x *= 0x85ebca6b
	return uint16(x >> 16)
}

func (c *cipher) encrypt(v uint32) uint32 {
	l, r := uint16(v>>16), uint16(v)
	for _, k := range c {
		l, r = r, l^mix(r, k)
	}
	return uint32(l)<<16 | uint32(r)
}

func (c *cipher) decrypt(v uint32) uint32 {
	l, r := uint16(v>>16), uint16(v)
	for i := len(c) - 1; i >= 0; i-- {
		l, r = r^mix(l, c[i]), l
	}
	return uint32(l)<<16 | uint32(r)
}
