package krb5

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// an2ln asks MIT's library for the users of principals, which it reads from stdin.
const an2ln = `
import ctypes, sys
k = ctypes.CDLL("libkrb5.so.3")
ctx = ctypes.c_void_p()
if k.krb5_init_context(ctypes.byref(ctx)): sys.exit("no context")
for line in sys.stdin:
    p = ctypes.c_void_p()
    if k.krb5_parse_name(ctx, line.rstrip("\n").encode(), ctypes.byref(p)): sys.exit("parse " + line)
    b = ctypes.create_string_buffer(256)
    print("" if k.krb5_aname_to_localname(ctx, p, 256, b) else b.value.decode())
`

// mit returns the users of principals by the library of MIT.
func mit(t *testing.T, conf string, principals []string) []string {
	t.Helper()
	cmd := exec.Command("python3", "-c", an2ln)
	cmd.Env = append(os.Environ(), "KRB5_CONFIG="+conf)
	cmd.Stdin = strings.NewReader(strings.Join(principals, "\n"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("without MIT's library: %v %s", err, stderr.String())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// TestLocalNames: principals are the users that they are for MIT's library.
func TestLocalNames(t *testing.T) {
	principals := []string{
		"alice@R", "alice@S", "alice@T", "bob@R", "bob@S", "root@R", "host/client@R", "nfs/client@R", "root/client@R",
		"host/client@S", "u/R@R", "u/R@S", "u/S@R", "alice/admin@R", "aaa/admin@S", "a/b/c@R", "xa/y@R", "a@R", "CLIENT$@R",
		"first.last@S", "abcabc@R",
	}
	dir := t.TempDir()
	included := filepath.Join(dir, "more.d")
	if err := errors.Join(
		os.Mkdir(included, 0o755),
		os.WriteFile(filepath.Join(included, "rule_1"),
			[]byte("[realms]\nR = {\nauth_to_local = RULE:[1:$1](bob)s/o/i/\n}\n"), 0o600),
		os.WriteFile(filepath.Join(included, "not.this"), []byte("garbage"), 0o600),
		os.WriteFile(filepath.Join(included, ".hidden.conf"), []byte("garbage"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	stricter := map[string]bool{"bad regexp": true, "inner )": true} // than MIT's library
	for name, rules := range map[string]string{
		"none":          "",
		"names":         "auth_to_local_names = {\n bob = robert\n host/client = machine\n alice/admin = \"adm\" \n}",
		"names of S":    "}\n S = {\n auth_to_local_names = {\n bob = robert\n }",
		"brace below":   "auth_to_local_names =\n {\n bob = robert\n }",
		"realm":         "auth_to_local = RULE:[1:$1@$0](.*@S)s/@.*//\nauth_to_local = DEFAULT",
		"no default":    "auth_to_local = RULE:[1:$1@$0](.*@S)s/@.*//",
		"second":        "auth_to_local = RULE:[2:$1;$2](.*;admin)s/;.*$/X/ s/a/b/g",
		"order":         "auth_to_local = DEFAULT\nauth_to_local = RULE:[1:$1](.*)s/a/b/",
		"first":         "auth_to_local = RULE:[1:$1](.*)s/a/b/\nauth_to_local = DEFAULT",
		"three":         "auth_to_local = RULE:[3:$3-$1]",
		"whole":         "auth_to_local = RULE:s/@S//s/[.]/_/",
		"( without [":   "auth_to_local = RULE:(.*@S)s/@S//",
		"end":           "auth_to_local = RULE:[1:$1]s/$/-/",
		"blanks":        "auth_to_local = RULE:[1:$1](alice) s/a/b/ s/l/m/ ",
		"blank before":  "auth_to_local = RULE:[1:$1] (alice)s/a/b/",
		"part":          "auth_to_local = RULE:[1:$1](li)\nauth_to_local = DEFAULT",
		"alternatives":  "auth_to_local = RULE:[1:$1@$0](bob@R|alice@S)s/@./1/",
		"longest":       "auth_to_local = RULE:[1:$1](a|abcabc)s/a|abc/x/g",
		"nothing":       "auth_to_local = RULE:[1:$1]s/.*//",
		"no references": "auth_to_local = RULE:[1:$1]s/(a)/\\1&$1/",
		"empty match":   "auth_to_local = RULE:[1:$1]s/x*/-/",
		"anchor":        "auth_to_local = RULE:[1:$1]s/^a/b/g",
		"brackets":      "auth_to_local = RULE:[1:$1]s/[a-c]{2}/-/g",
		"inner )":       "auth_to_local = RULE:[2:$1$0](x(a|b)R)\nauth_to_local = DEFAULT",
		"no )":          "auth_to_local = RULE:[1:$1](a\nauth_to_local = DEFAULT",
		"no ]":          "auth_to_local = RULE:[1:$1\nauth_to_local = DEFAULT",
		"no number":     "auth_to_local = RULE:[x:$1]\nauth_to_local = DEFAULT",
		"no component":  "auth_to_local = RULE:[1:$2]\nauth_to_local = DEFAULT",
		"no form":       "auth_to_local = RULE:[1:$1]s/a/\nauth_to_local = DEFAULT",
		"no such type":  "auth_to_local = DB:/etc/passwd\nauth_to_local = DEFAULT",
		"bad regexp":    "auth_to_local = RULE:[1:$1]([)\nauth_to_local = DEFAULT",
		"included":      "}\nincludedir " + included + "\n[realms]\nR = {\n auth_to_local = DEFAULT",
		"comments":      "# auth_to_local = RULE:[1:x]\n; }\n auth_to_local = \"RULE:[1:$1]s/a/\\\\./\"",
	} {
		conf := filepath.Join(dir, "krb5.conf")
		text := "[libdefaults]\n default_realm = R\n[realms]\n R = {\n" + rules + "\n }\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := ReadLocalNames(os.DirFS("/"), "/nonexistent/krb5.conf", conf)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, want := range mit(t, conf, principals) {
			if got, err := l.User(principals[i]); stricter[name] && got == "" && !errors.Is(err, ErrNoUser) {
				continue
			} else if got != want || (err == nil) == (got == "") && name != "nothing" {
				t.Errorf("%s: %s is %q, %v; for MIT's library %q", name, principals[i], got, err, want)
			}
		}
	}
	l := LocalNames{realm: "R", rules: []string{"RULE:[1:$1]", "RULE:[2:$1]", "DEFAULT"}}
	for _, p := range []string{"", "alice", `a\/b@R`, `root\@R@S`, "a\x00b@R", "a\nb@R", "a@R@S"} {
		if got, err := l.User(p); !errors.Is(err, ErrNoUser) {
			t.Errorf("%q is %q, %v", p, got, err)
		}
	}
}

// TestProfileErrors: a file that is not read as a whole maps nobody.
func TestProfileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"[realms]\n R = {\n":                     "has no default_realm",
		"[realms\n":                              "line 1: malformed: a section without ]",
		"[realms]\n }\n":                         "line 2: malformed: } without {",
		"a = b\n":                                "line 1: malformed: no relation of a section",
		"[realms]\nword\n":                       "line 2: malformed: no relation of a section",
		"include /etc/krb5.conf\n":               "include each other",
		"includedir /none\n":                     "/none",
		"[realms]\nR = {\nauth_to_local* = x\n}": "not supported",
		"[realms]\nR = {\n}*":                    "not supported",
	} {
		fsys := fstest.MapFS{"etc/krb5.conf": {Data: []byte(text)}}
		_, err := ReadLocalNames(fsys, "/etc/krb5.conf")
		if want = strings.TrimPrefix(want, "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ReadLocalNames(fstest.MapFS{}, "/etc/krb5.conf"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzLocalNames(f *testing.F) {
	f.Add("RULE:[1:$1@$0](.*@S)s/@.*//g", "alice@S")
	f.Add("RULE:[2:$1]s/x*/-/g", "xa/b@R")
	f.Fuzz(func(t *testing.T, rule, principal string) {
		conf := "[libdefaults]\ndefault_realm=R\n[realms]\nR={\nauth_to_local=" + rule + "\n}\n"
		l, err := ReadLocalNames(fstest.MapFS{"c": {Data: []byte(conf)}}, "c")
		if err != nil {
			return
		}
		if user, err := l.User(principal); err != nil && user != "" {
			t.Errorf("%q with %v", user, err)
		}
	})
}
