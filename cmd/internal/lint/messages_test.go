package lint

import (
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestQuotedMessages: each message that the troubleshooting page says is ours is in a program, with
// whatever may stand for "...".
func TestQuotedMessages(t *testing.T) {
	verb := regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)
	var literals []string
	page := ""
	sources(t, func(name string, text []byte) {
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if rel == filepath.Join("docs", "troubleshooting.md") {
			page = string(text)
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(rel, "test") {
			return
		}
		for _, s := range stringsOf(text) {
			literals = append(literals, verb.ReplaceAllString(s, "..."))
		}
	})
	_, table, ok := strings.Cut(page, "| message | it means | do |\n")
	if !ok {
		t.Fatal("the page has no table of messages")
	}
	n := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		message := strings.Trim(cell, "`")
		if message == cell { // no quotation
			continue
		}
		n++
		for part := range strings.SplitSeq(message, "...") {
			part = strings.TrimSpace(part)
			found := part == ""
			for _, l := range literals {
				found = found || strings.Contains(l, part)
			}
			if !found {
				t.Errorf("no program says %q of %q", part, message)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d messages; is the table still being read?", n)
	}
}

// stringsOf are the strings of a source file, those that are put together by + as one.
func stringsOf(src []byte) []string {
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", set.Base(), len(src)), src, nil, 0)
	var out []string
	last, before := token.ILLEGAL, token.ILLEGAL
	for {
		_, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return out
		case token.STRING:
			v, err := strconv.Unquote(lit)
			if err != nil {
				break
			}
			if last == token.ADD && before == token.STRING {
				out[len(out)-1] += v
			} else {
				out = append(out, v)
			}
		}
		before, last = last, tok
	}
}
