package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// checkTypes refuses values that viper would convert silently: a number with a fraction, a number
// in place of true or false, a key that differs from a known one by case alone. In exports it also
// refuses empty values, because the zero value of many keys admits more clients. The decoder
// reports unknown keys.
func checkTypes(text []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return checkNode(doc.Content[0], reflect.TypeFor[Config](), "")
}

func checkNode(n *yaml.Node, t reflect.Type, at string) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		return checkMapping(n, t, at)
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			if err := checkNode(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	case t.Kind() == reflect.Slice: // viper makes a list of a single value
		return checkNode(n, t.Elem(), at)
	}
	if why := wrongValue(n, t, strings.HasPrefix(at, exportsKey)); why != "" {
		return fmt.Errorf("line %d: %s: %s", n.Line, at, why)
	}
	return nil
}

func checkMapping(n *yaml.Node, t reflect.Type, at string) error {
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
				if err := checkNode(m, t, at); err != nil {
					return err
				}
			}
			continue
		}
		for f := range t.Fields() {
			name := f.Tag.Get("mapstructure")
			if !strings.EqualFold(name, key.Value) || name == "-" {
				continue
			}
			if name != key.Value {
				return fmt.Errorf("line %d: key %q is written %q", key.Line, key.Value, name)
			}
			path := name
			if at != "" {
				path = at + "." + name
			}
			if err := checkNode(value, f.Type, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// wrongValue is the reason why a node is no value of a type, or is empty.
func wrongValue(n *yaml.Node, t reflect.Type, strict bool) string {
	const empty = "has no value; leave the key out for its default"
	null := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch {
	case strict && (null || n.Kind == yaml.ScalarNode && n.Value == ""):
		return empty
	case null || t == reflect.TypeFor[time.Duration](): // viper takes the default; durations are parsed as text
		return ""
	case n.Kind != yaml.ScalarNode:
		return "is to be a single value"
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
	case reflect.String:
		if strict && (n.Tag == "!!bool" || n.Tag == "!!float") {
			return fmt.Sprintf("%s is not a string; put it in quotes if a string is meant", n.Value)
		}
	}
	return ""
}
