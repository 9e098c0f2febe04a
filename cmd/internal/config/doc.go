// Package config is the configuration of rstored: one typed value, read once from the file, the
// environment and the flags (flag over environment over file over default) and never changed
// afterwards. It also reads exports in one line, export tables, and files of exports and ports. It
// opens nothing of what it describes.
//
// Begin reading at Config and Load. settingstable.go has a row for each setting, options.go one for
// each option of an export. CONTRIBUTING.md says how to add one. A Config may be read from any
// goroutine.
//
//	flags := pflag.NewFlagSet("rstored", pflag.ContinueOnError)
//	config.AddFlags(flags)
//	cfg, err := config.Load(flags)
package config
