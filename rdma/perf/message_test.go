package perf

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// privateMax is the length of the private data of a REQ that RDMA-CM leaves to its user.
const privateMax = 56

// padded returns private data with the zeros that CM adds.
func padded(b []byte, n int) []byte {
	return append(append([]byte(nil), b...), make([]byte, n-len(b))...)
}

func TestMessages(t *testing.T) {
	q := request{Send, flagBidirectional, requestBody{Run: 1 << 60, Size: 4096, Depth: 3, QPs: 2, Mem: remote{1 << 50, 7}}}
	var q2 request
	if err := q2.decode(padded(q.encode(), privateMax)); err != nil || q2 != q {
		t.Errorf("%+v, %v; want %+v", q2, err, q)
	}
	r := reply{Size: 9, Mem: remote{1 << 51, 8}, Idle: 5, Duration: 6}
	var r2 reply
	if err := r2.decode(padded(r.encode(), 196)); err != nil || r2 != r {
		t.Errorf("%+v, %v; want %+v", r2, err, r)
	}
	m := message{msgReport, messageBody{1, 2, 3, 4, 5}}
	var m2 message
	b := make([]byte, messageLen)
	m.encode(b)
	if err := m2.decode(b); err != nil || m2 != m {
		t.Errorf("%+v, %v; want %+v", m2, err, m)
	}
	for n := range messageLen {
		if err := m2.decode(b[:n]); !errors.Is(err, errMalformed) {
			t.Errorf("%d bytes of a message: %v", n, err)
		}
	}
}

func TestReject(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"too large":              "too large",
		"\x1b[2Jx\n":             "?[2Jx?",
		strings.Repeat("ä", 200): strings.Repeat("ä", wordsMax/2),
	} {
		b := encodeReject(in)
		if len(b) > rejectMax {
			t.Errorf("%d bytes", len(b))
		}
		if got := decodeReject(padded(b, rejectMax)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	later := encodeReject("of version 9")
	later[4] = 9
	if got := decodeReject(later); got != "of version 9" {
		t.Errorf("%q", got)
	}
}

// FuzzDecode: no private data and no message makes a decoder panic. What a decoder accepts means
// the same after it was encoded again.
func FuzzDecode(f *testing.F) {
	f.Add((&request{op: Write, requestBody: requestBody{Run: 1, Size: 1, Depth: 1, QPs: 1}}).encode())
	f.Add((&reply{Size: 1, Idle: 1, Duration: 1}).encode())
	f.Add(EncodeMessage(1, 2, 3, 4))
	f.Add(encodeReject("because"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(again []byte) {
			if !bytes.Equal(again, b[:len(again)]) || len(bytes.Trim(b[len(again):], "\x00")) > 0 {
				t.Errorf("% x was read as % x", b, again)
			}
		}
		var q request
		if q.decode(b) == nil {
			same(q.encode())
			p := q.plan()
			if p.size <= 0 || p.depth <= 0 || p.need(true) <= 0 || p.latency && p.bidirectional {
				t.Errorf("%+v", p)
			}
		}
		var r reply
		if r.decode(b) == nil {
			same(r.encode())
		}
		var m message
		if m.decode(b) == nil {
			again := make([]byte, messageLen)
			m.encode(again)
			same(again)
		}
		if why := decodeReject(b); !utf8.ValidString(why) {
			t.Errorf("%q", why)
		}
	})
}
