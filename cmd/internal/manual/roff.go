package main

import (
	"fmt"
	"regexp"
	"strings"
)

// page is a man page in the macros of man(7), while it is written.
type page struct{ strings.Builder }

// newPage begins a page. It has no date, so that it changes with its text alone.
func newPage(name string, section int, about string) *page {
	p := new(page)
	p.line(`.\" Written by cmd/internal/manual; "make manual" writes it anew.`)
	p.line(`.TH %s %d "" rstored "rstored manual"`, strings.ToUpper(name), section)
	p.section("Name")
	p.line(`%s \- %s`, escape(name), escape(about))
	return p
}

// line writes a line of macros or of text that is escaped.
func (p *page) line(format string, a ...any) { fmt.Fprintf(p, format+"\n", a...) }

func (p *page) section(title string) { p.line(".SH %s", strings.ToUpper(title)) }

func (p *page) subsection(title string) { p.line(".SS %s", quote(escape(title))) }

// text writes paragraphs of Markdown, which empty lines separate. An indented paragraph is
// shown as it is.
func (p *page) text(markdown string) {
	for i, para := range strings.Split(strings.Trim(markdown, "\n"), "\n\n") {
		if strings.HasPrefix(para, "  ") {
			p.example(para)
			continue
		}
		if i > 0 {
			p.line(".PP")
		}
		p.line("%s", inline(strings.ReplaceAll(para, "\n", " ")))
	}
}

// example writes lines as they are.
func (p *page) example(lines string) {
	p.line(".PP\n.RS 4\n.nf")
	for l := range strings.SplitSeq(strings.Trim(lines, "\n"), "\n") {
		p.line("%s", guard(escape(strings.TrimPrefix(l, "  "))))
	}
	p.line(".fi\n.RE")
}

// item writes a term in Markdown and what it means.
func (p *page) item(term, markdown string) {
	p.line(".TP\n%s\n%s", inline(term), inline(markdown))
}

var (
	linked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	marked = regexp.MustCompile("`([^`]+)`|\\*([^*\\s][^*]*)\\*")
)

// inline turns Markdown within a line into roff: `code` is bold, *emphasis* is underlined,
// of a link the text remains.
func inline(s string) string {
	s = linked.ReplaceAllString(s, "$1")
	var out strings.Builder
	at := 0
	for _, m := range marked.FindAllStringSubmatchIndex(s, -1) {
		out.WriteString(escape(s[at:m[0]]))
		if m[2] >= 0 {
			out.WriteString(`\fB` + escape(s[m[2]:m[3]]) + `\fP`)
		} else {
			out.WriteString(`\fI` + escape(s[m[4]:m[5]]) + `\fP`)
		}
		at = m[1]
	}
	out.WriteString(escape(s[at:]))
	return guard(out.String())
}

var escapes = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `~`, `\(ti`, `^`, `\(ha`, "`", "\\`", `'`, `\(aq`)

func escape(s string) string { return escapes.Replace(s) }

// guard keeps a line of text from being taken for a request.
func guard(s string) string {
	if strings.HasPrefix(s, ".") {
		return `\&` + s
	}
	return s
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\(dq`) + `"` }
