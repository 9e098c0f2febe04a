package roce

// Submit implements rdma.Loop.
func (s *shard) Submit(fn func()) bool {
	taken, first := s.inbox.Put(fn)
	if first {
		s.link.Wake()
	}
	return taken
}
