package xdr

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var e Encoder
	e.Uint32(7)
	e.Int32(-7)
	e.Uint64(1<<63 + 5)
	e.Bool(true)
	e.Bool(false)
	e.Fixed([]byte{1, 2, 3})
	e.Opaque([]byte{4, 5, 6, 7, 8})
	e.String("nine")
	e.Bulk([]byte("bulk!"))
	e.Bulk(nil)
	e.Uint32(99)
	flat := e.AppendFlat(nil)
	if len(flat) != e.Len() || len(flat)%4 != 0 {
		t.Fatalf("%d bytes, Len says %d", len(flat), e.Len())
	}
	check := func(name string, d Decoder) {
		t.Helper()
		ok := d.Uint32() == 7 && d.Int32() == -7 && d.Uint64() == 1<<63+5 && d.Bool() && !d.Bool() &&
			bytes.Equal(d.Fixed(3), []byte{1, 2, 3}) && bytes.Equal(d.Opaque(5), []byte{4, 5, 6, 7, 8}) &&
			d.String(4) == "nine" &&
			string(d.Bulk(100)) == "bulk!" && len(d.Opaque(0)) == 0 && d.Uint32() == 99
		if !ok || d.Err() != nil || d.Remaining() != 0 || d.Offset() != len(flat) {
			t.Errorf("%s: error %v, %d left, offset %d", name, d.Err(), d.Remaining(), d.Offset())
		}
	}
	check("contiguous", NewDecoder(flat))
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		var segs [][]byte
		for b := flat; len(b) > 0; {
			n := min(rnd.IntN(9), len(b))
			segs = append(segs, b[:n])
			b = b[n:]
		}
		check("in segments", NewSegmented(segs))
	}
	t.Logf("seed %d", seed)
	d := NewDecoder(e.B) // what stays when the bulk item is moved
	d.SetBulk([]byte("bulk!"))
	check("bulk moved", d)
}

func TestMovedBulkAtTheEnd(t *testing.T) {
	var e Encoder
	e.Uint32(1)
	e.Bulk([]byte("seven b"))
	item := []byte("seven b")
	d := NewDecoder(e.B)
	d.SetBulk(item)
	if d.Remaining() != 16 {
		t.Errorf("%d remaining", d.Remaining())
	}
	d.Uint32()
	if b := d.Opaque(10); string(b) != "seven b" || &b[0] != &item[0] || d.Err() != nil || d.Remaining() != 0 {
		t.Errorf("%q %v", b, d.Err())
	}
	d = NewDecoder(e.B)
	d.SetBulk(item)
	if got := d.AppendRest(nil); !bytes.Equal(got, e.AppendFlat(nil)) || d.Remaining() != 0 || d.Offset() != 16 {
		t.Errorf("%x", got)
	}
	d = NewDecoder(e.B)
	d.SetBulk(item[:3])
	d.Uint32()
	if d.Bulk(10); !errors.Is(d.Err(), ErrLength) {
		t.Errorf("a count that is not the item's length: %v", d.Err())
	}
}

func TestErrorsStick(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		do   func(*Decoder)
		want error
	}{
		"short word":       {[]byte{1, 2, 3}, func(d *Decoder) { d.Uint32() }, ErrShort},
		"short hyper":      {make([]byte, 7), func(d *Decoder) { d.Uint64() }, ErrShort},
		"boolean":          {[]byte{0, 0, 0, 2}, func(d *Decoder) { d.Bool() }, ErrValue},
		"beyond the limit": {[]byte{0, 0, 0, 9}, func(d *Decoder) { d.Opaque(8) }, ErrLength},
		"2^32-1 bytes":     {[]byte{255, 255, 255, 255, 1, 2, 3, 4}, func(d *Decoder) { d.Opaque(1 << 40) }, ErrShort},
		"padding missing":  {[]byte{0, 0, 0, 1, 7}, func(d *Decoder) { d.Opaque(8) }, ErrShort},
		"string":           {[]byte{0, 0, 0, 9}, func(d *Decoder) { d.String(8) }, ErrLength},
		"skip":             {[]byte{0}, func(d *Decoder) { d.Skip(2) }, ErrShort},
	} {
		d := NewDecoder(c.b)
		c.do(&d)
		if !errors.Is(d.Err(), c.want) {
			t.Errorf("%s: %v, want %v", name, d.Err(), c.want)
		}
		if d.Uint32() != 0 || d.Opaque(100) != nil || d.Bool() || d.String(9) != "" || !errors.Is(d.Err(), c.want) {
			t.Errorf("%s: goes on after the error", name)
		}
	}
}

func TestTruncate(t *testing.T) {
	var e Encoder
	e.Uint32(1)
	e.Bulk([]byte("a"))
	n := len(e.B)
	e.Uint32(2)
	e.Bulk([]byte("b"))
	e.Truncate(n)
	if e.Len() != 12 || len(e.Refs) != 1 {
		t.Errorf("%d bytes, %d references", e.Len(), len(e.Refs))
	}
	e.Truncate(4)
	if e.Len() != 4 || len(e.Refs) != 0 {
		t.Errorf("%d bytes, %d references", e.Len(), len(e.Refs))
	}
}

func TestAllocations(t *testing.T) {
	data := make([]byte, 1000)
	var e Encoder
	if n := testing.AllocsPerRun(100, func() {
		e.Reset()
		e.Uint32(1)
		e.Uint64(2)
		e.Bool(true)
		e.Opaque(data)
		e.Bulk(data)
		d := NewDecoder(e.B)
		d.SetBulk(data)
		d.Uint32()
		d.Uint64()
		d.Bool()
		d.Opaque(1000)
		if len(d.Bulk(1000)) != 1000 || d.Err() != nil {
			t.Fatal(d.Err())
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 2, 9, 9, 0, 0}, []byte{0, 1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, b, script []byte) {
		one := NewDecoder(b)
		half := len(b) / 2
		two := NewSegmented([][]byte{b[:half/2], nil, b[half/2 : half], b[half:]})
		for _, op := range script {
			var x, y any
			switch limit := int(op >> 3); op & 7 {
			case 0:
				x, y = one.Uint32(), two.Uint32()
			case 1:
				x, y = one.Uint64(), two.Uint64()
			case 2:
				x, y = one.Bool(), two.Bool()
			case 3:
				x, y = string(one.Opaque(limit)), string(two.Opaque(limit))
			case 4:
				x, y = string(one.Fixed(limit)), string(two.Fixed(limit))
			case 5:
				one.Skip(limit)
				two.Skip(limit)
			case 6:
				x, y = one.String(limit), two.String(limit)
			}
			if x != y || one.Offset() != two.Offset() || one.Remaining() != two.Remaining() ||
				(one.Err() == nil) != (two.Err() == nil) {
				t.Fatalf("contiguous %v, in segments %v", x, y)
			}
			if one.Err() == nil && one.Offset()+one.Remaining() != len(b) {
				t.Fatal("bytes lost")
			}
		}
	})
}
