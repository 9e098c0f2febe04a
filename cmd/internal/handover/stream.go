package handover

import (
	"errors"
	"net"
	"os"
)

// Stream is one end of a connection that carries no open files, such as one to another host. One
// goroutine may send while another one receives.
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

// Receive returns the next part, or io.EOF if the other end was closed after a whole part.
func (s Stream) Receive() (*Part, error) {
	return decode(s.Conn, func(int) ([]*os.File, error) { return nil, ErrFormat })
}
