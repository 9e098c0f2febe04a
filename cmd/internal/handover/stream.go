package handover

import (
	"errors"
	"net"
	"os"
)

// Stream is one end of a connection that carries no open files, as to another host. Sending and
// receiving may be done by two goroutines, but each by one.
type Stream struct{ net.Conn }

// Send sends a part, which must have no files.
func (s Stream) Send(p *Part) error {
	if len(p.Files) > 0 {
		return errors.New("handover: open files stay on their host")
	}
	b, err := header(p)
	if err != nil {
		return err
	}
	_, err = s.Write(append(b, p.Data...))
	return err
}

// Receive is the next part; io.EOF when the other end was closed after one.
func (s Stream) Receive() (*Part, error) {
	return decode(s.Conn, func(int) ([]*os.File, error) { return nil, ErrFormat })
}
