package nfs4

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// ioPiece is READ, WRITE or WRITE_SAME with a stateid. It knows the operation, and what becomes of
// the data; ioAction knows what stateids allow. bad says that the arguments make no sense.
func (w *randomWorld) ioPiece(c *modelClient, id state.Stateid, file int, write bool) (k piece, bad bool) {
	off := uint64(w.rnd.IntN(40))
	switch {
	case write && c.minor >= 2 && w.chance(60):
		return w.writeSamePiece(id, file, off)
	case write:
		data := bytes.Repeat([]byte{'a' + byte(w.rnd.IntN(26))}, 1+w.rnd.IntN(8))
		k = piece{op: OpWrite, a: op(OpWrite, id, off, uint32(2), data), ok: func(p *reply) {
			w.wrote(uint64(p.Uint32()), uint64(len(data)))
			p.Skip(4 + VerifierLen)
			w.put(file, off, data)
		}}
	default:
		n := uint64(1 + w.rnd.IntN(80))
		k = piece{op: OpRead, a: op(OpRead, id, off, uint32(n)), ok: func(p *reply) {
			all := w.data[file]
			from := min(off, uint64(len(all)))
			want := all[from:min(from+n, uint64(len(all)))]
			if eof, got := p.Bool(), p.Opaque(100); !bytes.Equal(got, want) || eof != (off+n >= uint64(len(all))) {
				panic(fmt.Sprintf("file %d, %d+%d: %q, end %v, instead of %q", file, off, n, got, eof, want))
			}
		}}
	}
	k.text = fmt.Sprintf("file %d, %x, at %d:", file, id, off)
	return k, false
}

// writeSamePiece is WRITE_SAME of small blocks, some of which make no sense. The model writes them
// byte by byte (RFC 7862 section 8.2): zeros, then the pattern, then the number.
func (w *randomWorld) writeSamePiece(id state.Stateid, file int, off uint64) (k piece, bad bool) {
	size, at, num := w.rnd.IntN(9), w.rnd.IntN(4), w.rnd.IntN(6)
	b := dataBlocks{
		offset: off, size: uint64(size), count: uint64(w.rnd.IntN(5)), numAt: noNumber, num: w.rnd.Uint32(),
		patternAt: uint64(at), pattern: bytes.Repeat([]byte{'A' + byte(w.rnd.IntN(26))}, w.rnd.IntN(4)),
	}
	if w.chance(30) {
		clear(b.pattern)
	}
	if w.chance(30) {
		b.numAt = uint64(num)
	}
	bad = size == 0 && b.count > 0 || len(b.pattern) > 0 && at+len(b.pattern) > size ||
		b.numAt != noNumber && num+4 > size
	how := w.rnd.IntN(3)
	k = piece{op: OpWriteSame, a: writeSameOp(id, how, b), text: fmt.Sprintf("file %d, %x, %+v:", file, id, b)}
	k.ok = func(p *reply) {
		n := uint64(size) * b.count
		ids, got, stable := p.Uint32(), p.Uint64(), p.Uint32()
		w.wrote(got, n)
		if p.Skip(VerifierLen); ids != 0 || (stable == 0) != (how == 0) {
			panic(fmt.Sprintf("%d stateids, stable as %d instead of %d", ids, stable, how))
		}
		if n == 0 {
			return
		}
		data := make([]byte, n)
		for i := range int(b.count) {
			block := data[i*size : (i+1)*size]
			for j, c := range b.pattern {
				block[at+j] = c
			}
			if b.numAt != noNumber {
				binary.BigEndian.PutUint32(block[num:], b.num+uint32(i))
			}
		}
		w.put(file, off, data)
	}
	return k, bad
}

func (w *randomWorld) wrote(got, want uint64) {
	if got != want {
		panic(fmt.Sprintf("%d bytes written instead of %d", got, want))
	}
}

// put changes the data of a file in the model.
func (w *randomWorld) put(file int, off uint64, data []byte) {
	if n := int(off) + len(data); n > len(w.data[file]) {
		w.data[file] = append(w.data[file], make([]byte, n-len(w.data[file]))...)
	}
	copy(w.data[file][off:], data)
}

// sameData compares the files with the model.
func (w *randomWorld) sameData() error {
	for i := range w.data {
		got := make([]byte, 1<<10)
		n, _, err := w.fs.ReadAt(nil, w.files[i].Handle, got, 0, false)
		if err != nil || !bytes.Equal(got[:n], w.data[i]) {
			return fmt.Errorf("file %d: %q instead of %q, %w", i, got[:n], w.data[i], nfs.StatusOf(err))
		}
	}
	return nil
}
