package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// errMeaningless is the warning about an option that is accepted and does nothing.
type errMeaningless struct{ why string }

func (e *errMeaningless) Error() string { return e.why }

// ApplyOptions applies options of exports(5), and our own, to a client's rule. Some of them change
// the whole export.
func (e *Export) ApplyOptions(c *Client, opts []string) error {
	for _, o := range opts {
		var nothing *errMeaningless
		if err := e.apply(c, o); err != nil && !errors.As(err, &nothing) {
			return err
		}
	}
	return nil
}

// apply applies one option.
func (e *Export) apply(c *Client, o string) error {
	key, val, hasVal := strings.Cut(strings.TrimSpace(o), "=")
	row, ok := options[key]
	switch {
	case !ok:
		return fmt.Errorf("unknown export option %q%s", o, meant(key, slices.Sorted(maps.Keys(options))))
	case hasVal && row.value == noValue, !hasVal && row.value == needsValue:
		return fmt.Errorf("unknown export option %q: %s", o, row.value)
	}
	if err := row.set(e, c, val); err != nil {
		var nothing *errMeaningless
		if errors.As(err, &nothing) {
			return err
		}
		return fmt.Errorf("export option %q: %w", o, err)
	}
	return nil
}

// valued says whether an option has a value.
type valued int

const (
	noValue valued = iota
	needsValue
	mayHaveValue
)

func (v valued) String() string {
	if v == needsValue {
		return "the option needs a value, as in option=value"
	}
	return "the option takes no value"
}

// option is what an option of exports(5) does.
type option struct {
	value valued
	set   func(e *Export, c *Client, val string) error
}

func flag(f func(e *Export, c *Client)) option {
	return option{noValue, func(e *Export, c *Client, _ string) error { f(e, c); return nil }}
}

// nothing is an option that asks for what the server always does.
var nothing = flag(func(*Export, *Client) {})

// meaningless is an option that asks for what the server never does. It is accepted with a warning.
func meaningless(why string) option {
	return option{noValue, func(*Export, *Client, string) error { return &errMeaningless{why} }}
}

func list(to func(e *Export, c *Client) *[]string, sep string) option {
	return option{needsValue, func(e *Export, c *Client, val string) error {
		*to(e, c) = strings.Split(val, sep)
		return nil
	}}
}

func number[T uint32 | uint64](to func(e *Export, c *Client) *T) option {
	return option{needsValue, func(e *Export, c *Client, val string) error {
		n, err := strconv.ParseUint(val, 10, 32)
		if err != nil {
			return errors.New("not a number")
		}
		*to(e, c) = T(n)
		return nil
	}}
}

func anon(to func(c *Client) **uint32) option {
	return option{needsValue, func(_ *Export, c *Client, val string) error {
		n, err := strconv.ParseInt(val, 10, 64)
		if err != nil || n < -1<<31 || n > 1<<32-1 {
			return errors.New("not a user or group number")
		}
		id := uint32(n) // exports(5) allows -2 for 4294967294
		*to(c) = &id
		return nil
	}}
}

// options has the options of exports(5), then our own. docs/exports.md has the same table.
var options = map[string]option{
	"ro":            flag(func(_ *Export, c *Client) { c.ReadOnly = true }),
	"rw":            flag(func(_ *Export, c *Client) { c.ReadOnly = false }),
	"sync":          flag(func(e *Export, _ *Client) { e.Async = false }),
	"async":         flag(func(e *Export, _ *Client) { e.Async = true }),
	"secure":        flag(func(_ *Export, c *Client) { c.Secure = true }),
	"insecure":      flag(func(_ *Export, c *Client) { c.Secure = false }),
	RootSquash:      flag(func(_ *Export, c *Client) { c.squashRoot(RootSquash) }),
	NoRootSquash:    flag(func(_ *Export, c *Client) { c.squashRoot(NoRootSquash) }),
	AllSquash:       flag(func(_ *Export, c *Client) { c.Squash = AllSquash }),
	"no_all_squash": flag(func(_ *Export, c *Client) { c.unsquash() }),
	"anonuid":       anon(func(c *Client) **uint32 { return &c.AnonUID }),
	"anongid":       anon(func(c *Client) **uint32 { return &c.AnonGID }),
	"sec":           list(func(_ *Export, c *Client) *[]string { return &c.Sec }, ":"),
	"fsid":          {needsValue, func(e *Export, _ *Client, val string) error { return e.setFSID(val) }},
	"crossmnt":      flag(func(e *Export, _ *Client) { e.CrossMnt = true }),
	"nocrossmnt":    flag(func(e *Export, _ *Client) { e.CrossMnt = false }),
	"nohide":        flag(func(_ *Export, c *Client) { c.NoHide = true }),
	"hide":          flag(func(_ *Export, c *Client) { c.NoHide = false }),
	"nordirplus":    flag(func(_ *Export, c *Client) { c.NoReadDirPlus = true }),
	"mountpoint":    {mayHaveValue, setMountPoint},
	"mp":            {mayHaveValue, setMountPoint},
	"subtree_check": meaningless("subtree_check does nothing: handles are authenticated, " +
		"and a directory is found by its way up to the export"),
	"pnfs":             meaningless("pnfs does nothing: all data goes through this server"),
	"no_acl":           meaningless("no_acl does nothing: ACLs are always served"),
	"security_label":   flag(func(e *Export, _ *Client) { e.SecurityLabel = true }),
	"refer":            {needsValue, func(e *Export, _ *Client, val string) error { e.Refer = val; return nil }},
	"replicas":         {needsValue, func(e *Export, _ *Client, val string) error { e.Replicas = val; return nil }},
	"no_subtree_check": nothing, "wdelay": nothing, "no_wdelay": nothing, "no_pnfs": nothing, "acl": nothing,
	"xprtsec": list(func(_ *Export, c *Client) *[]string { return &c.XprtSec }, ":"),

	"no_security_label": flag(func(e *Export, _ *Client) { e.SecurityLabel = false }),

	"host_locks":       flag(func(e *Export, _ *Client) { e.HostLocks = new(true) }),
	"no_host_locks":    flag(func(e *Export, _ *Client) { e.HostLocks = new(false) }),
	"direct":           flag(func(e *Export, _ *Client) { e.Direct = true }),
	"no_direct":        flag(func(e *Export, _ *Client) { e.Direct = false }),
	"pkey":             {needsValue, func(e *Export, _ *Client, val string) error { e.addPKey(val); return nil }},
	"transport":        list(func(_ *Export, c *Client) *[]string { return &c.Transports }, ":"),
	"rsize":            number(func(_ *Export, c *Client) *uint32 { return &c.RSize }),
	"wsize":            number(func(_ *Export, c *Client) *uint32 { return &c.WSize }),
	"bandwidth":        {needsValue, func(_ *Export, c *Client, val string) error { c.Bandwidth = val; return nil }},
	"iops":             number(func(_ *Export, c *Client) *uint64 { return &c.IOPS }),
	"export_bandwidth": {needsValue, func(e *Export, _ *Client, val string) error { e.Bandwidth = val; return nil }},
	"quota":            {needsValue, func(e *Export, _ *Client, val string) error { e.Quota = val; return nil }},
	"export_iops":      number(func(e *Export, _ *Client) *uint64 { return &e.IOPS }),
	"auth_nlm":         flag(func(_ *Export, c *Client) { c.InsecureLocks = false }),
	"secure_locks":     flag(func(_ *Export, c *Client) { c.InsecureLocks = false }),
	"no_auth_nlm":      flag(func(_ *Export, c *Client) { c.InsecureLocks = true }),
	"insecure_locks":   flag(func(_ *Export, c *Client) { c.InsecureLocks = true }),
	"manage_gids":      flag(func(_ *Export, c *Client) { c.ManageGIDs = true }),
	"no_manage_gids":   flag(func(_ *Export, c *Client) { c.ManageGIDs = false }),
}

// squashRoot sets how root is squashed. all_squash stays in force until no_all_squash.
func (c *Client) squashRoot(squash string) {
	if c.Squash != AllSquash {
		c.Squash = squash
	}
}

func (c *Client) unsquash() {
	if c.Squash == AllSquash {
		c.Squash = RootSquash
	}
}

func (e *Export) addPKey(k string) {
	if !slices.Contains(e.PKeys, k) {
		e.PKeys = append(e.PKeys, k)
	}
}

// setFSID sets the fsid. exports(5) allows a number and a UUID together; the number then counts.
func (e *Export) setFSID(val string) error {
	if _, err := ParseFSID(val); err != nil {
		return errors.New("neither a number, nor root, nor a UUID of 32 hexadecimal digits")
	}
	if _, err := strconv.ParseUint(e.FSID, 10, 32); err != nil {
		e.FSID = val
	}
	return nil
}

func setMountPoint(e *Export, _ *Client, val string) error {
	e.MountPoint = val
	if val == "" {
		e.MountPoint = "."
	}
	return nil
}

// optionList collects options as exports(5) spells them.
type optionList []string

// add adds an option without a value if it is set.
func (l *optionList) add(name string, on bool) {
	if on {
		*l = append(*l, name)
	}
}

// value adds NAME=VALUE unless the value is the zero value of its type.
func value[T comparable](l *optionList, name string, v T) {
	if v != *new(T) {
		*l = append(*l, fmt.Sprintf("%s=%v", name, v))
	}
}

// String is the rule as exports(5) has it, with all that is not the default.
func (c *Client) String() string {
	opts := optionList{"rw", cmp.Or(c.Squash, RootSquash)}
	if c.ReadOnly {
		opts[0] = "ro"
	}
	if c.AnonUID != nil {
		opts.add(fmt.Sprintf("anonuid=%d", *c.AnonUID), true)
	}
	if c.AnonGID != nil {
		opts.add(fmt.Sprintf("anongid=%d", *c.AnonGID), true)
	}
	opts.add("secure", c.Secure)
	value(&opts, "sec", strings.Join(c.Sec, ":"))
	value(&opts, "transport", strings.Join(c.Transports, ":"))
	value(&opts, "xprtsec", strings.Join(c.XprtSec, ":"))
	value(&opts, "rsize", c.RSize)
	value(&opts, "wsize", c.WSize)
	value(&opts, "bandwidth", c.Bandwidth)
	value(&opts, "iops", c.IOPS)
	opts.add("manage_gids", c.ManageGIDs)
	opts.add("nohide", c.NoHide)
	opts.add("nordirplus", c.NoReadDirPlus)
	opts.add("insecure_locks", c.InsecureLocks)
	return c.Name() + "(" + strings.Join(opts, ",") + ")"
}

// Options are the options of the whole export that are not the default, beside ro and async.
func (e *Export) Options() []string {
	var opts optionList
	opts.add("no_host_locks", e.HostLocks != nil && !*e.HostLocks)
	opts.add("direct", e.Direct)
	value(&opts, "fsid", e.FSID)
	opts.add("crossmnt", e.CrossMnt)
	opts.add("security_label", e.SecurityLabel)
	if e.MountPoint == "." {
		opts.add("mountpoint", true)
	} else {
		value(&opts, "mountpoint", e.MountPoint)
	}
	value(&opts, "refer", e.Refer)
	value(&opts, "replicas", e.Replicas)
	value(&opts, "export_bandwidth", e.Bandwidth)
	value(&opts, "export_iops", e.IOPS)
	value(&opts, "quota", e.Quota)
	for _, k := range e.PKeys {
		value(&opts, "pkey", k)
	}
	return opts
}
