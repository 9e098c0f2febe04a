package bundle

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// redacted stands where a secret was.
const redacted = "REDACTED"

// secretWord matches the names of values that are redacted. "pkey" is no secret. "key" alone does
// not match, because the log uses it for the names of settings.
const secretWord = `secret|passw|passphrase|token|credential|private_?key|` +
	`authorization|bearer|cookie|api_?key|[a-z]_key`

var (
	secretName = regexp.MustCompile(`(?i)(?:headers|` + secretWord + `)`)
	// NAME: VALUE and NAME=VALUE to the end of the line, and in JSON.
	secretLine  = regexp.MustCompile(`(?im)^(\s*(?:- |#\s*)?[\w.-]*(?:` + secretWord + `)[\w.-]*\s*[:=]\s*)\S.*$`)
	secretJSON  = regexp.MustCompile(`(?i)("[^"]*(?:` + secretWord + `)[^"]*"\s*:\s*)(?:"(?:[^"\\]|\\.)*"|[^",}\]\s{\[]+)`)
	secretWords = regexp.MustCompile(`(?i)\b((?:[\w.-]*(?:password|passwd|secret|token|authorization|api_?key)[\w.-]*)` +
		`\s*[:=]\s*(?:(?:basic|bearer)\s+)?)[^\s"',;&\\]+`)
	secretAuth = regexp.MustCompile(`(?i)\b((?:basic|bearer)\s+)[A-Za-z0-9+/._~=-]{8,}`)
	// Whoever logs a URL logs what is in it.
	secretURL = regexp.MustCompile(`(://)[^/\s"'@]+@`)
	// A key in PEM, with line ends as they are or escaped.
	secretPEM = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|SECRET)[A-Z0-9 ]*-----` +
		`.*?(?:-----END [A-Z0-9 ]*-----|\z)`)
)

// hints are in every line that has something for the expressions above, in small letters.
var hints = []string{
	"secret", "passw", "passphrase", "token", "credential", "private", "authorization",
	"bearer", "basic", "cookie", "api_key", "apikey", "_key", "://",
}

// redact takes secrets out of a text.
func redact(b []byte) []byte {
	if bytes.Contains(b, []byte("-----BEGIN ")) {
		b = secretPEM.ReplaceAll(b, []byte(redacted))
	}
	out := make([]byte, 0, len(b))
	for line := range bytes.Lines(b) {
		low := bytes.ToLower(line)
		if slices.ContainsFunc(hints, func(h string) bool { return bytes.Contains(low, []byte(h)) }) {
			line = redactLine(line)
		}
		out = append(out, line...)
	}
	return out
}

func redactLine(b []byte) []byte {
	b = secretJSON.ReplaceAll(b, []byte(`${1}"`+redacted+`"`))
	b = secretLine.ReplaceAll(b, []byte("${1}"+redacted))
	b = secretWords.ReplaceAll(b, []byte("${1}"+redacted))
	b = secretAuth.ReplaceAll(b, []byte("${1}"+redacted))
	return secretURL.ReplaceAll(b, []byte("${1}"+redacted+"@"))
}

// redactYAML takes secrets and comments out of a configuration. One that cannot be read stays a
// text, without comments.
func redactYAML(b []byte) []byte {
	var n yamlv3.Node
	if err := yamlv3.Unmarshal(b, &n); err != nil || n.Kind == 0 {
		return redact(withoutComments(b))
	}
	clearNode(&n)
	out, err := yamlv3.Marshal(&n)
	if err != nil {
		return redact(withoutComments(b))
	}
	return redact(out)
}

func clearNode(n *yamlv3.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	if n.Kind == yamlv3.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if secretName.MatchString(n.Content[i].Value) {
				n.Content[i+1] = &yamlv3.Node{Kind: yamlv3.ScalarNode, Tag: "!!str", Value: redacted}
			}
		}
	}
	for _, c := range n.Content {
		clearNode(c)
	}
}

// withoutComments cuts off what stands behind a # at the start of a word.
func withoutComments(b []byte) []byte {
	var out bytes.Buffer
	for line := range strings.Lines(string(b)) {
		if i := strings.Index(" "+line, " #"); i >= 0 {
			line = strings.TrimRight(line[:i], " \t") + "\n"
		}
		out.WriteString(line)
	}
	return out.Bytes()
}
