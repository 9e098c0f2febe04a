// Package live computes the activity of the daemon. A Sample has the counters at one time; Between
// computes a View from two samples: the rates between them. The package is arithmetic alone. It
// reads no clock, makes no call and stores nothing, so that the terminal, the web page and scripts
// see the same numbers.
//
// The package knows nothing of who counts and who shows. Begin reading at Sample, then at Between.
// Its types are plain data: any number of goroutines may read them.
//
//	v := live.Between(before, after)
//	for _, r := range v.Operations {
//		fmt.Println(r.Name, r.Calls)
//	}
package live
