package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/cli"
)

// Bounds in bytes, before compression.
const (
	fileMax = 4 << 20
	allMax  = 32 << 20
)

// Config says what goes into a bundle.
type Config struct {
	Daemon Daemon
	// File is the configuration on disk.
	File string
	// Unit is the unit of systemd whose journal is read.
	Unit string
	// Profile is the duration of a CPU profile of the daemon; 0 is none.
	Profile time.Duration
	// Anonymous replaces addresses of clients, names of hosts, and paths.
	Anonymous bool
	// Root is the host's file system, "/".
	Root string
}

// File is a part of the bundle.
type File struct {
	Name   string `json:"name"`
	What   string `json:"what"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
	// Cut: it has only the end of a longer part.
	Cut bool `json:"cut,omitempty"`

	data []byte
}

// Missing is a part that could not be collected.
type Missing struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Manifest says what is in a bundle. It is its first file, manifest.json.
type Manifest struct {
	Made      time.Time `json:"made"`
	By        cli.Build `json:"by"`
	Anonymous bool      `json:"anonymous"`
	Files     []File    `json:"files"`
	Missing   []Missing `json:"missing"`
}

// collector gathers parts.
type collector struct {
	cfg   Config
	m     Manifest
	kinds map[string]kind // by name
	total int
}

// kind is the way in which secrets are removed from a part.
type kind int

const (
	text   kind = iota // lines
	yaml               // a file of the configuration
	code               // places in programs, and no names of users
	binary             // a profile
)

func (c *collector) missing(name string, err error) {
	c.m.Missing = append(c.m.Missing, Missing{name, err.Error()})
}

// add adds a part, or the reason why it is missing.
func (c *collector) add(name, what string, k kind, data []byte, err error) {
	if err != nil {
		c.missing(name, err)
		return
	}
	switch k {
	case yaml:
		data = redactYAML(data)
	case text, code:
		data = redact(data)
	}
	f := File{Name: name, What: what}
	if len(data) > fileMax {
		if k == binary {
			c.missing(name, fmt.Errorf("it has %d bytes, more than %d", len(data), fileMax))
			return
		}
		data, f.Cut = data[len(data)-fileMax:], true
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
	}
	if c.total += len(data); c.total > allMax {
		c.total -= len(data)
		c.missing(name, errors.New("the bundle is full"))
		return
	}
	f.data = data
	c.m.Files = append(c.m.Files, f)
	c.kinds[name] = k
}

// Write collects a bundle and writes it, compressed.
func Write(ctx context.Context, w io.Writer, cfg Config) (Manifest, error) {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	c := &collector{cfg: cfg, kinds: make(map[string]kind), m: Manifest{
		Made: time.Now().UTC(), By: cli.ReadBuild(), Anonymous: cfg.Anonymous, Files: []File{}, Missing: []Missing{},
	}}
	c.daemon(ctx)
	c.host(ctx)
	return c.m, c.write(w)
}

func (c *collector) write(w io.Writer) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	put := func(name string, data []byte) error {
		h := &tar.Header{
			Name: "rstored-support/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: c.m.Made, Typeflag: tar.TypeReg,
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	slices.SortFunc(c.m.Files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	for i := range c.m.Files {
		f := &c.m.Files[i]
		sum := sha256.Sum256(f.data)
		f.Size, f.SHA256 = len(f.data), hex.EncodeToString(sum[:])
	}
	b, err := json.MarshalIndent(&c.m, "", "  ")
	if err != nil {
		return err
	}
	if err := put("manifest.json", append(b, '\n')); err != nil {
		return err
	}
	for i := range c.m.Files {
		if err := put(c.m.Files[i].Name, c.m.Files[i].data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// read returns a file of the host, or its first bytes if it is larger than fileMax.
func (c *collector) read(name string) ([]byte, error) {
	f, err := os.Open(strings.TrimSuffix(c.cfg.Root, "/") + name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, fileMax+1))
}
