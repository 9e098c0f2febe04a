package migrate

import (
	"strings"
)

// block is a block of ganesha.conf. Names are in lower case.
type block struct {
	pos    Pos
	name   string
	params []*param
	blocks []*block
}

// param is an assignment in a block.
type param struct {
	pos    Pos
	name   string
	values []string
	used   bool
}

// get returns the last assignment with a name, and marks all assignments with that name as used.
func (b *block) get(name string) *param {
	var found *param
	if b != nil {
		for _, p := range b.params {
			if p.name == name {
				p.used = true
				found = p
			}
		}
	}
	return found
}

// all returns the values of all assignments with a name.
func (b *block) all(name string) (values []string) {
	for _, p := range b.params {
		if p.name == name {
			p.used = true
			values = append(values, p.values...)
		}
	}
	return values
}

// token is a word, a quoted string, or one of the characters { } = ; and comma.
type token struct {
	pos    Pos
	text   string
	quoted bool
}

// is reports whether the token is the special character c.
func (t *token) is(c string) bool { return !t.quoted && t.text == c }

const special = "{}=;,"

// parser reads ganesha.conf.
type parser struct {
	im   *Import
	todo []*source // files in progress: the last one is read, the others include it
	next *token    // a token that was read ahead
}

// source is a file in progress.
type source struct {
	pos  Pos
	text []byte
	at   int
}

// parseGanesha reads the blocks of a file and of the files that it includes.
func (im *Import) parseGanesha(file string, text []byte) (*block, error) {
	p := &parser{im: im, todo: []*source{{pos: Pos{File: file, Line: 1}, text: text}}}
	top := new(block)
	return top, p.body(top, 0)
}

// body reads the contents of a block up to its end, or up to the end of the file at nesting 0.
func (p *parser) body(b *block, nesting int) error {
	if nesting > nestingMax {
		return errorAt(b.pos, "blocks are nested deeper than %d", nestingMax)
	}
	for {
		t, err := p.take()
		switch {
		case err != nil:
			return err
		case t == nil && nesting == 0:
			return nil
		case t == nil:
			return errorAt(b.pos, "block %s is not closed", b.name)
		case t.is(";"):
			continue
		case t.is("}") && nesting > 0:
			return nil
		case len(t.text) == 1 && strings.Contains(special, t.text) && !t.quoted:
			return errorAt(t.pos, "%q where a name is expected", t.text)
		}
		if directive := strings.ToLower(t.text); strings.HasPrefix(directive, "%") && !t.quoted {
			if err := p.directive(t, directive); err != nil {
				return err
			}
			continue
		}
		after, err := p.take()
		if err != nil {
			return err
		}
		name := strings.ToLower(t.text)
		switch {
		case after != nil && after.is("{"):
			in := &block{pos: t.pos, name: name}
			b.blocks = append(b.blocks, in)
			if err := p.body(in, nesting+1); err != nil {
				return err
			}
		case after != nil && after.is("="):
			in := &param{pos: t.pos, name: name}
			b.params = append(b.params, in)
			if err := p.values(in); err != nil {
				return err
			}
		default:
			return errorAt(t.pos, "after %q neither = nor { is found", t.text)
		}
	}
}

// values reads the values of an assignment up to its end. Some files lack the ; before a }.
func (p *parser) values(in *param) error {
	for {
		t, err := p.take()
		switch {
		case err != nil:
			return err
		case t == nil:
			return errorAt(in.pos, "%s has no ; at its end", in.name)
		case t.is(";"):
			return nil
		case t.is("}"):
			p.next = t
			return nil
		case t.is(","):
		case t.is("="), t.is("{"):
			return errorAt(in.pos, "%s has no ; at its end", in.name)
		default:
			in.values = append(in.values, t.text)
		}
	}
}

// directive reads %include. It notes any other directive.
func (p *parser) directive(t *token, name string) error {
	arg, err := p.take()
	if err != nil || arg == nil {
		return errorAt(t.pos, "%s names nothing", t.text)
	}
	if name != "%include" {
		p.im.note(t.pos, "%s %s is not read", t.text, arg.text)
		return nil
	}
	file, text, err := p.im.include(t.pos, arg.text)
	if err != nil {
		return err
	}
	p.todo = append(p.todo, &source{pos: Pos{File: file, Line: 1}, text: text})
	return nil
}

// take returns the next token, or nil at the end.
func (p *parser) take() (*token, error) {
	if t := p.next; t != nil {
		p.next = nil
		return t, nil
	}
	for {
		s := p.todo[len(p.todo)-1]
		t, err := s.token()
		if err != nil || t != nil || len(p.todo) == 1 {
			return t, err
		}
		p.todo = p.todo[:len(p.todo)-1]
	}
}

// token reads a token of one file. It returns nil at the end of the file.
func (s *source) token() (*token, error) {
	for s.at < len(s.text) {
		c := s.text[s.at]
		switch {
		case c == '\n':
			s.pos.Line++
			s.at++
		case c <= ' ':
			s.at++
		case c == '#':
			for s.at < len(s.text) && s.text[s.at] != '\n' {
				s.at++
			}
		case strings.IndexByte(special, c) >= 0:
			s.at++
			return &token{pos: s.pos, text: string(c)}, nil
		case c == '"' || c == '\'':
			return s.quoted(c)
		default:
			from := s.at
			for s.at < len(s.text) && s.text[s.at] > ' ' && strings.IndexByte(special+"#\"'", s.text[s.at]) < 0 {
				s.at++
			}
			return &token{pos: s.pos, text: string(s.text[from:s.at])}, nil
		}
	}
	return nil, nil
}

// quoted reads a string. Between double quotation marks a backslash protects the next character.
func (s *source) quoted(mark byte) (*token, error) {
	t := &token{pos: s.pos, quoted: true}
	var b []byte
	for s.at++; s.at < len(s.text); s.at++ {
		c := s.text[s.at]
		switch {
		case c == mark:
			s.at++
			t.text = string(b)
			return t, nil
		case c == '\n':
			return nil, errorAt(t.pos, "a quotation mark is not closed on its line")
		case c == '\\' && mark == '"' && s.at+1 < len(s.text) && s.text[s.at+1] != '\n':
			s.at++
			c = s.text[s.at]
		}
		b = append(b, c)
	}
	return nil, errorAt(t.pos, "a quotation mark is not closed")
}
