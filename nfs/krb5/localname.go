package krb5

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// LocalNames has the users that principals are by krb5.conf(5), as MIT's library has them
// (krb5_aname_to_localname):
//
//	auth_to_local_names   the user of a principal, whose realm does not count
//	auth_to_local         rules; the first one that applies counts. Without any: DEFAULT
//
// Both are read from the group of the default realm in the section realms.
//
//	DEFAULT                              name@REALM and name/REALM@REALM of the default realm are name
//	RULE:[n:text](regexp)s/what/with/g   a principal of n components. In text $0 is its realm, $1 its
//	                                     first component. regexp must match all of text. Each s///
//	                                     changes the text to the user's name
//
// A rule whose regular expression is malformed ends the search, so that a misspelt restriction maps
// nobody; MIT's library goes on with the next rule.
type LocalNames struct {
	realm string
	names map[string]string
	rules []string
}

// ErrNoUser is of a principal that no rule applies to.
var ErrNoUser = errors.New("no rule of auth_to_local is for this principal")

// ReadLocalNames reads the files at paths of fsys, which is a host's root directory. A file may be
// missing, but not all.
func ReadLocalNames(fsys fs.FS, paths ...string) (*LocalNames, error) {
	p := profile{fsys: fsys}
	missing := error(nil)
	read := 0
	for _, name := range paths {
		err := p.read(name)
		switch {
		case err == nil:
			read++
		case errors.Is(err, fs.ErrNotExist):
			missing = err
		default:
			return nil, err
		}
	}
	if read == 0 {
		return nil, missing
	}
	l := &LocalNames{names: make(map[string]string)}
	for _, r := range p.list {
		if l.realm == "" && len(r.path) == 2 && r.path[0] == "libdefaults" && r.path[1] == "default_realm" {
			l.realm = r.value
		}
	}
	if l.realm == "" {
		return nil, fmt.Errorf("%s has no default_realm", strings.Join(paths, ":"))
	}
	for _, r := range p.list {
		switch {
		case len(r.path) < 3 || r.path[0] != "realms" || r.path[1] != l.realm:
		case len(r.path) == 3 && r.path[2] == "auth_to_local":
			l.rules = append(l.rules, r.value)
		case len(r.path) == 4 && r.path[2] == "auth_to_local_names" && l.names[r.path[3]] == "":
			l.names[r.path[3]] = r.value
		}
	}
	if len(l.rules) == 0 {
		l.rules = []string{"DEFAULT"}
	}
	return l, nil
}

// User returns the user of a principal. Components with a slash, an at sign or a control character
// in them are of no user.
func (l *LocalNames) User(principal string) (string, error) {
	name, realm, ok := strings.Cut(principal, "@")
	if !ok || strings.ContainsFunc(principal, func(r rune) bool { return r < ' ' || r == '\\' || r == '\x7f' }) ||
		strings.Contains(realm, "@") {
		return "", ErrNoUser
	}
	if user, ok := l.names[name]; ok {
		return user, nil
	}
	parts := strings.Split(name, "/")
	for _, text := range l.rules {
		var user string
		var err error
		if rule, ok := strings.CutPrefix(text, "RULE:"); ok {
			user, err = applyRule(rule, name, realm, parts)
		} else if text == "DEFAULT" {
			user, err = l.byDefault(realm, parts)
		} else {
			err = errors.New("it is neither DEFAULT nor a RULE")
		}
		switch {
		case err == nil:
			return user, nil
		case !errors.Is(err, ErrNoUser):
			return "", fmt.Errorf("auth_to_local = %s of krb5.conf: %w", text, err)
		}
	}
	return "", ErrNoUser
}

func (l *LocalNames) byDefault(realm string, parts []string) (string, error) {
	if realm != l.realm || len(parts) > 2 || len(parts) == 2 && parts[1] != l.realm {
		return "", ErrNoUser
	}
	return parts[0], nil
}

// applyRule applies a rule to a principal. rule is the text behind "RULE:". If the rule has no
// [n:text], the text is the name of the principal without its realm.
func applyRule(rule, name, realm string, parts []string) (string, error) {
	if !strings.HasPrefix(rule, "[") {
		return replace(rule, name)
	}
	text, rule, err := selection(rule[1:], realm, parts)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(rule, "(") {
		expr, rest, ok := strings.Cut(rule[1:], ")") // the first one, as MIT's
		if !ok {
			return "", errors.New("no ) behind (")
		}
		re, err := regexp.CompilePOSIX(expr)
		if err != nil {
			return "", err
		}
		if at := re.FindStringIndex(text); at == nil || at[0] != 0 || at[1] != len(text) {
			return "", ErrNoUser
		}
		rule = rest
	}
	return replace(rule, text)
}

// selection is the text of [n:text], and what follows. rule begins at n.
func selection(rule, realm string, parts []string) (text, rest string, err error) {
	count, rule, ok := strings.Cut(rule, ":")
	n, err := strconv.ParseUint(count, 10, 8)
	if !ok || err != nil {
		return "", "", errors.New("no number of components behind [")
	}
	if int(n) != len(parts) {
		return "", "", ErrNoUser
	}
	for {
		at := strings.IndexAny(rule, "$]")
		if at < 0 {
			return "", "", errors.New("no ] behind [")
		}
		text += rule[:at]
		end := at + 1
		if rule[at] == ']' {
			return text, rule[end:], nil
		}
		for end < len(rule) && rule[end] >= '0' && rule[end] <= '9' {
			end++
		}
		switch i, err := strconv.ParseUint(rule[at+1:end], 10, 8); {
		case err != nil || int(i) > len(parts):
			return "", "", fmt.Errorf("there is no component %s", rule[at:end])
		case i == 0:
			text += realm
		default:
			text += parts[i-1]
		}
		rule = rule[end:]
	}
}

// replace applies expressions of the form s/what/with/ or s/what/with/g. with has no references.
func replace(rule, text string) (string, error) {
	for {
		if rule = strings.TrimLeft(rule, " \t"); rule == "" {
			return text, nil
		}
		f := strings.SplitN(rule, "/", 4)
		if len(f) != 4 || f[0] != "s" {
			return "", fmt.Errorf("%q is not of the form s/what/with/", rule)
		}
		re, err := regexp.CompilePOSIX(f[1])
		if err != nil {
			return "", err
		}
		var all bool
		rule, all = strings.CutPrefix(f[3], "g")
		n := 1
		if all {
			n = len(text)
		}
		out := ""
		for ; n > 0; n-- {
			at := re.FindStringIndex(text)
			if at == nil {
				break
			}
			out += text[:at[0]] + f[2]
			text = text[at[1]:]
			if at[0] == at[1] { // MIT's library never returns for an empty match with g
				break
			}
		}
		text = out + text
	}
}
