package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// checkTypes finds unknown keys, and values that viper would convert silently or refuse in terms of
// Go: a number with a fraction, a number in place of true or false or of a duration, a key that
// differs from a known one by case alone. In exports it also finds empty values, because the zero
// value of many keys admits more clients. lines has the line of each key, as in exports[0].path.
// The error is of type *Problems, and has them all.
func checkTypes(text []byte) (lines map[string]int, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, notYAML(err)
	}
	c := checker{lines: make(map[string]int)}
	if len(doc.Content) > 0 {
		c.node(doc.Content[0], reflect.TypeFor[Config](), "")
		if len(c.found) > 0 {
			c.values(doc.Content[0])
		}
	}
	return c.lines, byLine(c.found)
}

// values adds what is wrong with the values of those keys of a file whose types are right, so that
// all mistakes are seen at once.
func (c *checker) values(root *yaml.Node) {
	rest := yaml.Node{Kind: yaml.MappingNode}
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		one := checker{lines: make(map[string]int)}
		one.mapping(&yaml.Node{Content: root.Content[i : i+2]}, reflect.TypeFor[Config](), "")
		if len(one.found) == 0 {
			rest.Content = append(rest.Content, root.Content[i:i+2]...)
		}
	}
	text, err := yaml.Marshal(&rest)
	if err != nil {
		return
	}
	v := viper.New()
	v.SetConfigType("yaml")
	cfg := Default()
	cfg.StateDir, cfg.Control = "/", "/"
	if v.ReadConfig(bytes.NewReader(text)) != nil || v.UnmarshalExact(cfg) != nil {
		return
	}
	cfg.dropEmpty()
	var p *Problems
	if errors.As(located(cfg.Validate(), c.lines), &p) {
		c.found = append(c.found, p.List...)
	}
}

// checker collects what is wrong in a file.
type checker struct {
	lines map[string]int
	found []Problem
}

func (c *checker) add(line int, key, format string, a ...any) {
	c.found = append(c.found, Problem{line, key, fmt.Sprintf(format, a...)})
}

func (c *checker) node(n *yaml.Node, t reflect.Type, at string) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		c.mapping(n, t, at)
		return
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			name := fmt.Sprintf("%s[%d]", at, i)
			c.lines[name] = item.Line
			c.node(item, t.Elem(), name)
		}
		return
	case t.Kind() == reflect.Slice &&
		(n.Kind != yaml.ScalarNode || n.Tag != "!!null" || strings.HasPrefix(at, exportsKey)):
		c.node(n, t.Elem(), at) // viper makes a list of a single value
		return
	}
	if why := wrongValue(n, t, strings.HasPrefix(at, exportsKey)); why != "" {
		c.add(n.Line, at, "%s", why)
	}
}

func (c *checker) mapping(n *yaml.Node, t reflect.Type, at string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			for value.Kind == yaml.AliasNode {
				value = value.Alias
			}
			maps := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				maps = value.Content
			}
			for _, m := range maps {
				c.node(m, t, at)
			}
			continue
		}
		var known []string
		var field reflect.Type
		for f := range t.Fields() {
			name := f.Tag.Get("mapstructure")
			if name == "-" || name == "" {
				continue
			}
			known = append(known, name)
			if strings.EqualFold(name, key.Value) {
				field = f.Type
				if name != key.Value {
					c.add(key.Line, at, "key %q is written %q", key.Value, name)
				}
			}
		}
		if field == nil {
			c.add(key.Line, at, "key %q is unknown%s", key.Value, meant(key.Value, known))
			continue
		}
		path := strings.ToLower(key.Value)
		if at != "" {
			path = at + "." + path
		}
		c.lines[path] = key.Line
		c.node(value, field, path)
	}
}

// wrongValue is the reason why a node is no value of a type, or is empty.
func wrongValue(n *yaml.Node, t reflect.Type, strict bool) string {
	const empty = "has no value; leave the key out for its default"
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case strict && (null || n.Kind == yaml.ScalarNode && n.Value == ""):
		return empty
	case null: // viper takes the default
		return ""
	case t.Kind() == reflect.Struct && n.Kind == yaml.ScalarNode:
		return fmt.Sprintf("%q is a single value, but keys with values belong here, as in 'key: value'", n.Value)
	case t.Kind() == reflect.Struct:
		return "is a list, but keys with values belong here, as in 'key: value'"
	case n.Kind != yaml.ScalarNode:
		return "is to be a single value"
	case t == reflect.TypeFor[time.Duration]():
		return wrongDuration(n.Value)
	}
	switch t.Kind() {
	case reflect.Bool:
		if _, err := strconv.ParseBool(n.Value); err != nil || n.Tag != "!!bool" && n.Tag != "!!str" {
			return fmt.Sprintf("%q is neither true nor false", n.Value)
		}
	case reflect.Int, reflect.Uint32, reflect.Uint64:
		var err error
		if t.Kind() == reflect.Int {
			_, err = strconv.ParseInt(n.Value, 0, t.Bits())
		} else {
			_, err = strconv.ParseUint(n.Value, 0, t.Bits())
		}
		if err != nil || n.Tag != "!!int" && n.Tag != "!!str" {
			return fmt.Sprintf("%q is not a whole number within the allowed range", n.Value)
		}
	case reflect.Float64:
		if _, err := strconv.ParseFloat(n.Value, 64); err != nil {
			return fmt.Sprintf("%q is not a number", n.Value)
		}
	case reflect.String:
		if strict && (n.Tag == "!!bool" || n.Tag == "!!float") {
			return fmt.Sprintf("%s is not a string; put it in quotes if a string is meant", n.Value)
		}
	}
	return ""
}

// wrongDuration is the reason why a text is no duration, or is empty. A bare number would be in
// nanoseconds, which nobody means.
func wrongDuration(v string) string {
	if _, err := strconv.ParseFloat(v, 64); err == nil && strings.Trim(v, "0.") != "" {
		return fmt.Sprintf("%s has no unit; write %ss for seconds, %sm for minutes or %sh for hours", v, v, v, v)
	}
	if _, err := time.ParseDuration(v); err != nil && strings.Trim(v, "0.") != "" {
		return fmt.Sprintf("%q is not a duration, such as 90s, 5m or 1h30m", v)
	}
	return ""
}
