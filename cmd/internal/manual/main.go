// Command manual writes what the documentation takes from the code: the man pages in
// docs/man, and the tables of settings in docs/configuration.md. It runs at the top of
// the tree.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}
