package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Part is what one component hands over. Version is the version of the encoding of Data: a reader
// that does not know the version refuses the part. The receiver of a part owns its Files.
type Part struct {
	Name    string
	Version int
	Data    []byte
	Files   []*os.File
}

// Close closes the files.
func (p *Part) Close() {
	for _, f := range p.Files {
		_ = f.Close()
	}
	p.Files = nil
}

// Bounds of a part.
const (
	NameMax  = 64
	DataMax  = 1 << 30 // bytes
	FilesMax = 1 << 16
)

// The frame of a part. Numbers are big-endian.
//
//	0    magic
//	4    length of the name
//	8    version
//	12   number of files
//	16   length of the data, 8 bytes
//	24   name
//	     a byte for each batch of files; the files accompany it
//	     data
const (
	magic      = 0x72737548 // "rsuH"
	headerSize = 24
	// batch is how many files one message carries: the kernel allows up to 253.
	batch = 64
)

// ErrFormat is wrapped by the errors of a stream that is not a sequence of parts.
var ErrFormat = errors.New("handover: a part is malformed")

// header returns the frame of p up to its files, which follow.
func header(p *Part) ([]byte, error) {
	if len(p.Name) > NameMax || len(p.Data) > DataMax || len(p.Files) > FilesMax || p.Version < 0 || p.Version > 1<<30 {
		return nil, fmt.Errorf("handover: part %.*q, version %d, with %d bytes and %d files is beyond the bounds", NameMax,
			p.Name, p.Version, len(p.Data), len(p.Files))
	}
	b := make([]byte, headerSize, headerSize+len(p.Name))
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint32(b[4:], uint32(len(p.Name)))
	binary.BigEndian.PutUint32(b[8:], uint32(p.Version))
	binary.BigEndian.PutUint32(b[12:], uint32(len(p.Files)))
	binary.BigEndian.PutUint64(b[16:], uint64(len(p.Data)))
	return append(b, p.Name...), nil
}

// decode reads a part from r; files reads a byte and the n files that accompany it.
func decode(r io.Reader, files func(n int) ([]*os.File, error)) (_ *Part, err error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	u32 := func(at int) int { return int(binary.BigEndian.Uint32(b[at:])) }
	name, version, count, data := u32(4), u32(8), u32(12), binary.BigEndian.Uint64(b[16:])
	if u32(0) != magic || name > NameMax || version > 1<<30 || count > FilesMax || data > DataMax {
		return nil, ErrFormat
	}
	p := &Part{Version: version}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	s := make([]byte, name)
	if _, err := io.ReadFull(r, s); err != nil {
		return nil, short(err)
	}
	p.Name = string(s)
	for len(p.Files) < count {
		f, err := files(min(batch, count-len(p.Files)))
		p.Files = append(p.Files, f...)
		if err != nil {
			return nil, short(err)
		}
	}
	// The buffer grows with the data that arrives. The length in the header allocates nothing.
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, int64(data)); err != nil {
		return nil, short(err)
	}
	p.Data = buf.Bytes()
	return p, nil
}

// short turns an end of the stream in the middle of a part into an error.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Conn is one end. One goroutine may send while another one receives.
type Conn struct{ c *net.UnixConn }

// Pair makes the two ends: one for this process, and one for a child to inherit.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("handover: a pair of sockets: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	c, err := Open(os.NewFile(uintptr(fds[0]), "handover"))
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

// Variable is the environment variable with the descriptor of a process's end.
const Variable = "RSTORED_HANDOVER"

// Inherited returns the end that this process was started with, or nil. It unsets the variable, so
// that no child uses the end.
func Inherited() (*Conn, error) {
	s, ok := os.LookupEnv(Variable)
	if !ok {
		return nil, nil
	}
	_ = os.Unsetenv(Variable)
	fd, err := strconv.Atoi(s)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("handover: %s=%q is not a file descriptor", Variable, s)
	}
	unix.CloseOnExec(fd)
	return Open(os.NewFile(uintptr(fd), "handover"))
}

// Open makes an end of a socket. It owns f, even after an error.
func Open(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("handover: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("handover: a socket of %s", c.LocalAddr().Network())
	}
	return &Conn{u}, nil
}

// SetDeadline bounds all later calls of Send and Receive. The zero time is no bound.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// Close closes the end.
func (c *Conn) Close() error { return c.c.Close() }

// crowded is the pause before Send tries again while the process has too many files in transit.
const crowded = time.Millisecond

// Send sends a part. The files stay the caller's.
func (c *Conn) Send(p *Part) error {
	b, err := header(p)
	if err != nil {
		return err
	}
	if len(p.Files) == 0 {
		// One write, so that the receiver may close its end after the last byte.
		_, err := c.c.Write(append(b, p.Data...))
		return err
	}
	if _, err := c.c.Write(b); err != nil {
		return err
	}
	for left := p.Files; len(left) > 0; {
		n := min(batch, len(left))
		fds, err := descriptors(left[:n])
		if err == nil {
			_, _, err = c.c.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil)
		}
		if errors.Is(err, unix.ETOOMANYREFS) { // more files are in transit than this process may have open
			time.Sleep(crowded)
			continue
		}
		if err != nil {
			return fmt.Errorf("handover: files of part %q: %w", p.Name, err)
		}
		left = left[n:]
	}
	if len(p.Data) > 0 {
		_, err = c.c.Write(p.Data)
	}
	return err
}

// descriptors returns the descriptors of files. It does not call File.Fd, which would make the
// files blocking, in the sending process as well.
func descriptors(files []*os.File) ([]int, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		c, err := f.SyscallConn()
		if err == nil {
			err = c.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return nil, err
		}
	}
	return fds, nil
}

// Receive returns the next part, or io.EOF if the other end was closed after a whole part.
func (c *Conn) Receive() (*Part, error) { return decode(c.c, c.files) }

// files receives a byte and the n files with it.
func (c *Conn) files(n int) ([]*os.File, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4*batch))
	k, oobn, flags, _, err := c.c.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, err
	}
	if k == 0 {
		return nil, io.EOF
	}
	var out []*os.File
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return out, err
		}
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "handover"))
		}
	}
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		return out, errors.New("handover: files were lost on the way; is RLIMIT_NOFILE too low?")
	case len(out) != n:
		return out, fmt.Errorf("%w: %d files came instead of %d", ErrFormat, len(out), n)
	}
	return out, nil
}
