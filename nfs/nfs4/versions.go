package nfs4

// serveMinors sets the minor versions that are served; nil means all.
func (s *Server) serveMinors(list []uint32) {
	for m := range s.minors {
		s.minors[m] = list == nil
	}
	for _, m := range list {
		if m <= minorMax {
			s.minors[m] = true
		}
	}
}

func (s *Server) servesMinor(m uint32) bool { return m <= minorMax && s.minors[m] }
