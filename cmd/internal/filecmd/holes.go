package filecmd

import (
	"bytes"
	"io"
)

// holeBlock is the unit in which holes are made, in bytes: the block of common
// file systems.
const holeBlock = 4096

var zeros [holeBlock]byte

// holes passes writes on, except for blocks of zeros. If the file was empty, these blocks become
// holes.
type holes struct{ w io.WriterAt }

// WriteAt implements io.WriterAt.
func (h holes) WriteAt(p []byte, off int64) (int, error) {
	start := 0 // of the data that is not written yet
	flush := func(end int) error {
		if start == end {
			return nil
		}
		_, err := h.w.WriteAt(p[start:end], off+int64(start))
		return err
	}
	for at := 0; at < len(p); {
		n := min(len(p)-at, int(holeBlock-(off+int64(at))%holeBlock))
		if bytes.Equal(p[at:at+n], zeros[:n]) {
			if err := flush(at); err != nil {
				return 0, err
			}
			start = at + n
		}
		at += n
	}
	return len(p), flush(len(p))
}
