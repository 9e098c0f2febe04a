package rdma

import "reflect"

// AddCounters adds the fields of n to those of sum. T is a struct of uint64 fields.
func AddCounters[T any](sum, n *T) {
	s, a := reflect.ValueOf(sum).Elem(), reflect.ValueOf(n).Elem()
	for i := range s.NumField() {
		s.Field(i).SetUint(s.Field(i).Uint() + a.Field(i).Uint())
	}
}
