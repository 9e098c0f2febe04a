package failover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Standby is the entry of a node that waits for the lease. The node writes it into the state
// directory.
type Standby struct {
	Node    string `json:"node"`
	Address string `json:"address"` // HOST:PORT of its Listener
}

// prefix begins the names of the files of standbys.
const prefix = "standby."

// path returns the name of the file of a standby. A node's name can have any character.
func path(dir, node string) string {
	return filepath.Join(dir, prefix+strings.ReplaceAll(url.PathEscape(node), ".", "%2E"))
}

// register writes the file of a standby. No other node writes it.
func (s Standby) register(dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".standby.*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path(dir, s.Node))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// List returns the standbys of a state directory. A node that was lost stays in the list.
func List(dir string) (list []Standby, err error) {
	names, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has begun to serve, and removed its file
		}
		var s Standby
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, s)
	}
	return list, nil
}
