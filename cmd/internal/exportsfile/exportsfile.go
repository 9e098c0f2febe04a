package exportsfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a table, against files that are something else.
const (
	sizeMax  = 16 << 20 // bytes of a file
	tokenMax = 64 << 10 // bytes of a word
	// errorsMax bounds the errors that are reported.
	errorsMax = 100
)

// Pos is a place in a file.
type Pos struct {
	File string
	Line int // counted from 1
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Error says what is wrong, and where.
type Error struct {
	Pos
	Err error
}

func (e *Error) Error() string { return e.Pos.String() + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Client names clients that a directory is exported to, with their options.
type Client struct {
	Pos
	// Host is as written: a name, an address, a network, a pattern, @netgroup, or "*".
	Host string
	// Options are the defaults of the line before the client, then the client's own. A later one
	// counts more.
	Options []string
}

// Entry is a line: one directory and its clients.
type Entry struct {
	Pos
	Path    string
	Clients []Client
}

// Table is what a file, or several, say.
type Table struct {
	Entries []Entry
	// Warnings are what is probably not meant as it is written.
	Warnings []*Error
}

func (t *Table) warn(p Pos, format string, a ...any) {
	t.Warnings = append(t.Warnings, &Error{p, fmt.Errorf(format, a...)})
}

// Directory is where the tables beside a file are: FILE.d.
func Directory(file string) string { return file + ".d" }

// Suffix ends the names of tables in the directory.
const Suffix = ".exports"

// Load reads a file and the tables beside it, in the order of their names; of those the ones
// that begin with a dot are left out. Either may be missing, but not both.
func Load(file string) (*Table, error) {
	t := new(Table)
	data, err := read(file)
	missing := errors.Is(err, fs.ErrNotExist)
	if err == nil {
		err = t.Parse(file, data)
	}
	if err != nil && !missing {
		return nil, err
	}
	list, dirErr := os.ReadDir(Directory(file)) // sorted
	if errors.Is(dirErr, fs.ErrNotExist) {
		if missing {
			return nil, err
		}
		return t, nil
	}
	if dirErr != nil {
		return nil, dirErr
	}
	for _, f := range list {
		if !strings.HasSuffix(f.Name(), Suffix) || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		name := filepath.Join(Directory(file), f.Name())
		data, err := read(name)
		if err != nil {
			return nil, err
		}
		if err := t.Parse(name, data); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func read(name string) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", name)
	}
	if st.Size() > sizeMax {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d of an export table", name, st.Size(), sizeMax)
	}
	return os.ReadFile(name)
}

// Parse appends what a file says. Its error joins those of all lines, errorsMax at most, which are
// of type *Error.
func (t *Table) Parse(file string, data []byte) error {
	s := &scanner{data: data, pos: Pos{file, 1}}
	var bad []error
	for len(bad) < errorsMax {
		path, ok, err := s.path()
		if err == nil && !ok {
			break
		}
		e := Entry{Pos: path.Pos, Path: path.text}
		if err == nil && !strings.HasPrefix(e.Path, "/") {
			err = &Error{path.Pos, fmt.Errorf("path %q does not begin with /", e.Path)}
		}
		if err == nil {
			err = t.clients(s, &e)
		}
		if err != nil {
			bad = append(bad, err)
			s.line()
			continue
		}
		t.Entries = append(t.Entries, e)
	}
	return errors.Join(bad...)
}

// clients reads the rest of a line.
func (t *Table) clients(s *scanner, e *Entry) error {
	var defaults []string
	given := false
	for {
		w, ok, err := s.word()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if opts, found := strings.CutPrefix(w.text, "-"); found {
			defaults = append(slices.Clone(defaults), split(opts)...)
			continue
		}
		c := Client{Pos: w.Pos}
		host, own, err := cut(w.text)
		if err != nil {
			return &Error{w.Pos, err}
		}
		c.Host = host
		if c.Host == "" {
			// The classic mistake: "host (rw)" is two clients.
			t.warn(w.Pos, "%s is a client of its own, everybody: is there a blank too many before it? Without one it "+
				"belongs to the client; if everybody is meant write *%s", w.text, w.text)
			c.Host = "*"
		}
		c.Options = append(slices.Clone(defaults), split(own)...)
		e.Clients = append(e.Clients, c)
		given = true
	}
	if !given {
		t.warn(e.Pos, "no client is given for %s, so that it is exported to everybody; if that is meant write *", e.Path)
		e.Clients = []Client{{Pos: e.Pos, Host: "*", Options: defaults}}
	}
	return nil
}

// cut takes "host(options)" apart.
func cut(w string) (host, opts string, err error) {
	host, rest, found := strings.Cut(w, "(")
	if strings.Contains(host, ")") {
		return "", "", fmt.Errorf("%q: brackets do not match", w)
	}
	if !found {
		if w == "" {
			return "", "", errors.New("an empty word is not a client")
		}
		return w, "", nil
	}
	opts, ok := strings.CutSuffix(rest, ")")
	if !ok || strings.ContainsAny(opts, "()") {
		return "", "", fmt.Errorf("%q: brackets do not match; there is no blank within them", w)
	}
	return host, opts, nil
}

// split takes a list of options apart. Empty ones are nothing.
func split(list string) []string {
	var out []string
	for o := range strings.SplitSeq(list, ",") {
		if o != "" {
			out = append(out, o)
		}
	}
	return out
}

// scanner reads words.
type scanner struct {
	data []byte
	at   int
	pos  Pos
}

// token is a word and where it begins.
type token struct {
	Pos
	text string
}

const end = -1

// peek is the next character; a backslash before the end of a line joins it with the next
// one, and the two with the blanks that follow are a blank.
func (s *scanner) peek() (c, size, lines int) {
	if s.at >= len(s.data) {
		return end, 0, 0
	}
	c = int(s.data[s.at])
	if c == '\\' {
		n := s.at + 1
		if n < len(s.data) && s.data[n] == '\r' {
			n++
		}
		if n < len(s.data) && s.data[n] == '\n' {
			for n++; n < len(s.data) && (s.data[n] == ' ' || s.data[n] == '\t'); n++ {
			}
			return ' ', n - s.at, 1
		}
	}
	if c == '\n' {
		return c, 1, 1
	}
	return c, 1, 0
}

func (s *scanner) next() int {
	c, size, lines := s.peek()
	s.at += size
	s.pos.Line += lines
	return c
}

// line skips the rest of a line that is wrong, and its end.
func (s *scanner) line() {
	s.comment()
	s.next()
}

// comment skips to the end of the line, which stays.
func (s *scanner) comment() {
	for {
		if c, _, _ := s.peek(); c == '\n' || c == end {
			return
		}
		s.next()
	}
}

func blank(c int) bool { return c == ' ' || c == '\t' || c == '\r' }

// path finds the first word of the next line that has any; ok is false at the end.
func (s *scanner) path() (t token, ok bool, err error) {
	for {
		if t, ok, err = s.word(); ok || err != nil {
			return t, ok, err
		}
		if c, _, _ := s.peek(); c == end {
			return t, false, nil
		}
		s.next() // the end of a line
	}
}

// word finds the next word of the line; ok is false at its end.
func (s *scanner) word() (t token, ok bool, err error) {
	for {
		switch c, _, _ := s.peek(); {
		case c == end, c == '\n':
			return t, false, nil
		case blank(c):
			s.next()
		case c == '#':
			s.comment()
		default:
			t, err = s.read()
			return t, err == nil, err
		}
	}
}

// read reads a word up to a blank outside of quotation marks.
func (s *scanner) read() (token, error) {
	t := token{Pos: s.pos}
	var b []byte
	quoted := false
	for {
		c, _, _ := s.peek()
		switch {
		case c == end || c == '\n':
			if quoted {
				return t, &Error{t.Pos, errors.New("a quotation mark is not closed on its line")}
			}
			t.text = string(b)
			return t, nil
		case !quoted && blank(c):
			t.text = string(b)
			return t, nil
		case c == '"':
			quoted = !quoted
			s.next()
			continue
		case c == 0:
			return t, &Error{s.pos, errors.New("a NUL byte")}
		case c == '\\':
			if v, ok := octal(s.data[s.at+1:]); ok {
				if v == 0 {
					return t, &Error{s.pos, errors.New("a NUL byte")}
				}
				b = append(b, v)
				s.at += 4
				break
			}
			fallthrough
		default:
			b = append(b, byte(c))
			s.next()
		}
		if len(b) > tokenMax {
			return t, &Error{t.Pos, fmt.Errorf("a word of more than %d bytes", tokenMax)}
		}
	}
}

// octal reads three octal digits.
func octal(b []byte) (byte, bool) {
	if len(b) < 3 {
		return 0, false
	}
	v := 0
	for _, c := range b[:3] {
		if c < '0' || c > '7' {
			return 0, false
		}
		v = v*8 + int(c-'0')
	}
	return byte(v), v < 256
}
