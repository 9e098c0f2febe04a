// Package exportsfile reads export tables in the syntax of exports(5), which Linux servers have as
// /etc/exports and /etc/exports.d/*.exports. It knows how a table is written, and nothing of what
// its options mean: that is the business of package config. Begin reading at Table.Parse. A Table
// is plain data: one goroutine at a time fills it, and any may read it then.
//
//	t, err := exportsfile.Load("/etc/exports")
package exportsfile
