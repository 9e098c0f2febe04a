package state

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// memoryHeader is the length of what a memory file begins with: a hash of the
// boot it belongs to and of its size.
const memoryHeader = 4096

// bootID tells one boot of the machine from the next.
const bootID = "/proc/sys/kernel/random/boot_id"

// Memory returns size bytes that outlive the process, but not the machine. The next Memory of the
// same name and size has their contents, however the process ended. After a boot, or with another
// size, they are zero. They stay mapped until the process ends.
//
// In a directory that nodes share the bytes outlive the machine too, as far as it wrote them to the
// storage. Each part of them can then be of another moment. So every record must have a checksum,
// and must be true whatever the other records are.
func (s *Store) Memory(name string, size int) ([]byte, error) {
	boot := []byte("any ")
	if s.lease == nil {
		var err error
		if boot, err = os.ReadFile(bootID); err != nil {
			return nil, err
		}
	}
	tag := sha256.Sum256(fmt.Appendf(boot, "%d", size))
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	mem, err := mapMemory(f, tag[:], memoryHeader+size)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return mem[memoryHeader:], nil
}

func mapMemory(f *os.File, tag []byte, size int) ([]byte, error) {
	have := make([]byte, len(tag))
	if _, err := f.ReadAt(have, 0); err != nil || !bytes.Equal(have, tag) {
		if err := f.Truncate(0); err != nil {
			return nil, err
		}
	}
	// A hole in the file would be a SIGBUS when the disk is full.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, err
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	copy(mem, tag)
	return mem, nil
}
