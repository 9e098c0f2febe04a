// Package top shows a running server on a terminal, and as text for scripts. The lines are a
// function of a live.View and of the keys that were pressed (Model). Run is the terminal around it.
// The package does not know how a View is fetched.
//
// Begin reading at Model.Lines. tables.go has the columns, screen.go the terminal, batch.go the
// output for scripts. A Model belongs to one goroutine.
//
//	m, err := top.NewModel("clients", "")
//	m.Show(view)
//	lines := m.Lines()
package top
