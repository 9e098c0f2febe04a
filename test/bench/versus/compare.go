package main

import "slices"

// side is one side of a row.
type side struct {
	By    variant `json:"by"`
	Value float64 `json:"value"` // median of the rounds, in the row's unit
	// Ratio is to the peer, of what is measured beside a row.
	Ratio float64 `json:"ratio,omitempty"`
}

// result is a row that was measured. Ratio is the median of the rounds' ratios of ours
// to the peer's, Min and Max the least and the largest of them; all three are 0 where
// there is no peer.
type result struct {
	Measure string  `json:"measure"`
	Against string  `json:"against,omitempty"`
	Unit    string  `json:"unit,omitempty"`
	Less    bool    `json:"less_is_better,omitempty"`
	Ours    *side   `json:"ours,omitempty"`
	Peer    *side   `json:"peer,omitempty"`
	Also    []side  `json:"also,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"`
	Min     float64 `json:"min_ratio,omitempty"`
	Max     float64 `json:"max_ratio,omitempty"`
	Wanted  float64 `json:"wanted"`
	Reached bool    `json:"reached"`
	// Missing says why there is nothing to compare.
	Missing string `json:"missing,omitempty"`
}

// result compares what was measured.
func (r *row) result(all map[variant]*taken) result {
	x := result{Measure: r.measure, Against: r.against, Unit: r.metric.unit, Less: r.metric.less, Wanted: r.wanted}
	ours, missing := r.metric.best(r.ours, all)
	if missing != "" {
		x.Missing = missing
		return x
	}
	x.Ours = r.metric.side(ours, all)
	if len(r.peer) == 0 {
		x.Reached = x.within(x.Ours.Value)
		return x
	}
	peer, missing := r.metric.best(r.peer, all)
	if missing != "" {
		x.Missing = missing
		return x
	}
	x.Peer = r.metric.side(peer, all)
	q := r.metric.ratios(all[ours].Samples, all[peer].Samples)
	if len(q) == 0 {
		x.Missing = "the peer took nothing that could be measured"
		return x
	}
	x.Ratio, x.Min, x.Max = middle(q), slices.Min(q), slices.Max(q)
	x.Reached = x.within(x.Ratio)
	for _, v := range r.also {
		if len(all[v].Samples) == 0 {
			continue
		}
		s := r.metric.side(v, all)
		if q := r.metric.ratios(all[v].Samples, all[peer].Samples); len(q) > 0 {
			s.Ratio = middle(q)
		}
		x.Also = append(x.Also, *s)
	}
	return x
}

// within reports whether a value is as good as wanted.
func (x *result) within(v float64) bool {
	if x.Less {
		return v <= x.Wanted
	}
	return v >= x.Wanted
}

// best is the variant with the best median, or why there is none.
func (m *metric) best(vs []variant, all map[variant]*taken) (best variant, missing string) {
	at := 0.
	for _, v := range vs {
		t := all[v]
		if len(t.Samples) == 0 {
			missing = t.Err
			continue
		}
		x := middle(m.values(t.Samples))
		if best == "" || m.less == (x < at) && x != at {
			best, at = v, x
		}
	}
	if best != "" {
		missing = ""
	}
	return best, missing
}

func (m *metric) side(v variant, all map[variant]*taken) *side {
	return &side{By: v, Value: middle(m.values(all[v].Samples)) * m.scale}
}

func (m *metric) values(s []sample) []float64 {
	out := make([]float64, len(s))
	for i := range s {
		out[i] = m.of(&s[i])
	}
	return out
}

// ratios of ours to the peer's in each round that both have.
func (m *metric) ratios(ours, peer []sample) []float64 {
	var q []float64
	for i := range min(len(ours), len(peer)) {
		if p := m.of(&peer[i]); p > 0 {
			q = append(q, m.of(&ours[i])/p)
		}
	}
	return q
}

// middle is the median; 0 of nothing.
func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
